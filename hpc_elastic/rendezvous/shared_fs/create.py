"""Building the rendezvous over a shared directory outside of our agent."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from typing import NamedTuple

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RendezvousConnectionError, StoreError
from hpc_elastic.meet.interface import free_port, full_host_name
from hpc_elastic.meet.membership import NODES, RUN_ID, Membership, NodeFacts, claim_node_name
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import Around, RunFacts, SharedRun
from hpc_elastic.meet.store_contact import ContactTurn
from hpc_elastic.paths import RunPaths, round_scope
from hpc_elastic.record.journal import Epoch, Member
from hpc_elastic.record.run_directory import prepare_run_dir, tidy_run_dir
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.round_store import open_round_store
from hpc_elastic.rendezvous.shared_fs.handler import SharedFsHandler, WatchSleeper
from hpc_elastic.rendezvous.shared_fs.options import Options, options_from
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.mount import mount_at, safe_lease
from hpc_elastic.store.protocol import Store
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.typed_json import read

logger = logging.getLogger(__name__)

_HOST_AND_PORT = re.compile(r"[^/]+:\d+")  # what other backends take; ./name:1 is a directory
_handlers = itertools.count()


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
        Around(
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
