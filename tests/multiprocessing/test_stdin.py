"""What workers read is what was given to who has started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PAUSES = "x = 1\nbreakpoint()\nprint('x is', x, flush=True)\n"
COPIES = """
import sys
from hpc_elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
specs = DefaultLogsSpecs(sys.argv[1], Std.ALL)
context = start_processes("copy", "/bin/cat", {0: ()}, envs={0: {}}, logs_specs=specs)
found = context.wait(120)
context.close()
print(open(found.stdouts[0]).read())
"""


def test_a_debugger_takes_its_commands_from_a_pipe(tmp_path: Path) -> None:
    """As below torchrun; also where it is no terminal."""
    script = tmp_path / "train.py"
    script.write_text(PAUSES)
    argv = [sys.executable, "-m", "hpc_elastic.run", "--standalone", "--nproc-per-node", "1", str(script)]
    done = subprocess.run(
        argv, input="x = 42\nc\n", capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert 0 == done.returncode, done.stderr
    assert "x is 42" in done.stdout


@pytest.mark.parametrize("closed", [False, True])
def test_programs_read_what_their_parent_would(tmp_path: Path, *, closed: bool) -> None:
    """Nothing, where that was started without a standard input."""
    script = 'exec "$@" <&-' if closed else 'exec "$@"'
    argv = ["sh", "-c", script, "sh", sys.executable, "-c", COPIES, str(tmp_path)]
    done = subprocess.run(argv, input="data", capture_output=True, text=True, timeout=60, check=False)
    assert ("\n" if closed else "data\n", 0) == (done.stdout, done.returncode), done.stderr
