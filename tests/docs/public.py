"""The public names of the package, and whether a signature in the documentation is the real one."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pkgutil
import signal
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, get_origin

# Where the public names of a package are documented, below docs/reference/.
PAGES = {
    "hpc_elastic.agent": "agent.md",
    "hpc_elastic.argparse_util": "launcher.md",
    "hpc_elastic.control_plane": "control-plane.md",
    "hpc_elastic.errors": "errors.md",
    "hpc_elastic.events": "events.md",
    "hpc_elastic.frameworks": "frameworks.md",
    "hpc_elastic.launcher": "launcher.md",
    "hpc_elastic.metrics": "metrics.md",
    "hpc_elastic.multiprocessing": "multiprocessing.md",
    "hpc_elastic.rendezvous": "rendezvous.md",
    "hpc_elastic.run": "launcher.md",
    "hpc_elastic.store": "store.md",
    "hpc_elastic.testing": "testing.md",
    "hpc_elastic.timer": "timer.md",
    "hpc_elastic.utils": "utils.md",
    "hpc_elastic.api": "runs.md",
    "hpc_elastic.submitit": "submitit.md",
    "hpc_elastic.worker": "worker.md",
}
# Modules that name nothing in `__all__`: what they define is public.
WITHOUT_ALL = frozenset(
    {
        "hpc_elastic.errors",
        "hpc_elastic.testing.clock",
        "hpc_elastic.testing.faulty_store",
        "hpc_elastic.testing.waiting",
    }
)
_BUILT_IN = (
    object,
    *AssertionError.__mro__,
    *ValueError.__mro__,
    *TimeoutError.__mro__,
    *RuntimeError.__mro__,
)
# Names of modules that have others, too.
OF_OTHERS = {
    "hpc_elastic.processes.numa": ("AffinityMode", "NumaOptions"),
    "hpc_elastic.rendezvous.shared_fs_backend": ("SharedFsRendezvousBackend", "create_backend"),
}
_FOR_TESTS = {"clock"}  # parameters that a page may leave out


class Name(NamedTuple):
    """A public name."""

    page: str
    module: str
    name: str
    value: Any

    @property
    def place(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"


def _modules(package: str) -> Iterator[ModuleType]:
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return
    yield module
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{package}."):
        yield importlib.import_module(found.name)


def _names_of(module: ModuleType) -> list[str]:
    if module.__name__ in OF_OTHERS:
        return list(OF_OTHERS[module.__name__])
    if module.__name__ in WITHOUT_ALL:
        return [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and getattr(value, "__module__", "") == module.__name__
            and not isinstance(value, TypeVar)
        ]
    return [name for name in getattr(module, "__all__", ()) if not name.startswith("_")]


def public_names() -> list[Name]:
    """Return every public name with the page that has to tell of it."""
    return [
        Name(page, module.__name__, name, getattr(module, name))
        for package, page in PAGES.items()
        for module in _modules(package)
        for name in _names_of(module)
    ]


def real_signature(value: Any) -> inspect.Signature | None:
    """Return the signature that a page has to show; None where a name says it all."""
    is_type_alias = value is Any or get_origin(value) is not None
    if not callable(value) or is_type_alias or (_is_class(value) and _needs_no_signature(value)):
        return None
    try:
        return inspect.signature(value)
    except ValueError:
        return None


def _is_class(value: Any) -> bool:
    """Tell a class; Python 3.10 takes ``Callable[[int], str]`` for one, too."""
    return issubclass(type(value), type)


def _needs_no_signature(value: type) -> bool:
    protocol = bool(getattr(value, "_is_protocol", False))
    makers = {vars(kind).get(name) for kind in value.__mro__ for name in ("__init__", "__new__")}
    built_in = {vars(kind).get(name) for kind in _BUILT_IN for name in ("__init__", "__new__")}
    return issubclass(value, enum.Enum) or protocol or makers <= {None, *built_in}


def methods(value: Any) -> list[str]:
    """Return the public methods and properties of a class that are written in this package."""
    if not _is_class(value) or issubclass(value, tuple | enum.Enum | BaseException):
        return []
    return sorted(
        {
            name
            for ancestor in value.__mro__
            if ancestor.__module__.startswith("hpc_elastic")
            for name, member in vars(ancestor).items()
            if not name.startswith("_")
            and (inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod))
        }
    )


class Shown(NamedTuple):
    """A signature as it is written on a page: ``a.b(c, d=1)``."""

    name: str
    arguments: ast.arguments


def shown(text: str) -> Shown | None:
    """Read a signature; None if the text is none."""
    head, _, rest = text.partition("(")
    if not rest or not all(part.isidentifier() for part in head.split(".")):
        return None
    try:
        tree = ast.parse(f"def _({rest}: ...")
    except SyntaxError:
        return None
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return Shown(head, function.args)


def difference(text: Shown, real: inspect.Signature, names: dict[str, Any]) -> str | None:
    """Say what is wrong with a signature as shown, or return None.

    Args:
        text: the signature as shown.
        real: the real one; `self` is not shown.
        names: what the defaults on the page may name.
    """
    wanted = [parameter for parameter in real.parameters.values() if parameter.name not in {"self", "cls"}]
    written = _parameters(text.arguments)
    wanted = [one for one in wanted if one.name in written or one.name not in _FOR_TESTS]
    if [one.name for one in wanted] != list(written):
        return f"parameters {', '.join(written)} instead of {', '.join(one.name for one in wanted)}"
    for parameter in wanted:
        kind, default = written[parameter.name]
        if kind != _kind(parameter):
            return f"{parameter.name} is {_kind(parameter)}, not {kind}"
        if not _same(default, parameter.default, names):
            return f"the default of {parameter.name} is {parameter.default!r}, not {default}"
    return None


def _kind(parameter: inspect.Parameter) -> str:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return "positional" if parameter.kind in positional else parameter.kind.description


def _parameters(arguments: ast.arguments) -> dict[str, tuple[str, str | None]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    found: dict[str, tuple[str, str | None]] = {
        one.arg: ("positional", _written(default))
        for one, default in zip(positional, [*missing, *arguments.defaults], strict=True)
    }
    if arguments.vararg:
        found[arguments.vararg.arg] = (inspect.Parameter.VAR_POSITIONAL.description, None)
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[one.arg] = (inspect.Parameter.KEYWORD_ONLY.description, _written(default))
    if arguments.kwarg:
        found[arguments.kwarg.arg] = (inspect.Parameter.VAR_KEYWORD.description, None)
    return found


def _written(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


def _same(written: str | None, default: Any, names: dict[str, Any]) -> bool:
    if default is inspect.Parameter.empty or written is None:
        return written is None and default is inspect.Parameter.empty
    if written == "..." or " object at 0x" in repr(default) or "<factory>" in repr(default):
        return written == "..."  # a value that cannot be written down
    known = {**vars(signal), "timedelta": timedelta, **names}
    return bool(eval(written, known) == default)  # noqa: S307 - our own pages
