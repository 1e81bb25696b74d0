"""JSON from files that anybody may have damaged, and the typed fields in it. Pure.

Every reader of a record takes these two steps, so that a wrong type, a number out of range or a
text that no file name can hold is found where it is read, not where it is used:

    fields = parse_object(data)     JSON: one object, not too deep, no NaN, no number of 5,000 digits
    record = decode(Epoch, fields)  the fields of a NamedTuple, by its annotations

The types are int, float, str, bool, None and unions of them, tuple[X, ...], dict[str, X],
Mapping[str, X], enums, NamedTuples (an object, or an array of their fields in order) and Any.
``Annotated`` narrows them: `Range` for numbers, `Like` and `Prose` (for people) for texts.
"""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hpc_elastic.errors import DamagedError
from hpc_elastic.named_tuple import NamedTuple

DEPTH = 32  # arrays and objects inside each other; this package writes at most 6
NO_TEXT = "[\ud800-\udc7f\udd00-\udfff]"  # surrogates that stand for no byte of a file name
_LONG = 64  # items of an array that is remembered
_MOST_DIGITS = 20  # of a whole number with its sign: 64 bits
_MOST_SHOWN = 60  # characters of a value in an error
_NUMBER = re.compile(r"[0-9]{1,18}")

__all__ = [
    "AnyText",
    "Count",
    "Like",
    "Prose",
    "Range",
    "Seconds",
    "checksum_of",
    "counts",
    "decode",
    "parse",
    "parse_object",
    "read",
    "whole_number",
]
_INT64 = range(-(2**63), 2**63)
_THERE = "there"
_Check = Callable[[Any], Any]
_T = TypeVar("_T")


class Range(NamedTuple):
    """The least and the greatest value that a number may have."""

    low: float = -math.inf
    high: float = math.inf


class AnyText(NamedTuple):
    """Says that a text is for people: NUL may be in it, and half a character is replaced."""


class Like(NamedTuple):
    """The pattern of a text."""

    regex: str
    words: str  # for the error: "the id of a job"


Prose = Annotated[str, AnyText()]
Count = Annotated[int, Range(0)]
Seconds = Annotated[float, Range(0)]


class _MismatchError(Exception):
    """A value has the wrong type or range; knows its place in the record, from the inside out."""

    def __init__(self, value: object, wanted: str) -> None:
        super().__init__(wanted)
        self.value, self.wanted = value, wanted
        self.places: list[str] = []

    def text(self) -> str:
        place = "".join(reversed(self.places)).removeprefix(".")
        if self.wanted == _THERE:
            return f"{place} is missing"
        return f"{place or 'it'} is {shown(self.value)}, not {self.wanted}"


def decode(kind: type[_T], value: object) -> _T:
    """Return a value of JSON as a type; fields that the type does not have are left out.

    Args:
        kind: a NamedTuple, or any other type that the module's text lists.
        value: as `parse` returns it.

    Raises:
        DamagedError: a field is missing or is of another type; names the field and its value.
    """
    try:
        return cast("_T", _check_of(cast("Any", kind))(value))
    except _MismatchError as error:
        raise DamagedError(error.text()) from None


def read(kind: type[_T], data: bytes) -> _T:
    """Return the record in a JSON text; see `parse_object` and `decode`."""
    return decode(kind, parse_object(data))


