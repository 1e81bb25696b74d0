"""The runs of a folder, a line for each: ``hpc-elastic status`` without a run, or of such a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from hpc_elastic.account.account import Account, account_of
from hpc_elastic.cli.say import say
from hpc_elastic.clock import NO_TIME, SystemClock, date_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.report.explain.as_json import account_json, document
from hpc_elastic.report.explain.words import share_text, step_text
from hpc_elastic.report.run_facts import history_of
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.report.timeline import span_text
from hpc_elastic.slurm.run_jobs.existing_run import look_into, names_of_runs, require_listed
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, read_run, spec_trouble
from hpc_elastic.slurm.run_jobs.script_tasks import array_with, begun_tasks
from hpc_elastic.slurm.run_jobs.signs_of_life import is_in_doubt, signs_of
from hpc_elastic.slurm.submit.run_dir import identity_trouble
from hpc_elastic.text import for_shell, visible

_MOST_FOREIGN = 10  # directories of other users that are named
_TROUBLES = (RunPhase.FAILED, RunPhase.HELD)  # of the tasks of an array they are shown before others
_MOST_ACCOUNTS = 50  # runs whose account is made, the newest ones


def list_runs(folder: str) -> int:
    """Print a line for each run in a folder, the one that changed last first; asks no Slurm."""
    there = require_listed(look_into(folder), folder)
    lines = _rows(folder, there.runs)
    foreign = list(there.foreign.items()) if folder == RUNS_FOLDER else []
    shown = foreign[:_MOST_FOREIGN]
    width = max((len(visible(name)) for name in (*(line.name for line in lines), *dict(shown))), default=0)
    for place, line in enumerate(lines):
        text = visible(line.text) + (_progress_text(line) if place < _MOST_ACCOUNTS else "")
        say(f"{visible(line.name):<{width}}  {line.changed or '?':<19}  {text}")
    if not lines:
        say(f"there are no runs below {visible(os.path.abspath(folder))}" + (" of yours" if foreign else ""))
    for name, owner in shown:
        say(f"{visible(name):<{width}}  belongs to user {owner}")
    if len(foreign) > len(shown):
        say(f"and {len(foreign) - len(shown)} more of other users")
    trouble = [line for line in lines if line.phase in _TROUBLES] if array_with(folder) is not None else []
    _say_next(folder, next((line.name for line in (*trouble, *lines)), ""))
    return 0


def _say_next(folder: str, name: str) -> None:
    if name:
        word = for_shell(name if folder == RUNS_FOLDER else os.path.join(folder, name))
        say(f"next: hpc-elastic status {word}  (asks Slurm, too)")
    elif folder == RUNS_FOLDER and names_of_runs(os.curdir):
        say("next: hpc-elastic status .  (there are some right here)")


class RunRow(NamedTuple):
    """A run in the list."""

    changed: str  # when it changed last; empty: that is not known
    name: str
    text: str  # its state, for people
    paths: RunPaths
    phase: str = ""  # empty: it cannot be read

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or cannot be read."""
        return not self.phase or RunPhase(self.phase).is_final


def run_rows(folder: str) -> list[RunRow]:
    """Return the runs of a folder, the one that changed last first; asks no Slurm."""
    return _rows(folder, look_into(folder).runs)


def _rows(folder: str, names: Iterable[str]) -> list[RunRow]:
    rows = (_row(RunPaths(os.path.join(folder, name))) for name in names)
    return sorted(rows, key=lambda row: row[:3], reverse=True)


def _row(paths: RunPaths) -> RunRow:
    try:
        run = read_run(paths)
        text = _standing(run) + _damage_text(paths)
        phase = status_of(RunView.of(run)).phase.value
        return RunRow(_changed(run), os.path.basename(paths.root), text, paths, phase)
    except HpcElasticError as error:
        return RunRow("", os.path.basename(paths.root), f"cannot be read: {_first_line(error)}", paths)


def _damage_text(paths: RunPaths) -> str:
    """Return which files of a run cannot be used; `status` of that run says why."""
    troubles = ((paths.identity, identity_trouble(paths)), (paths.job, spec_trouble(paths)))
    damaged = [os.path.basename(path) for path, trouble in troubles if trouble]
    return f"; damaged: {' and '.join(damaged)}" if damaged else ""


def _account_of(row: RunRow) -> Account | None:
    """Return the account of a run up to its newest event; None if it cannot be read."""
    try:
        return account_of(history_of(read_run(row.paths), None)) if row.phase else None
    except HpcElasticError:
        return None


def _progress_text(row: RunRow) -> str:
    account = _account_of(row)
    if account is None or account.goodput is None:
        return ""
    return f"  {step_text(account)}, goodput {share_text(account.goodput)}"


def runs_json(folder: str) -> str:
    """Return the runs of a folder as a document, the one that changed last first; asks no Slurm."""
    found = []
    for row in _rows(folder, require_listed(look_into(folder), folder).runs):
        account = _account_of(row)
        found.append(
            {
                "run": row.paths.root,
                "changed": row.changed or None,
                "phase": row.phase or None,
                "text": row.text,
                "account": None if account is None else account_json(account),
            }
        )
    return document("runs", {"folder": os.path.abspath(folder), "runs": found})


def _first_line(error: HpcElasticError) -> str:
    return str(error).partition("\n")[0]  # the fix is shown for a single run alone


def _changed(run: RunFiles) -> str:
    times = [done.time for done in run.submissions[-1:]]
    times += [date_text(record.at) for record in run.records[-1:]]
    return max((time for time in times if time != NO_TIME), default="")


def _tasks_text(tasks: Iterable[RunPaths]) -> str:
    """Return how many tasks of an array stand where."""
    phases = Counter(_row(task).phase or "unreadable" for task in tasks)
    return "an array, tasks: " + ", ".join(f"{number} {phase}" for phase, number in phases.most_common())


def _standing(run: RunFiles) -> str:
    if tasks := begun_tasks(run.paths):
        return _tasks_text(tasks)
    where = status_of(RunView.of(run))
    if where.phase is RunPhase.UNKNOWN and run.job_id and not run.is_local:
        return "submitted"  # whether it waits or starts just now only Slurm knows
    if run.is_torchruns and where.phase is RunPhase.GONE:
        return "torchrun's agents have left"
    if where.phase.is_final or not run.records:
        return where.phase.value
    signs = signs_of(run, SystemClock().wall())
    if not is_in_doubt(signs):
        return where.phase.value
    age_s = signs.agents_s if signs.agents_s is not None else signs.script_s
    return f"{where.phase.value}, but no sign of life for {span_text(age_s or 0.0)}"
