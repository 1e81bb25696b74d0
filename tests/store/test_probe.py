"""A directory is tried out, by one process and by several at once, and nothing is left in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_elastic.store import files
from hpc_elastic.store.check import pair, probe
from hpc_elastic.store.check.findings import Finding, Level, directory_findings, pair_findings
from hpc_elastic.store.check.pair import (
    PairLimits,
    PairMember,
    PairProbe,
    PeerFindings,
    limits_on,
    probe_pair,
)
from hpc_elastic.store.check.probe import probe_directory, quick_probe
from hpc_elastic.store.mount import Mount
from hpc_elastic.testing.waiting import wait_until

# One node


def test_everything_works_in_a_good_directory(tmp_path: Path) -> None:
    """All is tried, all works, nothing is left."""
    found = probe_directory(str(tmp_path))
    assert dict.fromkeys(probe.ALL, "") == found.failures
    assert (os.geteuid(), tmp_path.stat().st_mode & 0o7777) == (found.owner, found.mode)
    assert found.space.free > 0
    assert found.create_s is not None
    assert found.list_s is not None
    assert [] == list(tmp_path.iterdir())


def test_the_quick_probe_tries_what_records_need(tmp_path: Path) -> None:
    """In few steps, and leaves nothing."""
    assert {probe.WRITE: "", probe.LINK: "", probe.LOCK: ""} == quick_probe(str(tmp_path))
    assert [] == list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_to_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    """The first is a result, the second an error."""
    assert [probe.WRITE] == list(probe_directory("/proc/self").failures)
    assert [probe.WRITE] == list(quick_probe("/proc/self"))
    with pytest.raises(FileNotFoundError):
        probe_directory(str(tmp_path / "none"))


def test_the_nearest_directory_is_found(tmp_path: Path) -> None:
    """For a directory that will be made later."""
    assert str(tmp_path) == probe.nearest(str(tmp_path / "a" / "b"))
    assert str(tmp_path) == probe.nearest(str(tmp_path))


def _refused(code: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def test_a_file_system_without_links_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As are those that say EPERM for every link, which on sshfs means that the name is taken."""
    for code in (errno.EOPNOTSUPP, errno.EPERM):
        monkeypatch.setattr(os, "link", _refused(code))
        assert os.strerror(code) == quick_probe(str(tmp_path))[probe.LINK]
    assert [] == list(tmp_path.iterdir())


def test_links_that_are_not_exclusive_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two winners of one name would be two histories of one run."""

    def replace(source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(os, "link", replace)
    assert "the same name was linked twice" == quick_probe(str(tmp_path))[probe.LINK]


def test_a_lock_that_excludes_nobody_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither within a process nor between two."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    found = probe_directory(str(tmp_path)).failures
    assert "two open files had the lock at once" == found[probe.LOCK]
    assert "two processes had the lock at once" == found[probe.LOCK_PROCESS]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_noticed(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words are kept."""
    monkeypatch.setattr(fcntl, "flock", _refused(code))
    assert os.strerror(code) == quick_probe(str(tmp_path))[probe.LOCK]


def test_a_lock_that_nobody_can_have_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a lock server that hangs on to a lost node's locks."""
    monkeypatch.setattr(fcntl, "flock", _refused(errno.EAGAIN))
    assert "a free lock cannot be acquired" == quick_probe(str(tmp_path))[probe.LOCK]


