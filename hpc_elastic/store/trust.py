"""The users that can write to a run directory, or put another one in its place; whether it is the run's own.

A directory that does not answer is no reason to give a run up: the file system may be away for a while. One
that answers, and is another user's, another run's, or open to others, is not the run's.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from enum import Enum

from hpc_elastic.errors import RunDirError, TakenOverError, UnfitFileError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import IDENTITY
from hpc_elastic.store import files
from hpc_elastic.store.files import retry
from hpc_elastic.store.plain_file import OTHERS_WRITE, GivenFile, acl_of, owner_name
from hpc_elastic.text import for_shell

OWN_FOLDERS = (RUNS_FOLDER, ".hpc_elastic")  # directories that this package makes, for one user each
_ACL_VERSION = 2
_ACL_HEADER = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_WRITE = 2

_MOST_LINKS = 40  # as the kernel follows
_UNMAPPED = 65534  # how a user namespace shows the root of the machine
_HARM = "they can end the run and choose the file that Slurm appends its output to"
SAFE = "they cannot run code as you in it, nor read it"


class Trouble(NamedTuple):
    """The problem of a directory above a run, and its fix."""

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
    places = list(way_to(path))
    return judge(places, _trusted(places, with_groups=with_groups))


def is_exposed(place: TrustedPlace) -> bool:
    """Tell whether others can exchange the entry of a directory on the way to a run."""
    return bool(judge([place], _trusted([place], with_groups=True)))


def other_owner(given: GivenFile) -> str:
    """Return the user to whom a file belongs; empty if that is the user or root.

    Raises:
        OSError: the file system does not tell.
    """
    owner = given.found.st_uid
    return "" if owner in trusted_uids() else owner_name(owner)


def other_writers(path: str, given: GivenFile) -> str:
    """Return in words the other users that may have written a file; empty if there are none.

    Raises:
        OSError: the file system does not tell.
    """
    found = given.found
    place = TrustedPlace(path, found.st_uid, found.st_gid, found.st_mode, given.acl, path, found.st_uid)
    trusted = _trusted([place], with_groups=True)
    owner = [] if found.st_uid in trusted.uids else [Party(EntryKind.OWNER, found.st_uid)]
    return _names((*owner, *_writers(place, trusted)))


def others_write(fd: int) -> bool:
    """Tell whether users beside root and this one can write to an open file or directory.

    Raises:
        OSError: the file system does not tell.
    """
    found = os.fstat(fd)
    acl = acl_of(fd) if found.st_mode & stat.S_IWGRP else None
    place = TrustedPlace("", found.st_uid, found.st_gid, found.st_mode, acl, "", None)
    return bool(_writers(place, _trusted([place], with_groups=True)))


def _trusted(places: Iterable[TrustedPlace], *, with_groups: bool) -> Trusted:
    gids = {place.gid for place in places if place.mode & stat.S_IWGRP} if with_groups else set()
    return Trusted(os.geteuid(), trusted_uids(), frozenset(filter(_is_private_group, gids)))


def trusted_uids() -> frozenset[int]:
    """Return root and the user; in a user namespace also the number that root of the machine has there.

    Raises:
        OSError: the file system does not tell.
    """
    of_machine = os.stat("/").st_uid
    return frozenset({0, os.geteuid(), *([_UNMAPPED] if of_machine == _UNMAPPED else [])})


def way_to(path: str) -> Iterator[TrustedPlace]:
    """Yield all directories on the way to a path, those above first, as far as they can be seen.

    A link is yielded before its target is looked at.

    Raises:
        OSError: the file system does not tell.
    """
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
        yield place
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
        of_entry = None
    acl = acl_of(directory) if status.st_mode & stat.S_IWGRP else None
    place = TrustedPlace(directory, status.st_uid, status.st_gid, status.st_mode, acl, entry, None)
    if of_entry is None:
        return place
    mode = of_entry.st_mode
    return place._replace(
        entry_uid=of_entry.st_uid,
        is_link=stat.S_ISLNK(mode),
        is_directory=stat.S_ISDIR(mode),
        inode=of_entry.st_ino,
    )


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
    """Return the problem of an open directory above a run, and its fix."""
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
            f"{shown} belongs to another user, and that user could put another directory "
            f"in the place of {path}",
            f"name a directory of your own: --run-dir {for_shell(own)}",
        )
    can = (
        "everybody" if any(each.kind is EntryKind.EVERYBODY for each in exposure.by) else _names(exposure.by)
    )
    mend = "go-w" if place.uid == os.geteuid() else "+t"
    whose = "" if place.uid == os.geteuid() else "have its owner do: "
    return Trouble(
        f"{can} can write to {shown}, and so put another directory in the place of {path}",
        f"{whose}chmod {mend} {for_shell(place.path)}; or choose another --run-dir",
    )


def shared_text(found: list[Exposure]) -> str:
    """Return in one line the users that can exchange a run directory, and the limits of the harm."""
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


class _Tag:
    """The subject of an entry of a POSIX ACL, as Linux numbers it."""

    USER = 0x02
    GROUP_OBJ = 0x04
    GROUP = 0x08
    MASK = 0x10


class EntryKind(Enum):
    """The kind of a party."""

    OWNER = "owner"
    USER = "user"
    GROUP = "group"
    EVERYBODY = "everybody"
    LINK_OWNER = "owner of a link"


class Party(NamedTuple):
    """A user or a group beside root and the user.

    Attributes:
        kind: the meaning of the number.
        number: a user or group id; -1 for everybody.
    """

    kind: EntryKind
    number: int = -1


class TrustLevel(Enum):
    """How far a directory can be relied on."""

    SHARED = "shared"  # users that share it can exchange its entries
    OPEN = "open"  # any user can, or another user has taken a name of this package's first


class TrustedPlace(NamedTuple):
    """A directory on the way to a run, and the entry of it that the way goes on with.

    Attributes:
        path: the directory.
        uid, gid, mode: as `stat` tells them.
        acl: its extended attribute system.posix_acl_access; None where it has none.
        entry: path of the entry.
        entry_uid: the entry's owner; None while it is not there, as the user makes it.
        is_link: whether the entry is a symbolic link.
        is_directory: whether the entry is a directory.
        inode: number of the entry.
    """

    path: str
    uid: int
    gid: int
    mode: int
    acl: bytes | None
    entry: str
    entry_uid: int | None
    is_link: bool = False
    is_directory: bool = False
    inode: int = 0


class Trusted(NamedTuple):
    """The parties with the rights of the user.

    Attributes:
        me: the user.
        uids: root and the user.
        gids: groups without any other member.
    """

    me: int
    uids: frozenset[int]
    gids: frozenset[int] = frozenset()


class Exposure(NamedTuple):
    """A directory in which others can exchange the way to the run."""

    place: TrustedPlace
    level: TrustLevel
    by: tuple[Party, ...]


def judge(places: Iterable[TrustedPlace], trusted: Trusted) -> list[Exposure]:
    """Return where others than the trusted can exchange a directory on the way, the worst first."""
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
    """Return the parties that can write to a directory, without its owner and the trusted."""
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
    """Return tag, permissions and id of each entry of a POSIX ACL; None if it is not understood."""
    head, body = data[: _ACL_HEADER.size], data[_ACL_HEADER.size :]
    if head != _ACL_HEADER.pack(_ACL_VERSION) or len(body) % _ACL_ENTRY.size:
        return None
    return list(_ACL_ENTRY.iter_unpack(body))


def _is_trusted(party: Party, trusted: Trusted) -> bool:
    return party.number in (trusted.gids if party.kind is EntryKind.GROUP else trusted.uids)


def require_own(root: str, where: str) -> None:
    """Refuse a directory, or a link to one, that others have made or can write to.

    Raises:
        RunDirError: it is not this user's alone.
        OSError: the file system does not tell.
    """
    of_link, found = files.retry(lambda: os.lstat(root)), files.retry(lambda: os.stat(root))
    for status in (of_link, found):
        if status.st_uid != os.geteuid():
            raise RunDirError(
                f"it belongs to user {status.st_uid}, not to you",
                where=where,
                fix="choose a directory of your own, or work as the user who made it",
            )
    if found.st_mode & 0o022:
        mode = found.st_mode & 0o777
        raise RunDirError(
            f"others can write to it (mode {mode:o})", where=where, fix=f"chmod 700 {for_shell(root)}"
        )


def require_own_entries(root: str, names: Iterable[str], where: str) -> None:
    """Refuse entries of others from before a directory was closed to them.

    Args:
        root: the directory, which is this user's.
        names: entries of it; files and links of this user's are fine.
        where: names it in the error.

    Raises:
        RunDirError: one is another user's, or a directory that others can write to.
        OSError: the file system does not tell.
    """
    for name in names:
        path = os.path.join(root, name)
        try:
            found = files.retry(lambda path=path: os.lstat(path))  # type: ignore[misc] # one path for each
        except FileNotFoundError:
            continue
        why, fix = "", f"look at its owner, then: rm -r {for_shell(path)}"
        if found.st_uid != os.geteuid():
            why = f"belongs to user {found.st_uid}, not to you"
        elif stat.S_ISDIR(found.st_mode) and found.st_mode & 0o022:
            why = f"can be written to by others (mode {stat.S_IMODE(found.st_mode):o})"
            fix = f"look at its contents, then: chmod go-w {for_shell(path)}"
        if why:
            raise RunDirError(f"{path} {why}", where=where, fix=f"{fix}; or choose another --run-dir")


def require_same(root: str, run_id: str) -> os.stat_result:
    """Check that a directory is the user's alone, and holds the run.

    Args:
        root: the run directory.
        run_id: name of the run; empty: any.

    Raises:
        TakenOverError: it is another user's, open to others, or another run's.
        OSError: the file system does not tell.
    """
    try:
        found = files.retry(lambda: os.stat(root))
    except OSError as error:
        _refuse_foreign_above(root, is_closed=error.errno == errno.EACCES)
        raise
    if found.st_uid != os.geteuid():
        raise taken(root, f"it belongs to user {owner_name(found.st_uid)}, not to you")
    if found.st_mode & OTHERS_WRITE:
        mode = found.st_mode & 0o777
        raise TakenOverError(
            f"others can write to it (mode {mode:o})",
            where=f"run directory {root}",
            fix=f"chmod 700 {for_shell(root)}; then: hpc-elastic submit --resume {for_shell(root)}",
        )
    other = run_id_in(root) if run_id else ""
    if other not in ("", run_id):
        raise taken(root, f"it holds the run {other}, not {run_id}")
    return found


def run_id_in(root: str) -> str:
    """Return the name of the run that was submitted in a directory; empty if that is unknown.

    Raises:
        OSError: the file system does not tell.
    """
    data = files.read(os.path.join(root, IDENTITY))
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):  # others tell that the file is damaged
        return ""
    run_id = found.get("run_id") if isinstance(found, dict) else None
    return run_id if isinstance(run_id, str) else ""


def taken(root: str, what: str) -> TakenOverError:
    """Return the error of a directory that is not that of the run any more.

    Args:
        root: the run directory.
        what: the finding in its place.
    """
    return TakenOverError(
        what,
        where=f"run directory {root}",
        fix="another directory is in its place; when it is back, or moved to a place of your "
        "own: hpc-elastic submit --resume RUN_DIR",
    )


def _refuse_foreign_above(root: str, *, is_closed: bool) -> None:
    """Refuse a directory that cannot be reached, if the obstacle is another user's.

    Args:
        root: the run directory.
        is_closed: whether the way ends for want of permission.

    Raises:
        TakenOverError: it is.
    """
    obstacle, owner = "", 0
    try:
        trusted = trusted_uids()
        for place in way_to(root):
            is_seen = place.entry_uid is not None
            obstacle, owner = (place.entry, place.entry_uid or 0) if is_seen else (place.path, place.uid)
            if place.is_link and owner not in trusted:
                what = f"{obstacle} is in its way, a link that belongs to user {owner_name(owner)}"
                raise taken(root, what)
    except OSError:  # the file system is away
        return
    if is_closed and owner not in trusted:
        raise taken(root, f"{obstacle} is in its way, which belongs to user {owner_name(owner)}")


class _Seen(NamedTuple):
    device: int
    inode: int
    uid: int


def _seen(status: os.stat_result) -> _Seen:
    return _Seen(status.st_dev, status.st_ino, status.st_uid)


class _Kept(NamedTuple):
    """An entry on the way to a run directory. A file system that is mounted again has another device."""

    inode: int
    uid: int | None
    is_directory: bool


def _kept(place: TrustedPlace) -> _Kept:
    return _Kept(place.inode, place.entry_uid, place.is_directory)


class HeldRoot:
    """The run directory as it was when an agent began; held open, so that it can be reached when moved.

    Args:
        root: the run directory, which must be the user's alone.

    Raises:
        OSError: the file system does not tell.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._run_id = run_id_in(root)
        self._fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._seen = _seen(os.fstat(self._fd))
        self._way = {place.entry: _kept(place) for place in way_to(root)}

    @property
    def reached(self) -> str:
        """A path of this process that leads to the directory wherever it is now."""
        return f"/proc/self/fd/{self._fd}"

    def check(self) -> None:
        """Look at the entry with the directory's name; costs one `stat` while the directory is reached.

        Does not report a file system that does not answer: the next reading or writing does.

        Raises:
            TakenOverError: it is another directory, or others can write to it.
        """
        try:
            status = os.stat(self._root)
        except OSError:
            self._check_way()
            return
        if not stat.S_ISDIR(status.st_mode):
            raise taken(self._root, "it is not a directory any more")
        if _seen(status) == self._seen and not status.st_mode & OTHERS_WRITE:
            return
        try:
            require_same(self._root, self._run_id)
            if self._run_id and not run_id_in(self._root):
                raise taken(self._root, f"it is another directory, without the run {self._run_id}")
        except UnfitFileError as error:
            raise taken(self._root, f"{error.filename}: {error.strerror}") from None
        except OSError:
            return
        self._seen = _seen(status)  # the file system gives new numbers to forgotten files, as sshfs does

    def _check_way(self) -> None:
        """Look whether an entry on the way to the directory was exchanged, those above first.

        A link counts by its own owner: its target can be a directory of root's, or missing.

        Raises:
            TakenOverError: it was.
        """
        try:
            trusted = trusted_uids()
            for place in way_to(self._root):
                if place.entry_uid is None or self._way.get(place.entry) == _kept(place):
                    continue
                what = "it" if place.entry == self._root else f"{place.entry} on the way to it"
                if place.entry_uid not in trusted:
                    link = "is a link that " if place.is_link else ""
                    raise taken(self._root, f"{what} {link}now belongs to user {owner_name(place.entry_uid)}")
                if kind := self._kind_moved_there(place):
                    raise taken(self._root, f"{what} is now {kind}, and other users can put one there")
        except OSError:  # the file system is away
            return

    def _kind_moved_there(self, place: TrustedPlace) -> str:
        """Return the kind of a changed entry, the user's or root's; empty if others cannot have moved it.

        A directory of root's may be the place of a file system that is not mounted.
        """
        if place.is_directory and (place.entry_uid != os.geteuid() or place.entry not in self._way):
            return ""
        if not is_exposed(place):
            return ""
        return "another directory" if place.is_directory else "a link" if place.is_link else "a file"

    def close(self) -> None:
        """Let the directory go."""
        os.close(self._fd)
