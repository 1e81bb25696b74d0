"""What leads to a run directory: looked up as the kernel does it, and told to people."""

from __future__ import annotations

import os
import shlex
import stat
from typing import NamedTuple

from hpc_elastic.errors import RunDirError
from hpc_elastic.store.files import retry
from hpc_elastic.store.plain_file import owner_name
from hpc_elastic.store.trust.judge import EntryKind, Exposure, Party, Trusted, TrustedPlace, TrustLevel, judge

_MOST_LINKS = 40  # as the kernel follows
_ACL = "system.posix_acl_access"
_UNMAPPED = 65534  # how a user namespace shows the root of the machine
_HARM = "they can end the run and choose the file that Slurm appends its output to"
SAFE = "they cannot run code as you in it, nor read it"


class Trouble(NamedTuple):
    """What is to be said of a directory above a run."""

    what: str
    fix: str


def exposures(path: str, *, with_groups: bool = True) -> list[Exposure]:
    """Return where others can put another directory in the place of one, the worst first.

    Args:
        path: absolute path of the directory; it need not be there.
        with_groups: ask the system whether a group has other members; if it is not asked, it has.

    Raises:
        OSError: the file system does not tell.
    """
    places = way_to(path)
    gids = {place.gid for place in places if place.mode & stat.S_IWGRP} if with_groups else set()
    me = os.geteuid()
    uids = {0, me, *(place.uid for place in places[:1] if place.uid == _UNMAPPED)}
    return judge(places, Trusted(me, frozenset(uids), frozenset(filter(_is_private_group, gids))))


def way_to(path: str) -> list[TrustedPlace]:
    """Return all directories on the way to a path, those above first, as far as they can be seen.

    Raises:
        OSError: the file system does not tell.
    """
    found: list[TrustedPlace] = []
    here, names, links = "/", _parts(path), 0
    while names:
        name = names.pop(0)
        if name == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, name)
        try:
            place = _look(here, entry)
        except (PermissionError, NotADirectoryError, FileNotFoundError):
            break
        found.append(place)
        if place.entry_uid is None:
            break
        if not place.is_link:
            here = entry
            continue
        links += 1
        target = os.readlink(entry)
        if links > _MOST_LINKS:
            break
        here = "/" if target.startswith("/") else here
        names = [*_parts(target), *names]
    return found


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _look(directory: str, entry: str) -> TrustedPlace:
    status = retry(lambda: os.stat(directory))
    try:
        of_entry = retry(lambda: os.lstat(entry))
    except (
        FileNotFoundError,
        PermissionError,
    ):  # the owner counts all the same
        uid, is_link = None, False
    else:
        uid, is_link = of_entry.st_uid, stat.S_ISLNK(of_entry.st_mode)
    acl = _acl_of(directory) if status.st_mode & stat.S_IWGRP else None
    return TrustedPlace(directory, status.st_uid, status.st_gid, status.st_mode, acl, entry, uid, is_link)


def _acl_of(directory: str) -> bytes | None:
    try:
        return os.getxattr(directory, _ACL)
    except OSError:  # it has none, or the file system has no such lists
        return None


def _is_private_group(gid: int) -> bool:
    """Tell whether a group is that of one trusted user alone, as many systems make one for each user."""
    import grp  # noqa: PLC0415 - rare, and not on the agent's path
    import pwd  # noqa: PLC0415 - the same

    for uid in (os.geteuid(), 0):
        try:
            user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
        except KeyError:
            continue
        if (group.gr_name, gid) == (user.pw_name, user.pw_gid) and {*group.gr_mem} <= {user.pw_name}:
            return True
    return False


def refuse_open(
    path: str, where: str, *, spares_public: bool = False, is_of_many: bool = False
) -> list[Exposure]:
    """Refuse a run directory that anybody can exchange; return where people who share it with the user can.

    Args:
        path: absolute path of the run directory.
        where: names it in the error.
        is_of_many: called on all nodes at once: no server of groups is asked unless it decides.
        spares_public: refuse only foreign links and foreign directories with a name of this package's.

    Raises:
        RunDirError: a directory above it is open.
        OSError: the file system does not tell.
    """
    found = exposures(path, with_groups=not is_of_many)
    if is_of_many and any(each.level is TrustLevel.OPEN for each in found):
        found = exposures(path)
    for exposure in found:
        is_public = exposure.by[0].kind is EntryKind.EVERYBODY
        if exposure.level is TrustLevel.OPEN and not (is_public and spares_public):
            trouble = open_text(exposure, path)
            raise RunDirError(trouble.what, where=where, fix=trouble.fix)
    return found


def open_text(exposure: Exposure, path: str) -> Trouble:
    """Return what is wrong with an open directory above a run, and what to do."""
    place, by = exposure.place, exposure.by[0]
    if by.kind is EntryKind.LINK_OWNER:
        through = "is" if place.entry == path else f"goes through {place.entry},"
        return Trouble(
            f"{path} {through} a symbolic link of {owner_name(by.number)}'s",
            "choose another --run-dir, or give the real path",
        )
    shown = f"{place.path} (owner {owner_name(place.uid)}, mode {stat.S_IMODE(place.mode):o})"
    if by.kind is EntryKind.OWNER:
        me = owner_name(os.geteuid()).removeprefix("uid ")
        own = os.path.join(f"{place.path}_{me}", os.path.basename(path))
        return Trouble(
            f"{shown} belongs to another user, who could put another directory in the place of {path}",
            f"name a directory of your own: --run-dir {shlex.quote(own)}",
        )
    can = (
        "everybody" if any(each.kind is EntryKind.EVERYBODY for each in exposure.by) else _names(exposure.by)
    )
    mend = "go-w" if place.uid == os.geteuid() else "+t"
    whose = "" if place.uid == os.geteuid() else "have its owner do: "
    return Trouble(
        f"{can} can write to {shown}, and so put another directory in the place of {path}",
        f"{whose}chmod {mend} {shlex.quote(place.path)}; or choose another --run-dir",
    )


def shared_text(found: list[Exposure]) -> str:
    """Return in one line who can exchange a run directory, and what is safe there all the same."""
    parts = [f"{_names(each.by)} can rename {each.place.entry}" for each in found[:2]]
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""  # noqa: PLR2004 - two are shown
    return f"{'; '.join(parts)}{more}: {_HARM}; {SAFE}"


def _names(by: tuple[Party, ...]) -> str:
    return " and ".join(_name(party) for party in by)


def _name(party: Party) -> str:
    match party.kind:
        case EntryKind.GROUP:
            return f"members of group {_group_name(party.number)}"
        case EntryKind.EVERYBODY:
            return "everybody"
        case _:
            return f"user {owner_name(party.number)}"


def _group_name(gid: int) -> str:
    import grp  # noqa: PLC0415 - only for messages

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"
