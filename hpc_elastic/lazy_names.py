"""Names and modules of a package that are loaded when a program first uses them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def no_look_for_garbage() -> Iterator[None]:
    """Keep the objects that are made meanwhile out of the search for garbage: imports make them to stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are at home in other modules.

    Args:
        package: its full name.
        homes: by name the module, as seen from the package (``.errors`` is beside it), and behind a colon
            its name there, if that is another one.
    """

    def load(name: str) -> object:
        if name not in homes:
            return submodule(package, name)
        from importlib import import_module  # noqa: PLC0415 - only where a name is really used

        module, _, original = homes[name].partition(":")
        return getattr(import_module(f".{module}", package), original or name)

    def names() -> list[str]:
        from importlib import import_module  # noqa: PLC0415 - only for people

        return sorted({*vars(import_module(package)), *homes})

    return load, names


def submodule(package: str, name: str) -> object:
    """Import a module of a package, for the ``__getattr__`` of a package with an unknown name.

    Args:
        package: full name of the package.
        name: of the module in it.

    Raises:
        AttributeError: the package has no such module.
    """
    full = f"{package}.{name}"
    if not name.startswith("_"):
        from importlib import import_module  # noqa: PLC0415 - only for a name that is not imported yet

        try:
            return import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
