"""Whether a program has changed the agent class, as extensions of torch do that bring none of their own."""

from __future__ import annotations

_PACKAGE = __name__.partition(".")[0]


def is_changed(agent: object) -> bool:
    """Tell whether an agent is not the package's own, or has methods that are not.

    Args:
        agent: the class, or the replacement by a program.
    """
    if not isinstance(agent, type) or not _is_own(agent.__module__):
        return True
    own = [base for base in agent.__mro__ if _is_own(base.__module__)]
    return any(_is_foreign(value) for base in own for value in vars(base).values())


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _is_foreign(value: object) -> bool:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    is_method = callable(function) and not isinstance(function, type)
    return is_method and not _is_own(getattr(function, "__module__", None) or "")
