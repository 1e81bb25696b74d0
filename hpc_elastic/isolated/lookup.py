"""Asking an interpreter for the place of this package and its dependencies."""

from __future__ import annotations

import json
import os
import site
import subprocess  # noqa: TID251 - asks interpreters
import sys
from functools import cache
from typing import Final

from hpc_elastic.isolated.argv import INSTALLED, OwnPath, own_argv
from hpc_elastic.named_tuple import NamedTuple

NEEDED: Final = (
    "hpc_elastic",
    *("psutil", "filelock", "prometheus_client", "tomli"),
    *("submitit", "cloudpickle", "typing_extensions"),
    "argcomplete",
)
"""The top-level modules of this package and of all that it needs."""

_FILE: Final = "/hpc_elastic/isolated/lookup.py"
_TIMEOUT_S: Final = 30.0
_ASK: Final = """
import json, os, site, sys
from importlib.machinery import PathFinder
names, places, asks_for_users = json.loads(sys.argv[1])
base = list(sys.path)
is_closed = sys.prefix != sys.base_prefix and sys.base_prefix not in site.PREFIXES
if asks_for_users and not is_closed and not os.environ.get("PYTHONNOUSERSITE"):
    site.addsitedir(site.getusersitepackages())
    places += [place for place in sys.path if place not in base]
homes = {}
for name in names:
    for place in [*places, *base]:
        spec = PathFinder.find_spec(name, [place])
        if spec is not None and spec.loader is not None:
            homes[name] = place
            break
wanted = set(homes.values()) - set(base)
print(json.dumps([[place for place in dict.fromkeys(places) if place in wanted], names[0] in homes]))
"""


class InterpreterAnswer(NamedTuple):
    """The answer of an interpreter.

    Args:
        where: the directories that an isolated start of it must search as well.
        is_installed: whether it has this package.
        trouble: the reason of a missing answer; empty if it has answered.
    """

    where: OwnPath
    is_installed: bool = True
    trouble: str = ""


def own_path() -> OwnPath:
    """Return the directories that an isolated start of this process's interpreter must search as well."""
    places = _places_here()
    home = os.path.abspath(__file__).removesuffix(_FILE)
    installed = site.getsitepackages()
    is_installed = home in installed
    if is_installed and all(place in installed or _is_of_python(place) for place in places):
        return INSTALLED
    try:
        return _ask(sys.executable, (*places, home), asks_for_users=False).where
    except (OSError, ValueError, subprocess.SubprocessError):
        return INSTALLED if is_installed else OwnPath(is_known=False)


def argv_here(module: str = "hpc_elastic") -> tuple[str, ...]:
    """Return the words that start a module of this package with this process's interpreter.

    Args:
        module: full name of the module, or of a package that can be run.
    """
    return own_argv(sys.executable, module, own_path())


def home() -> str:
    """Return the directory of this package."""
    return os.path.abspath(__file__).removesuffix(_FILE) + "/hpc_elastic"


@cache
def one_file() -> bytes | None:
    """Return the content of the file from which this package starts; None if it cannot be made."""
    try:
        argv = argv_here("hpc_elastic.isolated.one_file")
        return subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=True, cwd="/").stdout
    except (OSError, subprocess.SubprocessError):
        return None


def ask(python: str) -> InterpreterAnswer:
    """Return the directories that an isolated start of another interpreter must search as well.

    Args:
        python: absolute path of the interpreter.
    """
    if python == sys.executable:
        return InterpreterAnswer(own_path())
    try:
        return _ask(python, _named_by_variable(), asks_for_users=True)
    except (ValueError, subprocess.CalledProcessError):  # it is no Python, or one that is broken
        return InterpreterAnswer(OwnPath(is_known=False), is_installed=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return InterpreterAnswer(OwnPath(is_known=False), is_installed=False, trouble=str(error))


def _places_here() -> list[str]:
    """Return where this process looks for modules, but for the working and the script's directory."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    others = {os.getcwd(), os.path.dirname(os.path.realpath(script)) if script else None}
    return [place for place in sys.path if os.path.isabs(place) and os.path.realpath(place) not in others]


def _named_by_variable() -> tuple[str, ...]:
    """Return the absolute directories of PYTHONPATH, but for the working directory."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # noqa: TID251 - of the submit shell
    here = os.getcwd()
    return tuple(place for place in named if os.path.isabs(place) and os.path.realpath(place) != here)


def _is_of_python(place: str) -> bool:
    """Tell whether a place is the standard library, or the archive or the extensions of it."""
    library = os.path.dirname(os.__file__)
    name = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    return place == library or os.path.basename(place) in (name, "lib-dynload")


@cache
def _ask(python: str, places: tuple[str, ...], *, asks_for_users: bool) -> InterpreterAnswer:
    """Ask an interpreter which of some places it has to search.

    Args:
        python: the interpreter.
        places: those that it searches before all but the standard library.
        asks_for_users: it shall look among the user's own packages, too.
    """
    argv = (python, "-I", "-c", _ASK, json.dumps([NEEDED, places, asks_for_users]))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, cwd="/")
    directories, is_installed = json.loads(done.stdout)
    return InterpreterAnswer(OwnPath(tuple(directories)), is_installed)
