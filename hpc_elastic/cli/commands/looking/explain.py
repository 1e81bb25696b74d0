"""``hpc-elastic explain``: the reason for the state of a run, and the next thing to do."""

from __future__ import annotations

from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import hand_out, say, say_aside
from hpc_elastic.cli.status.facts import LET_GO_ON, stopped_texts
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.explain.as_json import explanation_json
from hpc_elastic.report.explain.facts import Explanation, explanation_of
from hpc_elastic.report.explain.words import explanation_lines, still_text
from hpc_elastic.report.run_facts import SeenRun, look_at
from hpc_elastic.report.run_status import RunPhase
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, SlurmAnswer, read_run, spec_trouble
from hpc_elastic.slurm.submit.run_dir import identity_trouble
from hpc_elastic.text import visible


def explain(run: str | None = None, *, json: bool = False) -> int:
    """Show why a run is in its state: each stop with cause and cost, and the next command."""
    found = explained(read_run(find_run(run)))
    if json:
        hand_out(explanation_json(*found))
        return 0
    for line in found.lines:
        say(line)
    return 0


class Explained(NamedTuple):
    """A run with the facts that explain its state."""

    seen: SeenRun
    why: Explanation

    @property
    def lines(self) -> list[str]:
        """The explanation in words."""
        headline = f"{self.seen.run.name}: {self.seen.where.text}"
        then = [*self.warnings, *(step.text for step in self.seen.then)]
        lines = explanation_lines(self.why, headline, then, well=self.well)
        return [visible(line) for line in lines]

    @property
    def well(self) -> str:
        """The reason for which its user need do nothing; empty if there is something to do."""
        if self.warnings:
            return ""
        if self.seen.where.phase is RunPhase.DONE:
            return "it is done"
        return "it goes on by itself" if self.seen.goes_on else ""

    @property
    def warnings(self) -> list[str]:
        """Things that its user is to know first: damaged files, stopped ranks, steps that do not come."""
        run, where, newest = self.seen.run, self.seen.where, self.seen.newest
        damaged = [", ".join(trouble(run.paths)) for trouble in (identity_trouble, spec_trouble)]
        stopped = [f"{each}; {LET_GO_ON}" for each in stopped_texts(run.state)]
        limit = str(run.spec.get("hang_timeout") or "auto") if run.spec else ""
        still_s = newest.still_s if newest is not None and where.phase is RunPhase.RUNNING else None
        return [*filter(None, damaged), *stopped, *([still_text(still_s, limit)] if still_s else [])]


def explained(run: RunFiles, asked: SlurmAnswer | None = None) -> Explained:
    """Return a run with the facts that explain its state; arguments as for `look_at`."""
    seen = look_at(run, say_aside, asked)
    return Explained(seen, explanation_of(run, seen.account))
