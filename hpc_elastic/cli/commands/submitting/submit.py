"""``hpc-elastic submit``: check a job, queue it, and name the next command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from hpc_elastic.cli.job_options import WantedJob, wanted_job
from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import hand_out, named, say, say_aside
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import WayBack
from hpc_elastic.record.run_log import read_state
from hpc_elastic.record.saved import go_back, stay, ways_back
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.local.nodes import run_local
from hpc_elastic.slurm.nodes.nodes import without_suspects
from hpc_elastic.slurm.run_jobs import existing_run
from hpc_elastic.slurm.run_jobs.run_files import read_run
from hpc_elastic.slurm.submit import request, run_dir, validate
from hpc_elastic.slurm.submit.request import SubmitRequest, read_template
from hpc_elastic.slurm.submit.resubmit import expedited, lead_text, with_measured_lead
from hpc_elastic.slurm.submit.submit import RefusedError, Submitted, Submitter, was_local
from hpc_elastic.text import count_text, for_shell, line_for_shell

_OF_OUTPUT = {"tee", "redirects", "local_ranks_filter"}


def submit(  # noqa: PLR0913 - one parameter per option of the command line
    given: dict[str, Any],
    command: tuple[str, ...],
    *,
    job_file: str | None = None,
    profile: str | None = None,
    dry_run: bool = False,
    resume: str | None = None,
    from_step: int | None = None,
    local: int | None = None,
    skip_sbatch_test: bool = False,
    json: bool = False,
    parsable: bool = False,
) -> int:
    """Queue a training run that survives preemption, requeue and node loss."""
    if json and parsable:
        raise InputError("--json prints the job id, too", where="--parsable", fix="give one of both")
    form = "--json" if json else "--parsable" if parsable else ""
    if form and (dry_run or local is not None):
        other = "--dry-run" if dry_run else "--local"
        raise InputError(f"{other} queues nothing", where=form, fix=f"leave out {form} or {other}")
    if resume is not None:
        _refuse_with_resume(job_file or (profile and "--profile"), given, command)
        with named("--resume"):
            return _resume(find_run(resume, is_whole=True), from_step, local, dry_run=dry_run, form=form)
    if from_step is not None:
        raise InputError("it goes with --resume", where="--from-step", fix="--resume RUN --from-step N")
    with wanted_job(job_file, given, command, profile=profile, is_local=local is not None) as job:
        _warn(job.warnings)
        if local is not None:
            return _run_local(job, local, dry_run=dry_run)
        if dry_run:
            return _show(_plan(job, dry_run=True), _submitter(), ask_slurm=not skip_sbatch_test)
        return queue_job(job, form, ask_slurm=not skip_sbatch_test)


def queue_job(job: WantedJob, form: str, *, ask_slurm: bool = True) -> int:
    """Check a job, queue it and tell of it.

    Args:
        job: it.
        form: a key of `_FORMS`.
        ask_slurm: have Slurm judge it beforehand.
    """
    submitter = _submitter()
    wanted = _plan(job, dry_run=False)
    _warn(submitter.check(wanted, ask_slurm=ask_slurm))
    _tell(submitter.submit(wanted), form)
    return 0


def _plan(job: WantedJob, *, dry_run: bool) -> SubmitRequest:
    """Return the submission of a job; a dry run starts no interpreter that another user has named."""
    template, now_s = read_template(job.spec.mode), SystemClock().wall()
    starts_python = job.is_python_own or not dry_run
    wanted = request.plan(job.spec, template, now_s=now_s, starts_python=starts_python, own=job.own_script)
    return wanted._replace(starts_workers_python=job.is_file_own or not dry_run)


_ARRAY = "each task of the array is started again, counted and recorded for itself"
_HETEROGENEOUS = (
    "its components are started again together; the nodes of the first one alone are looked after, as the "
    "others are jobs of their own"
)
AS_SBATCH = "sbatch"  # a form of the output
_AS_IT_IS = (
    "{script} runs as it is; after a preemption, a node failure or its time limit it starts again from its "
    "first line\n({limits} after its time limit: --max-time-limits). Workers are not started again in "
    "place, and no step to stop at is agreed on: that needs hpc-elastic run as their launcher"
)


def _times_text(most: int | None) -> str:
    return "always" if most is None else f"at most {count_text(most, 'time')}" if most else "never"


def _as_it_is(wanted: SubmitRequest) -> str:
    """Return the treatment of a job script of the user's own, and its limits."""
    own = wanted.own_script
    arguments = line_for_shell(wanted.spec.command[1:])
    more = [f"its arguments: {arguments}  (options of the submission stand before it)"] if arguments else []
    more += [_ARRAY] if wanted.is_array else []
    more += [_HETEROGENEOUS] if own is not None and own.is_heterogeneous else []
    limits = "never" if not wanted.spec.requeues else _times_text(wanted.spec.max_time_limits)
    return "\n".join([_AS_IT_IS.format(script=wanted.spec.name, limits=limits), *more])


