"""What is remembered of nodes over runs: a directory of small records that are never rewritten.

Each event is a file of its own, created exclusively under a name that follows from the event, so that
several runs and several writers of one event do no harm. The directory belongs to one user alone.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from hpc_elastic.errors import DamagedError, RunDirError
from hpc_elastic.paths import own_name
from hpc_elastic.store import files
from hpc_elastic.store.directories import make_directories, make_directory
from hpc_elastic.store.node_events import NodeEvent
from hpc_elastic.store.ownership import require_own
from hpc_elastic.typed_json import decode, parse_object

FORMAT = 1
FOLDER = ".hpc_elastic"
_NODES = "nodes"
_MAX_BYTES = 1 << 16
_MOST_DETAIL = 500  # characters
_NAME = re.compile(r"([0-9]{1,18})\.[^/]+\.json")
_FIX = "give a directory of your own with HPC_ELASTIC_LEDGER or ledger = ..."


class Ledger(NamedTuple):
    """What was read."""

    events: tuple[NodeEvent, ...]  # oldest first
    damaged: tuple[str, ...] = ()  # names of files that could not be read


def name_of(event: NodeEvent) -> str:
    """Return the name of an event's file."""
    parts = (own_name(event.host), event.fault.value, own_name(event.key))
    return f"{int(event.at)}.{'.'.join(filter(None, parts))}.json"


def place_for(run_root: str) -> str:
    """Return where the nodes of a run are remembered, together with those of the runs beside it."""
    return os.path.join(os.path.dirname(os.path.abspath(run_root)), FOLDER, _NODES)


def remember(place: str, events: Iterable[NodeEvent]) -> list[NodeEvent]:
    """Write down events that are not there yet; return those that are new.

    Raises:
        RunDirError: the directory is not this user's alone.
        OSError: the file system refused.
    """
    wanted = {name_of(event): event for event in events}
    if not wanted:
        return []
    _make(place)
    known = set(files.list_names(place))
    new = [(name, event) for name, event in wanted.items() if name not in known]
    return [event for name, event in new if files.publish_new(os.path.join(place, name), _encode(event))]


def _make(place: str) -> None:
    above = os.path.dirname(place)
    if not os.path.isdir(above):
        make_directories(above)
    if os.path.basename(above) == FOLDER:
        require_own(above, f"ledger {above}")
    make_directory(place)
    _check(place)


def _check(place: str) -> None:
    try:
        require_own(place, f"ledger {place}")
    except RunDirError as error:
        raise RunDirError(error.message, where=error.where, fix=f"{error.fix}; or {_FIX}") from None


def read_ledger(place: str, *, since: float = 0.0) -> Ledger:
    """Read what is remembered; nothing is if there is no such directory.

    Args:
        place: the directory.
        since: older events are not opened [s since the epoch].

    Raises:
        RunDirError: the directory is not this user's alone.
        OSError: it cannot be listed.
    """
    above = os.path.dirname(place)
    if os.path.basename(above) == FOLDER and os.path.isdir(above):  # nobody else can look into it
        require_own(above, f"ledger {above}")
    if not os.path.isdir(place):
        return Ledger(())
    _check(place)
    events, damaged = [], []
    for name in files.list_names(place):
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) < since:
            continue
        event = _read(os.path.join(place, name))
        if event is None:
            damaged.append(name)
        else:
            events.append(event)
    return Ledger(tuple(sorted(events, key=lambda event: event.at)), tuple(damaged))


def _encode(event: NodeEvent) -> bytes:
    fields = {**event._asdict(), "detail": event.detail[:_MOST_DETAIL]}
    return (json.dumps({"format": FORMAT, **fields}) + "\n").encode()


def _read(path: str) -> NodeEvent | None:
    """Return the event in a file; None if it is damaged, no plain file of this user's, or too long."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            return None
        return _parse(os.read(fd, _MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)


def _parse(data: bytes) -> NodeEvent | None:
    try:
        fields = parse_object(data)
        return decode(NodeEvent, fields) if fields.get("format") == FORMAT else None
    except DamagedError:
        return None
