"""The command lines of our own processes. Pure."""

from __future__ import annotations

from typing import Final

from hpc_elastic.named_tuple import NamedTuple

PACKAGE: Final = "hpc_elastic"
CALL: Final = "hpc_elastic.api.call"
"""The module that workers run whose work is a function."""

_START: Final = "import runpy; runpy.run_module({module!r}, None, '__main__', True)"
# Directories come behind the standard library, so that nothing in them takes the place of a part of it.
_AT: Final = "import os, sys; at = sys.path.index(os.path.dirname(os.__file__))"
_LISTED: Final = "sys.path[at + 2:at + 2] = {directories}"
_FOUND_THERE: Final = (
    "import site; sys.path += [place for place in os.environ.get('PYTHONPATH', '').split(':')"
    " if place[:1] == '/' and os.path.realpath(place) != os.getcwd()];"
    " site.addsitedir(site.getusersitepackages())"
)
_PLAIN: Final = (
    "plain = [place or os.getcwd() for place in sys.path]; "  # -c is to search the same places as -m
    "del sys.path[:at]; at = 0"
)
_FOUND_HERE: Final = (
    "sys.path += [place for place in plain if place not in sys.path and place != os.getcwd()]"
)
_CALL: Final = "from {module} import main; main(plain)"


class OwnPath(NamedTuple):
    """Where an interpreter has this package and its dependencies, apart from where an isolated one looks.

    Args:
        directories: absolute; none for an ordinary installation.
        is_known: whether they could be asked for; else the process looks itself: into the absolute
            directories of PYTHONPATH and those of the user's own packages, after all others.
    """

    directories: tuple[str, ...] = ()
    is_known: bool = True


INSTALLED: Final = OwnPath()


def own_argv(python: str, module: str = PACKAGE, where: OwnPath = INSTALLED) -> tuple[str, ...]:
    """Return the words that start a module of this package; its arguments follow them.

    Args:
        python: the interpreter.
        module: full name of the module, or of a package that can be run.
        where: the directories that the interpreter does not search by itself.
    """
    if where == INSTALLED:
        return (python, "-I", "-m", module)
    return (python, "-I", "-c", "; ".join((_AT, _more(where, _FOUND_THERE), _START.format(module=module))))


def start_argv(python: str, home: str, file: str) -> tuple[str, ...]:
    """Return the words that start this package from one file; its arguments follow them.

    Args:
        python: the interpreter.
        home: the directory of this package.
        file: as `hpc_elastic.isolated.one_file` has made it.
    """
    return (python, "-I", "-S", f"{home}/isolated/start.py", file)


def call_argv(python: str, where: OwnPath = INSTALLED) -> tuple[str, ...]:
    """Return the command of a worker that calls a function of the user's.

    Its interpreter is a plain one, whose flags the function's own processes inherit. Only while our modules
    are imported it searches nothing but the standard library and installed packages.

    Args:
        python: the interpreter.
        where: as for `own_argv`.
    """
    code = "; ".join((_AT, _PLAIN, _more(where, _FOUND_HERE), _CALL.format(module=CALL)))
    return (python, "-u", "-c", code, CALL)


def _more(where: OwnPath, unknown: str) -> str:
    """Return the code that adds the directories of a path."""
    return _LISTED.format(directories=ascii(list(where.directories))) if where.is_known else unknown
