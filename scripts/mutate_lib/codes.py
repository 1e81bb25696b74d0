"""Which compiled functions a fault in a module changes. Pure.

A copy of this file stands in the environment of the tree under test, as ``mutate_codes``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple


class Changed(NamedTuple):
    """A function of a module that a fault has changed.

    Attributes:
        before: its code.
        after: its code with the fault; None if the fault has left the function out.
        is_inner: a function around it makes it anew, so there may be none at the moment.
        is_itself: the fault is in the function itself, not only in functions that it makes.
    """

    before: CodeType
    after: CodeType | None
    is_inner: bool
    is_itself: bool


class AtImportError(Exception):
    """The fault changes what runs when the module is imported."""


def changed(before: CodeType, after: CodeType) -> list[Changed]:
    """Return the functions of a module that differ.

    Args:
        before: the module.
        after: the module with a fault.

    Raises:
        AtImportError: the module, the body of a class or a default value differs.
    """
    return list(_changed(before, after, is_inner=False))


def _changed(before: CodeType, after: CodeType, *, is_inner: bool) -> Iterator[Changed]:
    if meaning(before) == meaning(after):
        return
    is_function = bool(before.co_flags & inspect.CO_OPTIMIZED)
    is_itself = _own(before) != _own(after)
    if is_function:
        yield Changed(before, after, is_inner, is_itself)
    elif is_itself:
        raise AtImportError
    olds, news = _nested(before), _nested(after)
    if [one.co_name for one in olds] == [one.co_name for one in news]:
        for old, new in zip(olds, news, strict=True):
            yield from _changed(old, new, is_inner=is_function)
    elif is_function:
        yield from (Changed(old, None, is_inner=True, is_itself=True) for old in olds)
    else:
        raise AtImportError


def meaning(code: CodeType) -> tuple[object, ...]:
    """Return what code does, without where it stands."""
    return (*_own(code), tuple(meaning(one) for one in _nested(code)))


def _own(code: CodeType) -> tuple[object, ...]:
    """Return what code does, without the functions and classes in it."""
    constants = tuple(
        one.co_name if isinstance(one, CodeType) else (type(one).__name__, repr(one))
        for one in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_name, code.co_code, constants, names, code.co_flags, code.co_argcount)


def _nested(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]
