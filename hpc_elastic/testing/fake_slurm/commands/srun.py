"""What srun of a fake Slurm is asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpc_elastic.slurm.client import hostlist
from hpc_elastic.testing.fake_slurm.cluster.model import Job, World
from hpc_elastic.testing.fake_slurm.commands import options
from hpc_elastic.testing.fake_slurm.commands.call import Call, Reply, jobs_named
from hpc_elastic.testing.fake_slurm.commands.options import SRUN, Refusal
from hpc_elastic.testing.fake_slurm.schedule.steps import StepRequest

NOT_PLAYED = ("multi-prog", "het-group", "pty", "no-allocate")


class SrunCall(NamedTuple):
    """A step that somebody asks for."""

    job: int
    request: StepRequest
    words: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str
    has_stdin: bool
    output: str  # a pattern of file names; empty: where srun writes
    error: str
    append: bool
    patience_s: float | None  # for busy nodes; None: for ever


def read(world: World, call: Call) -> SrunCall | Reply:
    """Read an srun.

    Raises:
        Refusal: Slurm would refuse it, or it is not played.
    """
    own, words = options.read("srun", SRUN, call.words)
    if "help" in own:
        return Reply(options.help_text("srun", SRUN))
    if "version" in own:
        return Reply(f"slurm {world.settings.full_version}\n")
    for name in NOT_PLAYED:
        if name in own:
            raise Refusal(f"srun: error: the fake Slurm does not play --{name}\n")
    job = _job_of(world, call, own)
    if not words:
        raise Refusal("srun: fatal: No command given to execute.\n")
    wishes = {**options.of_environ("SRUN_", SRUN, call.environ), **_of_slurm(call.environ), **own}
    return SrunCall(
        job=job.id,
        request=_step(job, wishes, call.environ),
        words=tuple(words),
        environ=call.environ,
        directory=wishes.get("chdir", call.cwd),
        has_stdin=wishes.get("input") != "none",
        output=wishes.get("output", ""),
        error=wishes.get("error", ""),
        append=wishes.get("open-mode", "").startswith("a"),
        patience_s=_patience(wishes),
    )


def _job_of(world: World, call: Call, own: Mapping[str, str]) -> Job:
    number = own.get("jobid") or call.environ.get("SLURM_JOB_ID", "")
    if not number:
        raise Refusal(
            "srun: error: the fake Slurm plays srun only inside of batch scripts and with --jobid\n"
        )
    jobs = [job for job in jobs_named(world, number) if str(job.id) == number]
    if not jobs or not jobs[0].state.holds_nodes:
        raise Refusal(
            f"srun: error: Unable to confirm allocation for job {number}: Invalid job id specified\n"
        )
    return jobs[0]


def _of_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options of srun that variables of the job set."""
    names = {"SLURM_NO_KILL": "no-kill", "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit", "SLURM_WAIT": "wait"}
    names |= {"SLURM_GPUS_PER_TASK": "gpus-per-task"}
    names |= {"SLURM_OPEN_MODE": "open-mode", "SLURM_OVERLAP": "overlap", "SLURM_IMMEDIATE": "immediate"}
    return {option: environ[name] for name, option in names.items() if name in environ}


def _step(job: Job, wishes: Mapping[str, str], environ: Mapping[str, str]) -> StepRequest:
    told = int(environ.get("SLURM_JOB_NUM_NODES") or len(job.nodes))
    if "nodes" in wishes:
        nodes = options.nodes(wishes["nodes"])[1]
    elif told > len(job.nodes):
        conflict = f"conflicts with allocated node count ({told} != {len(job.nodes)})"
        why = (
            f"srun: error: Unable to create step for job {job.id}: More processors requested than permitted\n"
        )
        raise Refusal(f"srun: error: SLURM_JOB_NUM_NODES environment variable {conflict}.\n{why}")
    else:
        nodes = told
    ntasks = _tasks(wishes, environ, nodes)
    kill = wishes.get("kill-on-bad-exit", "0")
    return StepRequest(
        nodes=min(nodes, ntasks) if "nodes" not in wishes else nodes,
        ntasks=ntasks,
        nodelist=hostlist.expand(wishes.get("nodelist", "")),
        exclude=hostlist.expand(wishes.get("exclude", "")),
        no_kill="no-kill" in wishes,
        kill_on_bad_exit=kill in ("", "1", "yes", "true"),
        wait_s=float(wishes.get("wait") or 0),
        overlap="overlap" in wishes,
        gpus_per_task=options.count(wishes["gpus-per-task"]) if "gpus-per-task" in wishes else 0,
    )


def _tasks(wishes: Mapping[str, str], environ: Mapping[str, str], nodes: int) -> int:
    """Return how many tasks there are; SLURM_NTASKS of the job counts where srun says nothing itself."""
    for text in (wishes.get("ntasks"), environ.get("SLURM_NTASKS")):
        if text:
            return _number(text, "ntasks")
    return nodes * _number(wishes.get("ntasks-per-node") or "1", "ntasks-per-node")


def _number(text: str, name: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise Refusal(f'srun: error: Invalid numeric value "{text}" for --{name}.\n')
    return int(text)


def _patience(wishes: Mapping[str, str]) -> float | None:
    if "immediate" not in wishes:
        return None
    return float(wishes["immediate"] or 1)
