"""The rendezvous over a shared directory as scripts and other agents use it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    RunDirError,
    StoreError,
)
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
from hpc_elastic.rendezvous.options import options_from
from hpc_elastic.rendezvous.shared_fs import SharedFsHandler, create_handler
from hpc_elastic.testing.waiting import wait_until
from tests.rendezvous.nodes import Agent, Gate, Joining, agree, are_in_one_round, join_all

LONG_S, SHORT_S = 10.0, 1.0  # leases
MakeNode = Callable[..., SharedFsHandler]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MakeNode]:
    """Return a function that makes a node's handler; all of them leave after the test."""
    made: list[SharedFsHandler] = []

    def make(name: str = "n1", low: int = 2, high: int = 2, **config: Any) -> SharedFsHandler:
        times = {"heartbeat_interval": 0.1, "lease": LONG_S, "last_call_timeout": 0.3, "join_timeout": 20}
        options = {**times, "node": name, **config}
        params = RendezvousParameters("shared_fs", str(tmp_path / "run"), "r", low, high, name, **options)
        made.append(create_handler(params))
        return made[-1]

    yield make
    for handler in made:
        handler.shutdown()


def test_nodes_meet(node: MakeNode) -> None:
    """All nodes agree on size, ranks and master, and share the round's keys."""
    handlers = [node(name, 3, 3) for name in ("n10", "n2", "n1")]
    infos = join_all(handlers)
    assert agree(infos)
    assert [2, 1, 0] == [info.rank for info in infos]
    infos[0].store.set("key", b"value")
    assert b"value" == infos[1].store.get("key")
    assert [0, 0, 0] == [handler.num_nodes_waiting() for handler in handlers]
    assert ("shared_fs", "r", False) == (
        handlers[0].get_backend(),
        handlers[0].get_run_id(),
        handlers[0].is_closed(),
    )


def test_heartbeats_go_on_while_the_caller_is_busy(node: MakeNode) -> None:
    """Nobody calls the handlers, and each of them goes on telling that it lives."""
    handlers = [node("n1"), node("n2")]
    join_all(handlers)
    members = handlers[0]._rendezvous.run.membership
    with handlers[0]._turn.taken():
        before = {key: seen.name.counter for key, seen in members.look().items()}

    def have_beaten() -> bool:
        with handlers[0]._turn.taken():
            now = members.look()
        return len(now) == 2 and all(seen.name.counter >= before[key] + 3 for key, seen in now.items())

    wait_until(have_beaten, "both have beaten three times")


def test_a_newcomer_waits_for_the_next_round(node: MakeNode) -> None:
    """A node that comes late is counted and let in when the members meet again."""
    members = [node("n1", 1, 3), node("n2", 1, 3)]
    first = join_all(members)
    late = Joining(node("n0", 1, 3))
    wait_until(lambda: all(member.num_nodes_waiting() == 1 for member in members), "somebody waits")
    infos = [*join_all(members), late.result()]
    assert agree(infos)
    assert first[0].bootstrap_store_info != infos[0].bootstrap_store_info
    first[0].store.set("key", b"old")
    assert not infos[0].store.check(["key"])


def test_a_vanished_member_is_told(node: MakeNode) -> None:
    """Members learn that one of them is gone, and go on without it."""
    agents = [Agent(node(f"n{number}", 2, 3, lease=SHORT_S)) for number in range(3)]
    wait_until(lambda: are_in_one_round(agents), "all three meet")
    agents[1].abandon()
    agents[1].handler._keep_alive.stop()
    left = [agents[0], agents[2]]
    wait_until(lambda: are_in_one_round(left), "the others go on", timeout_s=120)
    for agent in left:
        agent.stop()


