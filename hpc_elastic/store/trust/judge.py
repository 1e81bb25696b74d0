"""Who can put another directory in the place of a run's. Pure.

A directory is what its path leads to, and everybody who can write to a directory above can rename what
is in it. So every directory from `/` down to the run counts, and every one that a symbolic link on the
way leads through, as for sshd's StrictModes. A sticky directory lets only the owner of an entry, and its
own owner, rename the entry. POSIX ACLs count. NFSv4 ACLs cannot be seen.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from hpc_elastic.ids import RUNS_FOLDER

OWN_FOLDERS = (RUNS_FOLDER, ".hpc_elastic")  # directories that this package makes, for one user each
_ACL_VERSION = 2
_ACL_HEADER = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_WRITE = 2


class _Tag:
    """What an entry of a POSIX ACL is about, as Linux numbers it."""

    USER = 0x02
    GROUP_OBJ = 0x04
    GROUP = 0x08
    MASK = 0x10


class EntryKind(Enum):
    """Who somebody is."""

    OWNER = "owner"
    USER = "user"
    GROUP = "group"
    EVERYBODY = "everybody"
    LINK_OWNER = "owner of a link"


class Party(NamedTuple):
    """Somebody beside root and the user.

    Attributes:
        kind: what the number is.
        number: a user or group id; -1 for everybody.
    """

    kind: EntryKind
    number: int = -1


class TrustLevel(Enum):
    """How far a directory can be relied on."""

    SHARED = "shared"  # people who share it with the user can exchange what is in it
    OPEN = "open"  # anybody can, or somebody has taken a name of this package's before the user


class TrustedPlace(NamedTuple):
    """A directory on the way to a run, and the entry of it that the way goes on with.

    Attributes:
        path: the directory.
        uid, gid, mode: as `stat` tells them.
        acl: its extended attribute system.posix_acl_access; None where it has none.
        entry: path of the entry.
        entry_uid: the entry's owner; None while it is not there, as the user makes it.
        is_link: whether the entry is a symbolic link.
    """

    path: str
    uid: int
    gid: int
    mode: int
    acl: bytes | None
    entry: str
    entry_uid: int | None
    is_link: bool = False


class Trusted(NamedTuple):
    """Who may do what the user may.

    Attributes:
        me: the user.
        uids: root and the user.
        gids: groups that nobody else is in.
    """

    me: int
    uids: frozenset[int]
    gids: frozenset[int] = frozenset()


class Exposure(NamedTuple):
    """A directory in which others can exchange what leads to the run."""

    place: TrustedPlace
    level: TrustLevel
    by: tuple[Party, ...]


def judge(places: Iterable[TrustedPlace], trusted: Trusted) -> list[Exposure]:
    """Return where others than the trusted can exchange a directory on the way, the worst first.

    Args:
        places: every directory on the way.
        trusted: who may do it.
    """
    found = [each for each in (_judge_one(place, trusted) for place in places) if each is not None]
    return sorted(found, key=lambda each: each.level is not TrustLevel.OPEN)


def _judge_one(place: TrustedPlace, trusted: Trusted) -> Exposure | None:
    is_sticky = bool(place.mode & stat.S_ISVTX)
    if place.is_link and place.entry_uid not in trusted.uids:
        return Exposure(place, TrustLevel.OPEN, (Party(EntryKind.LINK_OWNER, place.entry_uid or 0),))
    by = [] if is_sticky else _writers(place, trusted)
    if place.uid not in trusted.uids:
        by.insert(0, Party(EntryKind.OWNER, place.uid))
    if not by:
        return None
    is_ours = os.path.basename(place.path) in OWN_FOLDERS
    is_open = is_ours or any(party.kind is EntryKind.EVERYBODY for party in by)
    return Exposure(place, TrustLevel.OPEN if is_open else TrustLevel.SHARED, tuple(by))


def _writers(place: TrustedPlace, trusted: Trusted) -> list[Party]:
    """Return who can write to a directory, without its owner and the trusted."""
    found = [Party(EntryKind.EVERYBODY)] if place.mode & stat.S_IWOTH else []
    if place.mode & stat.S_IWGRP:  # with an ACL this is its mask
        found += [party for party in _group_class(place) if not _is_trusted(party, trusted)]
    return found


def _group_class(place: TrustedPlace) -> Iterator[Party]:
    """Yield those whom the group's write permission of a directory is for."""
    owning = Party(EntryKind.GROUP, place.gid)
    entries = None if place.acl is None else acl_entries(place.acl)
    if entries is None:
        yield owning
        return
    mask = next((allowed for tag, allowed, _ in entries if tag == _Tag.MASK), _ACL_WRITE)
    if not mask & _ACL_WRITE:
        return
    for tag, allowed, number in entries:
        if allowed & _ACL_WRITE:
            if tag == _Tag.GROUP_OBJ:
                yield owning
            elif tag == _Tag.USER:
                yield Party(EntryKind.USER, number)
            elif tag == _Tag.GROUP:
                yield Party(EntryKind.GROUP, number)


def acl_entries(data: bytes) -> list[tuple[int, int, int]] | None:
    """Return tag, permissions and id of each entry of a POSIX ACL; None if it is not understood.

    Args:
        data: the value of the extended attribute.
    """
    head, body = data[: _ACL_HEADER.size], data[_ACL_HEADER.size :]
    if head != _ACL_HEADER.pack(_ACL_VERSION) or len(body) % _ACL_ENTRY.size:
        return None
    return list(_ACL_ENTRY.iter_unpack(body))


def _is_trusted(party: Party, trusted: Trusted) -> bool:
    return party.number in (trusted.gids if party.kind is EntryKind.GROUP else trusted.uids)
