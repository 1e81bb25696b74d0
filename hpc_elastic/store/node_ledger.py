"""The memory of nodes over runs: a directory of small records that are never rewritten.

Each event is a file of its own, created exclusively under a name that follows from the event, so that
several runs and several writers of one event do no harm. The directory belongs to one user alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator

from hpc_elastic.errors import DamagedError, RunDirError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import own_name
from hpc_elastic.store import files
from hpc_elastic.store.files import make_directories, make_directory
from hpc_elastic.store.node_events import NodeEvent
from hpc_elastic.store.plain_file import owner_name
from hpc_elastic.store.trust import require_own
from hpc_elastic.typed_json import decode, parse_object

FORMAT = 1
FOLDER = ".hpc_elastic"
_NODES = "nodes"
_MOST_FOLDERS = 10  # names that are tried where other users have taken some
_MAX_BYTES = 1 << 16
_MOST_DETAIL = 500  # characters
_NAME = re.compile(r"([0-9]{1,18})\.[^/]+\.json")
_FIX = "give a directory of your own with HPC_ELASTIC_LEDGER or ledger = ..."


class Ledger(NamedTuple):
    """The result of a reading."""

    events: tuple[NodeEvent, ...]  # oldest first
    damaged: tuple[str, ...] = ()  # names of files that could not be read


def name_of(event: NodeEvent) -> str:
    """Return the name of an event's file."""
    parts = (own_name(event.host), event.fault.value, own_name(event.key))
    return f"{int(event.at)}.{'.'.join(filter(None, parts))}.json"


def place_for(run_root: str) -> str:
    """Return where the nodes of a run are remembered, together with those of the runs beside it.

    Where another user has the usual name, it is the next one of this user's; see `candidates`.
    """
    above = os.path.dirname(os.path.abspath(run_root))
    return os.path.join(above, _own_folder(above), _NODES)


def candidates() -> Iterator[str]:
    """Yield the names that a ledger may have beside the runs, the usual one first."""
    own = f"{FOLDER}-{os.geteuid()}"
    yield from (FOLDER, own, *(f"{own}-{number}" for number in range(1, _MOST_FOLDERS)))


def foreign_folder(place: str) -> str:
    """Return the note about a ledger that has not the usual place, with the owner of that; else nothing."""
    above, name = os.path.split(os.path.dirname(place))
    usual = os.path.join(above, FOLDER)
    if name == FOLDER or name not in candidates() or not os.path.lexists(usual):
        return ""
    whose = owner_name(os.lstat(usual).st_uid)
    return f"{usual} belongs to user {whose}, so nodes are remembered in {os.path.dirname(place)}"


def _own_folder(above: str) -> str:
    """Return the name of this user's ledger in a folder: one that is there, else the first that is free."""
    try:
        there = set(os.listdir(above))  # no look-up of names that are not there yet
        names = list(candidates())
        mine = (name for name in names if name in there and _is_own(os.path.join(above, name)))
        free = (name for name in names if name not in there)
        return next(mine, None) or next(free, FOLDER)
    except OSError:
        return FOLDER


def _is_own(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _is_beside_runs(above: str) -> bool:
    return os.path.basename(above) in candidates()


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
    if _is_beside_runs(above):
        _check(above)
    make_directory(place)
    _check(place)


def _check(place: str) -> None:
    try:
        require_own(place, f"ledger {place}")
    except RunDirError as error:
        raise RunDirError(error.message, where=error.where, fix=f"{error.fix}; or {_FIX}") from None


def read_ledger(place: str, *, since: float = 0.0) -> Ledger:
    """Read the events; none if there is no such directory.

    Args:
        place: the directory.
        since: older events are not opened [s since the epoch].

    Raises:
        RunDirError: the directory is not this user's alone.
        OSError: it cannot be listed.
    """
    above = os.path.dirname(place)
    if _is_beside_runs(above) and os.path.isdir(above):  # no other user can look into it
        _check(above)
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
        data = files.read(path, limit=_MAX_BYTES)
    except OSError:
        return None
    return None if data is None else _parse(data)


def _parse(data: bytes) -> NodeEvent | None:
    try:
        fields = parse_object(data)
        return decode(NodeEvent, fields) if fields.get("format") == FORMAT else None
    except DamagedError:
        return None
