"""scontrol and scancel of a fake Slurm. Pure."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

from hpc_elastic.clock import wall_of
from hpc_elastic.slurm.client import parse
from hpc_elastic.testing.fake_slurm.cluster import endings, job_environ, schedule, steps
from hpc_elastic.testing.fake_slurm.cluster.endings import ReachNode, Turn
from hpc_elastic.testing.fake_slurm.cluster.model import BATCH, Job, State
from hpc_elastic.testing.fake_slurm.commands import options, shown
from hpc_elastic.testing.fake_slurm.commands.options import (
    INVALID_ID,
    Answer,
    Call,
    Refusal,
    Reply,
    jobs_named,
    split,
)


def scontrol(turn: Turn, call: Call) -> Answer:
    """Answer or change something."""
    flags, words = split(call.words, "M:clusters")
    if not words:
        raise Refusal("scontrol: error: the fake Slurm has no prompt; give a command\n")
    verb, *rest = words
    one = "o" in flags or "oneliner" in flags
    if verb == "show":
        return _show(turn, call, rest, one=one)
    if verb == "ping":
        return Reply("Slurmctld(primary) at login is UP\n")
    if verb == "update":
        return _update(turn, rest)
    if verb in _JOB_VERBS:
        return _of_jobs(turn, rest, _JOB_VERBS[verb])
    raise Refusal(f"invalid keyword: {verb}\n")


def _show(turn: Turn, call: Call, words: list[str], *, one: bool) -> Reply:
    world = turn.world
    what, name = (*words, "", "")[:2]
    if what == "hostnames":
        return Reply("".join(f"{host}\n" for host in parse.expand(name)))
    if what in ("hostlist", "hostlistsorted"):
        return Reply(f"{job_environ.compress(parse.expand(name))}\n")
    if what == "config":
        return Reply(shown.config_text(world))
    if what.startswith("job"):
        jobs = list(world.jobs.values()) if not name else _jobs(turn, name, "slurm_load_jobs error: ")
        lines = [shown.job_line(job, call.user, turn.now) for job in jobs]
    elif what.startswith("node"):
        names = parse.expand(name) if name else tuple(world.nodes)
        missing = [host for host in names if host not in world.nodes]
        if missing:
            return Reply(f"Node {missing[0]} not found\n", code=1)
        lines = [shown.node_line(world, world.nodes[host]) for host in names]
    elif what.startswith("part"):
        lines = [shown.partition_line(world, p) for p in world.partitions.values() if name in ("", p.name)]
    else:
        raise Refusal(f"invalid entity:{what} for keyword:show\n")
    return Reply("".join(f"{shown.oneline(line, one=one)}\n" for line in lines))


def _jobs(turn: Turn, text: str, prefix: str = "") -> list[Job]:
    try:
        return jobs_named(turn.world, text)
    except Refusal:
        raise Refusal(f"{prefix}{INVALID_ID}\n") from None


_NOT_NOW = "Requested operation not supported on this system"  # to an owner, as long as it is EXPEDITING


def _hold(turn: Turn, job: Job) -> str:
    if job.is_expediting:
        return _NOT_NOW
    if job.state is not State.PENDING:
        return "" if job.state is State.RUNNING else "Job/step already completing or completed"
    turn.put(job._replace(held=True, reason="JobHeldUser"))
    return ""


def _release(turn: Turn, job: Job) -> str:
    if job.state is State.PENDING and job.held:
        turn.put(job._replace(held=False, reason="None", waits_as=""))
    return ""


_JOB_VERBS: Mapping[str, Callable[[Turn, Job], str]] = {
    "requeue": endings.requeue,
    "requeuehold": lambda turn, job: endings.requeue(turn, job, hold=True),
    "hold": _hold,
    "uhold": _hold,
    "release": _release,
}


def _of_jobs(turn: Turn, words: list[str], do: Callable[[Turn, Job], str]) -> Reply:
    if not words:
        raise Refusal("too few arguments for keyword\n")
    errors = []
    for word in ",".join(words).split(","):
        for job in _jobs(turn, word):
            refused = do(turn, turn.job(job.id))
            if refused:
                errors.append(f"{refused} for job {word}\n")
    return Reply(err="".join(errors), code=1 if errors else 0)


def _update(turn: Turn, words: list[str]) -> Reply:
    fields = {name.lower(): value for name, _, value in (word.partition("=") for word in words)}
    if "jobid" in fields or "job" in fields:
        errors = ""
        name = fields.pop("jobid", None) or fields.pop("job", "")
        for job in _jobs(turn, name):
            for field, value in fields.items():
                refused = _refusal(turn.job(job.id), field) or _update_job(
                    turn, turn.job(job.id), field, value
                )
                errors += f"{refused} for job {name}\n" if refused else ""
        return Reply(err=errors, code=1 if errors else 0)
    if "nodename" in fields:
        return _update_nodes(turn, fields)
    if "partitionname" in fields:
        partition = turn.world.partitions.get(fields["partitionname"])
        if partition is None:
            raise Refusal("slurm_update error: Invalid partition name specified\n")
        changed = partition._replace(up=fields.get("state", "up").lower() == "up")
        turn.world = turn.world._replace(partitions={**turn.world.partitions, partition.name: changed})
        return Reply()
    raise Refusal("No valid entity in update command\n")


def _refusal(job: Job, field: str) -> str:
    """Return why a field of a job cannot be changed for now; empty if it can."""
    if job.is_expediting:
        return _NOT_NOW
    is_ending = job.state is State.COMPLETING and not _waits(job)
    return "Job/step already completing or completed" if field == "requeue" and is_ending else ""


def _update_job(turn: Turn, job: Job, field: str, value: str) -> str:
    """Change one field of a job; returns why not, in Slurm's words."""
    request = job.request
    if field in ("starttime", "endtime"):
        return (_start_at if field == "starttime" else _end_at)(turn, job, value)
    if field in ("numnodes", "nodelist") and job.state is State.RUNNING:
        nodes = job.nodes[: int(value)] if field == "numnodes" else parse.expand(value)
        if field == "numnodes" and int(value) > len(job.nodes):
            return "Requested operation not supported on this system"
        return schedule.shrink(turn, job, nodes)
    if field == "timelimit":
        limit_s = options.minutes(value)
        end_s = None if limit_s is None or job.start_s is None else job.start_s + limit_s
        turn.put(job._replace(request=request._replace(limit_s=limit_s), end_s=end_s, warned=False))
        return ""
    if field not in _CHANGES:
        raise Refusal(f"Update of this parameter is not supported: {field}\nRequest aborted\n")
    changed = request._replace(**_CHANGES[field](value))
    if field == "excnodelist" and not _waits(job):
        return "Job is no longer pending execution"
    turn.put(job._replace(request=changed))
    return ""