def test_a_full_file_system_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a quota, which no free space tells."""
    monkeypatch.setattr(os, "write", _refused(errno.EDQUOT))
    assert os.strerror(errno.EDQUOT) == quick_probe(str(tmp_path))[probe.WRITE]
    assert [] == list(tmp_path.iterdir())


# What it means


def findings_of(tmp_path: Path, **changes: object) -> list[Finding]:
    """Return what is not well about a directory that is, but for some changes."""
    found = probe_directory(str(tmp_path))._replace(
        space=probe.Space(1 << 40, None), mount=Mount("/w", "nfs4", "server:/w"), mode=0o700
    )
    changed = found._replace(**changes)  # type: ignore[arg-type]
    every = directory_findings(changed, heartbeat_s=1.5, lease_s=4.0)
    return [each for each in every if each.level is not Level.OK]


def test_a_good_directory_has_no_findings(tmp_path: Path) -> None:
    """On an ordinary file system with the default lease."""
    assert [] == findings_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "level", "what", "value"),
    [
        ({"mode": 0o777}, Level.WARNING, "directory", "mode 0777"),
        ({"space": probe.Space(1 << 20, None)}, Level.PROBLEM, "free space", "1.0 MiB"),
        ({"space": probe.Space(1 << 29, 10**6)}, Level.WARNING, "free space", "512.0 MiB"),
        ({"space": probe.Space(1 << 40, 3)}, Level.PROBLEM, "free inodes", "3"),
        ({"space": probe.Space(1 << 40, 5000)}, Level.WARNING, "free inodes", "5,000"),
        ({"failures": {probe.WRITE: "Disk quota exceeded"}}, Level.PROBLEM, probe.WRITE, "quota"),
        ({"failures": {probe.LINK: "no"}}, Level.PROBLEM, probe.LINK, "no"),
        ({"failures": {probe.LOCK: "no"}}, Level.WARNING, probe.LOCK, "no"),
        ({"failures": {probe.LOCK_PROCESS: "no"}}, Level.WARNING, probe.LOCK_PROCESS, "no"),
        ({"mount": Mount("/k", "fuse.sshfs")}, Level.WARNING, "caching", "can be 20 s old"),
        ({"mount": Mount("/w", "nfs4", "s:/", ("soft",))}, Level.WARNING, "mount option", "soft"),
        (
            {"mount": Mount("/w", "nfs", "s:/", ("local_lock=all",))},
            Level.WARNING,
            "mount option",
            "local_lock=all: locks hold on one node only",
        ),
        ({"mount": Mount("/w", "nfs", "s:/", ("nolock",))}, Level.WARNING, "mount option", "nolock"),
        ({"list_s": 2.0}, Level.WARNING, "latency", "list 2000.0 ms"),
    ],
    ids=str,
)
def test_what_is_not_well_has_a_fix(
    tmp_path: Path, changes: dict[str, object], level: Level, what: str, value: str
) -> None:
    """Only what runs cannot do without is a problem."""
    (found,) = findings_of(tmp_path, **changes)
    assert (level, what) == (found.level, found.what)
    assert value in found.value
    assert found.fix


@pytest.mark.parametrize("mode", [0o1777, 0o2775])
def test_common_project_directories_are_fine(tmp_path: Path, mode: int) -> None:
    """A sticky one that all may write to, and one of a group."""
    assert [] == findings_of(tmp_path, mode=mode)


# Several nodes

NODE = """
import json, sys
from hpc_elastic.store.check import pair, probe
{extra}
path, rank, nodes, meet, step = sys.argv[1:]
limits = pair.PairLimits(float(meet), float(step), 0.5)
me = pair.PairMember(int(rank), "n" + rank)
print(json.dumps(pair.probe_pair(path, me, int(nodes), "17.0", limits=limits)))
"""


class Node(NamedTuple):
    """A process that takes part in a probe."""

    process: subprocess.Popen[str]

    def result(self) -> PairProbe:
        """Wait for the end and return what it found."""
        output, _ = self.process.communicate()
        path, me, mount, number, peers, lock_error, error = json.loads(output)
        views = tuple(PeerFindings(*each)._replace(mount=_mount(each[2])) for each in peers)
        return PairProbe(path, PairMember(*me), _mount(mount), number, views, lock_error, error)


def _mount(words: list[Any]) -> Mount:
    point, kind, source, options = words
    return Mount(point, kind, source, tuple(options))


StartNode = Callable[..., Node]


@pytest.fixture
def node() -> Iterator[StartNode]:
    """Return a function that starts a node's process; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(
        path: Path, rank: int, *, of: int, meet_s: float = 30, step_s: float = 30, extra: str = ""
    ) -> Node:
        words = (str(path), str(rank), str(of), str(meet_s), str(step_s))
        argv = [sys.executable, "-c", NODE.format(extra=extra), *words]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return Node(started[-1])

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for_name(path: Path, start: str) -> None:
    """Wait until something is told in the meeting."""
    wait_until(lambda: bool(list(path.glob(f".hpc_elastic-doctor-17.0/{start}*"))), start)


def not_well(found: PairProbe, names: tuple[str, ...] = ()) -> list[str]:
    """Return the values of what is a warning or a problem."""
    bad = (Level.WARNING, Level.PROBLEM)
    return [finding.value for finding in pair_findings(found, names) if finding.level in bad]


