"""The nodes of a run of ``hpc-elastic run``: their number, the run's name, and the place where they meet."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Final

from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import InputError
from hpc_elastic.ids import RUNS_FOLDER, Env
from hpc_elastic.meet.rules import MAX_INTERVAL_S, MeetingSettings
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths, own_name, readable_name
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.run_directory import above_runs, directory_name, first_open, has_ended, was_left
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.table import RENDEZVOUS
from hpc_elastic.settings.values import BadValueError, NodeRange, parse_nodes
from hpc_elastic.slurm.client.environment import SlurmEnv

_BEATS = ("heartbeat_interval", "keep_alive_interval")
_LEASES = ("lease", "keep_alive_max_attempt")

NO_ID: Final = "none"  # torchrun's
DIRECTORY: Final = ("shared_fs", "hpc_elastic")  # the second is the name among torchrun's backends
FIXED_MASTER: Final = ("static", *DIRECTORY)  # backends with which the master's address can be given
BACKENDS: Final = (*FIXED_MASTER, "c10d", "etcd", "etcd-v2")
TORCHS_PORT: Final = 29500
_SHELLS: Final = 0xFFFFFFF0  # steps from here on are Slurm's own: the shell of salloc, the batch script


class RunPlace(NamedTuple):
    """Where the nodes meet."""

    paths: RunPaths
    run_id: str
    is_named: bool  # a flag has named the directory
    notes: tuple[str, ...] = ()  # messages about the choice


def settings_of(args: argparse.Namespace, slurm: SlurmEnv | None) -> tuple[MeetingSettings, list[str]]:
    """Return sizes and times of the rendezvous, and the keys of ``--rdzv-conf`` without meaning.

    Raises:
        InputError: a value cannot be used.
    """
    low, high = _nodes(args.nnodes or (len(slurm.node_names) if slurm else 1))
    if args.standalone:
        low = high = 1
    if args.rdzv_backend not in BACKENDS:
        raise InputError(
            f"unknown rendezvous backend {args.rdzv_backend!r}",
            where="--rdzv-backend",
            fix=f"use one of {', '.join(BACKENDS)}: with all of them the nodes meet in a directory; "
            "a plug-in's handler is used by the same line after python -m hpc_elastic.run",
        )
    given, notes = _conf(args.rdzv_conf, args.rdzv_backend)
    for name in RENDEZVOUS:
        value = getattr(args, name)
        if value is not None:
            given[name] = value
    settings = MeetingSettings(min_nodes=low, max_nodes=high)._replace(**given)  # type: ignore[arg-type]
    if "lease" not in given:
        settings = settings._replace(lease=max(settings.lease, 3 * settings.heartbeat_interval))
    _check_times(settings)
    return settings, notes


def _nodes(text: str | int) -> NodeRange:
    try:
        return parse_nodes(text)
    except BadValueError as error:
        raise InputError(error.message, where="--nnodes", fix=error.fix) from None


def check_room(least: int, environ: Mapping[str, str], slurm: SlurmEnv | None) -> None:
    """Refuse a step of a user's own that is too small from the start for the least nodes of a round.

    Below a script that `submit` made the nodes may have become fewer, which the run itself deals with.

    Raises:
        InputError: it is.
    """
    if slurm is None or Env.SUBMISSION in environ or _is_a_shell(environ):
        return
    there = len(slurm.node_names)
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if not there or least <= max(there, int(tasks) if tasks.isdecimal() else 0):
        return
    raise InputError(
        f"the step has {there} {'node' if there == 1 else 'nodes'}, --nnodes wants at least {least}",
        where="--nnodes",
        fix=f"give the step the nodes: srun --nodes={least} --ntasks-per-node=1, or write --nnodes={there}",
    )


def _is_a_shell(environ: Mapping[str, str]) -> bool:
    """Tell whether a step is Slurm's own, so that it says nothing of the nodes of a run."""
    return int(environ.get("SLURM_STEP_ID") or 0) >= _SHELLS


def _check_times(settings: MeetingSettings) -> None:
    for name in RENDEZVOUS:
        value = getattr(settings, name)
        if not value > 0:
            where = f"--{name.replace('_', '-')}, or {name} of --rdzv-conf"
            raise InputError(f"{name} is {value:g} s", where=where, fix="it must be positive")
    if settings.heartbeat_interval > MAX_INTERVAL_S:
        raise InputError(
            f"heartbeat_interval is {settings.heartbeat_interval:g} s",
            where="--heartbeat-interval, or keep_alive_interval of --rdzv-conf",
            fix="it must be a day at most",
        )
    if settings.lease < 3 * settings.heartbeat_interval:
        raise InputError(
            f"a lease of {settings.lease:g} s with a heartbeat each {settings.heartbeat_interval:g} s "
            "gives healthy nodes up",
            where="--lease",
            fix="make the lease at least three heartbeat intervals",
        )


