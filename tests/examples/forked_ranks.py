"""Runs ranks that are forked from one process: ``forked_ranks.py IMPORTS ENVIRONMENTS PROGRAM [ARGUMENTS]``.

The process has imported what takes each of them seconds. It ends with the highest exit code of a rank.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Mapping


def fork(environ: Mapping[str, str]) -> int:
    """Start a rank and return its pid."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(environ)
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    imports, environments, *sys.argv = sys.argv[1:]
    for name in imports.split(","):
        importlib.import_module(name)
    children = [fork(environ) for environ in json.loads(environments)]
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
