"""The parameters of a command as data: a plain command line is read without the parser of all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple

_OF_A_RUN = ("RUN", "run_dir")  # how errors about a run name their place by themselves
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


class Positional(NamedTuple):
    """A parameter that is given by its place.

    Args:
        metavar: its name in the help.
        help: one sentence.
        completes: returns the words that a shell offers, of any begin; None: files.
    """

    metavar: str
    help: str
    completes: Callable[[], Sequence[str]] | None = None


class Flag(NamedTuple):
    """A parameter that is given by its name; one of type bool takes no value.

    Args:
        names: the long name, and the short one.
        help: one sentence.
        metavar: the name of its value in the help; empty for a switch.
        least: the smallest number; None for any.
        values: the only values, which a shell offers; empty for any.
    """

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    least: int | None = None
    values: tuple[str, ...] = ()


class _Described(NamedTuple):
    """A parameter of one command."""

    name: str
    kind: Any
    written: Positional | Flag


@contextmanager
def named(place: str) -> Iterator[None]:
    """Have errors about a run name the place where the user has given it.

    Args:
        place: an argument or a flag.
    """
    try:
        yield
    except InputError as error:
        if error.where in _OF_A_RUN:
            error.where = place
        raise


def offered(words: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Return a function that gives a shell the words with the begin that the user has typed.

    Args:
        words: returns all of them.
    """

    def matching(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return matching


def plain_values(command: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values that words give to the parameters of a command.

    None if there is anything but plain values: help, a slip, an abbreviation, several flags in one word, a
    parameter that is not described here. Then the parser of the command line reads the words.

    Args:
        command: has a default for each parameter that may be left out.
        words: the words after the name of the command.
    """
    taken = _taken_by(command)
    if taken is None:
        return None
    flags = {name: each for each in taken for name in getattr(each.written, "names", ())}
    places = [each for each in taken if isinstance(each.written, Positional)]
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        meant = flags.get(name) if word.startswith("-") else (places.pop(0) if places else None)
        if meant is None or meant.name in values or not word:
            return None
        given = [value] if equals else [word] if isinstance(meant.written, Positional) else rest
        values[meant.name] = _value_of(meant, given, is_joined=bool(equals))
        if values[meant.name] is None:
            return None
    missing = {each.name for each in taken} - set(values) - set(_defaults_of(command))
    return None if missing else values


def _value_of(meant: _Described, given: list[str], *, is_joined: bool) -> Any:
    """Return the first of the words that can follow as a value, and take it away; None if it is none."""
    if bool in (meant.kind, *get_args(meant.kind)):
        return None if is_joined else True
    if not given or given[0].startswith("-"):
        return None
    word = given.pop(0)
    if int not in (meant.kind, *get_args(meant.kind)):
        return word
    least = meant.written.least if isinstance(meant.written, Flag) else None
    is_fit = _NUMBER.fullmatch(word) and int(word) >= (least or 0)
    return int(word) if is_fit else None


def _taken_by(command: Callable[..., Any]) -> list[_Described] | None:
    """Return the parameters of a command in their order; None if one is described in another way."""
    taken = []
    hints: Mapping[str, Any] = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        if name == "return":
            continue
        # Python 3.10 puts a hint whose default is None into Optional
        told = hint if get_origin(hint) is Annotated else next(iter(get_args(hint)), hint)
        kind, *marks = get_args(told) if get_origin(told) is Annotated else (told,)
        written = next((mark for mark in marks if isinstance(mark, Positional | Flag)), None)
        if written is None:
            return None
        taken.append(_Described(name, kind, written))
    return taken


def _defaults_of(command: Callable[..., Any]) -> tuple[str, ...]:
    code, defaults = command.__code__, command.__defaults__ or ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names[len(names) - len(defaults) :]