def _conf(text: str, backend: str) -> tuple[dict[str, float], list[str]]:
    """Return the times in ``--rdzv-conf`` by our names, and a note for each option without a meaning."""
    text = text.strip()
    if text[:1] == text[-1:] and text[:1] in ("'", '"'):  # quotes that no shell has taken away
        text = text[1:-1]
    return conf_of(text, backend) if text else ({}, [])


def node_name(args: argparse.Namespace, slurm: SlurmEnv | None) -> str:
    """Return the name of this node, by which nodes are ordered where Slurm does not tell.

    The number of ``--node-rank`` goes first, so that it decides.
    """
    if slurm is not None and slurm.node_name:
        return slurm.node_name
    name = os.uname().nodename
    if args.node_rank is None:
        return name
    if args.node_rank < 0:
        raise InputError(f"it is {args.node_rank}", where="--node-rank", fix="count the nodes from 0")
    return f"{args.node_rank}-{name}"


def place_of(
    args: argparse.Namespace, environ: Mapping[str, str], slurm: SlurmEnv | None, max_nodes: int
) -> RunPlace:
    """Return where this agent meets the others, or where it is alone.

    A directory that no flag named is that of one run; an agent that comes after its end gets the next one.

    Raises:
        InputError: the endpoint cannot be used.
    """
    if slurm is not None and _is_a_shell(environ):
        slurm = None
    wanted = NO_ID if args.standalone else args.rdzv_id or NO_ID
    known = environ.get(Env.RUN_ID) or (slurm.job_ref if slurm else "")
    run_id = wanted if wanted != NO_ID else known
    given = args.run_dir or environ.get(Env.RUN_DIR)
    if given:
        paths = RunPaths(os.path.expanduser(given))
        return RunPlace(paths, run_id or paths.name, is_named=True)
    if not args.standalone and _names_directory(args):
        root = os.path.join(above_runs(os.path.expanduser(args.rdzv_endpoint)), own_name(run_id) or NO_ID)
        paths = RunPaths(first_open(root, _over(slurm, left_too=False)))
        return RunPlace(paths, run_id or paths.name, is_named=paths.root == RunPaths(root).root)
    base = os.path.join((environ.get("SLURM_SUBMIT_DIR") if slurm else None) or _here(), RUNS_FOLDER)
    first = os.path.join(base, _default_name(args, environ, slurm, wanted, max_nodes))
    paths = RunPaths(first_open(first, _over(slurm, left_too=slurm is None)))
    notes = (
        []
        if paths.root == first
        else [f"{first} holds a run that is over; --run-dir names one to go on with"]
    )
    if max_nodes > 1:
        notes += _doubts(paths.root)
    return RunPlace(
        paths, wanted if wanted != NO_ID else run_id or paths.name, is_named=False, notes=tuple(notes)
    )


def _names_directory(args: argparse.Namespace) -> bool:
    """Tell whether the endpoint is a directory; else it is a host, whose name alone is used.

    Raises:
        InputError: it has to be one, but is a URL.
    """
    endpoint, is_url = args.rdzv_endpoint, "://" in args.rdzv_endpoint
    is_ours = args.rdzv_backend in DIRECTORY
    if is_ours and is_url:
        raise InputError(
            f"{endpoint!r} is no directory",
            where="--rdzv-endpoint",
            fix="give a path that all nodes see",
        )
    return bool(endpoint) if is_ours else "/" in endpoint and not is_url


