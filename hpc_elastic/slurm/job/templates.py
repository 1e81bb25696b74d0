"""Finding what job scripts are made of: in an installed package, or beside it in a source tree."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.script import BASE, Template

_PACKAGE = Path(__file__).resolve().parents[2]
FOLDERS = (_PACKAGE / "sbatch_templates", _PACKAGE.parent / "sbatch_templates")
FUNCTIONS = "batch.sh"  # what the script calls; Slurm runs the same file on each node after its agent
NAMES = {"step": "elastic.sbatch", "array": "array.sbatch"}


def read_template(mode: str = "step") -> Template:
    """Return the job script template of a mode.

    Raises:
        InputError: this installation has no such template.
    """
    own, base, functions = (
        _find(name).read_text(encoding="utf-8") for name in (NAMES[mode], BASE, FUNCTIONS)
    )
    return Template(own, base, functions)


def epilog() -> str:
    """Return the path of the installed ``batch.sh``: whoever can change it can change this code, too.

    Raises:
        InputError: this installation has none.
    """
    return str(_find(FUNCTIONS))


@cache
def _find(name: str) -> Path:
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    places = " or ".join(str(folder) for folder in FOLDERS)
    raise InputError(f"{name} is not in {places}", fix="install hpc_elastic again")
