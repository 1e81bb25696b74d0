"""``hpc-elastic logs``: the output of workers and agents in order of time, followed to the end of the run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence

from hpc_elastic.cli.commands.looking.log_output import ShownLogs, hand_out_lines
from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import say, say_aside
from hpc_elastic.clock import Clock, SystemClock, date_text, wall_of
from hpc_elastic.errors import InputError, RendezvousStateError
from hpc_elastic.ids import LOGIN
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Role, RoundEnded, RoundFormed
from hpc_elastic.record.run_log import open_log
from hpc_elastic.report import log_files
from hpc_elastic.report.log_files import LogFile, WantedLogs
from hpc_elastic.report.log_lines import LogPiece, WantedLines, chosen_lines
from hpc_elastic.report.log_order import Lengths, LogOrder
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.report.timeline import names_text
from hpc_elastic.settings.values import BadValueError, parse_duration_s
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, silent_for
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import whole_number

_LOOK_S = 0.2
_ASK_SLURM_S = 30.0
_LINES = 100
_BATCH = 1 << 16  # bytes that are written at once
_ALL = "all"
_A_TIME = "give a span (90s, 10m, 2h), a time (14:30), or a date with it (2026-11-23T14:30:00)"


def logs(  # noqa: PLR0913 - one parameter per option of the command line
    run: str | None = None,
    *,
    follow: bool = False,
    rank: int | None = None,
    node: str | None = None,
    attempt: str | None = None,
    lines: int | None = None,
    since: str | None = None,
    grep: str | None = None,
    first_failure: bool = False,
    times: bool = False,
    json: bool = False,
) -> int:
    """Show the output of the newest round's workers and of all agents, in order of time."""
    if json and follow:
        raise InputError("--json is one document, and --follow has no end", where="--json", fix="give one")
    chosen = _lines_of(lines, since, grep)
    found = _read(find_run(run))
    wanted = WantedLogs(rank, node, *_attempts_of(attempt))
    if first_failure:
        wanted = _first_failure(found, wanted)
    files = _files(found, wanted)
    if not files and not follow:
        if not _is_silent(found, wanted):
            raise _nothing(found, wanted)
        say_aside("the workers that are meant have written nothing")
    lengths, shown = Lengths(), ShownLogs(chosen, with_times=times)
    picked = chosen_lines(_pieces(found, wanted, files, lengths, follows=follow), chosen, shown.refused)
    if json:
        hand_out_lines(found, picked)
        return 0
    sys.stdout.flush()
    shown.show(picked)
    if follow:
        shown.go_on(files, lengths)
        _follow(found, wanted, shown, SystemClock())
    return 0


def _lines_of(lines: int | None, since: str | None, grep: str | None) -> WantedLines:
    """Return the choice of lines.

    Raises:
        InputError: a value is none.
    """
    by_default = 0 if since is not None else _LINES
    from_then = _moment(since, SystemClock()) if since is not None else 0.0
    return WantedLines(lines if lines is not None else by_default, from_then, _pattern(grep))


def _read(paths: RunPaths) -> RunFiles:
    """Return the run; where its records cannot be read, the error names the logs.

    Raises:
        InputError: torchrun has started its workers.
    """
    try:
        found = read_run(paths)
    except RendezvousStateError as error:
        raise RendezvousStateError(f"{error}\n  the logs themselves are in {paths.logs}") from None
    if found.is_torchruns:
        raise InputError(
            f"the workers of {found.name} were started by torchrun, which keeps their output to itself",
            where="RUN",
            fix="read torchrun's own output (below Slurm that of the job), or give it --log-dir and --tee 3",
        )
    return found


class _Attempts(NamedTuple):
    """The rounds that are asked for, as the last fields of `WantedLogs`."""

    attempt: int | None = None
    all: bool = False


def _attempts_of(text: str | None) -> _Attempts:
    """Return the rounds that a text names.

    Raises:
        InputError: it names none.
    """
    if text in (None, _ALL):
        return _Attempts(all=text is not None)
    number = whole_number(text or "")
    if not number:
        raise InputError(f"{text!r} is no round", where="--attempt", fix="give its number, or all")
    return _Attempts(number)


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    """Return the pattern that lines must have.

    Raises:
        InputError: it is no regular expression.
    """
    try:
        return None if text is None else re.compile(os.fsencode(text))
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(
            f"{text!r} is no regular expression: {error}", where="--grep", fix=r"put \ before . [ ( * + ? \ "
        ) from None


