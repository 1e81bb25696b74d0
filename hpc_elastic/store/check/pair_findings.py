"""What several nodes found out about a directory together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpc_elastic.store.check.finding import Finding, Level
from hpc_elastic.store.check.pair import FREE, HELD, PairProbe, PeerView
from hpc_elastic.store.check.probe_findings import mount_findings, mount_text
from hpc_elastic.store.mount import DISKS, LEASE_MARGIN_S, MEMORY, Mount, listing_staleness

_SHARED_FIX = "choose a directory that all nodes see, on a network file system"
_LOCK_FIX = "runs work without locks, with more lost races; ask for locks between nodes (flock)"
_AGAIN_FIX = "look whether the node is well, then try again"
_NAMED = 8  # so many nodes are named, more are counted


def pair_findings(found: PairProbe, names: Sequence[str] = ()) -> list[Finding]:
    """Return what one node knows of the others.

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
    """Return what a directory is that other nodes do not see."""
    if mount.kind in MEMORY:
        return "in the memory of the node"
    return "a local disk" if mount.kind in DISKS else "another file system"


def _mounts(found: PairProbe) -> list[Finding]:
    """Tell where a node reaches the directory in another way, and what that way is bad for."""
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


def _silent(peers: Sequence[PeerView]) -> list[Finding]:
    return [
        Finding("answers", f"{peer.node} fell silent at {peer.silent_at}", Level.PROBLEM, _AGAIN_FIX)
        for peer in peers
        if peer.silent_at
    ]


def _delay(found: PairProbe) -> list[Finding]:
    """Judge how long names took to be seen by what the lease reckons with."""
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
