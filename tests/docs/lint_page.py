"""Writes docs/reference/lint.md from the rules: ``python -m tests.docs.lint_page``."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.slurm.lint.pitfalls import RULES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lint.md"
_HEAD = """# Rules of `hpc-elastic lint`

```
hpc-elastic lint job.sbatch         # or train.py, or job.toml
hpc-elastic lint --explain HE109    # one of the rules below
hpc-elastic lint --fix job.sbatch   # change the script where that is safe
```

Exit codes: 0 without findings, 1 with findings, 2 if the file cannot be read or the command line is wrong.
`--json`: `file` and `findings`, each with `code`, `line`, `text`, `fix`, `is_fixable`.
The shell of a job script is asked whether it can read it (`bash -n`); nothing of a script is run.
Options that stand in a sourced file or on the command line of sbatch are not seen.
A training script that uses `hpc_elastic.frameworks` needs no calls of its own.

`python -m tests.docs.lint_page` makes this page from `hpc_elastic/slurm/lint/pitfalls.py`.

| code | finding | consequence | fix |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    marks = {True: " (`--fix`)", False: ""}
    rows = (
        f"| {pitfall.value} | {rule.title}{marks[rule.is_fixable]} | {rule.why} | {rule.fix} |\n"
        for pitfall, rule in RULES.items()
    )
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