def _moment(given: str, clock: Clock) -> float:
    """Return the moment that the user names [s since the epoch]: a span before now, a time or a date.

    Raises:
        InputError: it names none.
    """
    now = clock.wall()
    day, _, time = given.replace(" ", "T").rpartition("T")
    if given.count("-") == 2:  # noqa: PLR2004 - a date
        day, time = (day, time) if day else (given, "00:00:00")
    time += ":00" if time.count(":") == 1 else ""
    at = wall_of(f"{day or date_text(now)[:10]}T{time}")
    if at is not None:
        return at if day or at <= now else at - 86400
    try:
        return now - parse_duration_s(given)
    except BadValueError:
        raise InputError(f"{given!r} is no time", where="--since", fix=_A_TIME) from None


def _first_failure(run: RunFiles, wanted: WantedLogs) -> WantedLogs:
    """Return the worker whose failure came first in the newest round with one, or in the round asked for.

    Raises:
        InputError: there is none.
    """
    from hpc_elastic.multiprocessing.errors import FailureRecord  # noqa: PLC0415 - rare

    ends = [record.entry for record in run.records if isinstance(record.entry, RoundEnded)]
    found = [one for one in ends if one.failure and wanted.attempt in (None, one.number)]
    if not found:
        where = "" if wanted.attempt is None else f" in round {wanted.attempt}"
        raise InputError(
            f"no worker of {run.name} has failed{where}",
            where="--first-failure",
            fix=f"see the ends of its rounds: hpc-elastic timeline {for_shell(run.paths.root)}",
        )
    failure = FailureRecord.from_json(found[-1].failure or {})
    return wanted._replace(rank=failure.rank, attempt=found[-1].number, all=False)


def _attempts(run: RunFiles, wanted: WantedLogs) -> list[int]:
    """Return the rounds whose workers are meant."""
    there = log_files.attempts(run.paths)
    if wanted.attempt is not None:
        return [wanted.attempt]
    return there if wanted.all else there[-1:]


def _files(run: RunFiles, wanted: WantedLogs) -> list[LogFile]:
    workers: list[LogFile] = []
    for attempt in _attempts(run, wanted):
        ranks = None if wanted.node is None else log_files.ranks_of_node(run.records, attempt, wanted.node)
        if wanted.node is None or ranks is not None:
            workers += log_files.worker_files(run.paths, attempt, wanted, ranks)
    files = [*log_files.agent_files(run.paths, wanted), *workers]
    return files if files or wanted != WantedLogs() else log_files.batch_logs(run.paths)


def _pieces(
    run: RunFiles, wanted: WantedLogs, files: Sequence[LogFile], lengths: Lengths, *, follows: bool
) -> Iterable[LogPiece]:
    """Return the pieces of the logs; a line that may go on is left to the end that is followed."""
    if follows:  # the lines behind these lengths come later
        for file in files:
            lengths.of(file.path)
    order = LogOrder(run.paths, run.records, lengths)
    is_of_batch = any(file.rank is None and not file.node for file in files)
    found = order.whole(reversed(files)) if is_of_batch else order.pieces(wanted, _attempts(run, wanted))
    return (piece._replace(is_last=False) for piece in found) if follows else found


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
            fix=f"look where the run stands: hpc-elastic status {for_shell(run.paths.root)}",
        )
    named = {"rank": wanted.rank, "node": wanted.node, "attempt": _ALL if wanted.all else wanted.attempt}
    asked = [f"--{name} {value}" for name, value in named.items() if value is not None]
    return InputError(
        f"no log matches {' '.join(asked)}",
        where=asked[0].split()[0],
        fix=f"rounds with logs: {', '.join(map(str, there[-20:]))}{_members_text(run, wanted, there)}; "
        f"files are in {run.paths.logs}",
    )


def _members_text(run: RunFiles, wanted: WantedLogs, there: list[int]) -> str:
    """Return the ranks and nodes of the round that is looked at; empty if they are not known."""
    formed = log_files.rounds_of(run.records).get(wanted.attempt or there[-1])
    if formed is None:
        return ""
    nodes = names_text(tuple(member.node for member in formed.members))
    last = formed.workers - 1
    return f"; round {formed.number} had {f'ranks 0 to {last}' if last else 'rank 0'} on {nodes}"


def _follow(run: RunFiles, wanted: WantedLogs, shown: ShownLogs, clock: Clock) -> None:
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
        shown.show_new(files)
        shown.finish(keep=files)
        if where.phase.is_final or where.phase is RunPhase.GONE:
            shown.finish()
            say(f"--- {where.text}")
            return
        if where.phase is not said and where.phase in (RunPhase.QUEUED, RunPhase.REQUEUED, RunPhase.SILENT):
            say(f"--- {where.text}")
        said = where.phase
        clock.sleep(_LOOK_S)
