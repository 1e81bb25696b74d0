"""The dynamic rendezvous with several nodes, over a shared directory and in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from hpc_elastic.rendezvous import RendezvousParameters
from hpc_elastic.rendezvous.dynamic_executor import RendezvousBackend, Token
from hpc_elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
    _BackendRendezvousStateHolder,
    create_handler,
    get_method_name,
)
from hpc_elastic.rendezvous.dynamic_rules import NodeDesc, without
from hpc_elastic.rendezvous.shared_fs_backend import SharedFsRendezvousBackend
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.waiting import wait_until
from tests.rendezvous.memory_backend import MemoryRendezvousBackend
from tests.rendezvous.nodes import Agent, Gate, Joining, ShiftedClock, agree, are_in_one_round, join_all

INTERVAL_S = 0.1
LONG = 100  # attempts after which nobody is given up while a test lasts
SHORT = 10
MakeNode = Callable[..., DynamicRendezvousHandler]


@pytest.fixture(params=["shared_dir", "memory"])
def new_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], RendezvousBackend]:
    """Return a function that makes a node's backend."""
    if request.param == "memory":
        backend = MemoryRendezvousBackend()
        return lambda: backend
    return lambda: SharedFsRendezvousBackend(SharedDirStore(str(tmp_path)), "r")


@pytest.fixture
def node(new_backend: Callable[[], RendezvousBackend]) -> Iterator[MakeNode]:
    """Return a function that makes a node's handler; all of them leave after the test."""
    made: list[DynamicRendezvousHandler] = []

    def make(  # noqa: PLR0913 - a test names what it needs
        name: str = "n1",
        low: int = 2,
        high: int = 2,
        *,
        join: float = 20.0,
        last_call: float = 0.3,
        clock: Clock | None = None,
        backend: RendezvousBackend | None = None,
        attempts: int = LONG,
    ) -> DynamicRendezvousHandler:
        timeout = RendezvousTimeout(join, last_call, 5.0, 5.0)
        settings = RendezvousSettings("r", low, high, timeout, timedelta(seconds=INTERVAL_S), attempts)
        desc = NodeDesc(name, os.getpid(), len(made))
        used = backend or new_backend()
        holder = _BackendRendezvousStateHolder(used, settings)
        made.append(DynamicRendezvousHandler(desc, settings, used.name, None, holder, clock))
        return made[-1]

    yield make
    for handler in made:
        handler.shutdown()


def vanish(agent: Agent[DynamicRendezvousHandler]) -> None:
    """Have a node stop as if its process were killed."""
    agent.abandon()
    agent.handler._keep_alive.stop()


def test_nodes_meet(node: MakeNode) -> None:
    """All nodes agree on size, ranks and master; names with numbers are ordered by these."""
    handlers = [node(name, 3, 3) for name in ("n10", "n2", "n1")]
    infos = join_all(handlers)
    assert agree(infos)
    assert [2, 1, 0] == [info.rank for info in infos]
    assert "n1" == infos[0].bootstrap_store_info.master_addr
    assert [0, 0, 0] == [handler.num_nodes_waiting() for handler in handlers]
    assert not handlers[0].is_closed()
    assert not handlers[0].use_agent_store


def test_the_last_call_lets_others_in(node: MakeNode) -> None:
    """Enough nodes wait for more, then go on without them."""
    infos = join_all([node("n1", 2, 4), node("n2", 2, 4)])
    assert agree(infos)


@pytest.mark.parametrize("offset_s", [-3600.0, 3600.0])
def test_nobody_dies_of_a_wrong_clock(node: MakeNode, offset_s: float) -> None:
    """A node whose clocks are an hour off meets the others, and nobody is given up."""
    handlers = [node("n1", 2, 3), node("n2", 2, 3, clock=ShiftedClock(offset_s))]
    assert agree(join_all(handlers))
    seen = dict(handlers[0]._holder.state.beats)

    def have_beaten() -> bool:
        now = handlers[0]._known.get().beats
        return all(now.get(one, -1) >= count + 3 for one, count in seen.items())

    wait_until(have_beaten, "both nodes beat, and see each other's beats")
    assert [0, 0] == [handler.num_nodes_waiting() for handler in handlers]


