"""Asking the shell of a script whether it can read it; nothing of the script is run."""

from __future__ import annotations

import re
import subprocess  # noqa: TID251 - asks a shell

from hpc_elastic.named_tuple import NamedTuple

_SHELLS = re.compile(r"#!\s*(?:/usr/bin/env\s+)?\S*?\b(bash|sh|dash|ksh)\b")
_ASK_S = 10.0
_LINE = re.compile(r"line (\d+): (.*)")


class BadLine(NamedTuple):
    """A line at which a shell stops reading.

    Attributes:
        line: from 1.
        words: of the shell.
    """

    line: int
    words: str


def bad_line(text: str) -> BadLine | None:
    """Return the line at which the shell of a script cannot read on; None if it can, or cannot be asked.

    Args:
        text: of the script; its first line names the shell.
    """
    shell = _SHELLS.match(text.partition("\n")[0])
    if shell is None:
        return None
    plain = text.replace("\r\n", "\n")
    try:
        done = subprocess.run(
            [shell[1], "-n"], input=plain, capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not done.returncode:
        return None
    said = _LINE.search(done.stderr)
    return BadLine(int(said[1]), said[2]) if said else BadLine(1, done.stderr.strip())
