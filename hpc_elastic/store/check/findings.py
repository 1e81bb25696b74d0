"""One line of a check: the thing, its value, whether it will do, and the fix. Pure."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store import trust as above
from hpc_elastic.store.check import probe
from hpc_elastic.store.check.pair import FREE, HELD, PairProbe, PeerFindings
from hpc_elastic.store.check.probe import DirectoryProbe, Space
from hpc_elastic.store.mount import (
    DISKS,
    LEASE_MARGIN_S,
    MEMORY,
    Mount,
    Sharing,
    listing_staleness,
    safe_lease,
    sharing,
)
from hpc_elastic.store.trust import exposures, open_text, shared_text
from hpc_elastic.text import for_shell

_WHAT = "others"

GIB = 1 << 30
_LITTLE = GIB  # a few checkpoints and logs
_FULL = 16 << 20
_FEW_FILES, _NO_FILES = 10_000, 100  # a run has some hundred files, and logs per worker and round
_SLOW_S = 0.5
_OTHER = "choose a directory on another file system"
_NO_LOCKS = "runs work without locks, with more lost races; ask for locks on this file system (flock)"
_LOCKS = (probe.LOCK, probe.LOCK_PROCESS)
_SHARED_FIX = "choose a directory that all nodes see, on a network file system"
_LOCK_FIX = "runs work without locks, with more lost races; ask for locks between nodes (flock)"
_AGAIN_FIX = "look whether the node is well, then try again"
_NAMED = 8  # so many nodes are named, more are counted


class Level(Enum):
    """How good a value is."""

    OK = "ok"
    INFO = "info"  # nothing depends on it
    WARNING = "warning"  # runs work, but worse than they could
    PROBLEM = "PROBLEM"  # runs do not work


class Finding(NamedTuple):
    """Something that was checked."""

    what: str
    value: str
    level: Level = Level.OK
    fix: str = ""


def lines(finding: Finding, width: int) -> list[str]:
    """Return a finding as text: level, thing, value, and the fix on a line of its own.

    Args:
        finding: the finding.
        width: columns of `what`.
    """
    first = f"{finding.level.value:<8} {finding.what:<{width}}  {finding.value}"
    return [first, f"{'':<8} {'':<{width}}  fix: {finding.fix}"] if finding.fix else [first]


def width_of(findings: Sequence[Finding]) -> int:
    """Return the columns that `what` takes in a table."""
    return max((len(finding.what) for finding in findings), default=0)


def verdict(findings: Sequence[Finding]) -> str:
    """Return the summary of the findings, in one line."""
    count = Counter(finding.level for finding in findings)
    problems, warnings = count[Level.PROBLEM], count[Level.WARNING]
    numbers = [(problems, "problem"), (warnings, "warning")]
    text = ", ".join(f"{number} {noun}{'s' * (number > 1)}" for number, noun in numbers if number)
    if problems:
        return f"{text}: runs will not work here"
    return f"no problems, {text}" if warnings else "no problems"


def worst(findings: Sequence[Finding]) -> Level:
    """Return the worst level of some findings."""
    found = {finding.level for finding in findings}
    return next((level for level in reversed(Level) if level in found), Level.OK)


def directory_findings(found: DirectoryProbe, *, heartbeat_s: float, lease_s: float) -> list[Finding]:
    """Return one node's findings about a directory.

    Args:
        found: from `probe_directory`.
        heartbeat_s: the heartbeat interval that runs will use [s].
        lease_s: the lease that they will use [s].
    """
    return [
        _directory(found),
        Finding("file system", mount_text(found.mount)),
        *mount_findings(found.mount),
        _caching(found.mount, heartbeat_s, lease_s),
        *space_findings(found.space),
        *trial_findings(found.failures),
        *_latency(found),
    ]


def mount_text(mount: Mount) -> str:
    """Return type and source of a mount for people."""
    return f"{mount.kind} on {mount.source}" if mount.source else mount.kind


def sharing_findings(path: str, mount: Mount) -> list[Finding]:
    """Return doubts that other machines see a resolved path, judged by its mount alone."""
    judged = sharing(path, mount)
    if judged is Sharing.SHARED:
        return []
    sure = "is" if judged is Sharing.LOCAL else "looks like"
    return [
        Finding(
            "shared",
            f"{mount_text(mount)} {sure} local to this machine",
            Level.WARNING,
            f"try it from two nodes: hpc-elastic doctor {for_shell(path)} --nodes 2",
        )
    ]


def refusal_findings(path: str, mount: Mount) -> list[Finding]:
    """Return that `submit` refuses a resolved path which nodes have found to be good, where it does."""
    if sharing(path, mount) is not Sharing.LOCAL:
        return []
    return [
        Finding(
            "submit",
            f"refuses it: {mount_text(mount)} is local to this machine by all that is known, "
            "though the nodes see each other in it",
            Level.WARNING,
            "submit with --allow-local-run-dir (allow_local_run_dir = true in a job file)",
        )
    ]


def _directory(found: DirectoryProbe) -> Finding:
    value = f"{found.path} (owner uid {found.owner}, mode {found.mode:04o})"
    everybody = bool(found.mode & stat.S_IWOTH)
    if everybody and not found.mode & stat.S_ISVTX:
        fix = f"chmod o-w {for_shell(found.path)}: everybody can rename and remove its entries"
        return Finding("directory", value, Level.WARNING, fix)
    return Finding("directory", value)


def mount_findings(mount: Mount) -> list[Finding]:
    """Return the findings about the options of a mount."""
    found = []
    if mount.is_nfs and mount.option("soft") is not None:
        fix = "mount it hard: a server that is slow for a moment fails reads and writes of checkpoints"
        found.append(Finding("mount option", "soft", Level.WARNING, fix))
    local = mount.option("local_lock") or ""
    if mount.is_nfs and (local in ("all", "flock") or mount.option("nolock") is not None):
        value = f"local_lock={local}" if local else "nolock"
        found.append(
            Finding("mount option", f"{value}: locks hold on one node only", Level.WARNING, _NO_LOCKS)
        )
    return found


def _caching(mount: Mount, heartbeat_s: float, lease_s: float) -> Finding:
    least, reason = safe_lease(mount, heartbeat_s, lease_s)
    if reason:
        fix = f"runs here use a lease of {least:g} s, so a lost node is noticed later; or {_OTHER}"
        return Finding("caching", reason, Level.WARNING, fix)
    stale = listing_staleness(mount)
    age = f"a listing is at most {stale:g} s old" if stale else "a listing is never old"
    return Finding("caching", f"{age}; the lease of {lease_s:g} s fits")


def space_findings(space: Space) -> list[Finding]:
    """Return whether there is room for a run; quotas show only when something is written."""
    level = Level.PROBLEM if space.free < _FULL else Level.WARNING if space.free < _LITTLE else Level.OK
    fix = "" if level is Level.OK else f"remove files, or {_OTHER}"
    found = [Finding("free space", _bytes_text(space.free), level, fix)]
    if space.inodes is None:
        return found
    count = space.inodes
    level = Level.PROBLEM if count < _NO_FILES else Level.WARNING if count < _FEW_FILES else Level.OK
    fix = "" if level is Level.OK else f"remove files (many small ones), or {_OTHER}"
    return [*found, Finding("free inodes", f"{count:,}", level, fix)]


def _bytes_text(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / (1 << 20):,.1f} MiB"


def trial_findings(failures: Mapping[str, str]) -> list[Finding]:
    """Return the findings of the trials."""
    found = []
    for name, why in failures.items():
        if not why:
            found.append(Finding(name, "works"))
        elif name in _LOCKS:
            found.append(Finding(name, why, Level.WARNING, _NO_LOCKS))
        elif name == probe.WRITE:
            found.append(
                Finding(
                    name, why, Level.PROBLEM, "choose a directory that you may write to and that has room"
                )
            )
        else:
            found.append(Finding(name, why, Level.PROBLEM, f"a run cannot keep its records here; {_OTHER}"))
    return found


def _latency(found: DirectoryProbe) -> list[Finding]:
    if found.create_s is None or found.list_s is None:
        return []
    value = f"create {found.create_s * 1e3:.1f} ms, list {found.list_s * 1e3:.1f} ms"
    if max(found.create_s, found.list_s) < _SLOW_S:
        return [Finding("latency", value)]
    return [Finding("latency", value, Level.WARNING, f"the file server is slow now; wait, or {_OTHER}")]


def pair_findings(found: PairProbe, names: Sequence[str] = ()) -> list[Finding]:
    """Return the findings about the other nodes.

    Args:
        found: from `probe_pair`.
        names: the nodes that should be there, by rank, as far as they are known.

    Returns:
        Everything from the node that leads, from another one only its own problems.
    """
    if found.error:
        what = "nodes together"
        return [Finding(what, f"{found.me.node}: {found.error}", Level.PROBLEM, _AGAIN_FIX)]
    if not found.leads:
        return []
    findings = [_same_directory(found, names)]
    if found.peers:
        findings += [*_mounts(found), *_silent(found.peers), *_delay(found), *_lock(found), *_clocks(found)]
    return findings


def name_list(names: Collection[str]) -> str:
    """Return names for people; of many only the first."""
    shown = list(names)
    if len(shown) <= _NAMED:
        return ", ".join(shown)
    return f"{', '.join(shown[:_NAMED])} and {len(shown) - _NAMED} more"


def _same_directory(found: PairProbe, names: Sequence[str]) -> Finding:
    what = "same directory"
    there = [found.me.node, *(peer.node for peer in found.peers)]
    missing = found.number_of_nodes - len(there)
    if not missing:
        return Finding(what, f"{name_list(there)} see each other in it")
    if not found.peers:
        where = mount_text(found.mount)
        value = f"{found.me.node} sees only itself: {found.path} is {_apart(found.mount)} there ({where})"
        return Finding(what, value, Level.PROBLEM, _SHARED_FIX)
    ranks = {found.me.rank, *(peer.rank for peer in found.peers)}
    absent = [name for rank, name in enumerate(names) if rank not in ranks]
    who = name_list(absent) if len(absent) == missing else f"{missing} of {found.number_of_nodes} nodes"
    value = (
        f"{name_list(there)} see each other, but not {who}: "
        f"{found.path} is another directory there, or hpc-elastic did not start there"
    )
    return Finding(what, value, Level.PROBLEM, _SHARED_FIX)


def _apart(mount: Mount) -> str:
    """Return the kind of a directory that other nodes do not see."""
    if mount.kind in MEMORY:
        return "in the memory of the node"
    return "a local disk" if mount.kind in DISKS else "another file system"


def _mounts(found: PairProbe) -> list[Finding]:
    """Return the findings about nodes that reach the directory in another way."""
    mine = mount_text(found.mount)
    others = [(peer.node, mount_text(peer.mount)) for peer in found.peers]
    bad = [
        finding._replace(value=f"{peer.node}: {finding.value}")
        for peer in found.peers
        if set(peer.mount.options) != set(found.mount.options)
        for finding in mount_findings(peer.mount)
    ]
    if all(text == mine for _, text in others):
        return bad
    ways = [f"{node}: {text}" for node, text in [(found.me.node, mine), *others]]
    return [Finding("mounts differ", name_list(ways), Level.INFO), *bad]


def _silent(peers: Sequence[PeerFindings]) -> list[Finding]:
    return [
        Finding("answers", f"{peer.node} fell silent at {peer.silent_at}", Level.PROBLEM, _AGAIN_FIX)
        for peer in peers
        if peer.silent_at
    ]


def _delay(found: PairProbe) -> list[Finding]:
    """Judge the time until names were seen, by the lease."""
    measured = [(peer.delay_s, peer.node) for peer in found.peers if peer.delay_s is not None]
    if not measured:
        return []
    worst_s, node = max(measured)
    value = f"a name is seen by other nodes after {worst_s * 1e3:.0f} ms"
    if len(measured) > 1:
        value += f" at most ({node})"
    allowed_s = listing_staleness(found.mount) + LEASE_MARGIN_S
    if worst_s <= allowed_s:
        return [Finding("visibility", value)]
    fix = f"raise the lease by {worst_s:.0f} s or more (--lease), or living nodes are taken for lost"
    return [Finding("visibility", f"{value}; {allowed_s:g} s were expected", Level.WARNING, fix)]


def _lock(found: PairProbe) -> list[Finding]:
    what = "lock, nodes"
    if found.lock_error:
        return [Finding(what, f"{found.me.node}: {found.lock_error}", Level.WARNING, _LOCK_FIX)]
    free = [peer.node for peer in found.peers if peer.tried == FREE]
    if free:
        value = f"{name_list(free)} had the lock while {found.me.node} held it"
        return [Finding(what, value, Level.WARNING, _LOCK_FIX)]
    bad = [peer for peer in found.peers if peer.tried not in (HELD, "")]
    if bad:
        value = name_list([f"{peer.node}: {peer.tried}" for peer in bad])
        return [Finding(what, value, Level.WARNING, _LOCK_FIX)]
    stuck = [peer.node for peer in found.peers if peer.got and not peer.got.isdecimal()]
    if stuck:
        value = f"{name_list(stuck)} could not have the lock after {found.me.node} had released it"
        return [Finding(what, value, Level.WARNING, _LOCK_FIX)]
    got = [int(peer.got) for peer in found.peers if peer.got]
    if not got:
        return []
    return [Finding(what, f"excludes between nodes; had {max(got)} ms after its release")]


def _clocks(found: PairProbe) -> list[Finding]:
    measured = [(abs(peer.clock_s), peer) for peer in found.peers if peer.clock_s is not None]
    if not measured:
        return []
    _, peer = max(measured, key=lambda each: each[0])
    value = f"{peer.node} differs by {peer.clock_s:+.3f} s from {found.me.node}; nothing depends on it"
    return [Finding("clocks", value, Level.INFO)]


def trust_findings(path: str) -> list[Finding]:
    """Return the users that can exchange the directory of a run made in a directory.

    A folder in it that `submit` uses by default, when it is called there, is judged as well.

    Args:
        path: absolute path of the directory that runs are to be in; it need not be there.
    """
    folder = os.path.join(path, RUNS_FOLDER)
    runs = [os.path.join(place, "run") for place in (path, folder) if place == path or os.path.lexists(place)]
    try:
        found_of = [(run, exposures(run)) for run in runs]
    except OSError as error:
        return [Finding(_WHAT, f"its possible writers are unknown: {error}", Level.WARNING, "try again")]
    for run, found in found_of:
        if found and found[0].level is above.TrustLevel.OPEN:
            trouble = open_text(found[0], run)
            return [Finding(_WHAT, f"submit refuses it: {trouble.what}", Level.PROBLEM, trouble.fix)]
    found = found_of[0][1]
    if not found:
        return [Finding(_WHAT, "only you and root can put another directory in the place of a run")]
    fix = "none is needed; a run that no other user can end has a --run-dir below a directory of your own"
    return [Finding(_WHAT, shared_text(found), Level.WARNING, fix)]