@lru_cache(maxsize=256)
def _check_of(kind: Any) -> _Check:
    """Return a function that turns a value of JSON into a type, or raises `_MismatchError`."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    return _check_of_generic(kind, get_origin(kind), get_args(kind))


def _check_of_generic(kind: Any, origin: Any, parts: tuple[Any, ...]) -> _Check:
    if origin is Annotated:
        return _narrowed(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return _one_of(tuple(map(_check_of, parts)))
    if origin is tuple:
        return _sequence(_check_of(parts[0])) if parts[1:] == (...,) else _row(tuple(map(_check_of, parts)))
    if origin in (dict, Mapping):
        return _mapping(_check_of(parts[0]), _check_of(parts[1]))
    raise TypeError(f"records cannot have fields of the type {kind!r}")


def _int(value: object) -> int:
    if type(value) is not int or value not in _INT64:
        raise _MismatchError(value, "a whole number of 64 bits")
    return value


def _float(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise _MismatchError(value, "a number")
    return float(value)  # type: ignore[arg-type]


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _MismatchError(value, "true or false")
    return value


def _none(value: object) -> None:
    if value is not None:
        raise _MismatchError(value, "null")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _MismatchError(value, "a text")
    if not is_file_text(value):
        raise _MismatchError(value, "a text without NUL and half characters")
    return value


def _prose(value: object) -> str:
    if not isinstance(value, str):
        raise _MismatchError(value, "a text")
    return value if value.isascii() else re.sub(NO_TEXT, "\ufffd", value)


def _any(value: object) -> object:
    return value


_PLAIN: Mapping[Any, _Check] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: _text,
    type(None): _none,
    Any: _any,
}


def _narrowed(kind: Any, notes: tuple[object, ...]) -> _Check:
    (note,) = notes
    if isinstance(note, AnyText):
        return _prose
    if isinstance(note, Like):
        return _like(note)
    if isinstance(note, Range):
        return _in_range(_check_of(kind), note)
    raise TypeError(f"{note!r} narrows nothing")


def _like(form: Like) -> _Check:
    def like(value: object) -> str:
        if re.fullmatch(form.regex, text := _text(value)) is None:
            raise _MismatchError(value, form.words)
        return text

    return like


def _in_range(check: _Check, limits: Range) -> _Check:
    def in_range(value: object) -> object:
        number = check(value)
        if not limits.low <= number <= limits.high:
            raise _MismatchError(value, _range_text(limits))
        return number

    return in_range


def _range_text(limits: Range) -> str:
    if limits.high == math.inf:
        return f"a number of at least {limits.low:g}"
    return f"a number from {limits.low:g} to {limits.high:g}"


def _one_of(checks: tuple[_Check, ...]) -> _Check:
    ordered = sorted(checks, key=lambda check: check is _none)  # the words for a value that is none of them

    def one_of(value: object) -> object:
        if value is None and _none in checks:
            return None
        first: _MismatchError | None = None
        for check in ordered:
            try:
                return check(value)
            except _MismatchError as error:
                first = first or error
        raise first or _MismatchError(value, "anything")

    return one_of


def _items(value: object, wanted: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise _MismatchError(value, wanted)
    return list(value)


def _sequence(check: _Check) -> _Check:
    """Return the check of an array. One as long as the members of a large round is remembered.

    Each round of a run has the same members as a rule, and their check takes longer than all others.
    """
    known: list[tuple[bytes, tuple[Any, ...]]] = []  # the last long array: exact, types included

    def sequence(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < _LONG:
            return checked(value)
        exact = marshal.dumps(value)
        if not known or known[0][0] != exact:
            known[:] = [(exact, checked(value))]
        return known[0][1]

    def checked(value: object) -> tuple[Any, ...]:
        items, done = _items(value, "an array"), []
        try:
            for item in items:
                done.append(check(item))  # noqa: PERF401 - its length tells where the fault is
        except _MismatchError as error:
            error.places.append(f"[{len(done)}]")
            raise
        return tuple(done)

    return sequence


def _row(checks: tuple[_Check, ...]) -> _Check:
    places = [f"[{index}]" for index in range(len(checks))]

    def row(value: object) -> tuple[Any, ...]:
        items = _items(value, "an array")
        if len(items) != len(checks):
            raise _MismatchError(value, f"an array of {len(checks)}")
        return tuple(_checked(places, checks, items))

    return row


def _mapping(key: _Check, check: _Check) -> _Check:
    def mapping(value: object) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _MismatchError(value, "an object")
        places = [f".{name}" for name in value]
        names = _checked(places, [key] * len(places), value)
        return dict(zip(names, _checked(places, [check] * len(places), value.values()), strict=True))

    return mapping


def _enum(kind: type[Enum]) -> _Check:
    members = {member.value: member for member in kind}

    def member_of(value: object) -> Enum:
        found = members.get(value) if isinstance(value, (str, int)) else None
        if found is None:
            raise _MismatchError(value, f"one of {', '.join(map(str, members))}")
        return found

    return member_of


def _named_tuple(kind: Any) -> _Check:
    hints = get_type_hints(kind, include_extras=True)
    names = kind._fields
    checks = [_check_of(hints[name]) for name in names]
    places = [f".{name}" for name in names]
    least = len(names) - len(kind._field_defaults)

    def named_tuple(value: object) -> object:
        if isinstance(value, dict):
            there = [index for index, name in enumerate(names) if _is_there(value, name, index < least)]
            items = [value[names[index]] for index in there]
            done = _checked([places[index] for index in there], [checks[index] for index in there], items)
            return kind(**{names[index]: item for index, item in zip(there, done, strict=True)})
        items = _items(value, "an object or an array")
        if not least <= len(items) <= len(names):
            raise _MismatchError(value, f"an array of {', '.join(names)}")
        return kind(*_checked(places, checks, items))

    return named_tuple


def _is_there(fields: dict[str, Any], name: str, is_needed: bool) -> bool:  # noqa: FBT001
    if is_needed and name not in fields:
        error = _MismatchError(None, _THERE)
        error.places.append(f".{name}")
        raise error
    return name in fields


def _checked(places: Sequence[str], checks: Sequence[_Check], items: Iterable[Any]) -> list[Any]:
    """Return the values of parts of a record; an error tells the place of the part."""
    done: list[Any] = []
    try:
        for check, item in zip(checks, items, strict=False):
            done.append(check(item))
    except _MismatchError as error:
        error.places.append(places[len(done)])
        raise
    return done


def checksum_of(record: Any) -> int:
    """Return the CRC-32 of the JSON form of a NamedTuple as it is read: a whole number of seconds as 5.0.

    Raises:
        DamagedError: a field is none of its type.
    """
    import zlib  # noqa: PLC0415 - for records with a checksum alone

    as_read = decode(type(record), json.loads(json.dumps(record._asdict())))
    return zlib.crc32(json.dumps(as_read._asdict()).encode())


def parse(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        DamagedError: it is no JSON in UTF-8, is nested too deeply, or has a number that is no number of
            JSON or has more than 64 bits.
    """
    try:
        text = data.decode("utf-8")
        value = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise DamagedError("it is no text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise DamagedError(f"it is no JSON ({error})" if data else "it is empty") from None
    if text.count("[") + text.count("{") > DEPTH and not _is_flat(value):
        raise _too_deep()
    return value


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises:
        DamagedError: as for `parse`, or it is no object.
    """
    value = parse(data)
    if not isinstance(value, dict):
        raise DamagedError(f"it is {shown(value)}, not an object")
    return value


def shown(value: object) -> str:
    """Return a value of JSON for an error, a long one cut."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def whole_number(text: str) -> int | None:
    """Return the number that a text of ASCII digits stands for; None for any other and for 19 and more."""
    return int(text) if _NUMBER.fullmatch(text) else None


def counts(texts: Iterable[str]) -> list[int]:
    """Return the numbers that texts stand for, 0 for a text that stands for none."""
    return [whole_number(text) or 0 for text in texts]


def is_file_text(text: str) -> bool:
    """Tell whether a text can be a file name or an argument: no NUL, and no half of a character.

    Bytes of file names that are no UTF-8 can, as `os.fsdecode` gives them.
    """
    return "\0" not in text and (text.isascii() or re.search(NO_TEXT, text) is None)


def _too_deep() -> DamagedError:
    return DamagedError(f"it has more than {DEPTH} arrays and objects inside each other")


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise DamagedError(f"it has a number of {len(text)} digits")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise DamagedError(f"it has the number {text[:_MOST_SHOWN]}, which is too large")
    return number


def _constant(text: str) -> float:
    raise DamagedError(f"it has {text}, which is no number")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_constant)


def _is_flat(value: object) -> bool:
    """Tell whether at most `DEPTH` arrays and objects are inside each other."""
    level: list[Any] = [value] if type(value) is dict or type(value) is list else []
    for _ in range(DEPTH):
        level = [
            part
            for one in level
            for part in (one.values() if type(one) is dict else one)
            if type(part) is dict or type(part) is list
        ]
        if not level:
            return True
    return not level
