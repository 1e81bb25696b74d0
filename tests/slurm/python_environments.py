"""Environments of Python for tests: virtual ones, and conda's by its documented layout and hook."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_CONDA = """#!/bin/sh
# `conda shell.bash hook` prints a function, which changes the shell that evaluates it, and its helper.
case "$1 $2" in
'shell.bash hook')
    cat << END
conda() {{
    case "\\$1" in
    activate) eval "\\$('{conda}' shell.posix activate "\\$2" || echo false)" ;;
    *) '{conda}' "\\$@" ;;
    esac
}}
END
    ;;
'shell.posix activate')
    place='{root}'/envs/$3
    [ "$3" != base ] || place='{root}'
    case $3 in */*) place=$3 ;; esac
    if [ ! -d "$place/conda-meta" ]; then
        echo "EnvironmentNameNotFound: Could not find conda environment: $3" >&2
        exit 1
    fi
    echo "export PATH='$place/bin':\\"\\$PATH\\" CONDA_PREFIX='$place' CONDA_DEFAULT_ENV='$3' CONDA_SHLVL=1"
    for file in "$place"/etc/conda/activate.d/*.sh; do
        [ ! -e "$file" ] || echo ". '$file'"
    done
    ;;
'env list')
    echo '{{"envs": ["{root}"'
    for place in '{root}'/envs/*; do echo ", \\"$place\\""; done
    echo ']}}'
    ;;
*) exit 2 ;;
esac
"""


def make_python(place: Path, *packages: str) -> Path:
    """Make an environment whose Python has some packages, which are empty, and nothing else; return it."""
    (place / "bin").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    for name in ("python", "python3"):
        (place / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for package in packages:
        module = place / "lib" / version / "site-packages" / package / "__init__.py"
        module.parent.mkdir(parents=True)
        module.touch()
    return place


def plant_modules(place: Path) -> None:
    """Put modules with names of Python's own into a directory; an import of one makes ``imported`` there."""
    for name in ("importlib", "json", "types", "warnings"):
        (place / f"{name}.py").write_text(f"open({str(place / 'imported')!r}, 'w').close()\n")


def make_conda(root: Path, *packages: str) -> Path:
    """Make a conda with an environment ``train`` and one without a Python, ``bare``; return its program."""
    place = make_python(root / "envs" / "train", *packages)
    for each in (root, place, root / "envs" / "bare"):
        (each / "conda-meta").mkdir(parents=True)
    hooks = place / "etc" / "conda" / "activate.d"
    hooks.mkdir(parents=True)
    (hooks / "cuda.sh").write_text("export FROM_ACTIVATE=yes\n")
    program = root / "bin" / "conda"
    program.parent.mkdir(exist_ok=True)
    program.write_text(_CONDA.format(conda=program, root=root))
    program.chmod(0o755)
    return program
