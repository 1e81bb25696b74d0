"""Classes that `dataclasses` takes for the data classes that they are in torch.

The fields are made on request: an agent starts without the module `dataclasses`, which takes 5 ms.
"""

from __future__ import annotations

from typing import Any


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
    """`__dataclass_params__` of such a class.

    Args:
        frozen: whether its objects cannot be changed.
    """

    def __init__(self, *, frozen: bool = False) -> None:
        self._frozen = frozen

    def __get__(self, instance: object, owner: type) -> Any:
        from dataclasses import make_dataclass  # noqa: PLC0415 - see above

        return vars(make_dataclass(owner.__name__, (), frozen=self._frozen))["__dataclass_params__"]
