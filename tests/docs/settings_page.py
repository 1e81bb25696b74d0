"""The page of the reference about the settings of a job, made from their table.

``python -m tests.docs.settings_page`` writes it again after a change of the table.
"""

from __future__ import annotations

import itertools

from hpc_elastic.settings.setting import Sbatch, Setting
from hpc_elastic.settings.table import JOB
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "job-file.md"
SHORT = {
    "a list of words, or text that is split as in a shell": "words",
    "a list of names, or text with blanks or commas": "names",
    "names of modules, as a list or text with commas": "names",
    "a list of signals, or text with commas": "signals",
    "0, 1, 2, 3, or by local rank": "streams",
    "numbers with commas between them": "local ranks",
    "a list of lines, or text": "lines",
    "whole number, 0 or more": "0, 1, ...",
    "whole number, 1 or more": "1, 2, ...",
    "true or false": "switch",
    "a time, more than 0": "time above 0",
    "a time": "time",
}
"""Kinds of values in the words of the page, whose head explains them."""
_HEAD = """\
# The settings of a job

Each setting has one name. It is a key of a job file (TOML), a field of `JobSpec`, an argument of \
`hpc_elastic.submit`, a parameter of the submitit executor with `hpcelastic_` in front, and an option of \
`hpc-elastic submit` and `render` with dashes: `max_restarts` is `--max-restarts`.
A switch has two options: `--exclusive` and `--no-exclusive`. An option wins over the job file.

```toml
command = "train.py --lr 0.1"
nodes = "2:4"
gpus_per_node = 8
time = "4h"
max_restarts = 5

[env]
NCCL_DEBUG = "WARN"

[sbatch]
gres-flags = "enforce-binding"
```

A time is a number of seconds or has a unit: `90s`, `2m`, `1h30m`.
A time limit is a number of minutes, as in Slurm, or has a unit or the form `HH:MM:SS` or `D-HH:MM:SS`.
Words are a list, or text that is split as in a shell; names a list, or text with blanks or commas; \
lines a list, or text.
This page is made from `hpc_elastic/settings/table.py`.
"""


def page() -> str:
    """Return the text of the page."""
    panels = itertools.groupby(JOB.values(), key=lambda row: row.panel)
    return _HEAD + "".join(_table(title, list(rows)) for title, rows in panels)


def _table(title: str, rows: list[Setting]) -> str:
    head = "| setting | default | values | meaning |\n|---|---|---|---|\n"
    return f"\n## {title}\n\n{head}" + "".join(map(_row, rows))


def _row(row: Setting) -> str:
    name = f"`{row.name}`" + (f", `{row.written.short}`" if row.written.short else "")
    cells = (name, default_cell(row), SHORT.get(row.kind.says, row.kind.says), _meaning(row))
    return "| " + " | ".join(cells) + " |\n"


def default_cell(row: Setting) -> str:
    """Return the default of a setting of a job as the page shows it."""
    text = "true" if row.holds is True else row.default_text()
    return f"`{text}`" if text and not row.written.default else text


def _meaning(row: Setting) -> str:
    """Return the help of a setting; with the option of sbatch where that has another name."""
    option = row.to.option if isinstance(row.to, Sbatch) else ""
    is_other = option not in ("", row.name.replace("_", "-"))
    return f"{row.help} (`--{option}` of sbatch)" if is_other else row.help


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
