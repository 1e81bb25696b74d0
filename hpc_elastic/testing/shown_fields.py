"""The fields that scontrol prints, for tests; a text in it that looks like a field is taken for one."""

from __future__ import annotations

import re

from hpc_elastic.slurm.client.jobs import liveliest


def shown_job(text: str) -> dict[str, str]:
    """Return the fields of a job as ``scontrol show job -o`` prints them; of an array its liveliest task."""
    jobs = [shown_fields(line) for line in text.splitlines() if line.startswith("JobId=")]
    return liveliest(jobs) or {}


def shown_fields(line: str) -> dict[str, str]:
    """Return the fields of one line of ``scontrol show ... -o``.

    A value may hold blanks (a command, a comment): it runs on to the next ``Name=``.
    """
    marks = list(re.finditer(r"(?:^| )([A-Z][A-Za-z:/_]*)=", line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):  # Slurm may have said nothing
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields
