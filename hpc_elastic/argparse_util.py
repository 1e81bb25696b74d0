"""Flags of a command line whose defaults come from the environment, as in torch.distributed.argparse_util."""

from __future__ import annotations

import os
from argparse import Action, ArgumentParser, Namespace
from typing import Any

from hpc_elastic.errors import InputError

__all__ = ["check_env", "env"]

_YES = frozenset({"1", "true"})
_NO = frozenset({"", "0", "false"})


class SwitchVariableError(InputError, ValueError):
    """A variable that stands for a flag without a value is neither 1 nor 0."""


class env(Action):  # noqa: N801 - torch's name
    """A flag with a value; ``PET_<DEST>`` in the environment is its default.

    dest is the longest spelling: of ``-f, --foo`` the variable is ``PET_FOO``. A flag that is required
    need not be given where the variable is set. For flags without a value use `check_env`.
    """

    def __init__(self, dest: str, default: Any = None, required: bool = False, **kwargs: Any) -> None:  # noqa: FBT001, FBT002 - argparse's
        given = value_of(variable_of(dest))
        default = default if given is None else given
        super().__init__(dest=dest, default=default, required=required and not default, **kwargs)

    def __call__(
        self, _parser: ArgumentParser, namespace: Namespace, values: Any, _option_string: str | None = None
    ) -> None:
        """Take the value."""
        setattr(namespace, self.dest, values)


class check_env(Action):  # noqa: N801 - torch's name
    """A flag without a value, true if it is given or if ``PET_<DEST>`` is 1.

    Raises:
        SwitchVariableError: the variable is neither 1 nor 0.
    """

    def __init__(self, dest: str, default: bool = False, **kwargs: Any) -> None:  # noqa: FBT001, FBT002 - argparse's
        super().__init__(
            dest=dest, const=True, default=_is_set(variable_of(dest), default), nargs=0, **kwargs
        )

    def __call__(
        self, _parser: ArgumentParser, namespace: Namespace, _values: Any, _option_string: str | None = None
    ) -> None:
        """Note that the flag is given."""
        setattr(namespace, self.dest, self.const)


def variable_of(dest: str) -> str:
    """Return the environment variable that sets the default of a flag."""
    return f"PET_{dest.upper()}"


def value_of(name: str) -> str | None:
    """Return the value of an environment variable, None if it is not set."""
    return os.environ.get(name)  # noqa: TID251 - the purpose of this module


def _is_set(name: str, default: bool) -> bool:  # noqa: FBT001 - one of two values
    text = value_of(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word in _YES | _NO:
        return word in _YES
    raise SwitchVariableError(f"{text!r} is neither 1 nor 0", where=name, fix="set it to 1 or 0, or unset it")