def test_three_nodes_meet_in_one_directory(tmp_path: Path, node: StartNode) -> None:
    """The first one learns of all others how soon they see a name, and that the lock excludes them."""
    first, *others = [found.result() for found in [node(tmp_path, rank, of=3) for rank in range(3)]]
    assert [("n1", "held"), ("n2", "held")] == [(peer.node, peer.tried) for peer in first.peers]
    assert all(peer.got.isdigit() and not peer.silent_at for peer in first.peers)
    assert all(peer.delay_s is not None and peer.delay_s < 10 for peer in first.peers)
    assert all(peer.clock_s is not None and abs(peer.clock_s) < 10 for peer in first.peers)
    shown = {finding.what: finding.value for finding in pair_findings(first)}
    assert ["same directory", "visibility", "lock, nodes", "clocks"] == list(shown)
    assert "n0, n1, n2 see each other in it" == shown["same directory"]
    assert [] == not_well(first)
    assert [[], []] == [pair_findings(other) for other in others]
    assert [] == list(tmp_path.iterdir())


def test_a_directory_that_is_local_to_each_node_is_named(tmp_path: Path, node: StartNode) -> None:
    """By each node that sees only itself, with what it has mounted there."""
    places = [tmp_path / f"disk{rank}" for rank in range(2)]
    for place in places:
        place.mkdir()
    started = [node(place, rank, of=2, meet_s=0.3) for rank, place in enumerate(places)]
    for rank, (place, found) in enumerate(zip(places, [each.result() for each in started], strict=True)):
        (value,) = not_well(found)
        assert value.startswith(f"n{rank} sees only itself: {place} is ")
        assert value.endswith(f"({found.mount.kind} on {found.mount.source})")
        assert [] == list(place.iterdir())


def test_two_groups_that_see_each_other_are_told_apart(tmp_path: Path, node: StartNode) -> None:
    """The lowest of each group reports for it and names those it does not see."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    places = (one, two, two)
    started = [node(place, rank, of=3, meet_s=1) for rank, place in enumerate(places)]
    alone, lowest, other = [each.result() for each in started]
    names = ("n0", "n1", "n2")
    assert ["n0 sees only itself"] == [value.partition(":")[0] for value in not_well(alone, names)]
    assert ["n1, n2 see each other, but not n0"] == [
        value.partition(":")[0] for value in not_well(lowest, names)
    ]
    assert [] == not_well(other, names)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "frozen"])
def test_a_node_that_dies_half_way_is_named(tmp_path: Path, node: StartNode, end: signal.Signals) -> None:
    """The others finish within the limit, without asking it again."""
    lost = node(tmp_path, 1, of=3)
    wait_for_name(tmp_path, "here+1+n1")
    lost.process.send_signal(end)
    first, other = [node(tmp_path, rank, of=3, step_s=0.5) for rank in (0, 2)]
    found = first.result()
    assert ["n1 fell silent at the question whether it sees a name"] == not_well(found)
    assert ["", "held"] == [peer.tried for peer in found.peers]
    assert [] == not_well(other.result())
    assert [] == list(tmp_path.iterdir())


def test_the_node_that_leads_may_die_too(tmp_path: Path, node: StartNode) -> None:
    """The others say so, and take away what it has left."""
    lost = node(tmp_path, 0, of=2)
    wait_for_name(tmp_path, "here+0+n0")
    lost.process.kill()
    lost.process.wait()
    found = node(tmp_path, 1, of=2, meet_s=0.5, step_s=0.5).result()
    assert ["n1: n0, which led the check, fell silent"] == not_well(found)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("probe.try_lock = lambda fd: True", "n1 had the lock while n0 held it"),
        ("def f(fd): raise OSError(37, 'x')\nprobe.try_lock = f", "n1: ENOLCK"),
        ("probe.try_lock = lambda fd: False", "n1 could not have the lock after n0 had released it"),
    ],
    ids=["not excluded", "no locks", "stuck"],
)
def test_a_lock_that_fails_between_nodes_is_a_warning(
    tmp_path: Path, node: StartNode, extra: str, said: str
) -> None:
    """It names the node and what happened there; runs work without locks."""
    first, other = node(tmp_path, 0, of=2), node(tmp_path, 1, of=2, extra=extra)
    found = first.result()
    assert [said] == not_well(found)
    assert Level.PROBLEM not in {finding.level for finding in pair_findings(found)}
    assert "" == other.result().error


def test_a_leader_without_locks_says_so(tmp_path: Path, node: StartNode) -> None:
    """And the rest of the probe is done."""
    refuse = "def f(fd): raise OSError(37, 'No locks available')\nprobe.try_lock = f"
    first, other = node(tmp_path, 0, of=2, extra=refuse), node(tmp_path, 1, of=2)
    found = first.result()
    assert ["n0: No locks available"] == not_well(found)
    assert found.peers[0].delay_s is not None
    assert "" == other.result().error


def test_nodes_wait_longer_where_names_are_seen_late() -> None:
    """Else they would be taken for silent, or for alone."""
    assert PairLimits(30.5, 16) == limits_on(Mount("/w", "nfs4"))
    assert PairLimits(50, 55) == limits_on(Mount("/k", "fuse.sshfs"))
    assert limits_on(Mount("/s", "fuse.s3fs")).step < 300


def test_a_meeting_of_somebody_else_is_not_entered(tmp_path: Path) -> None:
    """A name that can be foreseen could be a trap."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    trap = tmp_path / ".hpc_elastic-doctor-17.0"
    trap.mkdir()
    os.chown(trap, 12345, 12345)
    found = probe_pair(str(tmp_path), PairMember(0, "n0"), 2, "17.0", limits=PairLimits(0.1, 0.1, 0.1))
    assert [f"n0: {trap} belongs to another user"] == not_well(found)


