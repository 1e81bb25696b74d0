"""`NamedTuple` as in `typing`, but quick to define: an agent defines 160 such classes when it starts.

``typing.NamedTuple`` compiles each annotation, and a constructor for each class. Here annotations stay the
texts that ``from __future__ import annotations`` makes of them, and classes share the code of their methods.
Type checkers see the class of `typing`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

__all__ = ["NamedTuple"]

_Getter: Any = type(vars(namedtuple("_Getter", "field"))["field"])  # noqa: PYI024 - the type that reads a field
_GLOBALS = {"new": tuple.__new__}


class _Definition(type):
    """Makes the fields of a class from its annotations."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Definition:
        if tuple not in bases and _Named in bases:
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace[field] for field in fields if field in namespace}
            code = _constructor(len(fields)).replace(co_varnames=("_cls", *fields))
            made = FunctionType(code, _GLOBALS, "__new__", tuple(defaults.values()))
            made.__qualname__ = f"{name}.__new__"
            namespace.update(zip(fields, map(_getter, range(len(fields))), strict=True))
            namespace.update(
                __slots__=(), __new__=made, __match_args__=fields, _fields=fields, _field_defaults=defaults
            )
        return super().__new__(cls, name, bases, namespace)


class _Named(tuple[Any, ...], metaclass=_Definition):
    """The methods of all classes, with the meaning of those of `collections.namedtuple`."""

    __slots__ = ()

    @classmethod
    def _make(cls: Any, values: Iterable[Any]) -> Any:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"expected {len(cls._fields)} values of {cls.__name__}, got {len(made)}")
        return made

    def _replace(self: Any, /, **changes: Any) -> Any:
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise TypeError(f"{type(self).__name__} has no fields {list(changes)}")
        return made

    __replace__ = _replace

    def _asdict(self: Any) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        values = ", ".join(f"{field}={value!r}" for field, value in self._asdict().items())
        return f"{type(self).__name__}({values})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


@cache
def _constructor(count: int) -> CodeType:
    """Return the code of a constructor with so many fields, which have yet to be named."""
    names = "".join(f"field{index}, " for index in range(count))
    code: CodeType = eval(f"lambda _cls, {names}: new(_cls, ({names}))").__code__  # noqa: S307 - only numbers vary
    return code.replace(co_name="__new__")


@cache
def _getter(index: int) -> Any:
    """Return the attribute that reads the field at a place."""
    return _Getter(index, None)


if TYPE_CHECKING:
    from typing import NamedTuple  # noqa: TID251 - its meaning
else:
    NamedTuple = _Named