def test_leaving_closes_nothing(node: MakeNode) -> None:
    """A node that leaves is not missed, and the run stays open for the others."""
    members = [node("n1"), node("n2")]
    join_all(members)
    assert members[0].shutdown()
    other = members[1]._rendezvous.run.membership

    def has_seen() -> bool:
        with members[1]._turn.taken():
            return Phase.SUCCEEDED in {seen.name.phase for seen in other.look().values()}

    wait_until(has_seen, "the other has seen it")
    members[1]._waiting.forget()
    assert (0, False) == (members[1].num_nodes_waiting(), members[1].is_closed())
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        members[0].next_rendezvous()


def test_a_spare_starts_nothing(node: MakeNode) -> None:
    """A node beside a full round is not counted."""
    member = node("n1", 1, 1)
    join_all([member])
    spare = Joining(node("n2", 1, 1))
    run = member._rendezvous.run

    def stands_by() -> bool:
        with member._turn.taken():
            return Phase.JOINING in {seen.name.phase for seen in run.membership.look().values()}

    wait_until(stands_by, "the spare stands by")
    member._waiting.forget()
    assert 0 == member.num_nodes_waiting()
    assert spare.handler.shutdown()
    with pytest.raises(RendezvousGracefulExitError):
        spare.result()


def test_closing_is_for_everybody(node: MakeNode) -> None:
    """After closing nobody joins, and the error says who closed it."""
    members = [node("n1"), node("n2")]
    join_all(members)
    members[0].set_closed()
    assert members[0].is_closed()
    wait_until(members[1].is_closed, "the other sees it")
    assert 0 == members[0].num_nodes_waiting()
    with pytest.raises(RendezvousClosedError, match="closed by n1"):
        node("n3").next_rendezvous()


def test_the_join_timeout_takes_the_node_out(node: MakeNode) -> None:
    """Who waits in vain is not counted on by the others, and may try again."""
    handler = node("n1", join_timeout=0.2)
    with pytest.raises(RendezvousTimeoutError, match=r"1 of 2 nodes joined within 0\.2 s"):
        handler.next_rendezvous()
    assert agree(join_all([node("n2"), node("n3")]))


def test_shutting_down_ends_a_wait(node: MakeNode) -> None:
    """Another thread gets a waiting node out."""
    waiting = Joining(node("n1"))
    assert waiting.handler.shutdown()
    with pytest.raises(RendezvousGracefulExitError):
        waiting.result()


def _shut(handler: SharedFsHandler, gate: Gate) -> None:
    """Put a gate between a handler and its directory."""
    store = handler._rendezvous.run.membership._store

    def gated(call: Callable[..., Any]) -> Callable[..., Any]:
        def through(*args: Any, **kwargs: Any) -> Any:
            gate.pass_through()
            return call(*args, **kwargs)

        return through

    for name in ("list", "mark", "read_after", "append"):
        setattr(store, name, gated(getattr(store, name)))


def test_a_passing_error_kills_nobody(node: MakeNode) -> None:
    """While the directory does not answer the last known values hold; after a lease it is told."""
    handler = node("n1", 1, 1, lease=SHORT_S)
    join_all([handler])
    gate = Gate(lambda: StoreError("no answer"))
    _shut(handler, gate)
    assert (0, False) == (handler.num_nodes_waiting(), handler.is_closed())
    gate.is_shut = True
    handler._waiting.forget()
    handler._closed.forget()
    assert (0, False) == (handler.num_nodes_waiting(), handler.is_closed())

    def is_told() -> bool:
        try:
            handler.num_nodes_waiting()
        except RendezvousConnectionError:
            return True
        return False

    wait_until(is_told, "it is told")
    with pytest.raises(RendezvousConnectionError):
        handler.next_rendezvous()
    gate.is_shut = False
    wait_until(lambda: not is_told(), "it has recovered")


