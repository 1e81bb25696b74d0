"""Whether the membership of a round is to change, asked of a handler that does not always answer."""

from __future__ import annotations

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.meet.interface import RendezvousHandler
from hpc_elastic.utils.logging import get_logger

NO_ANSWER = (RendezvousConnectionError, RendezvousTimeoutError, StoreError, ConnectionError, TimeoutError)
"""Errors after which asking again makes sense."""

logger = get_logger(__name__)


def is_like(error: Exception, *kinds: type[Exception]) -> bool:
    """Tell whether an error is of one of these kinds, or of one of torch's that has the same name."""
    if isinstance(error, kinds):
        return True
    names = {kind.__name__ for kind in kinds}
    return any(base.__name__ in names for base in type(error).__mro__)


class MembershipWatch:
    """Asks a handler how many nodes wait; healthy workers go on while it does not answer."""

    def __init__(self) -> None:
        self._is_out_of_touch = False

    @property
    def is_out_of_touch(self) -> bool:
        """Whether the handler did not answer the last time it was asked."""
        return self._is_out_of_touch

    def nodes_waiting(self, handler: RendezvousHandler) -> int:
        """Return how many nodes wait; 0 while it is unknown, which is logged once.

        Raises:
            RendezvousClosedError: a node has ended the run for all nodes.
            RendezvousError: the shared state is damaged.
        """
        try:
            waiting = handler.num_nodes_waiting()
            _refuse_ended(handler)
        except Exception as error:
            if not is_like(error, *NO_ANSWER):
                raise
            if not self._is_out_of_touch:
                logger.warning("The rendezvous does not answer, the workers go on: %s", error)
            self._is_out_of_touch = True
            return 0
        if self._is_out_of_touch:
            logger.warning("The rendezvous answers again")
        self._is_out_of_touch = False
        return waiting


def _refuse_ended(handler: RendezvousHandler) -> None:
    """Refuse to go on in a run that has been ended on purpose.

    Other handlers than ours are closed by every node that leaves, so that means nothing for those that work.
    """
    if hasattr(handler, "others_at_work") and handler.is_closed():
        raise RendezvousClosedError(
            f"the run '{handler.get_run_id()}' was closed while its workers ran; they are ended"
        )
