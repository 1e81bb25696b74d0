"""Torch's modules and their public names, beside ours; and the one table of what differs on purpose."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

_ETCD = "needs an etcd server; the backends etcd and etcd-v2 are other names for shared_fs"
_BARRIER = (
    "None takes what the environment says, else torch's 300 s and 30 s; torch's agent reads no variable"
)
_GRACE = (
    "None takes the shutdown timeout of the context, by default 30 s, which torch leaves out of account here"
)
_LINUX = "how torch reaches the C library and tells systems apart; this package is for Linux"

DIFFERS: Mapping[str, str] = {
    "rendezvous._etcd_stub": _ETCD,
    "rendezvous.etcd_rendezvous": _ETCD,
    "rendezvous.etcd_rendezvous_backend": _ETCD,
    "rendezvous.etcd_server": _ETCD,
    "rendezvous.etcd_store": _ETCD,
    "agent.server:SimpleElasticAgent": _BARRIER,
    "agent.server.api:SimpleElasticAgent": _BARRIER,
    "agent.server.local_elastic_agent:LocalElasticAgent": _BARRIER,
    "multiprocessing:MultiprocessContext.close": _GRACE,
    "multiprocessing:PContext.close": _GRACE,
    "multiprocessing:SubprocessContext.close": _GRACE,
    "multiprocessing.api:MultiprocessContext.close": _GRACE,
    "multiprocessing.api:PContext.close": _GRACE,
    "multiprocessing.api:SubprocessContext.close": _GRACE,
    "multiprocessing.redirects:IS_MACOS": _LINUX,
    "multiprocessing.redirects:IS_WINDOWS": _LINUX,
    "multiprocessing.redirects:get_libc": _LINUX,
    "multiprocessing.redirects:libc": _LINUX,
}
"""What is not as in torch, and why: ``module``, ``module:name`` or ``module:Class.method``."""

_NOT_OFFERED = {"log", "logger", "T"}  # what a module makes for itself without an underscore
_ROOTS = ("elastic", "launcher", "run", "argparse_util")


class Difference(NamedTuple):
    """Something that is not as in torch."""

    where: str  # as a key of DIFFERS
    what: str


def modules() -> list[str]:
    """Return the names of torch's modules as ours are called below ``hpc_elastic``; torch is not imported."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return []
    parent = Path(torch.origin).parent / "distributed"
    found = [path for root in _ROOTS for path in ((parent / root).rglob("*.py"))]
    found += [path for root in _ROOTS if (path := parent / f"{root}.py").is_file()]
    names = [".".join(path.relative_to(parent).with_suffix("").parts) for path in found]
    return sorted(_ours(name.removesuffix(".__init__")) for name in names)


def _ours(name: str) -> str:
    return name.removeprefix("elastic").removeprefix(".")


def both(module: str) -> tuple[Any, Any]:
    """Return torch's module and ours.

    Raises:
        ImportError: ours cannot be imported.
    """
    first = module.split(".", maxsplit=1)[0]
    below = module if first in _ROOTS else f"elastic.{module}".rstrip(".")
    theirs = importlib.import_module(f"torch.distributed.{below}")
    return theirs, importlib.import_module(f"hpc_elastic.{module}".rstrip("."))


def public_names(module: Any) -> list[str]:
    """Return the names that a module offers: those of ``__all__``, or what it defines without underscore."""
    offered = getattr(module, "__all__", None)
    return sorted(set(_defined(module)) if offered is None else offered)


def _defined(module: Any) -> Iterator[str]:
    for statement in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        for name in _names_made_by(statement, is_package=hasattr(module, "__path__")):
            if not name.startswith("_") and not inspect.ismodule(getattr(module, name, None)):
                yield name


def _names_made_by(statement: ast.stmt, *, is_package: bool) -> list[str]:
    """Return the names a statement adds to a module; a package also offers what it imports from itself."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [one.id for one in targets if isinstance(one, ast.Name) and one.id not in _NOT_OFFERED]
    if isinstance(statement, ast.ImportFrom) and is_package and statement.level:
        return [alias.asname or alias.name for alias in statement.names]
    return []


def differences(module: str) -> Iterator[Difference]:
    """Yield what torch's module has and ours has not, or has otherwise."""
    try:
        theirs, ours = both(module)
    except ImportError as error:
        yield Difference(module, f"cannot be imported: {error}")
        return
    for name in public_names(theirs):
        where = f"{module}:{name}"
        if hasattr(ours, name):
            yield from _compare(where, getattr(theirs, name), getattr(ours, name))
        else:
            yield Difference(where, "is not there")


def _compare(where: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    yield from _compare_signatures(where, theirs, ours)
    if not isinstance(theirs, type):
        if isinstance(theirs, str | int | float) and theirs != ours:
            yield Difference(where, f"is {ours!r}, not {theirs!r}")
        return
    for name in _methods(theirs):
        below = f"{where}.{name}"
        if not hasattr(ours, name):
            yield Difference(below, "is not there")
        elif callable(getattr(theirs, name)):
            yield from _compare_signatures(below, getattr(theirs, name), getattr(ours, name))


def _methods(kind: type) -> list[str]:
    """Return the public names in the body of a class and in those of its bases in torch, fields aside."""
    bodies = [vars(base) for base in kind.__mro__ if base.__module__.startswith("torch.distributed.")]
    fields = {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return sorted({name for body in bodies for name in body if not name.startswith("_")} - fields)


def _compare_signatures(where: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    expected, found = _parameters(theirs), _parameters(ours)
    if expected is None:
        return
    if found is None:
        yield Difference(where, "cannot be called")
        return
    more = found[len(expected) :]
    fit = len(found) >= len(expected) and all(map(_fits, expected, found))
    if not fit or any(_is_needed(one) for one in more):
        yield Difference(where, f"is called with ({_text(found)}), not with ({_text(expected)})")


def _parameters(thing: Any) -> list[inspect.Parameter] | None:
    """Return what can be passed to something; None: it cannot be called, or nobody knows how."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return [one for one in found if one.name != "self"]


def _fits(theirs: inspect.Parameter, ours: inspect.Parameter) -> bool:
    """Tell whether every call that passes torch's parameter, or leaves it out, means the same here."""
    if theirs.kind in _VARIABLE or ours.kind in _VARIABLE:
        return theirs.kind == ours.kind
    if theirs.name != ours.name or ours.kind is ours.KEYWORD_ONLY is not theirs.kind:
        return False
    if theirs.default is theirs.empty:
        return True  # what need not be given may be given
    return _default(theirs.default) == _default(ours.default)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARIABLE


def _default(value: Any) -> str:
    """Return what stands for a default; all that is made anew for each call counts as None."""
    if value is inspect.Parameter.empty:
        return ""
    text = repr(value)
    is_made = text.startswith(("<factory", "<function")) or value in ({}, [], (), "")
    return "None" if is_made else re.sub(r"torch\.distributed\.elastic\.|hpc_elastic\.", "", text)


def _text(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters)
