"""JSON and names that anybody may have damaged, read without a surprise. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from hpc_elastic.errors import DamagedError

DEPTH = 32  # arrays and objects inside each other; what this package writes has 6
NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that stand for no byte of a file name
_MOST_DIGITS = 20  # of a whole number with its sign: 64 bits
_MOST_SHOWN = 60  # characters of a value in an error
_NUMBER = re.compile(r"[0-9]{1,18}")


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


def is_file_text(text: str) -> bool:
    """Tell whether a text can be a file name or an argument: no NUL, and no half of a character.

    Bytes of file names that are no UTF-8 can, as `os.fsdecode` gives them.
    """
    return "\0" not in text and (text.isascii() or NO_TEXT.search(text) is None)


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
    level: list[Any] = [value]
    for _ in range(DEPTH + 1):
        level = [part for part in level if type(part) is dict or type(part) is list]
        if not level:
            return True
        level = [part for one in level for part in (one.values() if type(one) is dict else one)]
    return False