def test_a_newcomer_waits_for_the_next_round(node: MakeNode) -> None:
    """A node that comes late is counted, and let in when the members meet again; everybody agrees."""
    members = [node("n1", 1, 3, last_call=0.5), node("n2", 1, 3, last_call=0.5)]
    first = join_all(members)
    late = Joining(node("n0", 1, 3, last_call=0.5))
    wait_until(lambda: all(member.num_nodes_waiting() == 1 for member in members), "somebody waits")
    infos = [*join_all(members), late.result()]
    assert agree(infos)
    assert 0 == infos[2].rank
    assert first[0].bootstrap_store_info != infos[0].bootstrap_store_info


def test_a_vanished_member_is_told(node: MakeNode) -> None:
    """Members learn that one of them is gone, and go on without it."""
    agents = [Agent(node(f"n{number}", 2, 3, last_call=0.5, attempts=SHORT)) for number in range(3)]
    wait_until(lambda: are_in_one_round(agents), "all three meet")
    vanish(agents[1])
    left = [agents[0], agents[2]]
    wait_until(lambda: are_in_one_round(left), "the others go on", timeout_s=120)
    for agent in left:
        agent.stop()


def test_who_was_given_up_is_told(node: MakeNode) -> None:
    """A node that the others have given up learns that it has to join again."""
    members = [node("n1", 1, 2), node("n2", 1, 2)]
    join_all(members)
    holder, lost = members[0]._holder, {members[1]._node}
    wait_until(lambda: holder.write(without(holder.read(), lost)), "no beat comes between")
    wait_until(lambda: members[1].num_nodes_waiting() == 1, "it is told")


def test_a_member_that_leaves_is_not_missed(node: MakeNode) -> None:
    """Leaving on purpose neither closes the run nor starts a round."""
    members = [node("n1"), node("n2")]
    join_all(members)
    assert members[0].shutdown()
    members[1]._known.forget()
    assert (0, False) == (members[1].num_nodes_waiting(), members[1].is_closed())
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        members[0].next_rendezvous()


def test_a_spare_is_promoted_when_a_member_vanishes(node: MakeNode) -> None:
    """A node beside a full round starts nothing; it takes the place of one that is lost."""
    members = [Agent(node(f"n{number}", attempts=SHORT)) for number in (1, 2)]
    wait_until(lambda: are_in_one_round(members), "two nodes meet")
    spare = Agent(node("n3", attempts=SHORT))
    handlers = [member.handler for member in members]
    wait_until(lambda: len(handlers[0]._known.get().redundancy_list) == 1, "the spare stands by")
    assert [0, 0] == [handler.num_nodes_waiting() for handler in handlers]
    vanish(members[1])
    wait_until(lambda: are_in_one_round([members[0], spare]), "the spare is in", timeout_s=120)
    for agent in (members[0], spare):
        agent.stop()


def test_closing_sends_everybody_away(node: MakeNode) -> None:
    """After closing nobody joins; a spare goes without failure."""
    members = [node("n1"), node("n2")]
    join_all(members)
    spare = Joining(node("n3"))
    wait_until(lambda: len(members[0]._known.get().redundancy_list) == 1, "the spare stands by")
    members[0].set_closed()
    assert members[0].is_closed()
    wait_until(members[1].is_closed, "the others see it")
    with pytest.raises(RendezvousGracefulExitError, match="'r' is closed, terminating pending rendezvous"):
        spare.result()
    with pytest.raises(RendezvousClosedError, match=r"'r' is closed \(by n1_\d+_0\)"):
        node("n4").next_rendezvous()


def test_the_join_timeout_says_who_is_there(node: MakeNode) -> None:
    """Who waits in vain tells who came, and takes itself out of the state."""
    handler = node("n1", 2, 2, join=0.2)
    with pytest.raises(RendezvousTimeoutError, match=r"within 0\.2 s: 1 of 2 nodes are there \(n1\)"):
        handler.next_rendezvous()
    assert {} == handler._known.get().participants
    assert agree(join_all([node("n2"), node("n3")]))


def test_the_join_timeout_says_who_is_missing(node: MakeNode) -> None:
    """After a first round the members that do not come back are named."""
    members = [node("n1", join=0.5), node("n2", join=20.0)]
    join_all(members)
    assert members[1].shutdown()
    with pytest.raises(RendezvousTimeoutError, match="missing: n2"):
        members[0].next_rendezvous()


def test_shutting_down_ends_a_wait(node: MakeNode) -> None:
    """A signal handler or another thread gets a waiting node out."""
    waiting = Joining(node("n1"))
    wait_until(lambda: len(waiting.handler._holder.state.participants) == 1, "the node waits")  # type: ignore[attr-defined]
    assert waiting.handler.shutdown()
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        waiting.result()


class _GatedBackend(MemoryRendezvousBackend):
    """A backend that can stop answering."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(lambda: RendezvousConnectionError("no answer"))

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state, if the gate is open."""
        self.gate.pass_through()
        return super().get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Set the state, if the gate is open."""
        self.gate.pass_through()
        return super().set_state(state, token)


def _raises(call: Callable[[], object], kind: type[Exception]) -> Callable[[], bool]:
    def raises() -> bool:
        try:
            call()
        except kind:
            return True
        return False

    return raises


def test_a_passing_error_kills_nobody(node: MakeNode) -> None:
    """While the backend does not answer the last known values hold; after a lease it is told."""
    backend = _GatedBackend()
    handler = node("n1", 1, 1, backend=backend, attempts=5)
    handler.next_rendezvous()
    assert 0 == handler.num_nodes_waiting()
    backend.gate.is_shut = True
    handler._known.forget()
    assert (0, False) == (handler.num_nodes_waiting(), handler.is_closed())
    wait_until(_raises(handler.num_nodes_waiting, RendezvousConnectionError), "it is told")
    with pytest.raises(RendezvousConnectionError, match=r"no heartbeat has reached .*'memory'.* no answer"):
        handler.is_closed()
    with pytest.raises(RendezvousConnectionError):
        handler.next_rendezvous()
    backend.gate.is_shut = False
    wait_until(lambda: not _raises(handler.is_closed, RendezvousConnectionError)(), "it has recovered")


def test_joining_waits_for_a_backend(node: MakeNode) -> None:
    """A backend that does not answer at first costs time, not the node; one that never does is told."""
    backend = _GatedBackend()
    backend.gate.is_shut = True
    handler = node("n1", 1, 1, backend=backend)
    joining = Joining(handler)
    backend.gate.is_shut = False
    assert 1 == joining.result().world_size
    backend.gate.is_shut = True
    with pytest.raises(RendezvousConnectionError, match="no answer"):
        node("n2", 1, 1, backend=backend, attempts=2).next_rendezvous()


def test_a_damaged_state_is_told(node: MakeNode) -> None:
    """Rubbish in the backend is an error that names it, for a caller who is busy, too."""
    backend = MemoryRendezvousBackend()
    handler = node("n1", 1, 1, backend=backend)
    handler.next_rendezvous()
    found = backend.get_state()
    assert found is not None
    while not (backend.set_state(b"rubbish", found[1]) or (b"", 0, False))[2]:
        found = backend.get_state() or found
    wait_until(_raises(handler.is_closed, RendezvousStateError), "it is told")
    with pytest.raises(RendezvousStateError, match="'memory' is corrupt"):
        node("n2", 1, 1, backend=backend).next_rendezvous()


def test_a_handler_is_made_of_torchs_parts() -> None:
    """The name of its backend and the holder of the state are given apart; a foreign holder is refused."""
    backend = MemoryRendezvousBackend()
    settings = RendezvousSettings("r", 1, 1, RendezvousTimeout(), timedelta(seconds=1), 3)
    holder, desc = _BackendRendezvousStateHolder(backend, settings), NodeDesc("n1", 1, 0)
    made = DynamicRendezvousHandler(desc, settings, "my_backend", None, holder)
    assert ("my_backend", "r", settings) == (made.get_backend(), made.get_run_id(), made.settings)
    assert 1 == made.next_rendezvous().world_size
    assert made.shutdown()
    foreign: Any = object()
    with pytest.raises(TypeError, match=r"state_holder is 'object'.*from_backend"):
        DynamicRendezvousHandler(desc, settings, "my_backend", None, foreign)


def test_an_event_is_named_after_the_function_that_records_it() -> None:
    """As deep in the calls as it is asked for."""

    def record() -> str:
        return get_method_name()

    assert "test_an_event_is_named_after_the_function_that_records_it" == record()
    assert ("record_now", "no_method_name") == (record_now(), get_method_name(10_000))


def record_now() -> str:
    """Return the name of this function."""
    return get_method_name(1)


def test_the_store_of_a_round_has_its_own_keys() -> None:
    """Nodes of a round share keys, rounds do not."""

    class Recorder:
        def __init__(self) -> None:
            self.keys: list[str] = []

        def set(self, key: str, _value: bytes) -> None:
            self.keys.append(key)

    store = Recorder()
    handler = DynamicRendezvousHandler.from_backend("r", store, MemoryRendezvousBackend(), 1, 1, "n1")
    for _ in range(2):
        handler.next_rendezvous().store.set("key", b"value")
    assert ["torch.rendezvous.r.0/key", "torch.rendezvous.r.1/key"] == store.keys
    assert handler.shutdown()


# Settings


def _params(low: int = 1, high: int = 2, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("memory", "", "r", low, high, "addr", **config)


def test_options_are_read() -> None:
    """Torch's options mean what they mean there; fractions of seconds are allowed."""
    params = _params(
        join_timeout="1", last_call_timeout=2, close_timeout="2.5", heartbeat_timeout=4,
        keep_alive_interval="0.5", keep_alive_max_attempt="7",
    )  # fmt: skip
    handler = create_handler(None, MemoryRendezvousBackend(), params)
    settings = handler.settings
    assert (1.0, 2.0, 2.5, 4.0) == tuple(
        getattr(settings.timeout, name).total_seconds()
        for name in ("join", "last_call", "close", "heartbeat")
    )
    assert ("r", 1, 2, 0.5, 7) == (
        settings.run_id, settings.min_nodes, settings.max_nodes,
        settings.keep_alive_interval.total_seconds(), settings.keep_alive_max_attempt,
    )  # fmt: skip
    assert ("memory", "r") == (handler.get_backend(), handler.get_run_id())


