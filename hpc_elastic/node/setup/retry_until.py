"""Writing something before leaving, though the run directory may refuse for a while."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.errors import StoreError
from hpc_elastic.node.setup.agent_setup import AgentParts


def insist(write: Callable[[], object], parts: AgentParts, limit: float) -> None:
    """Write something; give up when the run directory refuses for too long, or at a signal.

    Args:
        write: writes it, or raises StoreError.
        parts: clock, loop and log of the agent.
        limit: until when it is tried again, monotonic [s].

    Raises:
        TakenOverError: another directory is in the place of the run's.
    """
    pause_s = parts.rendezvous.run.settings.heartbeat_interval
    while True:
        try:
            write()
        except StoreError as error:
            parts.rendezvous.run.check_place()
            if parts.clock.monotonic() >= limit or parts.loop.signals:
                parts.log.say(f"left without a word: {error}")
                return
            parts.loop.wait(pause_s)
        else:
            return
