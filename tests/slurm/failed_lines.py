"""Lines of job scripts that have failed, for tests."""

from __future__ import annotations

import re

from hpc_elastic.record.journal import SetupFailure

_TOLD = re.compile(
    r"(setup|the working directory) failed \(exit code (\d+)\): (.*?)(?: \((.*)\))?", re.DOTALL
)


def failed_line(text: str, *, lasting: bool = False) -> SetupFailure:
    """Return a failure as the job script prints it, with what was said of it in parentheses."""
    found = _TOLD.fullmatch(text)
    assert found is not None, text
    return SetupFailure(found[3], found[1], int(found[2]), found[4] or "", lasting)
