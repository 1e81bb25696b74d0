"""``hpc-elastic explain``: the reason for the state of a run, and the next thing to do."""

from __future__ import annotations

from typing import Annotated

from hpc_elastic.cli.commands.status import next_text, open_until
from hpc_elastic.cli.parameters import Flag
from hpc_elastic.cli.run_argument import RunArgument, find_run
from hpc_elastic.cli.say import hand_out, say, say_aside
from hpc_elastic.clock import SystemClock
from hpc_elastic.report.explain.as_json import explanation_json
from hpc_elastic.report.explain.facts import Explanation, explanation_of
from hpc_elastic.report.explain.words import explanation_lines
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, SlurmAnswer, ask_job, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, silent_for
from hpc_elastic.text import visible

AsJson = Annotated[bool, Flag(("--json",), "Print the facts as JSON, for programs.")]


def explain(
    run: RunArgument,
    json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> int:
    """Show why a run is in its state: each stop with cause and cost, and what to do."""
    found = read_run(find_run(run))
    asked = ask_job(found, Slurm())
    silent_s = silent_for(found, SystemClock(), say_aside) if may_live(asked.job) else None
    if not json:
        for line in lines_of(found, asked, silent_s):
            say(line)
        return 0
    where = status_of(RunView.of(found, asked.job, silent_s))
    facts = _facts_of(found, where.phase)
    hand_out(explanation_json(found, where, facts, next_text(found, where, asked)))
    return 0


def lines_of(run: RunFiles, asked: SlurmAnswer, silent_s: float | None = None) -> list[str]:
    """Return the explanation of a run's state as lines.

    Args:
        run: its files.
        asked: the answer of Slurm about its job.
        silent_s: how long its agents have given no sign of life; None: one has given a sign.
    """
    where = status_of(RunView.of(run, asked.job, silent_s))
    then, headline = next_text(run, where, asked), f"{run.name}: {where.text}"
    return [visible(line) for line in explanation_lines(_facts_of(run, where.phase), headline, [then])]


def _facts_of(run: RunFiles, phase: RunPhase) -> Explanation:
    return explanation_of(run, open_until(phase))
