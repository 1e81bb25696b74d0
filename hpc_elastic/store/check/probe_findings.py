"""What a probed directory means for a run in it. Pure."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Mapping

from hpc_elastic.store.check import probe
from hpc_elastic.store.check.finding import Finding, Level
from hpc_elastic.store.check.probe import DirectoryProbe, Space
from hpc_elastic.store.mount import Mount, Sharing, listing_staleness, safe_lease, sharing

GIB = 1 << 30
_LITTLE = GIB  # a few checkpoints and logs
_FULL = 16 << 20
_FEW_FILES, _NO_FILES = 10_000, 100  # a run has some hundred files, and logs per worker and round
_SLOW_S = 0.5
_OTHER = "choose a directory on another file system"
_NO_LOCKS = "runs work without locks, with more lost races; ask for locks on this file system (flock)"
_LOCKS = (probe.LOCK, probe.LOCK_PROCESS)


def directory_findings(found: DirectoryProbe, *, heartbeat_s: float, lease_s: float) -> list[Finding]:
    """Return what one node found about a directory.

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
            f"try it from two nodes: hpc-elastic doctor {shlex.quote(path)} --nodes 2",
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
        fix = f"chmod o-w {shlex.quote(found.path)}: everybody can rename and remove what is in it"
        return Finding("directory", value, Level.WARNING, fix)
    return Finding("directory", value)


def mount_findings(mount: Mount) -> list[Finding]:
    """Return what the options of a mount are bad for."""
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
    """Return what was tried out and does or does not work."""
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