def test_a_directory_that_cannot_be_used_is_a_result() -> None:
    """With the words of the system."""
    (value,) = not_well(probe_pair("/proc/self", PairMember(3, "n3"), 4, "17.0"))
    assert value.startswith("n3: ")


SEEN = PairProbe("/w", PairMember(0, "n0"), Mount("/w", "nfs4", "server:/w"), 2, ())
PEER = PeerFindings(1, "n1", SEEN.mount, 0.01, 0.0, "held", "3")


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (PEER, []),
        (PEER._replace(delay_s=4.0), ["a name is seen by other nodes after 4000 ms; 1 s were expected"]),
        (
            PEER._replace(mount=Mount("/w", "nfs", "server:/w", ("nolock",))),
            ["n1: nolock: locks hold on one node only"],
        ),
        (PEER._replace(clock_s=3600.0), []),  # nothing depends on it
        (PEER._replace(silent_at="its end"), ["n1 fell silent at its end"]),
    ],
    ids=["well", "slow", "mounted without locks", "clock", "silent"],
)
def test_what_the_others_do_is_judged(peer: PeerFindings, said: list[str]) -> None:
    """By what runs need."""
    assert said == not_well(SEEN._replace(peers=(peer,)))


def test_a_file_server_that_takes_part_is_told() -> None:
    """It has the directory on its own disk, which is no fault."""
    peer = PEER._replace(mount=Mount("/w", "xfs", "/dev/sda1"))
    found = {finding.what: finding for finding in pair_findings(SEEN._replace(peers=(peer,)))}
    assert "n0: nfs4 on server:/w, n1: xfs on /dev/sda1" == found["mounts differ"].value
    assert Level.INFO is found["mounts differ"].level


def test_of_many_nodes_only_some_are_named() -> None:
    """A line stays readable."""
    peers = tuple(PEER._replace(rank=rank, node=f"n{rank}") for rank in range(1, 40))
    found = pair_findings(SEEN._replace(peers=peers, number_of_nodes=41))
    assert "n6, n7 and 32 more see each other, but not 1 of 41 nodes" in found[0].value


def test_other_bytes_than_those_that_were_written_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record can be kept there."""
    read = files.read
    monkeypatch.setattr(files, "read", lambda path: (read(path) or b"")[:-1])
    failed = quick_probe(str(tmp_path))
    assert "the bytes that are read are not those that were written" == failed[probe.WRITE]


def test_the_space_is_that_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that counts no files, as some have it, tells no number of free ones."""
    real = os.statvfs(tmp_path)
    known = probe.space_of(str(tmp_path))
    assert (real.f_frsize > 0, real.f_files > 0) == (known.free > 0, known.inodes is not None)
    without = os.statvfs_result((*real[:5], 0, 0, 0, *real[8:]))
    monkeypatch.setattr(os, "statvfs", lambda _: without)
    assert probe.space_of(str(tmp_path)).inodes is None


def test_many_nodes_list_no_more_often_together(tmp_path: Path) -> None:
    """The pause of each is as long as there are nodes; of a few it is short."""
    pauses = [pair._Meeting(str(tmp_path), nodes, PairLimits(), None)._poll_s for nodes in (2, 5, 100, 1000)]
    assert [0.005, 0.005, 0.1, 1.0] == pauses
