"""The checks, messages and questions of ``hpc-elastic drill`` before it strikes."""

from __future__ import annotations

import shlex
import sys

import typer

from hpc_elastic.cli.say import say
from hpc_elastic.errors import InputError
from hpc_elastic.record.array_task import start_of
from hpc_elastic.report.drill.budget import budget_warnings
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.drill.drill import CAUSES, ON_A_NODE, ONE_WORKER, Drill, Target, choose
from hpc_elastic.slurm.job.values import BadValueError, parse_duration_s
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, is_array, read_run

_AUTO_LEAST_S = 1800.0  # what hang_timeout = auto comes to at least


def check_rank(chosen: Drill, rank: int | None) -> None:
    """Refuse a place that a drill does not ask for: it would strike more than the user named."""
    if rank is not None and chosen not in ONE_WORKER:
        names = " and ".join(f"--{one.value}" for one in ONE_WORKER)
        raise InputError(
            f"--{chosen.value} strikes no single worker", where="--rank", fix=f"it goes with {names}"
        )


def check_node(run: RunFiles, chosen: Drill, node: str | None) -> None:
    """Refuse a node where the whole job is struck."""
    if node is not None and chosen not in ON_A_NODE and not is_array(run):
        names = ", ".join(f"--{one.value}" for one in ON_A_NODE)
        raise InputError(
            f"--{chosen.value} strikes the whole job, not a node of it",
            where="--node",
            fix=f"leave it out; it goes with {names}, and in array mode with all drills",
        )


def parse_patience_s(text: str) -> float:
    """Return how long the run may take to come back, by ``--wait`` [s]."""
    try:
        return parse_duration_s(text)
    except BadValueError as error:
        raise InputError(str(error), where="--wait", fix=error.fix) from None


def target_of(run: RunFiles, slurm: Slurm, chosen: Drill, node: str | None, rank: int | None) -> Target:
    """Return whom it hits; the run must have workers now, and belong to this user."""
    formed = run.state.running
    ending = run.state.ending
    if ending is not None and run.state.epoch.submission >= run.submission:
        raise InputError(
            run.how_it_ended,
            where="RUN",
            fix=run.how_to_run_again,
        )
    job = ask_job(run, slurm).job
    if job is not None and job.to_be_released:
        raise InputError(
            f"job {run.job_id} is held in the queue, so the run has no workers",
            where="RUN",
            fix=f"scontrol release {run.job_id}, and try again when it runs",
        )
    if formed is None or run.state.ending is not None or (job is not None and not job.state.is_active):
        raise InputError(
            "the run has no workers now, so there is nothing to try on",
            where="RUN",
            fix=f"wait until hpc-elastic status {shlex.quote(run.paths.root)} says that it runs",
        )
    if not run.job_id:
        raise InputError(
            "the run is neither a Slurm job nor one of submit --local",
            where="RUN",
            fix="kill the process yourself: the agents' process ids are in members/",
        )
    return choose(formed, chosen, node, rank)


def tell_hang_limit(run: RunFiles, patience_s: float, wait: str) -> None:
    """Say beforehand that no agent will find the hang in the time that the drill looks."""
    limit = str(run.spec.get("hang_timeout") or "auto")
    if not run.spec:
        return  # its agents have flags of their own
    if limit == "off":
        say("warning: hang_timeout is off in this run: no agent finds a worker that hangs", err=True)
        return
    limit_s = _AUTO_LEAST_S if limit == "auto" else parse_duration_s(limit)
    if limit_s >= patience_s:
        when = "half an hour at the earliest (hang_timeout = auto)" if limit == "auto" else f"{limit_s:g} s"
        say(f"warning: a hang is found after {when}, and this looks for --wait {wait} only", err=True)


def tell_budgets(run: RunFiles, chosen: Drill, target: Target) -> None:
    """Say beforehand which budgets of the run it spends: it counts as the real event does."""
    start = start_of(target.member.node_id) if is_array(run) else None
    restarts = start.restart if start is not None else None
    cause, has_queue = CAUSES[chosen][0], not run.is_local
    for text in budget_warnings(cause, run.state, run.spec, has_queue=has_queue, task_restarts=restarts):
        say(f"warning: {text}", err=True)


def confirm(run: RunFiles, text: str) -> None:
    """Ask the user for consent.

    Raises:
        InputError: no terminal is there to ask at.
    """
    if not sys.stdin.isatty():
        raise InputError(
            "there is no one to confirm: standard input is no terminal", where="drill", fix="give --yes"
        )
    say(f"{run.name} in {run.paths.root}: {text}")
    typer.confirm("its work since the last checkpoint is computed again; go on?", abort=True)


def unchanged(run: RunFiles) -> RunFiles:
    """Return the run as it is now, after its user was asked; it may have gone on without waiting.

    Raises:
        InputError: other processes work there now than those that were asked about.
    """
    now = read_run(run.paths)
    if now.state.running != run.state.running:
        raise InputError(
            f"round {run.state.rounds} ended while you were asked; nothing was struck",
            where="drill",
            fix="give the command again",
        )
    return now
