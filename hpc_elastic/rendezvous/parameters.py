"""The parameters of a rendezvous handler. Pure."""

from __future__ import annotations

import math
from typing import Any

_MOST = 10**12  # of anything that is counted
_LONGEST_S = 1e9  # 31 years
_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


class RendezvousParameters:
    """The parameters of a rendezvous handler, as in torch.

    Args:
        backend: the name under which the handler is registered, for example ``shared_fs``.
        endpoint: where the nodes meet; for ``shared_fs`` a directory that all of them see.
        run_id: the id of the run.
        min_nodes: with fewer nodes no round is formed.
        max_nodes: more nodes are not taken into a round.
        local_addr: address of this node for the others; found out if not given.
        config: further options of the backend.

    Raises:
        ValueError: the backend has no name, or the bounds make no sense.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        if min_nodes < 1:
            raise ValueError(
                f"The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
            )
        if max_nodes < min_nodes:
            raise ValueError(
                f"The maximum number of rendezvous nodes ({max_nodes}) must be greater than or "
                f"equal to the minimum number of rendezvous nodes ({min_nodes})."
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = config

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an option, or `default` if it is not given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:  # noqa: FBT001 - torch's
        """Return the value of an option as a truth value.

        Raises:
            ValueError: it is none: 1, true, t, yes, y and 0, false, f, no, n in any case are.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        text = str(value).lower() if isinstance(value, (int, str)) else ""
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise ValueError(
            f"The rendezvous configuration option '{key}' does not represent a valid boolean value."
        )

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the value of an option as a whole number.

        Raises:
            ValueError: it is none.
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            number = int(value)
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"The rendezvous configuration option '{key}' does not represent a valid integer value."
            ) from error
        if abs(number) > _MOST:
            raise ValueError(f"The rendezvous configuration option '{key}' must be {_MOST} at most.")
        return number


def seconds_of(params: RendezvousParameters, key: str, default: float | None = None) -> float | None:
    """Return an option that is a number of seconds, `default` if it is not given.

    Raises:
        ValueError: it is no number.
    """
    value = params.get(key, default)
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _LONGEST_S:
        raise ValueError(
            f"The rendezvous configuration option '{key}' ({value!r}) is not a number of seconds."
        )
    return number