def _submitter() -> Submitter:
    slurm, clock = Slurm(), SystemClock()
    return Submitter(slurm, clock, lambda wanted: without_suspects(wanted, slurm, clock, say_aside))


def _refuse_with_resume(word: str | None, given: dict[str, Any], command: tuple[str, ...]) -> None:
    flags = ["--" + field.replace("_", "-") for field in given]
    extra = word or next(iter(flags), None) or " ".join(command) or None
    if extra is not None:
        raise InputError(
            f"--resume queues the stored job again; {extra} cannot change it",
            where="--resume",
            fix="edit job.sbatch in the run directory, or submit a new run",
        )


def _resume(paths: RunPaths, step: int | None, local: int | None, *, dry_run: bool, form: str) -> int:
    """Queue a run again, or go on here with a run that was local; or only show that job.

    Args:
        paths: the run.
        step: of the checkpoint from which it goes on; None: of the newest.
        local: the number of nodes that are played here; None: as it was.
        dry_run: only show the job.
        form: the flag of the form of the output; empty: for people.
    """
    root = paths.root
    if not os.path.exists(paths.script) and existing_run.was_left(paths):
        raise InputError(
            f"the submission of the run in {root} was interrupted, and nothing was queued",
            where="--resume",
            fix=f"the same submit command again, with --run-dir {for_shell(root)}",
        )
    if not os.path.exists(paths.script):
        raise InputError(
            f"the run in {root} was not started by submit (there is no job.sbatch)",
            where="--resume",
            fix=read_run(paths).command_to_go_on,
        )
    backs = [] if step is None else _ways_back(paths, step)
    if dry_run and step is not None:
        say_aside(f"it would go on from the checkpoint of step {step}")
    if local is None and not was_local(root):
        return _resume_in_slurm(paths, backs, dry_run=dry_run, form=form)
    if form:
        raise InputError("this run goes on here, without Slurm", where=form, fix=f"leave out {form}")
    wanted = _submitter().next_request(root)
    nodes = local or wanted.spec.node_range.high
    validate.check_local_nodes(wanted.spec, nodes)
    if dry_run:
        hand_out(f"{wanted.script}\n")
        return 0
    go_back(paths, backs)
    return run_local(wanted, nodes=nodes)


def _ways_back(paths: RunPaths, step: int) -> list[WayBack]:
    """Return the records by which a run that may be resumed goes on from a step."""
    _submitter().next_request(paths.root)  # refuses one that may not
    with named("--from-step"):
        return ways_back(paths, step, read_state(paths).rounds)


def _resume_in_slurm(paths: RunPaths, backs: list[WayBack], *, dry_run: bool, form: str) -> int:
    root, submitter = paths.root, _submitter()
    if dry_run:
        wanted = submitter.next_request(root)
        _warn(validate.missing_again(wanted))
        _print_request(submitter.prepared(with_measured_lead(wanted)))
    else:
        go_back(paths, backs)  # ahead of the job, which may start at once
        try:
            queued = submitter.resume(root)
        except RefusedError:
            stay(paths, backs)
            raise
        _warn(validate.missing_again(queued.request))
        _tell(queued, form)
    return 0


