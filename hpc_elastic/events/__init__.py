"""The events of a run, recorded for programs to read.

The names and their behaviour are those of ``torch.distributed.elastic.events``; a script needs only
its import renamed. An event goes as one line of JSON to the logging handler that is registered for
its destination (none by default), and as an object to the `EventHandler` that is configured::

    from hpc_elastic import events

    event = events.Event("epoch done", events.EventSource.WORKER, metadata={"epoch": 3})
    events.record(event, destination="console")
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace

from hpc_elastic.clock import SystemClock
from hpc_elastic.events.api import Event, EventMetadataValue, EventSource, NodeState, RdzvEvent
from hpc_elastic.events.handlers import (
    EventHandler,
    JsonLinesEventHandler,
    JsonLinesLogHandler,
    NullEventHandler,
    configure,
    configured_handler,
    get_logging_handler,
    register_logging_handler,
)

__all__ = [
    "Event",
    "EventHandler",
    "EventMetadataValue",
    "EventSource",
    "JsonLinesEventHandler",
    "JsonLinesLogHandler",
    "NodeState",
    "NullEventHandler",
    "RdzvEvent",
    "configure",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
    "register_logging_handler",
]

_RENDEZVOUS = "dynamic_rendezvous"


def _get_or_create_logger(destination: str = "null") -> logging.Logger:
    """Return the logger of a destination; its records reach no other logger.

    Raises:
        KeyError: no handler is registered for the destination.
        ValueError: the environment variable LOGLEVEL names no level.
    """
    handler = get_logging_handler(destination)
    logger = logging.getLogger(f"torchelastic-events-{destination}")
    if handler not in logger.handlers:
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))  # noqa: TID251 - as torch does
        logger.propagate = False
        logger.addHandler(handler)
    return logger


def record(event: Event, destination: str = "null") -> None:
    """Record an event; one without a timestamp gets that of now.

    Args:
        event: it is not changed.
        destination: ``console``, ``null``, or a name given to `register_logging_handler`.

    Raises:
        KeyError: no handler is registered for the destination.
    """
    if event.timestamp == 0:
        event = replace(event, timestamp=int(SystemClock().wall() * 1000))
    _get_or_create_logger(destination).info(event.serialize())
    configured_handler().record(event)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Record an event of the rendezvous, at the destination ``dynamic_rendezvous``."""
    _get_or_create_logger(_RENDEZVOUS).info(event.serialize())
    configured_handler().record_rdzv_event(event)


def wants_rdzv_events() -> bool:
    """Tell whether anybody takes events of the rendezvous."""
    nobody_logs = isinstance(get_logging_handler(_RENDEZVOUS), logging.NullHandler)
    return not (nobody_logs and configured_handler().ignores_all)


def construct_and_record_rdzv_event(  # noqa: PLR0913 - torch's signature
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Record an event of the rendezvous, if anybody wants to know.

    Args:
        run_id: the run.
        message: the event in words, for people.
        node_state: state of the node; FAILED adds the traceback of the exception being handled.
        name: the present action; by default the calling function. The file comes before it.
        hostname: the node; by default this host's name as it knows it, without asking a name server.
        pid: the process; by default this one.
        master_endpoint: where the rendezvous is, if that is known.
        local_id: number of the node within its rendezvous backend.
        rank: rank of the node, if it has one.
    """
    if not wants_rdzv_events():
        return
    caller = sys._getframe(1).f_code  # noqa: SLF001 - inspect.stack() reads source files on every call
    record_rdzv_event(
        RdzvEvent(
            name=f"{os.path.basename(caller.co_filename)}:{name or caller.co_name}",
            run_id=run_id,
            message=message,
            hostname=hostname or os.uname().nodename,
            pid=pid or os.getpid(),
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=_traceback() if node_state == NodeState.FAILED else "",
        )
    )


def _traceback() -> str:
    import traceback  # noqa: PLC0415 - only failures need it

    return traceback.format_exc()
