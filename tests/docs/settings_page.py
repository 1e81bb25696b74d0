"""The page of the reference about the settings of a job, made from their table.

``python -m tests.docs.settings_page`` writes it again after a change of the table.
"""

from __future__ import annotations

import itertools

from hpc_elastic.settings.setting import Agent, FinishFlag, Sbatch, Setting
from hpc_elastic.settings.table import JOB
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "job-file.md"
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
The last column names the reader: sbatch, the agents (`hpc-elastic run`), `finish`, or `submit`.
This page is made from `hpc_elastic/settings/table.py`.
"""


def page() -> str:
    """Return the text of the page."""
    panels = itertools.groupby(JOB.values(), key=lambda row: row.panel)
    return _HEAD + "".join(_table(title, list(rows)) for title, rows in panels)


def _table(title: str, rows: list[Setting]) -> str:
    head = "| setting | default | values | meaning | reader |\n|---|---|---|---|---|\n"
    return f"\n## {title}\n\n{head}" + "".join(map(_row, rows))


def _row(row: Setting) -> str:
    name = f"`{row.name}`" + (f", `{row.written.short}`" if row.written.short else "")
    cells = (name, default_cell(row), row.kind.says, row.help, _reader(row))
    return "| " + " | ".join(cells) + " |\n"


def default_cell(row: Setting) -> str:
    """Return the default of a setting of a job as the page shows it."""
    text = "true" if row.holds is True else row.default_text()
    return f"`{text}`" if text and not row.written.default else text


def _reader(row: Setting) -> str:
    if isinstance(row.to, Sbatch):
        return f"sbatch, `--{row.to.option}`"
    if isinstance(row.to, Agent):
        return "agents"
    return "`finish`" if isinstance(row.to, FinishFlag) else "`submit`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