_CHANGES: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "excnodelist": lambda value: {"exclude": parse.expand(value)},
    "reqnodelist": lambda value: {"nodelist": parse.expand(value)},
    "requeue": lambda value: {"requeue": value != "0"},
    "comment": lambda value: {"comment": value},
    "name": lambda value: {"name": value},
    "jobname": lambda value: {"name": value},
    "partition": lambda value: {"partition": value},
    "dependency": lambda value: {"dependency": value},
    "arraytaskthrottle": lambda value: {"throttle": int(value)},
    "numnodes": lambda value: dict(zip(("min_nodes", "max_nodes"), options.nodes(value), strict=True)),
}


def _waits(job: Job) -> bool:
    """Tell whether a job waits, or will once its processes have ended."""
    is_put_back = job.ending is not None and job.ending.requeue
    return job.state is State.PENDING or (job.state is State.COMPLETING and is_put_back)


def _end_at(turn: Turn, job: Job, value: str) -> str:
    """Let the time limit of a running job come at a moment; the limit that is shown is in whole minutes."""
    match = re.fullmatch(r"now\+(\d+)", value)
    end_s = turn.now + int(match[1]) if match else wall_of(value)
    if end_s is None:
        raise Refusal(f"Invalid time specification {value}\n")
    if job.start_s is None or job.state is not State.RUNNING:
        return "Job/step already completing or completed"
    limit_s = 60.0 * math.ceil((end_s - job.start_s) / 60)
    turn.put(job._replace(request=job.request._replace(limit_s=limit_s), end_s=end_s, warned=False))
    return ""


