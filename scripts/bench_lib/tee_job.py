"""Start printing workers with one package's start_processes and wait for their end.

Usage: tee_job.py PACKAGE MODE LOG_DIR RESULT FILE...   (each worker prints one of the files)
"""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

package, mode, log_dir, result_file, *files = sys.argv[1:]
base = import_module(package)
base.start_processes("warm", "true", {0: ()}, {0: {}}, base.DefaultLogsSpecs(log_dir=f"{log_dir}-0")).wait(
    -1, 0.01
)
specs = base.DefaultLogsSpecs(log_dir=log_dir, **{mode: base.Std.OUT})
args = {rank: (file,) for rank, file in enumerate(files)}
began_s = time.monotonic()
context = base.start_processes("job", "cat", args, {rank: {} for rank in args}, specs)
result = context.wait(-1, 0.01)
context.close()
sys.stdout.flush()
took_s = time.monotonic() - began_s
if result.is_failed():
    sys.exit("a worker failed")
cpu_s = sum(os.times()[:2])
Path(result_file).write_text(json.dumps({"took_s": took_s, "cpu_s": cpu_s}))
