"""sbatch and srun of a fake Slurm. Pure; `read` reads the script for sbatch."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client import parse
from hpc_elastic.testing.fake_slurm.cluster import job_environ, schedule
from hpc_elastic.testing.fake_slurm.cluster.endings import Turn
from hpc_elastic.testing.fake_slurm.cluster.model import Job, JobRequest, World
from hpc_elastic.testing.fake_slurm.cluster.steps import StepRequest
from hpc_elastic.testing.fake_slurm.commands import options, shown
from hpc_elastic.testing.fake_slurm.commands.options import (
    NEWER_SBATCH,
    SBATCH,
    SRUN,
    Answer,
    Call,
    NeedStdin,
    Refusal,
    Reply,
    jobs_named,
)

SRUN_NOT_PLAYED = ("multi-prog", "het-group", "pty", "no-allocate")

SBATCH_NOT_PLAYED = ("wait", "clusters", "reservation", "batch", "nodefile")
_STDIN = "/dev/stdin"
_FAILED = "sbatch: error: Batch job submission failed: "
_NO_SCRIPT = (
    "sbatch: error: This does not look like a batch script.  The first\n"
    "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
    "sbatch: error: For instance: #!/bin/sh\n"
)


def sbatch(turn: Turn, call: Call, read: Callable[[str], str]) -> Answer:
    """Queue a job."""
    known = NEWER_SBATCH if turn.world.settings.knows_expedite else SBATCH
    wishes, words = options.read("sbatch", known, call.words)
    if "help" in wishes or "usage" in wishes:
        return Reply(options.help_text("sbatch", known))
    if "version" in wishes:
        return Reply(f"slurm {turn.world.settings.full_version}\n")
    for name in SBATCH_NOT_PLAYED:
        if name in wishes:
            raise Refusal(f"sbatch: error: the fake Slurm does not play --{name}\n")
    if "wrap" not in wishes and words[:1] in ([], [_STDIN]) and call.stdin is None:
        return NeedStdin()
    script = _script(wishes, words, call, read)
    everything = {
        **options.of_script(script, known),
        **options.of_environ("SBATCH_", known, call.environ),
        **wishes,
    }
    request = options.request(everything, _base(everything, words, call, script))
    if request.tasks_per_node and not turn.world.settings.is_newer:
        request = request._replace(max_nodes=request.min_nodes)  # as Slurm 22.05, which grants the least
    _check(turn, request, everything)
    if "test-only" in wishes:
        return _test_only(turn, request)
    jobs = _queue(turn, request)
    number = jobs[-1].id
    return Reply(f"{number}\n" if "parsable" in wishes else f"Submitted batch job {number}\n")


def _script(wishes: Mapping[str, str], words: list[str], call: Call, read: Callable[[str], str]) -> str:
    if "wrap" in wishes:
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wishes['wrap']}\n"
    if words[:1] in ([], [_STDIN]):
        text = call.stdin or ""
    else:
        try:
            text = read(os.path.join(call.cwd, words[0]))
        except OSError as error:
            raise Refusal(f"sbatch: error: Unable to open file {words[0]}: {error.strerror}\n") from None
    if not text.startswith("#!"):
        raise Refusal(_NO_SCRIPT)
    return text


def _base(everything: Mapping[str, str], words: list[str], call: Call, script: str) -> JobRequest:
    name = "wrap" if "wrap" in everything else os.path.basename(words[0]) if words else "sbatch"
    return JobRequest(
        name=name,
        directory=call.cwd,
        submit_directory=call.cwd,
        script=script,
        words=tuple(words[1:]),
        script_name=os.path.join(call.cwd, words[0]) if words else "(null)",
        environ=job_environ.exported(call.environ, everything.get("export", "")),
    )


def _check(turn: Turn, request: JobRequest, everything: Mapping[str, str]) -> None:
    """Refuse a request that Slurm would refuse at once."""
    world = turn.world
    if request.partition not in world.partitions:
        text = f"sbatch: error: invalid partition specified: {request.partition}\n"
        raise Refusal(f"{text}{_FAILED}Invalid partition name specified\n")
    unknown = [name for name in (*request.nodelist, *request.exclude) if name not in world.nodes]
    if unknown:
        raise Refusal(f"{_FAILED}Invalid node name specified\n")
    settings = world.settings
    too_much = request.cpus_per_node > settings.cpus or request.gpus_per_node > settings.gpus
    if settings.version == "24.11":  # the others let it wait for ever
        too_much = too_much or request.min_nodes > settings.nodes
    if too_much or request.min_nodes > request.max_nodes:
        raise Refusal(f"{_FAILED}Requested node configuration is not available\n")
    _check_requeue(turn, request, everything)
    for part in filter(None, request.dependency.split(",")):
        kind, *ids = part.split(":")
        known = ("after", "afterany", "afterok", "afternotok", "singleton")
        if kind not in known or (kind != "singleton" and not ids) or "?" in everything.get("dependency", ""):
            raise Refusal(f"{_FAILED}Job dependency problem\n")


def _check_requeue(turn: Turn, request: JobRequest, everything: Mapping[str, str]) -> None:
    if everything.get("requeue", "") not in ("", "expedite"):
        raise Refusal("sbatch: error: Invalid --requeue specification\n")
    if request.expedite and not turn.world.settings.expedited_requeue:
        raise Refusal(f"{_FAILED}Requested operation not supported on this system\n")


def _test_only(turn: Turn, request: JobRequest) -> Reply:
    job = Job(turn.world.next_id, request, turn.now, turn.now, 0)
    nodes = schedule.candidates(turn.world, job)[: request.max_nodes]
    if len(nodes) < request.min_nodes:
        return Reply(err="allocation failure: Requested nodes are busy\n", code=1)
    cpus = request.cpus_per_node * len(nodes)
    where = f"using {cpus} processors on nodes {job_environ.compress(nodes)} in partition {request.partition}"
    return Reply(err=f"sbatch: Job {job.id} to start at {shown.stamp(turn.now)} {where}\n")


def _queue(turn: Turn, request: JobRequest) -> list[Job]:
    """Add a job, or one for each task of an array; the last task has the id of the array, as in Slurm."""
    first = turn.world.next_id
    tasks: tuple[int | None, ...] = request.array or (None,)
    turn.world = turn.world._replace(next_id=first + len(tasks))
    jobs = []
    for place, task in enumerate(tasks):
        number = first if place == len(tasks) - 1 else first + 1 + place
        job = Job(
            id=number,
            request=request,
            submit_s=turn.now,
            eligible_s=turn.now + request.begin_s,
            row=turn.new_row(),
            held=request.hold,
            launch_s=turn.now,
            array=0 if task is None else first,
            task=task,
        )
        jobs.append(turn.put(job))
    turn.say(f"job {first}: submitted, {request.name}")
    return jobs


class SrunCall(NamedTuple):
    """A requested step."""

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
    for name in SRUN_NOT_PLAYED:
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
        nodelist=parse.expand(wishes.get("nodelist", "")),
        exclude=parse.expand(wishes.get("exclude", "")),
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
