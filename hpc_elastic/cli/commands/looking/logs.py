"""``hpc-elastic logs``: the output of workers and agents, merged, and followed until the run ends."""

from __future__ import annotations

import os
import select
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Optional

from hpc_elastic.cli.parameters import Flag
from hpc_elastic.cli.run_argument import RunArgument, find_run
from hpc_elastic.cli.say import say, say_aside
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError, RendezvousStateError, UnfitFileError
from hpc_elastic.ids import LOGIN
from hpc_elastic.paths import RunPaths
from hpc_elastic.processes.tail import Console, Sink, Tail
from hpc_elastic.record.journal import Role, RoundFormed
from hpc_elastic.record.run_log import open_log
from hpc_elastic.report import log_files
from hpc_elastic.report.log_files import LogFile, WantedLogs
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, silent_for
from hpc_elastic.text import visible_log

_LOOK_S = 0.2
_ASK_SLURM_S = 30.0
_LINES = 100

Follow = Annotated[bool, Flag(("--follow", "-f"), "Go on showing new lines, until the run has ended.")]
Rank = Annotated[
    Optional[int],  # noqa: UP045 - it is read at run time on Python 3.10 too
    Flag(("--rank",), "Only this global rank.", "R", least=0),
]
Node = Annotated[
    Optional[str],  # noqa: UP045
    Flag(("--node",), "Only this node: its agent and its workers.", "NAME"),
]
Attempt = Annotated[
    Optional[int],  # noqa: UP045
    Flag(("--attempt",), "Workers of this round instead of the newest.", "ROUND", least=1),
]
Lines = Annotated[int, Flag(("--lines", "-n"), "Last lines of each file; 0 for all.", "N", least=0)]


def logs(
    run: RunArgument,
    follow: Follow = False,  # noqa: FBT002 - a flag of the command line
    rank: Rank = None,
    node: Node = None,
    attempt: Attempt = None,
    lines: Lines = _LINES,
) -> int:
    """Show the output of the newest round's workers and of all agents.

    A line of a worker begins with its round and rank, that of an agent with time and node.
    """
    found = _read(find_run(run))
    if found.is_torchruns:
        raise InputError(
            f"the workers of {found.name} were started by torchrun, which keeps their output to itself",
            where="RUN",
            fix="read torchrun's own output (below Slurm that of the job), or give it --log-dir and --tee 3",
        )
    wanted = WantedLogs(rank, node, attempt)
    files = _files(found, wanted)
    if not files and not follow:
        if not _is_silent(found, wanted):
            raise _nothing(found, wanted)
        say_aside("the workers that are meant have written nothing")
    shown = _Shown(lines)
    sys.stdout.flush()
    shown.show(files)
    if follow:
        _follow(found, wanted, shown, SystemClock())
    else:
        shown.finish()
    return 0


def _read(paths: RunPaths) -> RunFiles:
    """Return the run; where its records cannot be read, the error names the logs."""
    try:
        return read_run(paths)
    except RendezvousStateError as error:
        raise RendezvousStateError(f"{error}\n  the logs themselves are in {paths.logs}") from None


def _files(run: RunFiles, wanted: WantedLogs) -> list[LogFile]:
    there = log_files.attempts(run.paths)
    newest = there[-1] if there else None
    attempt = wanted.attempt if wanted.attempt is not None else newest
    workers: list[LogFile] = []
    if attempt is not None:
        ranks = None if wanted.node is None else log_files.ranks_of_node(run.records, attempt, wanted.node)
        if wanted.node is None or ranks is not None:
            workers = log_files.worker_files(run.paths, attempt, wanted, ranks)
    files = [*log_files.agent_files(run.paths, wanted), *workers]
    return files if files or wanted != WantedLogs() else log_files.batch_logs(run.paths)


def _is_silent(run: RunFiles, wanted: WantedLogs) -> bool:
    """Tell whether the round had the workers that are meant: once it is over only its output stays."""
    formed = [record.entry for record in run.records if isinstance(record.entry, RoundFormed)]
    rounds = [one for one in formed if wanted.attempt in (None, one.number)]
    if not rounds or rounds[-1].number not in log_files.attempts(run.paths):
        return False
    newest, ranks = rounds[-1], None
    if wanted.node is not None:
        ranks = log_files.ranks_of_node(run.records, newest.number, wanted.node)
        if ranks is None:
            return False
    return wanted.rank is None or wanted.rank in (range(newest.workers) if ranks is None else ranks)