def _run_local(job: WantedJob, nodes: int, *, dry_run: bool) -> int:
    spec = job.spec if "nodes" in job.spec.given else job.spec.replaced(nodes=str(nodes))
    if not _OF_OUTPUT & set(spec.given):  # the first worker of a node is shown; its log file has it, too
        spec = spec.replaced(tee="3", local_ranks_filter="0")
    job = job._replace(spec=spec)
    validate.check_local_nodes(job.spec, nodes)
    wanted = _plan(job, dry_run=dry_run)
    _warn(validate.check(wanted, None, is_local=True))
    if dry_run:
        hand_out(f"{wanted.script}\n")
        return 0
    run_dir.create(wanted, now_s=SystemClock().wall())
    return run_local(wanted, nodes=nodes)


def _show(wanted: SubmitRequest, submitter: Submitter, *, ask_slurm: bool) -> int:
    """Print script and command; without Slurm on this machine too."""
    slurm = Slurm()
    if slurm.has("sbatch"):
        _warn(submitter.check(wanted, ask_slurm=ask_slurm))
    else:
        _warn([*validate.check(wanted, None), "there is no sbatch here, so Slurm was not asked"])
    prepared = submitter.prepared(wanted)
    _print_request(expedited(prepared, slurm) if ask_slurm else prepared)
    return 0


def _print_request(wanted: SubmitRequest) -> None:
    hand_out(f"{wanted.script}\n")
    command = line_for_shell(("sbatch", "--parsable", *wanted.sbatch_arguments))
    hand_out(f"{command}\n")


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def _tell(queued: Submitted, form: str) -> None:
    """Print a job that was queued.

    Args:
        queued: the job.
        form: the flag of the form; empty: for people.
    """
    _warn([queued.trouble] if queued.trouble else [])
    _FORMS[form](queued)


def _tell_people(queued: Submitted) -> None:
    root = for_shell(queued.request.paths.root)
    word = "was already queued as" if queued.was_queued_before else "is queued as"
    say(f"{queued.request.spec.name} {word} job {queued.job_id}")
    if queued.chain:
        say(f"then as {', '.join(queued.chain)}, each when the one before has ended")
    if queued.request.spec.mode == "script":
        say(_as_it_is(queued.request))
    elif lead := lead_text(queued.request):
        say(lead)
    say(f"run directory: {root}")
    say(f"  hpc-elastic status {root}")
    say(f"  hpc-elastic logs -f {root}")
    say(f"  hpc-elastic stop {root}")


def _tell_as_sbatch(queued: Submitted) -> None:
    """Print the line of sbatch, for scripts that read the job id from it, and all else aside."""
    hand_out(f"Submitted batch job {queued.job_id}\n")
    root = for_shell(queued.request.paths.root)
    say_aside(_as_it_is(queued.request))
    say_aside(f"run directory: {root}\n  hpc-elastic status {root}")


def _tell_scripts(queued: Submitted) -> None:
    hand_out(f"{queued.job_id}\n")


def _tell_programs(queued: Submitted) -> None:
    from hpc_elastic.report.explain.as_json import document  # noqa: PLC0415 - rare

    content = {
        "run": queued.request.paths.root,
        "name": queued.request.spec.name,
        "job": queued.job_id,
        "jobs": [queued.job_id, *queued.chain],
        "was_queued_before": queued.was_queued_before,
    }
    hand_out(document("submitted", content))


_FORMS: Mapping[str, Callable[[Submitted], None]] = {
    "": _tell_people,
    AS_SBATCH: _tell_as_sbatch,
    "--json": _tell_programs,
    "--parsable": _tell_scripts,
}
