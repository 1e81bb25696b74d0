"""``hpc-elastic watch``: a screen of a run, or of all runs of a folder, that stays up to date."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from hpc_elastic.account.account import pace_of
from hpc_elastic.cli.commands import EVERY_LINES_S, EVERY_S
from hpc_elastic.cli.commands.looking.status import colour_of, status
from hpc_elastic.cli.live_terminal import LiveTerminal, can_be_live
from hpc_elastic.cli.run_argument import find_run, holds_runs
from hpc_elastic.cli.say import say, say_aside
from hpc_elastic.cli.status.facts import used_facts
from hpc_elastic.cli.status.runs import RunRow, list_runs, run_rows
from hpc_elastic.clock import Clock, SystemClock, clock_text
from hpc_elastic.errors import HpcElasticError, StoreError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.meet.member_names import TERMINAL, MemberName, Phase, Roster, newest_record, observe
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import EpochStarted
from hpc_elastic.record.run_log import read_newer
from hpc_elastic.record.state import fold
from hpc_elastic.report import log_files
from hpc_elastic.report.explain.words import goodput_text, gpus_now_text, left_at, progress_text, rate_text
from hpc_elastic.report.log_files import WantedLogs
from hpc_elastic.report.run_facts import account_at
from hpc_elastic.report.run_status import RunStatus, RunView, status_of
from hpc_elastic.report.timeline import span_text
from hpc_elastic.report.timeline import timeline as moments_of
from hpc_elastic.report.watch_screen import (
    Pacer,
    ScreenFacts,
    ScreenLine,
    WatchedNode,
    bar_text,
    cut,
    screen_lines,
)
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.run_jobs.run_files import SavedCheckpoint, ask_job, newest_checkpoint, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import SILENT_S
from hpc_elastic.store.files import list_names
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.text import count_text, visible

_ASK_SLURM_S = 60.0
_JOURNAL_S = 20.0  # in which the journal is listed once, though no name shows a new record
_ACCOUNT_S, _ACCOUNT_SHARE = 30.0, 0.005  # between two accounts; of the time for making them
_SAVED_S = 10.0  # between two looks for a newer checkpoint
_CALLS_PER_S, _CALLS_OF_RUN = 4.0, 3  # metadata calls of one look at a run
_MOST_RUNS = 40
_TAIL_BYTES = 4096
_MAY_PASS = (StoreError, OSError)  # the next look may find the files again


def watch(run: str | None = None, rank: int | None = None, every: int | None = None) -> int:
    """Show a run, or all runs of a folder, on a screen that stays up to date until Ctrl-C."""
    folder = RUNS_FOLDER if run is None else holds_runs(run)
    with suppress(KeyboardInterrupt):
        if not can_be_live(1):
            return _print_every(run, folder, every or EVERY_LINES_S)
        every = every or EVERY_S
        if folder is not None:
            return _watch_folder(folder, every)
        return _watch_run(_Watched(find_run(run or ""), SystemClock(), rank), every)
    return 0


def _print_every(run: str | None, folder: str | None, every: int) -> int:
    """Print the status again and again, until the run has ended; a folder has no end."""
    clock = SystemClock()
    paths = None if folder is not None else find_run(run or "")
    while True:
        say(f"--- {clock_text(clock.wall())}")
        try:
            if paths is None:
                list_runs(folder or "")
            else:
                status(paths.root)
                if status_of(RunView.of(read_run(paths))).phase.is_final:
                    return 0
        except BrokenPipeError:
            raise
        except _MAY_PASS as error:
            say_aside(_not_now(error))
        clock.sleep(every)


def _not_now(error: Exception) -> str:
    return f"cannot be read now, and is read again: {str(error).splitlines()[0]}"


def _watch_run(watched: _Watched, every: int) -> int:
    known = facts = watched.look()
    with LiveTerminal(1) as terminal:
        while True:
            size = terminal.size
            terminal.draw(screen_lines(facts, *size), size)
            if watched.where.phase.is_final:
                break
            terminal.wait(every)
            try:
                known = facts = watched.look()
            except _MAY_PASS as error:  # the screen keeps the rest
                facts = known._replace(summary=(_not_now(error), *known.summary), colour="red")
    return status(watched.paths.root)


def _watch_folder(folder: str, every: int) -> int:
    """Show the runs of a folder; those that have ended are read once."""
    watched: dict[str, _Watched] = {}
    rows, names, is_new = run_rows(folder), set(list_names(folder)), False
    with LiveTerminal(1) as terminal:
        while True:
            lines = [
                ScreenLine(f"{count_text(len(rows), 'run')} below {folder}", bold=True),
                ScreenLine(""),
            ]
            lines += [_row_line(row, watched) for row in rows[:_MOST_RUNS]]
            lines += [ScreenLine(""), ScreenLine("Ctrl-C ends this screen; the runs go on")]
            size = terminal.size
            terminal.draw([cut(line, size.columns) for line in lines[: size.lines]], size)
            live = sum(not one.where.phase.is_final for one in watched.values())
            terminal.wait(max(every, live * _CALLS_OF_RUN / _CALLS_PER_S))
            with suppress(*_MAY_PASS):
                now = set(list_names(folder))
                was_new, is_new, names = is_new, now != names, now
                if is_new or was_new:  # a directory that was new a look ago may be a run by now
                    rows = run_rows(folder)


def _row_line(row: RunRow, known: dict[str, _Watched]) -> ScreenLine:
    """Return the line of a run; one that cannot be read costs no more than its line."""
    if not row.phase or row.is_over:
        return ScreenLine(f"{row.name}  {row.text}")
    try:
        if row.name not in known:
            known[row.name] = _Watched(row.paths, SystemClock())
        watched = known[row.name]
        facts = watched.look()
    except (HpcElasticError, OSError) as error:
        return ScreenLine(f"{row.name}  cannot be read: {str(error).splitlines()[0]}", "red")
    nodes = sum(node.first_rank is not None for node in facts.nodes)
    where = (
        f"{watched.where.phase.value}, {count_text(nodes, 'node')}" if nodes else watched.where.phase.value
    )
    return ScreenLine(f"{row.name}  {where}  {facts.summary[0]}", facts.colour)


class _Watched:
    """A run that is looked at again and again: one listing each time, everything else only when it is due.

    Args:
        paths: its files.
        clock: tells the time.
        rank: whose log is shown; None: that of none.
    """

    def __init__(self, paths: RunPaths, clock: Clock, rank: int | None = None) -> None:
        self.paths, self._clock, self._rank = paths, clock, rank
        self._run = read_run(paths)
        self._job: JobFacts | None = None
        self._roster: Roster = {}
        self._pacer = Pacer()
        self._ask_at = self._account_at = self._journal_at = float("-inf")
        self._steps: tuple[int, ...] = ()  # the newest one of the account; empty: it has none
        self._begun: Mapping[int, int] = {}  # steps that rounds went on from, as their workers told
        self._total: int | None = None
        self._pace = self._used = ""
        self._saved: SavedCheckpoint | None = None
        self._saved_at = float("-inf")  # when it was read, monotonic
        self._gpus: dict[str, str] = {}  # by node
        self._events: tuple[str, ...] = ()
        self._told = -1  # number of the newest record among the events
        self.where = RunStatus(status_of(RunView.of(self._run)).phase, "")

    def look(self) -> ScreenFacts:
        """Return the present state of the run."""
        now = self._clock.monotonic()
        names = list_names(self.paths.members)
        self._roster = observe(self._roster, names, self._run.state.epoch, now)
        self._read_journal(now, newest_record(names, self._roster))
        if now >= self._ask_at:
            self._job, self._ask_at = ask_job(self._run, Slurm()).job, now + _ASK_SLURM_S
        self.where = status_of(RunView.of(self._run, self._job, self._silent_s(now)))
        if now >= self._account_at:
            self._account(now)
        rows = self._rows(now)
        title, log = self._log()
        headline = f"{self._run.name}: {self.where.text}"
        summary = self._summary_of(rows)
        return ScreenFacts(headline, colour_of(self.where.phase), summary, rows, self._events, title, log)

    def _summary_of(self, rows: tuple[WatchedNode, ...]) -> tuple[str, ...]:
        """Return step, rate, time left and goodput; then a bar, the last checkpoint and the budgets."""
        steps = [row.step for row in rows if row.step is not None]
        step = max([*self._steps, *steps], default=None)  # heartbeats may tell a newer one than the account
        told = ", ".join(filter(None, (progress_text(step, self._total), self._pace)))
        bar = bar_text(step / self._total) if step is not None and self._total else ""
        more = ", ".join(filter(None, (bar, self._saved_text(), self._used)))
        return tuple(filter(None, (told or f"no step is known; {count_text(len(rows), 'node')}", more)))

    def _saved_text(self) -> str:
        """Return the last checkpoint and its age, which are read now and then only."""
        now = self._clock.monotonic()
        if now >= self._saved_at + _SAVED_S:
            self._saved, self._saved_at = newest_checkpoint(self.paths, self._clock.wall()), now
        if self._saved is None:
            return ""
        return f"saved step {self._saved.step} {span_text(self._saved.age_s + now - self._saved_at)} ago"

    def _read_journal(self, now: float, told: int) -> None:
        last = self._run.state.last
        if told <= last and now < self._journal_at and last == self._told:
            return
        self._journal_at = now + _JOURNAL_S
        new = read_newer(self.paths, last)
        if any(isinstance(record.entry, EpochStarted) for record in new):
            self._run = read_run(self.paths)
            self._ask_at = float("-inf")
        else:
            records = [*self._run.records, *new]
            self._run = self._run._replace(records=records, state=fold(self._run.state, new))
        if self._run.state.last != self._told:
            self._told = self._run.state.last
            self._make_events()

    def _make_events(self) -> None:
        records, is_torchruns = self._run.records, self._run.is_torchruns
        moments = moments_of(records, by_torchrun=is_torchruns, begun=self._begun)[-5:]
        self._events = tuple(f"{clock_text(one.at)} {visible(one.text)}" for one in moments)

    def _silent_s(self, now: float) -> float | None:
        """Return for how long all agents that are to beat have been silent [s]; None if one is not."""
        beating = [seen for seen in self._roster.values() if seen.name.phase not in TERMINAL]
        silent_s = min((now - seen.changed_at for seen in beating), default=0.0)
        return silent_s if silent_s >= SILENT_S else None

    def _account(self, now: float) -> None:
        """Make the account anew; the next one comes when this one has cost less than its share."""
        account = account_at(self._run, self.where.phase)
        pace = pace_of(account.series)
        self._steps, self._total = (
            tuple(step for _, step in account.series.progress[-1:]),
            account.series.total,
        )
        if account.series.begun != self._begun:
            self._begun = account.series.begun
            self._make_events()
        self._gpus = {one.node: gpus_now_text(one) for one in account.gpus}
        used = {} if self._run.is_torchruns else dict(used_facts(self._run))
        self._used = used.get("used", "")
        parts = []
        if pace is not None:
            left_s = left_at(pace, account)
            parts = [rate_text(pace.per_s)] + ([f"about {span_text(left_s)} left"] if left_s else [])
        if account.wall_s and account.starts:
            parts.append(f"goodput {goodput_text(account)}")
        self._pace = ", ".join(parts)
        cost_s = self._clock.monotonic() - now
        self._account_at = now + max(_ACCOUNT_S, cost_s / _ACCOUNT_SHARE)

    def _rows(self, now: float) -> tuple[WatchedNode, ...]:
        state = self._run.state
        formed = state.running
        first, ranks = 0, {}
        for member in formed.members if formed is not None else ():
            ranks[member.node_id] = first, member.slots
            first += member.slots
        names = {seen.name.node_id: seen for seen in self._roster.values()}
        steps = {one: least(seen.name) for one, seen in names.items()}
        self._pacer.note(now, {one: step for one, step in steps.items() if step is not None})
        slow = self._pacer.slow()
        rows = [
            WatchedNode(
                seen.name.node,
                ranks.get(one, (None, 0))[0],
                self._state_of(seen.name),
                seen.name.rank_steps,
                self._pacer.rate(one),
                0.0 if seen.name.phase in TERMINAL else now - seen.changed_at,
                one in slow,
                is_well=seen.name.node not in {*state.lost, *state.unfit, *state.stopped_ranks},
                gpus=self._gpus.get(seen.name.node, ""),
            )
            for one, seen in names.items()
        ]
        place = {one: number for number, one in enumerate(ranks)}
        order = sorted(zip(names, rows, strict=True), key=lambda pair: place.get(pair[0], len(place)))
        there = {row.node for row in rows}
        absent = [node for node in state.expected if node not in there and state.ending is None]
        gone = [WatchedNode(node, None, "not here", is_well=False) for node in absent]
        return (*(row for _, row in order), *gone)

    def _state_of(self, name: MemberName) -> str:
        state = self._run.state
        if ranks := state.stopped_ranks.get(name.node):
            return f"ranks {', '.join(map(str, ranks))} stopped (SIGSTOP)"
        if name.node in state.lost:
            return "lost"
        if name.node in state.unfit:
            return "unfit"
        return _STATES[name.phase]

    def _log(self) -> tuple[str, tuple[str, ...]]:
        """Return the newest lines of the chosen rank, and their title; nothing if none was chosen."""
        number = self._run.state.round.number if self._run.state.round is not None else 0
        if self._rank is None or not number:
            return "", ()
        wanted = WantedLogs(rank=self._rank)
        files = log_files.worker_files(self.paths, number, wanted, [self._rank])
        lines: list[str] = []
        for file in files:
            with suppress(OSError), os.fdopen(open_plain(file.path), "rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(0, size - _TAIL_BYTES))
                lines += opened.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-8:]
        absence = "no output yet" if files else "the round has no log of this rank"
        return f"rank {self._rank} in round {number}", tuple(lines) or (absence,)


_STATES = {
    Phase.JOINING: "waits for a round",
    Phase.RUNNING: "running",
    Phase.STOPPED: "has stopped",
    Phase.SUCCEEDED: "has left",
    Phase.LEFT: "has left",
    Phase.ABSENT: "has ended before it came",
}


def least(name: MemberName) -> int | None:
    """Return the step of the slowest rank of a node; None if a rank has done none."""
    told = name.rank_steps
    return min(step for step in told if step is not None) if told and None not in told else None