def test_defaults_are_torchs() -> None:
    """What is not given has torch's value."""
    settings = create_handler(None, MemoryRendezvousBackend(), _params()).settings
    timeout = settings.timeout
    assert [600, 30, 30, 5] == [
        one.total_seconds() for one in (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat)
    ]
    assert (timedelta(seconds=5), 3) == (settings.keep_alive_interval, settings.keep_alive_max_attempt)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"join_timeout": "0"}, r"^The join timeout \(0:00:00\) must be positive\.$"),
        ({"last_call_timeout": "-1"}, r"^The last_call timeout \(-1 day, 23:59:59\) must be positive\.$"),
        ({"close_timeout": "x"}, "'close_timeout' \\('x'\\) is not a number of seconds"),
        ({"heartbeat": "inf"}, "'heartbeat' \\('inf'\\) is not a number of seconds"),
        ({"keep_alive_interval": 0}, "The keep-alive interval .* must be positive"),
        ({"keep_alive_max_attempt": "0"}, "The keep-alive interval .* must be positive"),
    ],
)
def test_senseless_options_are_refused(config: dict[str, Any], text: str) -> None:
    """Each wrong option is named."""
    with pytest.raises(ValueError, match=text):
        create_handler(None, MemoryRendezvousBackend(), _params(**config))


BELOW = "The maximum number of nodes (1) must be greater than or equal to the minimum number of nodes (2)."


@pytest.mark.parametrize(
    ("run_id", "low", "high", "text"),
    [
        ("", 1, 1, "The run id must be a non-empty string."),
        ("r", 0, 1, "The minimum number of nodes (0) must be greater than zero."),
        ("r", 2, 1, BELOW),
    ],
)
def test_senseless_sizes_are_refused(run_id: str, low: int, high: int, text: str) -> None:
    """Torch's messages."""
    with pytest.raises(ValueError, match=r"^The ") as caught:
        DynamicRendezvousHandler.from_backend(run_id, None, MemoryRendezvousBackend(), low, high)
    assert text == str(caught.value)