def _start_at(turn: Turn, job: Job, value: str) -> str:
    match = re.fullmatch(r"now(?:\+(\d+))?", value)
    if match is None:
        raise Refusal(f"the fake Slurm reads StartTime=now and now+<seconds> only, not {value}\n")
    if not _waits(job):
        return "Job is no longer pending execution"
    turn.put(job._replace(eligible_s=turn.now + int(match[1] or 0)))
    return ""


def _update_nodes(turn: Turn, fields: Mapping[str, str]) -> Reply:
    state, reason = fields.get("state", "").lower(), fields.get("reason", "")
    for name in parse.expand(fields["nodename"]):
        if name not in turn.world.nodes:
            raise Refusal("slurm_update error: Invalid node name specified\n")
        if state in ("drain", "down") and not reason:
            raise Refusal("You must specify a reason when DOWNING or DRAINING a node. Request denied\n")
        if state == "drain":
            schedule.drain(turn, name, reason)
        elif state == "down":
            schedule.node_down(turn, turn.world.nodes[name], reason)
        elif state in ("resume", "undrain", "idle"):
            schedule.resume(turn, name)
        else:
            raise Refusal(f"Invalid input: State={state}\nRequest aborted\n")
    return Reply()


def scancel(turn: Turn, call: Call) -> Answer:
    """End jobs or steps, or send them signals."""
    flags, words = split(call.words, "s:signal n:name u:user p:partition t:state M:clusters A:account")
    number = options.warning(flags["signal"]).number if "signal" in flags else None
    errors = []
    for word in [part for text in words for part in text.split(",")] or _chosen(turn, flags):
        name, _, step = word.partition(".")
        try:
            jobs = jobs_named(turn.world, name)
        except Refusal:
            errors.append(f"scancel: error: Kill job error on job id {word}: {INVALID_ID}\n")
            continue
        wanted = flags.get("state", "").upper()
        for job in jobs:
            if wanted in ("", job.state.value):
                _cancel_one(turn, call, turn.job(job.id), step, Wish(number, flags))
    return Reply(err="".join(errors), code=1 if errors else 0)


class Wish:
    """The act of scancel on a job.

    Args:
        number: the signal; None to end it.
        flags: the options.
    """

    def __init__(self, number: int | None, flags: Mapping[str, str]) -> None:
        self.number = number
        self.to_batch = "b" in flags or "batch" in flags
        self.to_all = "f" in flags or "full" in flags


def _chosen(turn: Turn, flags: Mapping[str, str]) -> list[str]:
    names, state = flags.get("name"), flags.get("state", "").upper()
    if names is None and "user" not in flags and not state:
        raise Refusal("scancel: error: No job identification provided\n")
    found = []
    for job in turn.world.jobs.values():
        named = names is None or job.request.name in names.split(",")
        if named and not job.state.is_final and state in ("", job.state.value):
            found.append(job.ref)
    return found


def _cancel_one(turn: Turn, call: Call, job: Job, step: str, wish: Wish) -> None:
    script = [place for place in job.live if place.step == BATCH]
    ends = wish.number in (None, signal.SIGKILL)
    if step == BATCH or wish.to_batch:
        turn.signal(script, (wish.number or signal.SIGTERM,), ReachNode.FIRST)
    elif wish.to_all and wish.number is not None:
        turn.signal(script, (wish.number,), ReachNode.WHOLE)
    elif step and ends:
        steps.kill_step(turn, job, step)
    elif wish.number == signal.SIGKILL and job.state.holds_nodes:
        turn.kill(job.live)
    elif wish.number is None or ends:
        endings.cancel(turn, job, call.uid)
    else:
        steps.signal_tasks(turn, job, (wish.number,), step)
