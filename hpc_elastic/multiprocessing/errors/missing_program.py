"""A worker that ends because a program was not found: which one, and where it was looked for. Pure."""

from __future__ import annotations

import os
import re
from typing import Final

NOT_FOUND: Final = 127  # exit code of shells, env and container runtimes
_SAID: Final = (
    re.compile(r"(?:.*: )?([^\s:]+): (?:command )?not found"),  # shells
    re.compile(r"(?:\S*/)?env: ['\u2018]?([^'\u2019]+?)['\u2019]?: No such file or directory"),
    re.compile(r'.*"([^"]+)": executable file not found in \$PATH.*'),  # container runtimes
)
_ON_THIS_NODE: Final = ("sh", "bash", "dash", "ksh", "zsh", "env")  # they look in the PATH that they get


def missing_program_text(exitcode: int, stderr_tail: str, program: str, path: str) -> str:
    """Return that a program was not found; empty where the output of the worker does not tell which one.

    Args:
        exitcode: of the worker.
        stderr_tail: the last lines of its output.
        program: the worker's own; one that starts others in a container has another PATH for them.
        path: PATH of the worker.
    """
    if exitcode != NOT_FOUND:
        return ""
    lines = [line.strip() for line in stderr_tail.splitlines()]
    found = (said.fullmatch(line) for line in reversed(lines) for said in _SAID)
    name = next((match[1] for match in found if match is not None), "")
    if not name:
        return ""
    where = f", looked for in PATH {path}" if os.path.basename(program) in _ON_THIS_NODE else ""
    return f"command not found: {name}{where}"