def _nothing(run: RunFiles, wanted: WantedLogs) -> InputError:
    there = log_files.attempts(run.paths)
    if wanted == WantedLogs() or not there:
        return InputError(
            "there are no logs yet",
            where="RUN",
            fix=f"look where the run stands: hpc-elastic status {shlex.quote(run.paths.root)}",
        )
    asked = [f"--{name} {value}" for name, value in wanted._asdict().items() if value is not None]
    return InputError(
        f"no log matches {' '.join(asked)}",
        where=asked[0].split()[0],
        fix=f"rounds with logs: {', '.join(map(str, there[-20:]))}; files are in {run.paths.logs}",
    )


class _Shown:
    """The files that are shown, each from where it was left.

    Args:
        lines: how many lines to show of a file when it is first seen; 0 for all.
    """

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._tails: dict[str, Tail] = {}
        self._sink = TerminalSink(Console(1)) if os.isatty(1) else Console(1)
        self._told: set[str] = set()  # files of which was said that they are none

    def show(self, files: list[LogFile], *, new_from_start: bool = False) -> None:
        """Show the new lines of all files, and the end (or all) of files that are new."""
        for file in files:
            if file.path not in self._tails:
                whole = new_from_start or not self._lines
                offset = 0 if whole else log_files.offset_of_last(file.path, self._lines)
                self._tails[file.path] = Tail(file.path, self._sink, file.prefix.encode(), offset=offset)
        for tail in self._tails.values():
            _pump_all(tail)
            if isinstance(tail.error, UnfitFileError) and tail.path not in self._told:
                self._told.add(tail.path)
                say_aside(f"left out: {tail.error}")

    def finish(self, keep: Sequence[LogFile] = ()) -> None:
        """Show the rest, unfinished lines too, and let go of all files that are not to be kept."""
        kept = {file.path for file in keep}
        for path in [path for path in self._tails if path not in kept]:
            _pump_all(self._tails[path])
            self._tails.pop(path).finish()


def _pump_all(tail: Tail) -> None:
    """Show all that is there, at the pace of the reader."""
    while tail.pump() or tail.is_blocked:
        if tail.is_blocked:
            select.select([], [1], [], 1.0)


def _follow(run: RunFiles, wanted: WantedLogs, shown: _Shown, clock: Clock) -> None:
    """Show new output, over rounds and requeues, until the run has ended or its job is gone."""
    said, ask_at = RunPhase.UNKNOWN, clock.monotonic() + _ASK_SLURM_S
    job, log, silent_s = ask_job(run, Slurm()).job, open_log(run.paths, LOGIN, Role.COMMAND), None
    while True:
        if log.refresh().last != run.state.last:
            run = read_run(run.paths)
        if clock.monotonic() >= ask_at:
            job, ask_at = ask_job(run, Slurm()).job, clock.monotonic() + _ASK_SLURM_S
            silent_s = silent_for(run, clock) if may_live(job) else None
        where = status_of(RunView.of(run, job, silent_s))
        files = _files(run, wanted)
        shown.show(files, new_from_start=True)
        shown.finish(keep=files)
        if where.phase.is_final or where.phase is RunPhase.GONE:
            shown.finish()
            say(f"--- {where.text}")
            return
        if where.phase is not said and where.phase in (RunPhase.QUEUED, RunPhase.REQUEUED, RunPhase.SILENT):
            say(f"--- {where.text}")
        said = where.phase
        clock.sleep(_LOOK_S)


class TerminalSink:
    """Hands lines on with colours, and shows as escapes all that would move, clear or rename the terminal.

    Args:
        sink: takes the lines.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait."""
        return self._sink.is_blocked

    @property
    def is_never_slow(self) -> bool:
        """Whether no reader at the other end can make lines wait."""
        return self._sink.is_never_slow

    def put(self, lines: bytes) -> None:
        """Take lines that end with a line end."""
        self._sink.put(visible_log(lines))

    def flush(self) -> bool:
        """Write the waiting lines; return whether that is all."""
        return self._sink.flush()

    def blocked_fd(self) -> int | None:
        """Return the descriptor that lines wait for."""
        return self._sink.blocked_fd()