def test_a_new_start_fences_the_old_one(node: MakeNode) -> None:
    """A node of an older start of the job cannot join the newer one."""
    join_all([node("n1", 1, 1, restart=2)])
    with pytest.raises(RendezvousGracefulExitError, match="newer start"):
        node("n2", 1, 1, restart=1).next_rendezvous()


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    """Another run id is refused, be the directory claimed by a handler or by a submission."""
    mine = RendezvousParameters("shared_fs", str(tmp_path / "run"), "mine", 1, 1)
    assert "shared_fs" == get_rendezvous_handler(mine).get_backend()
    assert "mine" == get_rendezvous_handler(mine).get_run_id()
    with pytest.raises(ValueError, match=r"/run belongs to the run 'mine', not to 'yours'"):
        create_handler(RendezvousParameters("shared_fs", str(tmp_path / "run"), "yours", 1, 1))
    os.mkdir(tmp_path / "job", 0o700)
    (tmp_path / "job" / "run.json").write_text(json.dumps({"run_id": "submitted"}))
    with pytest.raises(ValueError, match="belongs to the run 'submitted'"):
        create_handler(RendezvousParameters("shared_fs", str(tmp_path / "job"), "yours", 1, 1))


def test_the_endpoint_is_a_directory_of_ones_own(tmp_path: Path) -> None:
    """No endpoint, a file and a directory that others can write to are refused."""
    for endpoint in (" ", "node1:29500"):
        with pytest.raises(ValueError, match=f"must be a directory that all nodes see, not '{endpoint}'"):
            create_handler(RendezvousParameters("shared_fs", endpoint, "r", 1, 1))
    (tmp_path / "file").write_text("")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for place in ("file", "open"):
        with pytest.raises(RunDirError):
            create_handler(RendezvousParameters("shared_fs", str(tmp_path / place), "r", 1, 1))


# Options


def _options(**config: Any) -> RendezvousParameters:
    return RendezvousParameters("shared_fs", "/x", "r", 1, 2, **config)


def test_torchs_names_mean_the_same() -> None:
    """Interval and attempts of torch are our heartbeat and lease."""
    ours = options_from(_options(heartbeat_interval="2", lease="8", join_timeout=60)).settings
    torchs = options_from(
        _options(keep_alive_interval=2, keep_alive_max_attempt="4", join_timeout="60")
    ).settings
    assert ours == torchs
    assert (1, 2, 60.0, 2.0, 8.0) == (
        ours.min_nodes, ours.max_nodes, ours.join_timeout, ours.heartbeat_interval, ours.lease
    )  # fmt: skip


def test_options_of_launchers_are_taken() -> None:
    """What torch's launcher always adds does not disturb."""
    options = options_from(
        _options(rank=0, timeout=900, read_timeout=60, is_host="1", close_timeout=7, restart="3")
    )
    assert (7.0, 3, "") == (options.close_timeout, options.restart, options.node)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"join_timeot": 1}, r"'join_timeot' is not known .* Did you mean 'join_timeout'\?"),
        ({"join_timeout": "soon"}, "'join_timeout' \\('soon'\\) is not a number of seconds"),
        ({"join_timeout": 0}, "'join_timeout' \\(0\\) must be positive"),
        ({"heartbeat_interval": 1, "keep_alive_interval": 2}, "mean the same: give one of them"),
        ({"lease": 2, "heartbeat_interval": 1}, "gives healthy nodes up"),
        ({"keep_alive_max_attempt": 2}, "gives healthy nodes up"),
        ({"keep_alive_interval": "86401"}, r"The interval of heartbeats \(86401 s\) must be a day at most"),
    ],
)
def test_senseless_options_are_refused(config: dict[str, Any], text: str) -> None:
    """Each wrong option is named, with the fix."""
    with pytest.raises(ValueError, match=text):
        options_from(_options(**config))


def test_a_script_can_be_run_again_in_its_directory(node: MakeNode) -> None:
    """A script that ended, well or not, and shut its handler down has not ended the run."""
    for number in (1, 2, 3):
        handler = node("n1", 1, 1)
        info = handler.next_rendezvous()
        assert info.round is not None
        assert (number, 1) == (info.round.number, info.world_size)
        assert handler.shutdown()
