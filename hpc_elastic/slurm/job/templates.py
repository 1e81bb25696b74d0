"""Finding the job script templates: in an installed package, or beside it in a source tree."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.script import BASE, Template

_PACKAGE = Path(__file__).resolve().parents[2]
FOLDERS = (_PACKAGE / "sbatch_templates", _PACKAGE.parent / "sbatch_templates")
EPILOG = str(_PACKAGE / "slurm" / "epilog")  # lies with the code: who can change it can change that, too
NAMES = {"step": "elastic.sbatch", "array": "array.sbatch"}


def read_template(mode: str = "step") -> Template:
    """Return the job script template of a mode.

    Raises:
        InputError: this installation has no such template.
    """
    return Template(own=_read(NAMES[mode]), base=_read(BASE))


def _read(name: str) -> str:
    for folder in FOLDERS:
        try:
            return (folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
    places = " or ".join(str(folder) for folder in FOLDERS)
    raise InputError(f"the template {name} is not in {places}", fix="install hpc_elastic again")
