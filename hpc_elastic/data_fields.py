"""Classes that `dataclasses` takes for the data classes that they are in torch.

The fields are made on request: an agent starts without the module `dataclasses`, which takes 5 ms.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DataFields:
    """`__dataclass_fields__` of a class, for `fields`, `replace` and `asdict`, and to derive data classes.

    A class derived in that way sets the fields by itself and then calls `__post_init__`, if there is one.

    Args:
        required: names of the fields without a default.
        defaults: those of the others, in their order; a type makes a value of its own for each object.
        derived: names of fields that `__post_init__` sets.
    """

    def __init__(self, *required: str, derived: tuple[str, ...] = (), **defaults: Any) -> None:
        self._required = required
        self._derived = derived
        self._defaults = defaults

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        from dataclasses import field, make_dataclass  # noqa: PLC0415 - see above

        found: list[Any] = [(name, Any) for name in self._required]
        for name, value in self._defaults.items():
            is_made = isinstance(value, type)
            found.append((name, Any, field(default_factory=value) if is_made else field(default=value)))
        found += [(name, Any, field(init=False)) for name in self._derived]
        fields: dict[str, Any] = vars(make_dataclass(owner.__name__, found))["__dataclass_fields__"]
        return fields


class DataParams:
    """`__dataclass_params__` of such a class."""

    def __get__(self, instance: object, owner: type) -> Any:
        from dataclasses import make_dataclass  # noqa: PLC0415 - see above

        return vars(make_dataclass(owner.__name__, ()))["__dataclass_params__"]


class DataClass:
    """Base of such a class: its objects are shown and compared by their values, which may change."""

    __dataclass_params__: ClassVar[Any] = DataParams()
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, type(self)) else NotImplemented
