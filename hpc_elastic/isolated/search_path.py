"""The installed packages and the modules of the user's, searched on request."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def search_installed() -> None:
    """Search the installed packages, too, if Python was started without them."""
    import site  # noqa: PLC0415 - mostly loaded already

    if sys.flags.no_site and not hasattr(builtins, "exit"):  # site makes that name
        site.main()


@contextmanager
def users_modules(environ: Mapping[str, str]) -> Iterator[None]:
    """Find modules of the user's, too: after all others, where a plain Python would look for them.

    The directories of PYTHONPATH and the user's own packages stay, as such a module may import others
    later; the working directory does not.
    """
    import site  # noqa: PLC0415 - loaded already

    search_installed()
    wanted = [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path += [place for place in map(os.path.abspath, wanted) if place not in sys.path]
    packages = site.getusersitepackages()
    has_own = sys.prefix == sys.base_prefix and not environ.get("PYTHONNOUSERSITE")  # not so in a venv
    if has_own and packages not in sys.path:
        site.addsitedir(packages)
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        if here in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]
