"""The lines of ``hpc-elastic status`` about a run below its first one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.member_names import TERMINAL, MemberName, parse_name
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import failed_save_texts, failed_saves
from hpc_elastic.record.checkpoints import save_times
from hpc_elastic.record.journal import Cause, Decision, Record
from hpc_elastic.record.progress import BEGINNING, trained
from hpc_elastic.record.state import RunState
from hpc_elastic.report.activity import activity_texts
from hpc_elastic.report.causes_text import (
    job_code_text,
    requeues_text,
    restarts_text,
    signals_of,
    task_requeues,
    tasks_text,
    used_text,
)
from hpc_elastic.report.explain.facts import advised_interval_s, is_running
from hpc_elastic.report.explain.words import progress_facts
from hpc_elastic.report.log_files import srun_said
from hpc_elastic.report.node_status import node_facts
from hpc_elastic.report.queue_text import (
    FAILS,
    GIVEN_BACK,
    ended_text,
    is_short_of_tasks,
    lost_text,
    missing_text,
    more_text,
    queue_text,
    too_few_text,
    wait_times_text,
)
from hpc_elastic.report.run_facts import SeenRun, batch_log
from hpc_elastic.report.run_status import NOT_RECORDED, member_texts, torchrun_marks
from hpc_elastic.report.timeline import never_asks_text, span_text, stopped_ranks_text
from hpc_elastic.report.timeline import timeline as moments_of
from hpc_elastic.settings.table import in_force
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import Site, p99, seconds
from hpc_elastic.slurm.client.grace_times import read_site
from hpc_elastic.slurm.client.job_standing import GONE
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.end.choices import use_of_causes
from hpc_elastic.slurm.end.history import saves_text, short_time_text
from hpc_elastic.slurm.nodes.ledger_rules import RULES, standings
from hpc_elastic.slurm.nodes.nodes import hosts, ledger_of
from hpc_elastic.slurm.run_jobs.job_start import log_end
from hpc_elastic.slurm.run_jobs.run_files import (
    RunFiles,
    SavedCheckpoint,
    SlurmAnswer,
    drain_times,
    drains_of,
    is_array,
    newest_checkpoint,
    spec_trouble,
)
from hpc_elastic.slurm.submit.run_dir import identity_trouble
from hpc_elastic.store import files
from hpc_elastic.store.files import list_names
from hpc_elastic.store.node_events import Fault
from hpc_elastic.store.node_ledger import read_ledger
from hpc_elastic.text import count_text, for_shell
from hpc_elastic.typed_json import whole_number

_HELD = ".held"

NEVER_ASKS = (
    "the workers do not ask whether to stop (hpc_elastic.worker.should_stop), so a stop or a preemption ends "
    "them unsaved; --unasked run-on lets a program that saves by itself run on"
)
LET_GO_ON = "time does not count until then; kill -CONT of its process on that node lets it go on"


def status_facts(seen: SeenRun) -> list[tuple[str, str]]:
    """Return the lines about a run below its first one: (label, text), in order."""
    run, asked, now_s = seen.run, seen.asked, SystemClock().wall()
    state = run.state
    facts = [("run", run.paths.root)]
    if run.job_id:
        facts.append(("job", _job_text(run, asked)))
    facts += _chain(run, asked)
    facts += _waits(run, asked)
    if asked.trouble:
        facts.append(("", asked.trouble))
    for trouble in (identity_trouble(run.paths), spec_trouble(run.paths)):
        facts += zip(("damaged", ""), trouble, strict=False)
    saved = newest_checkpoint(run.paths, now_s)
    facts += _checkpoint(run, saved)
    facts += [("", text) for text in failed_save_texts(failed_saves(run.paths))]
    facts += [] if run.is_untold else _progress(seen, saved)
    facts += _activity(run, now_s)
    facts += [] if run.is_script else _saves(run, BEGINNING if saved is None else saved.step)
    short = short_time_text(trained(run.records), _limit_s(run, asked))
    facts += [("time", short)] if short and state.ending is None else []
    facts += [("stopped", f"{each}; {LET_GO_ON}") for each in stopped_texts(state)]
    facts += drain_facts(run.paths, run.records)
    facts += _torchruns(run, now_s) if run.is_torchruns else used_facts(run)
    facts += node_facts(state, asked.fields, run.records, _forgiven(run, asked, now_s))
    if asked.job is not None and asked.job.state is JobState.ENDED and state.ending is None:
        facts += [("batch log", path) for path in batch_log(run)]
    if run.records:
        begun = seen.account.series.begun
        last = moments_of(run.records, by_torchrun=run.is_torchruns, begun=begun)[-1]
        text = state.ending.decision.value if last.is_ending and state.ending is not None else last.text
        ago = f" ({span_text(now_s - last.at)} ago)" if last.at <= now_s else ""  # its clock may be ahead
        facts.append(("last", f"{date_text(last.at)}{ago} {text}"))
    return facts


def _activity(run: RunFiles, now_s: float) -> list[tuple[str, str]]:
    """Return the last signs of workers that tell no steps."""
    running = run.state.running
    if running is None or run.state.ending is not None or run.is_untold:
        return []
    texts = activity_texts(run.paths, running, now_s, has_limit=bool(in_force(run.spec, "silence_timeout")))
    return list(zip(("activity", ""), texts, strict=False))


def stopped_texts(state: RunState) -> list[str]:
    """Return the ranks on each node that a SIGSTOP holds up, as sentences."""
    return [stopped_ranks_text(node, ranks) for node, ranks in sorted(state.stopped_ranks.items())]


def _checkpoint(run: RunFiles, saved: SavedCheckpoint | None) -> list[tuple[str, str]]:
    if saved is not None:
        where = f" ({saved.path})" if saved.path else ""
        return [("checkpoint", f"step {saved.step}, saved {span_text(saved.age_s)} ago{where}")]
    is_missing = run.state.rounds and not run.is_untold
    return [("checkpoint", "none marked (hpc_elastic.worker.checkpoint_saved)")] if is_missing else []


def _progress(seen: SeenRun, saved: SavedCheckpoint | None) -> list[tuple[str, str]]:
    """Return goodput, pace, and whether saves come often enough."""
    run, account = seen.run, seen.account
    lives = run.state.running is not None and run.state.ending is None
    age_s = saved.age_s if saved is not None and lives else None
    return progress_facts(account, advised_interval_s(run, account), age_s, seen.newest)


def _limit_s(run: RunFiles, asked: SlurmAnswer) -> float | None:
    """Return how long each start of the job may run [s], None if unknown."""
    job = asked.job
    if job is not None and job.state is JobState.RUNNING and job.granted_s is not None:
        return job.granted_s
    return seconds(str(run.spec.get("time", "")))


def _saves(run: RunFiles, newest: int) -> list[tuple[str, str]]:
    """Return that workers cannot save when asked to, and that starts have saved nothing.

    One that runs may do so yet.
    """
    state, progress = run.state, run.state.progress
    if state.ending is not None:
        return []
    never_asks = []
    if state.never_asked is not None:
        ends = state.never_asked.runs_on_s is None
        never_asks = [("stops", NEVER_ASKS if ends else never_asks_text(state.never_asked))]
    text = saves_text(progress.of_ended(newest) if is_running(run) else progress, newest, None)
    return [*never_asks, ("saves", text)] if text else never_asks


def _forgiven(run: RunFiles, asked: SlurmAnswer, now_s: float) -> frozenset[str]:
    """Return the nodes that were forgiven after all that was held against them."""
    if not hosts(asked.fields.get("ExcNodeList")):
        return frozenset()
    try:
        place = ledger_of(run.paths.root, run.spec, Slurm().environ)
        events = read_ledger(place, since=RULES.oldest(now_s)).events
    except (HpcElasticError, OSError):
        return frozenset()
    found = standings(events, now_s)
    return frozenset(one.host for one in found if one.last.fault is Fault.FORGIVEN)


def _chain(run: RunFiles, asked: SlurmAnswer) -> list[tuple[str, str]]:
    """Return the jobs that are to follow, or that none is left for a run that is not done."""
    ending, size = run.state.ending, run.spec.get("chain")
    if run.successors:
        jobs = f"then {count_text(len(run.successors), 'job')}: {', '.join(run.successors)}"
        return [("chain", jobs)] if ending is None else []
    is_over = asked.job is not None and asked.job.state is JobState.ENDED
    was_cut_short = ending is None or ending.exit_code == ExitCode.REQUEUE
    if not size or run.is_local or not is_over or not was_cut_short:
        return []
    return [("chain", f"used up, {run.job_id} was its last job; {run.command_to_go_on} queues {size} more")]


def _torchruns(run: RunFiles, now_s: float) -> list[tuple[str, str]]:
    """Return the known and the unknown facts of a run whose agents are torchrun's."""
    nodes = [("node", text) for text in member_texts(torchrun_marks(run), now_s)]
    return [*nodes, ("rounds", f"{run.state.rounds} formed"), ("agents", NOT_RECORDED)]


