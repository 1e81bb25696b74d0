"""The rendezvous over a shared directory for callers without an event loop: scripts, other agents."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import select
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo, free_port, full_host_name
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.membership import NODES, RUN_ID, Membership, NodeFacts, claim_node_name
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths, round_scope
from hpc_elastic.record.journal import Epoch, Member, RoundFormed
from hpc_elastic.record.run_directory import prepare_run_dir, tidy_run_dir
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.rendezvous.contact import ContactTurn, KeepAlive, LastKnown, Trail, Who, until_lease
from hpc_elastic.rendezvous.options import Options, options_from
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.store.kv import open_round_store
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.mount import mount_at, safe_lease
from hpc_elastic.store.protocol import Store
from hpc_elastic.store.shared_dir import SharedDirStore, segment_name
from hpc_elastic.store.watch import Watch
from hpc_elastic.typed_json import read

logger = logging.getLogger(__name__)
_HOST_AND_PORT = re.compile(r"[^/]+:\d+")  # the form that other backends take; ./name:1 is a directory
_handlers = itertools.count()

_T = TypeVar("_T")


class WatchSleeper:
    """Waits until this machine changes the members or the journal of a run, or until woken.

    Changes of other machines are found by reading again, as everywhere.

    Args:
        paths: the files of the run.
        claims: other file descriptors of the handler, which go with these.
    """

    def __init__(self, paths: RunPaths, *claims: int) -> None:
        self._watch = Watch()
        self._watch.add_directory(paths.members)
        self._watch.add_directory(os.path.join(paths.journal, segment_name(1)))
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.close = weakref.finalize(self, _close, self._watch, self._reader, self._writer, *claims)
        """Gives the descriptors back; they go with the object otherwise."""

    def sleep(self, seconds: float) -> None:
        """Wait so long [s], less if woken or if something changed."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        if self._watch.fileno() >= 0:
            poller.register(self._watch.fileno(), select.POLLIN)
        poller.poll(seconds * 1000)
        self._watch.drain()

    def wake(self) -> None:
        """End all waits."""
        os.write(self._writer, b"!")


def _close(watch: Watch, *fds: int) -> None:
    watch.close()
    for fd in fds:
        os.close(fd)


