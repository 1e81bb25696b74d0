"""``hpc-elastic explain``: the reason for the state of a run, and the next thing to do."""

from __future__ import annotations

from hpc_elastic.cli.commands.looking.status import (
    GOES_ON,
    WAITS,
    ask_status,
    next_steps,
    open_until,
    what_helps_to_start,
)
from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.cli.status.facts import LET_GO_ON, stopped_texts
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.why_left import USERS_WISH, drain_cause
from hpc_elastic.report.explain.as_json import explanation_json
from hpc_elastic.report.explain.facts import Explanation, explanation_of
from hpc_elastic.report.explain.words import explanation_lines, still_text
from hpc_elastic.report.run_status import RunPhase, RunStatus, RunView, status_of
from hpc_elastic.slurm.run_jobs.newest_step import newest_step_of
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, SlurmAnswer, read_run, spec_trouble
from hpc_elastic.slurm.submit.run_dir import identity_trouble
from hpc_elastic.text import visible


def explain(run: str | None = None, *, json: bool = False) -> int:
    """Show why a run is in its state: each stop with cause and cost, and the next command."""
    looked = look_at(read_run(find_run(run)))
    if json:
        hand_out(explanation_json(looked.run, looked.where, looked.facts, looked.then))
        return 0
    for line in looked.lines:
        say(line)
    return 0


class Looked(NamedTuple):
    """All that is to be known of a run."""

    run: RunFiles
    where: RunStatus
    facts: Explanation
    then: list[str]  # the next steps
    needs_help: bool = False  # its job does not start by itself
    still_s: float | None = None  # for about how long no step was done [s]; None: they go on

    @property
    def lines(self) -> list[str]:
        """The explanation of its state."""
        headline = f"{self.run.name}: {self.where.text}"
        damaged = [", ".join(trouble(self.run.paths)) for trouble in (identity_trouble, spec_trouble)]
        stopped = [f"{each}; {LET_GO_ON}" for each in stopped_texts(self.run.state)]
        limit = str(self.run.spec.get("hang_timeout") or "auto") if self.run.spec else ""
        still = [still_text(self.still_s, limit)] if self.still_s else []
        first = [*filter(None, damaged), *stopped, *still]
        goes_on = not first and self._goes_on
        lines = explanation_lines(self.facts, headline, [*first, *self.then], goes_on=goes_on)
        return [visible(line) for line in lines]

    @property
    def _goes_on(self) -> bool:
        """Whether the run goes on by itself; one that its user stops does not."""
        run = self.run
        is_ended = run.is_torchruns or run.was_interrupted or drain_cause(run.state) in USERS_WISH
        return not self.needs_help and not is_ended and self.where.phase in GOES_ON


def look_at(run: RunFiles, asked: SlurmAnswer | None = None) -> Looked:
    """Return the state of a run with the facts that explain it.

    Args:
        run: its files.
        asked: the answer of Slurm about its job; None: it is asked.
    """
    if asked is None:
        asked, where = ask_status(run)
    else:
        where = status_of(RunView.of(run, asked.job))
    facts = explanation_of(run, open_until(where.phase))
    needs_help = where.phase in WAITS and bool(what_helps_to_start(run, asked))
    newest = newest_step_of(run) if where.phase is RunPhase.RUNNING else None
    still_s = None if newest is None else newest.still_s
    return Looked(run, where, facts, next_steps(run, where, asked), needs_help, still_s)