def _default_name(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    slurm: SlurmEnv | None,
    run_id: str,
    max_nodes: int,
) -> str:
    """Return the name of a directory in which agents meet that were started by the same line.

    A step of Slurm's has one of its own, the same after a requeue; a step of one node meets no other.
    """
    id_word = "" if run_id == NO_ID else run_id
    alone = args.standalone or max_nodes == 1
    if slurm is not None:
        id_word = "" if id_word == slurm.job_ref else id_word
        step, task = environ.get("SLURM_STEP_ID", "0"), environ.get("SLURM_PROCID", "0")
        name = directory_name(id_word, slurm.job_ref) + (f".{step}" if step != "0" else "")
        several = environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
        return f"{name}_task{task}" if alone and several else name
    if alone:
        stamp = (
            date_text(SystemClock().wall()).translate({ord(char): None for char in "-:"}).replace(" ", "-")
        )
        # the same process id at the same time is to be had in several containers
        who = f"{stamp}-{readable_name(os.uname().nodename)}-{os.getpid()}"
        return f"{own_name(id_word)}_{who}" if id_word else f"run-{who}"
    if args.rdzv_endpoint:
        return directory_name(id_word, args.rdzv_endpoint)
    if args.rdzv_backend == "static" and (args.master_addr or args.master_port or not id_word):
        return directory_name(id_word, f"{args.master_addr or '127.0.0.1'}:{args.master_port or TORCHS_PORT}")
    return own_name(id_word or NO_ID)


def _over(slurm: SlurmEnv | None, *, left_too: bool) -> Callable[[RunPaths, RunState], bool]:
    """Return the condition for a run to be no place for this agent."""

    def is_over(paths: RunPaths, state: RunState) -> bool:
        ending = state.ending
        if slurm is None or state.job_id != slurm.job_ref or ending is None:
            return was_left(paths, state) if left_too else has_ended(paths, state)
        if state.epoch.restart < slurm.restart_count:  # finished work stays finished over a requeue
            return ending.decision is not Decision.DONE
        # an agent of it has begun the next line of a script; any other has come too late for this one
        return os.path.exists(paths.agent_log(slurm.node_name))

    return is_over


def _doubts(root: str) -> list[str]:
    """Return a note if other machines can hardly see a directory."""
    from hpc_elastic.store.mount import Sharing, mount_at, sharing  # noqa: PLC0415 - launch imports it later

    mount = mount_at(root)
    if sharing(os.path.realpath(root), mount) is Sharing.SHARED:
        return []
    doubt = f"it is on a disk of this machine ({mount.kind}), as far as is known"
    return [f"{doubt}; agents on other machines need --run-dir on a file system that all of them share"]


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the current directory is gone", where="hpc-elastic run", fix="start it in another directory"
        ) from None


def conf_of(text: str, backend: str) -> tuple[dict[str, float], list[str]]:
    """Return the times that were given, by our names, and a note if others were given too.

    Raises:
        InputError: an option is unknown or its value cannot be used.
    """
    from hpc_elastic.rendezvous.options import OF_ETCD, WITHOUT_MEANING, options_from  # noqa: PLC0415 - if given
    from hpc_elastic.rendezvous.parameters import RendezvousParameters  # noqa: PLC0415 - only if it is given
    from hpc_elastic.rendezvous.utils import parse_rendezvous_config  # noqa: PLC0415 - only if it is given

    without_meaning = (*WITHOUT_MEANING, *OF_ETCD, "close_timeout")
    try:
        given = parse_rendezvous_config(text)
        if backend == "etcd" and "timeout" in given and "join_timeout" not in given:
            given["join_timeout"] = given.pop("timeout")  # there it is how long nodes are waited for
        kept = {name: value for name, value in given.items() if name not in without_meaning}
        _refuse_unknown(kept)
        settings = options_from(RendezvousParameters("shared_fs", "-", "-", 1, 1, None, **kept)).settings
    except ValueError as error:
        fix = "write NAME=VALUE,...: join_timeout=600,last_call_timeout=30,keep_alive_interval=1"
        raise InputError(str(error), where="--rdzv-conf", fix=fix) from None
    told = {name for name in RENDEZVOUS if name in given}
    told |= {"heartbeat_interval"} if any(name in given for name in _BEATS) else set()
    told |= {"lease"} if any(name in given for name in (*_LEASES, *_BEATS)) else set()
    idle = [name for name in given if name in without_meaning]
    notes = [f"--rdzv-conf: not needed here, without effect: {', '.join(idle)}"] if idle else []
    return {name: getattr(settings, name) for name in told}, notes


def _refuse_unknown(given: dict[str, str]) -> None:
    from hpc_elastic.rendezvous.options import OURS, TORCHS  # noqa: PLC0415 - only if one is given

    known = [name for name in (*OURS, *TORCHS) if name not in ("restart", "node")]
    for name in given:
        if name not in known:
            import difflib  # noqa: PLC0415 - only after a mistake

            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ValueError(f"{name!r} is not an option of the rendezvous{hint}")