class SharedFsHandler(RendezvousHandler):
    """A `SharedFsRendezvous` that beats in a thread of its own while its caller is busy.

    Args:
        rendezvous: the rendezvous; its waits are those of `turn`.
        turn: held while the run is read or written.
        open_store: returns the key-value store of a round by its number.
        close_timeout: how long closing is tried while the directory does not answer [s].
        backend: the name under which it was asked for.
    """

    def __init__(
        self,
        rendezvous: SharedFsRendezvous,
        turn: ContactTurn,
        open_store: Callable[[int], Any],
        close_timeout: float,
        backend: str = "shared_fs",
    ) -> None:
        self._backend = backend
        self._rendezvous = rendezvous
        self._turn = turn
        self._open_store = open_store
        self._close_timeout = close_timeout
        self._round: int | None = None  # the round this node is in
        settings = rendezvous.run.settings
        interval, lease = settings.heartbeat_interval, settings.lease
        where = f"the run '{self.get_run_id()}'"
        who = Who(rendezvous.run.node, os.uname().nodename, os.getpid())
        self._trail = Trail("shared_fs_handler.py:SharedFsHandler", self.get_run_id(), who)
        self._keep_alive = KeepAlive(self._beat, interval, lease, turn.clock, where)
        self._closed = LastKnown(rendezvous.is_closed, False, turn, fresh_s=interval / 2, lease=lease)  # noqa: FBT003
        self._waiting = LastKnown(self._count_waiting, 0, turn, fresh_s=interval / 2, lease=lease)

    def get_backend(self) -> str:
        """Return the name of the rendezvous backend, as it was asked for."""
        return self._backend

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._rendezvous.get_run_id()

    @property
    def run(self) -> SharedRun:
        """This node's hold on the run, for an agent that takes part in it by itself."""
        return self._rendezvous.run

    @property
    def run_dir(self) -> str:
        """The directory of the run."""
        return self._rendezvous.place

    def release(self) -> None:
        """Release the resources of a handler without any round so far; it cannot be used any more."""
        self._turn.release()

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round and return this node's place in it.

        A round that this node is in ends for all its members: `num_nodes_waiting` tells them.

        Raises:
            RendezvousClosedError: the run has ended or is being left.
            RendezvousTimeoutError: too few nodes appeared; names those that did not.
            RendezvousGracefulExitError: a newer start of the run exists, or `shutdown` was called.
            RendezvousConnectionError: the run directory did not answer.
        """
        return self._trail.joined(self._join, lambda info: info.round.number if info.round else None)

    def _join(self) -> RendezvousInfo:
        self._keep_alive.check()
        self._keep_alive.stop()
        self._turn.insist()
        with self._turn.taken():
            self._round = None
            settings = self._rendezvous.run.settings
            until_lease(self._end_own_round, self._turn, settings.join_timeout, settings.heartbeat_interval)
            try:
                info = self._rendezvous.next_rendezvous()
            except RendezvousTimeoutError:
                self._rendezvous.shutdown()  # no other node counts on this one any more
                raise
            formed = info.round
            if formed is None:
                raise RendezvousError("a round over a shared directory has a record")
            self._round = formed.number
            self._waiting.forget()
        self._keep_alive.start()
        return RendezvousInfo(
            None,
            info.rank,
            info.world_size,
            info.bootstrap_store_info,
            formed,
            open_store=partial(self._open_store, formed.number),
        )

    def is_closed(self) -> bool:
        """Tell whether the run has ended; the last known answer while the directory does not answer.

        Raises:
            RendezvousConnectionError: it has not answered, or got no heartbeat, for a lease.
        """
        return self._trail.watched("is_closed", partial(self._ask, self._closed))

    def set_closed(self) -> None:
        """End the run for everybody.

        Raises:
            RendezvousConnectionError: the directory did not answer for the close timeout.
        """
        self._trail.watched("set_closed", self._close)
        self._trail.closed()

    def _close(self) -> None:
        pause_s = self._rendezvous.run.settings.heartbeat_interval
        with self._turn.taken():
            until_lease(self._rendezvous.set_closed, self._turn, self._close_timeout, pause_s)
            self._closed.forget()

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to be let in; 1 if the round of this node is over and no node waits.

        A round is over when a member has vanished or has called `next_rendezvous` again. Nodes that
        stand by beside a full round are not counted: they never cause a new round.

        Raises:
            RendezvousConnectionError: the directory has not answered, or got no heartbeat, for a lease.
        """
        return self._trail.watched("num_nodes_waiting", partial(self._ask, self._waiting))

    def others_at_work(self) -> tuple[str, ...]:
        """Return the other nodes of the newest round that are there and have not said that they are done.

        Raises:
            RendezvousConnectionError: the directory does not answer.
        """
        run = self._rendezvous.run
        with self._turn.tried(run.settings.lease / 4) as held:
            if not held:
                raise RendezvousConnectionError("another call of the rendezvous does not come back")
            formed = run.tick(look=True).round
            if run.blind_since is not None:
                raise RendezvousConnectionError("the run directory does not answer")
            return () if formed is None else _at_work(run, formed)

    def shutdown(self) -> bool:
        """Leave; the others continue without a restart."""
        self._turn.leave()
        self._keep_alive.stop()
        with self._turn.tried(self._close_timeout) as held:
            if not held:
                return False
            try:
                self._rendezvous.run.set_phase(Phase.SUCCEEDED)  # has nothing more to do: is not missed
            except StoreError as error:
                self._trail.left(error)
                return False
            self._trail.left()
            return True

    # inside

    def _ask(self, known: LastKnown[_T]) -> _T:
        self._keep_alive.check()
        return known.get()

    def _end_own_round(self) -> None:
        """End the round that this node is in, since it wants another one."""
        run = self._rendezvous.run
        running = run.refresh().running
        if running is not None and any(m.node_id == run.membership.node_id for m in running.members):
            run.report_paused(running.number)

    def _beat(self) -> None:
        """Give one sign of life, and end the round if members have vanished."""
        self._trail.beaten(self._tick)

    def _tick(self) -> None:
        run = self._rendezvous.run
        with self._turn.taken():
            run.tick()
            if run.blind_since is not None:
                raise StoreError("the run directory does not answer")
            running = run.state.running
            if running is not None and running.number == self._round and run.lost:
                run.report_lost(running.number, run.lost)

    def _count_waiting(self) -> int:
        run = self._rendezvous.run
        running = run.refresh().running
        if run.state.ending is not None:
            return 0
        if self._round is not None and (running is None or running.number != self._round):
            return max(1, self._rendezvous.num_nodes_waiting())
        return self._rendezvous.num_nodes_waiting()