def used_facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return how much of the budgets is used; the limits of a run without a job spec are unknown."""
    state = run.state
    most, most_requeues = None, None
    if run.spec:
        most = in_force(run.spec, "max_restarts")
        most_requeues = in_force(run.spec, "max_requeues")
    crashes = state.crashes if most is None else min(state.crashes - _is_last_failure(state), most)
    restarts = used_text(crashes, most, "failure" if most is None else "restart", "")
    parts = [*([] if run.is_script else [restarts]), *_requeues(run, most_requeues)]
    parts += filter(None, [use_of_causes(state, run.spec)])
    ended = restarts_text(state.counts, signals_of(run.records))
    by = (
        "formed in all; ended since the last submit --resume by"
        if state.epoch.submission > 0
        else "formed; ended by"
    )
    return [
        ("used", ", ".join(parts)),
        *([("rounds", f"{state.rounds} {by}: {ended}")] if ended else []),
    ]


def _requeues(run: RunFiles, most: int | None) -> list[str]:
    """Return how often the run was requeued; in array mode each task counts for itself."""
    state, submission = run.state, run.state.epoch.submission
    why = requeues_text(run.records, submission)
    if not is_array(run):
        return [used_text(state.requeues, most, "requeue", why)]
    times = task_requeues(run.records, list_names(run.paths.members), submission)
    of_all = used_text(state.requeues, most, "requeue", f"of all tasks at once: {why}")
    return [tasks_text(times, in_force(run.spec, "max_requeues")), *([of_all] if state.requeues else [])]


def _is_last_failure(state: RunState) -> bool:
    """Tell whether the run failed with a crash, which nothing was started again after."""
    is_failed = state.ending is not None and state.ending.decision is Decision.FAILED
    return is_failed and state.ended is not None and state.ended.cause is Cause.CRASH


def _job_text(run: RunFiles, asked: SlurmAnswer) -> str:
    if run.is_local:
        return f"{run.job_id} on one machine" + (
            "; it does not run here any more" if asked.job == GONE else ""
        )
    if not asked.fields:
        return run.job_id + (" (Slurm does not know it any more)" if asked.job == GONE else "")
    if is_array(run) and asked.job is not None and asked.job.state is JobState.ENDED:
        return f"{run.job_id}: all its tasks are over"  # Slurm's fields are those of one of them
    labels = _JOB_LABELS.get(asked.job.state, _ENDED_LABELS) if asked.job else ()
    unknown_from = date_text(SystemClock().wall() + _NO_ESTIMATE_S).replace(" ", "T")
    if (
        asked.job is not None
        and asked.job.state in _WAITING
        and (asked.job.held or asked.fields.get("StartTime", "") > unknown_from)
    ):
        labels = labels[1:]  # Slurm's answer without an estimate, and before a user held the job
    more = [f"{text} {asked.fields[key]}" for key, text in labels if asked.fields.get(key, "") not in _EMPTY]
    was_cancelled = asked.fields.get("JobState", "").startswith("CANCELLED")  # the code is that of our script
    if asked.job is not None and asked.job.state is JobState.ENDED and not was_cancelled:
        more += filter(None, [job_code_text(asked.fields.get("ExitCode", ""))])
    return ", ".join([f"{run.job_id}: {asked.fields.get('JobState', '?')}", *more])


def _waits(run: RunFiles, asked: SlurmAnswer) -> list[tuple[str, str]]:
    """Return why the run waits: for its job in the queue, or for nodes that have not come."""
    text = queue_text(asked.fields)
    is_waiting = asked.job is not None and asked.job.state in _WAITING
    may_wait = is_waiting or (asked.job is not None and asked.job.to_be_released)
    some_wait = is_array(run) and asked.job is not None and asked.job.state is JobState.RUNNING
    queued = [("queue", text)] if text and (may_wait or some_wait) else []
    return queued if is_waiting else [*queued, *_waits_for_nodes(run, asked)]


def _waits_for_nodes(run: RunFiles, asked: SlurmAnswer) -> list[tuple[str, str]]:
    """Return for which nodes the run waits, since when, and the event if they do not come."""
    state = run.state
    is_over = asked.job is not None and asked.job.state is JobState.ENDED
    if state.ending is not None or state.leaving or run.is_torchruns or is_over:
        return []
    names = [name for name in map(parse_name, list_names(run.paths.members)) if name is not None]
    if state.running is not None:
        text = ended_text(state, names)
        return [("waits", f"for {text}")] if text else []
    here = {name.node for name in names if _is_here(state, name)}
    text, then = (
        missing_text(tuple(node for node in state.expected if node not in state.lost), here),
        GIVEN_BACK,
    )
    if not text and is_array(run):
        text, then = _waits_for_tasks(run, asked, here - state.lost)
    if not text:
        lost = lost_text(state)
        return [("waits", f"for {lost}; else {GIVEN_BACK}")] if lost else []
    times = wait_times_text(run.records, run.spec, SystemClock().wall(), len(here - state.lost), then)
    absent = set(state.expected) - here - state.lost
    said = srun_said(log_end(run.paths, run.job_id), absent) if absent and not run.is_local else ""
    return [("waits", f"for {text}{times}"), *([("", said)] if said else [])]


def _waits_for_tasks(run: RunFiles, asked: SlurmAnswer, here: set[str]) -> tuple[str, str]:
    """Return for how many more nodes an array waits, empty if for none, and the event if they do not come."""
    wanted, tasks = str(run.spec.get("nodes", "")), whole_number(asked.fields.get("NumTasks", ""))
    text = too_few_text(wanted, here, tasks, for_shell(run.paths.root)) or more_text(wanted, here)
    return text, FAILS if is_short_of_tasks(wanted, here, tasks) else GIVEN_BACK


def _is_here(state: RunState, name: MemberName) -> bool:
    return name.epoch >= state.epoch and name.phase not in TERMINAL


_SHOWN_S = 0.05  # less is shown as 0.0 s
_NO_ESTIMATE_S = 300 * 86400.0
_WAITING = (JobState.PENDING, JobState.REQUEUED)
_QUEUED_LABELS = (("StartTime", "expected to start"), ("Partition", "partition"))
_RUNNING_LABELS = (
    ("StartTime", "since"),
    ("EndTime", "until"),
    ("NodeList", "on"),
    ("Partition", "partition"),
)
_ENDED_LABELS = (("EndTime", "ended"),)
_JOB_LABELS = {
    JobState.PENDING: _QUEUED_LABELS,
    JobState.REQUEUED: _QUEUED_LABELS,
    JobState.RUNNING: _RUNNING_LABELS,
    JobState.SUSPENDED: _RUNNING_LABELS,
    JobState.COMPLETING: _RUNNING_LABELS,
}
_EMPTY = ("", "None", "(null)", "Unknown", "N/A")


def drain_facts(paths: RunPaths, records: Sequence[Record] | None = None) -> list[tuple[str, str]]:
    """Return labels and texts; nothing where nothing is known.

    Args:
        paths: the files of the run.
        records: of the run, where they have been read.
    """
    facts = [("held up", text) for text in held_texts(paths)]
    saves = _saves_text(paths, records)
    if saves:
        facts.append(("saving", saves))
    return facts


def held_texts(paths: RunPaths) -> list[str]:
    """Return why the ends of workers wait, as their agents say it."""
    try:
        names = [name for name in files.list_names(paths.nodes) if name.endswith(_HELD)]
    except OSError:
        return []
    return [text for name in names if (text := _read(os.path.join(paths.nodes, name)))]


def _read(path: str) -> str:
    node = os.path.basename(path).removesuffix(_HELD).rpartition(".")[0]
    try:
        text = (files.read(path) or b"").decode(errors="replace")
    except OSError:
        text = ""
    return f"{node}: {text.splitlines()[0].strip()}" if text else ""  # none: it goes on


def _saves_text(paths: RunPaths, records: Sequence[Record] | None) -> str:
    try:
        saves = save_times(paths)
        drains = drain_times(paths) if records is None else drains_of(records)
    except (OSError, HpcElasticError):
        return ""
    parts = []
    longest = p99(saves)
    if longest is not None:
        took = "less than 0.1 s" if longest < _SHOWN_S else f"up to {span_text(longest)}"
        parts.append(f"takes {took} ({count_text(len(saves), 'checkpoint')})")
    longest = p99(drains)
    if longest is not None:
        parts.append(f"a drain up to {span_text(longest)} ({count_text(len(drains), 'drain')})")
    site = read_site(paths)
    if parts and site is not None:
        parts.append(_granted_text(site))
    return "; ".join(parts)


def _granted_text(site: Site) -> str:
    """Return the time that Slurm grants a job before it ends it."""
    grace = f"GraceTime {span_text(site.grace_s)} and " if site.grace_s else ""
    return f"a preempted job has {grace}KillWait {span_text(site.kill_wait_s)}"
