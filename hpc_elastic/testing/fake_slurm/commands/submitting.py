"""sbatch of a fake Slurm. Pure; `read` reads the script for it."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping

from hpc_elastic.testing.fake_slurm.cluster import hosts, job_environ
from hpc_elastic.testing.fake_slurm.cluster.model import Job, JobRequest
from hpc_elastic.testing.fake_slurm.commands import options, shown
from hpc_elastic.testing.fake_slurm.commands.call import Answer, Call, NeedStdin, Reply
from hpc_elastic.testing.fake_slurm.commands.options import SBATCH, Refusal
from hpc_elastic.testing.fake_slurm.schedule import schedule
from hpc_elastic.testing.fake_slurm.schedule.turn import Turn

NOT_PLAYED = ("wait", "clusters", "reservation", "batch", "nodefile")
_STDIN = "/dev/stdin"
_FAILED = "sbatch: error: Batch job submission failed: "
_NO_SCRIPT = (
    "sbatch: error: This does not look like a batch script.  The first\n"
    "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
    "sbatch: error: For instance: #!/bin/sh\n"
)


def sbatch(turn: Turn, call: Call, read: Callable[[str], str]) -> Answer:
    """Queue a job."""
    wishes, words = options.read("sbatch", SBATCH, call.words)
    if "help" in wishes or "usage" in wishes:
        return Reply(options.help_text("sbatch", SBATCH))
    if "version" in wishes:
        return Reply(f"slurm {turn.world.settings.full_version}\n")
    for name in NOT_PLAYED:
        if name in wishes:
            raise Refusal(f"sbatch: error: the fake Slurm does not play --{name}\n")
    if "wrap" not in wishes and words[:1] in ([], [_STDIN]) and call.stdin is None:
        return NeedStdin()
    script = _script(wishes, words, call, read)
    everything = {
        **options.of_script(script),
        **options.of_environ("SBATCH_", SBATCH, call.environ),
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
    """Refuse what Slurm would refuse at once."""
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
    for part in filter(None, request.dependency.split(",")):
        kind, *ids = part.split(":")
        known = ("after", "afterany", "afterok", "afternotok", "singleton")
        if kind not in known or (kind != "singleton" and not ids) or "?" in everything.get("dependency", ""):
            raise Refusal(f"{_FAILED}Job dependency problem\n")


def _test_only(turn: Turn, request: JobRequest) -> Reply:
    job = Job(turn.world.next_id, request, turn.now, turn.now, 0)
    nodes = schedule.candidates(turn.world, job)[: request.max_nodes]
    if len(nodes) < request.min_nodes:
        return Reply(err="allocation failure: Requested nodes are busy\n", code=1)
    cpus = request.cpus_per_node * len(nodes)
    where = f"using {cpus} processors on nodes {hosts.compress(nodes)} in partition {request.partition}"
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
