"""Writes docs/reference/lint.md from the rules: ``python -m tests.docs.lint_page``."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.slurm.lint.pitfalls import RULES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lint.md"
_HEAD = """# Rules of `hpc-elastic lint`

```
hpc-elastic lint job.sbatch train.py   # any number of scripts and job files (.toml)
hpc-elastic lint --explain HE109       # one of the rules below
hpc-elastic lint --fix job.sbatch      # change the script where that is safe
```

Exit codes: 0 without findings, 1 with findings, 2 for an error.
A file that cannot be read, or that has none of these kinds, is an error.

| kind | told by |
|---|---|
| job file | its name ends in `.toml` |
| training script | its name ends in `.py`, or its first line names Python |
| job script in Python | as a training script, but with `#SBATCH` lines or the name of a job script |
| job script | its first line begins with `#!`, a line begins with `#SBATCH`, or it has the name of one |

The name of a job script ends in `.sbatch`, `.slurm`, `.batch`, `.job`, `.sub`, `.sl`, `.sh` or `.bash`.
Of a job script in Python only the options for sbatch are checked.
`--json`: a document per file: `file`, and `findings` with `code`, `line`, `text`, `fix`, `is_fixable`.
The shell of a job script is asked whether it can read it (`bash -n`); nothing of a script is run.
A command in a variable, in a list or in the words of `bash -c` and `eval` is found where it is used.
The script itself must assign the variable: `LAUNCH="torchrun ..."`, `CMD=(srun ...)`.
`--fix` replaces the script in one step: on a full disk the old one stays.
A script without `#!` is not changed.
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