def _at_work(run: SharedRun, formed: RoundFormed) -> tuple[str, ...]:
    """Return the nodes of a round, but for one's own, that are neither lost nor done."""
    working = set(run.working_members(formed)) - {run.membership.node_id}
    return tuple(member.node for member in formed.members if member.node_id in working)


def create_handler(params: RendezvousParameters) -> SharedFsHandler:
    """Return a rendezvous over the directory that the endpoint names; it is made if it is absent.

    Options are those of `shared_fs_options.options_from`.

    Raises:
        ValueError: there is no endpoint, it holds another run, or an option cannot be used.
        RunDirError: the directory cannot be used.
        RendezvousConnectionError: the directory does not answer.
    """
    options = options_from(params)
    if not params.endpoint.strip() or "://" in params.endpoint or _HOST_AND_PORT.fullmatch(params.endpoint):
        raise ValueError(
            f"The endpoint of the rendezvous backend '{params.backend}' must be a directory that all nodes "
            f"see, not {params.endpoint!r}; for torchrun: --rdzv-endpoint=DIRECTORY."
        )
    try:
        return _build(RunPaths(params.endpoint.strip()), params, options)
    except StoreError as error:
        raise RendezvousConnectionError(str(error)) from error


def _build(paths: RunPaths, params: RendezvousParameters, options: Options) -> SharedFsHandler:
    clock = SystemClock()
    prepare_run_dir(paths)
    store = SharedDirStore(paths.root)
    _claim(store, paths, params.run_id)
    host = os.uname().nodename
    node, claim = (options.node, None) if options.node else claim_node_name(host, paths.root)
    turn = ContactTurn(clock, WatchSleeper(paths, *([] if claim is None else [claim])))
    log = RunLog(store, clock, node, ContentionLock(paths.lock, clock))
    epoch = _epoch(log.refresh(), options.restart)
    member = Member(f"{node}.{os.getpid()}-{next(_handlers)}", node, 1)
    facts = NodeFacts(member, host=host, addr=params.local_addr or full_host_name())
    settings = options.settings
    lease, _ = safe_lease(mount_at(paths.root), settings.heartbeat_interval, settings.lease)
    settings = settings._replace(lease=lease)
    run = SharedRun(
        log,
        Membership(store, clock, facts, epoch, settings),
        RunFacts(params.run_id),
        settings,
        RunDeps(
            clock,
            latest_checkpoint=lambda: None,
            tidy=lambda first: tidy_run_dir(paths, first),
            success_ends=False,
        ),
    )
    rendezvous = SharedFsRendezvous(
        run, Waiting(turn.wait, free_port, lambda: turn.is_leaving, logger.warning, paths.root)
    )
    return SharedFsHandler(
        rendezvous,
        turn,
        lambda number: open_round_store(paths.root, round_scope(number)),
        options.close_timeout,
        params.backend,
    )


def _epoch(state: RunState, restart: int | None) -> Epoch:
    """Return the start of the run that a handler belongs to; one that was left is followed by another."""
    known = Epoch(max(state.epoch.submission, 0), 0, max(state.epoch.restart, 0), 0)
    if restart is not None:
        return known._replace(restart=restart)
    left = state.drained is not None or state.leave_cause is not None
    return known._replace(restart=known.restart + 1) if left else known


class _Whose(NamedTuple):
    """The facts of a directory about its run."""

    run_id: str


def _claim(store: Store, paths: RunPaths, run_id: str) -> None:
    """Make the directory that of a run, or find that it is.

    Raises:
        ValueError: it is that of another run.
    """
    if not run_id:
        raise ValueError("The run id must be a non-empty string.")
    own = json.dumps({"run_id": run_id}).encode()
    submitted = os.path.basename(paths.identity)
    if submitted in store.list("."):
        data = store.get(".", submitted)
    elif store.create(NODES, RUN_ID, own):
        return
    else:
        data = store.get(NODES, RUN_ID)
    found = read(_Whose, data or own).run_id
    if found != run_id:
        raise ValueError(
            f"The directory {paths.root} belongs to the run '{found}', not to '{run_id}': "
            "give each run a directory of its own as the endpoint."
        )
