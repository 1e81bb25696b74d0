"""The function that workers of ``--run-path`` run; imported by each of them."""

from __future__ import annotations

import os
import sys


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this interpreter as if it had been started.

    Args:
        training_script: path of the script.
        training_script_args: its arguments.
    """
    import runpy  # noqa: PLC0415 - in workers only

    sys.argv = [training_script, *training_script_args]
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path.insert(0, os.path.dirname(os.path.realpath(training_script)))
    runpy.run_path(training_script, run_name="__main__")
