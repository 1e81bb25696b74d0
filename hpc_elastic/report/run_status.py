"""The present state of a run, in words. Pure, other than `RunView.of`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from hpc_elastic.meet.member_names import TERMINAL, MemberName, Phase, natural, parse_name
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import Cause, Decision, Drained, Requeued, RoundFormed
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import requeued_for, who_asked
from hpc_elastic.report.causes_text import unsaved_text
from hpc_elastic.report.timeline import (
    back_text,
    cause_text,
    ended_text,
    ending_text,
    left_text,
    names_text,
    span_text,
    why_text,
)
from hpc_elastic.slurm.client.job_standing import JobFacts, Standing, standing
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.job_start import unrecorded_end
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import member_times
from hpc_elastic.text import count_text

NOT_RECORDED = (
    "torchrun, whose agents only meet here: restarts, checkpoints, logs and how the workers ended are "
    "not recorded; torchrun's own output has them"
)
_WORDS = {
    Phase.JOINING: "waits for a round",
    Phase.RUNNING: "is in round {round}",
    Phase.STOPPED: "has stopped its workers",
    Phase.SUCCEEDED: "has left after round {round}",
    Phase.LEFT: "has left after round {round}",
    Phase.ABSENT: "has ended before it came",
}


class RunPhase(str, Enum):
    """Where a run stands; the value, to which it is equal, is the first word of its status."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    PAUSING = "pausing"
    DRAINING = "draining"
    REQUEUED = "requeued"
    SILENT = "silent"
    GONE = "gone"
    DONE = "done"
    FAILED = "failed"
    HELD = "held"
    STOPPED = "stopped"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended and may only be submitted again."""
        return self in (RunPhase.DONE, RunPhase.FAILED, RunPhase.HELD, RunPhase.STOPPED, RunPhase.CANCELLED)


class RunView(NamedTuple):
    """Everything a status rests on."""

    state: RunState
    submission: int  # of the newest submission; -1 if the run was never submitted
    job_id: str = ""
    job: JobFacts | None = None  # None: not asked, or without an answer
    has_script: bool = True  # `submit` made it, so that a drained run is requeued
    silent_s: float | None = None  # for how long no agent has given a sign of life; None: one lives
    handed_back: Requeued | None = None  # this start was, to Slurm; None: it was not, or that is unknown
    torchruns: tuple[Mark, ...] | None = None  # the nodes of a run whose agents are torchrun's; else None
    was_interrupted: bool = False  # its only submission was killed before its job was recorded
    unrecorded: str = ""  # the reason for which the end of its job could not be recorded, if that was said

    @classmethod
    def of(cls, run: RunFiles, job: JobFacts | None = None, silent_s: float | None = None) -> RunView:
        """Return the view of a run whose files were read, as a rule before Slurm was asked about its job.

        Its files are read once more where the job has ended and its end is not among them: it may have been
        recorded in between.
        """
        unrecorded = ""
        if job is not None and job.state is JobState.ENDED and run.state.ending is None:
            newer = read_run(run.paths)
            run = newer if newer.state.last > run.state.last else run
            unrecorded = unrecorded_end(run.paths, run.job_id) if run.state.ending is None else ""
        view = cls(run.state, run.submission, run.job_id, job, run.has_script, silent_s, run.handed_back)
        view = view._replace(was_interrupted=run.was_interrupted, unrecorded=unrecorded)
        return view._replace(torchruns=torchrun_marks(run)) if run.is_torchruns else view


def torchrun_marks(run: RunFiles) -> tuple[Mark, ...]:
    """Return the newest mark of each node of a run of torchrun's."""
    return tuple(newest_marks((Mark(*one) for one in member_times(run.paths)), run.state))


class RunStatus(NamedTuple):
    """The state of a run, and the sentence about it."""

    phase: RunPhase
    text: str


def status_of(view: RunView) -> RunStatus:
    """Return the present state of a run.

    Records tell the events inside a start of the job, Slurm tells whether there is one.
    """
    state, job = view.state, view.job
    is_current = state.epoch.submission >= view.submission
    if state.ending is not None and is_current:
        return RunStatus(_FINAL[state.ending.decision], ending_text(state.ending))
    if job is not None:
        outside = _by_job(view, job, is_current=is_current)
        if outside is not None:
            return outside
    if view.was_interrupted or not is_current:
        return RunStatus(RunPhase.UNKNOWN, _unheard_text(view))
    if view.torchruns is not None and (view.silent_s is None or have_left(view.torchruns)):
        return _torchruns(view.state, view.torchruns)
    left = _left_for_good(view)
    if left is None and view.silent_s is not None:
        return _silent(view, view.silent_s)
    return left or _by_records(state, _back_text(view))


def _unheard_text(view: RunView) -> str:
    if not view.was_interrupted:
        return "no agent has written a record yet"
    known = "nothing was queued" if view.submission < 0 else "it is not known whether its job was queued"
    return f"the submission was interrupted; {known}"


def _torchruns(state: RunState, marks: tuple[Mark, ...]) -> RunStatus:
    """Tell where the agents of torchrun are; more than that is not known."""
    text = headline(state, marks)
    if have_left(marks):
        return RunStatus(RunPhase.GONE, text)
    return RunStatus(RunPhase.RUNNING if state.running is not None else RunPhase.STARTING, text)


def _silent(view: RunView, silent_s: float) -> RunStatus:
    """Tell of a run whose records say that it lives, though no member of it does."""
    was = _by_records(view.state) if view.torchruns is None else _torchruns(view.state, view.torchruns)
    text = f"no agent has given a sign of life for {span_text(silent_s)}"
    if view.job_id:
        text += (
            f"; Slurm says: job {view.job_id} {view.job.word or 'gone'}"
            if view.job
            else "; Slurm did not tell"
        )
    return RunStatus(RunPhase.SILENT, f"{text} (it was {was.phase.value} when last heard of: {was.text})")


_HELD = "but held: it does not start before it is released"
_FINAL = {
    Decision.DONE: RunPhase.DONE,
    Decision.FAILED: RunPhase.FAILED,
    Decision.HELD: RunPhase.HELD,
    Decision.STOPPED: RunPhase.STOPPED,
    Decision.CANCELLED: RunPhase.CANCELLED,
}


def _by_job(view: RunView, job: JobFacts, *, is_current: bool) -> RunStatus | None:
    """Return the state that the job's alone decides; None if the records decide."""
    state = view.state
    was_started = is_current and state.epoch.submission >= 0
    reason = f" (Slurm's reason: {job.reason})" if job.reason not in ("", "None") else ""
    if job.state is JobState.ENDED:
        return _by_ended_job(view, job, is_current=is_current)
    if job.state in (JobState.PENDING, JobState.REQUEUED):
        what = "its time" if job.reason == "BeginTime" else "nodes"
        waits = f"{_HELD if job.held else f'waits for {what}'}{reason}"
        if was_started:
            drained = state.drained
            unsaved = "" if drained is None else unsaved_text(state, drained.step)
            return RunStatus(RunPhase.REQUEUED, f"{_requeued_text(view)}, {waits}{unsaved}")
        return RunStatus(RunPhase.QUEUED, f"queued, {waits}")
    if job.state is JobState.SUSPENDED:
        return RunStatus(RunPhase.STARTING, f"suspended by Slurm{reason}")
    if job.state is JobState.RUNNING and (not was_started or job.restarts > state.epoch.restart):
        return RunStatus(RunPhase.STARTING, "the job has started, its agents have not spoken yet")
    return None


def _requeued_text(view: RunView) -> str:
    """Tell that the job is back in the queue, and why; `finish` knows why SIGTERM was sent."""
    drained, back = view.state.drained, view.handed_back
    cause = back.cause if back is not None else drained.cause if drained is not None else None
    if cause is Cause.REQUEUE:
        return "requeued by hand"
    if cause is Cause.UNKNOWN:
        return "requeued, the cause is not known"
    if cause in (Cause.LAUNCH_FAILURE, Cause.JOIN_TIMEOUT, Cause.AGENT_ERROR):
        why = why_text(cause, view.state) if back is None else back_text(back, view.state)
        return f"requeued because {why}"
    if cause is Cause.NODE_LOSS and view.state.only_unfit:
        return f"requeued because of {why_text(cause, view.state)}"
    if cause is None:
        return "requeued"
    asker = who_asked(view.state, cause) if back is None else requeued_for(view.state, back)
    return f"requeued after {asker.text or CAUSES[cause].clause}"


def _back_text(view: RunView) -> str:
    """Return why this start was handed back to Slurm; empty if it was not, or that is not known."""
    back, state = view.handed_back, view.state
    return "" if back is None else back_text(back, state)


def _by_ended_job(view: RunView, job: JobFacts, *, is_current: bool) -> RunStatus:
    drained = view.state.drained if is_current else None
    if drained is not None and not view.has_script:
        return _stopped(view.state, drained, was_cancelled=job.word.startswith("CANCELLED"))
    word = f"ended as {job.word}" if job.word else "is not there any more"
    if is_current and view.state.deserted and job.word.startswith("CANCELLED"):
        return RunStatus(RunPhase.GONE, f"job {view.job_id} was cancelled after all its tasks had left")
    if view.unrecorded:
        text = f"job {view.job_id} {word}; its end could not be recorded: {view.unrecorded}"
        return RunStatus(RunPhase.GONE, text)
    if drained is None and view.has_script and standing(job, job.restarts) is Standing.SCRIPT_DIED:
        killed = "its batch script was killed, and no process was left to requeue it"
        return RunStatus(RunPhase.GONE, f"job {view.job_id} {word}: {killed}")
    if drained is None:
        return RunStatus(RunPhase.GONE, f"job {view.job_id} {word}, and its agents have recorded no end")
    waited = view.state.requeued or job.restarts > view.state.epoch.restart
    if waited and job.word.startswith("CANCELLED"):
        word = "was cancelled while it waited in the queue"
    return RunStatus(RunPhase.GONE, f"job {view.job_id} {word}, {_drained_text(view.state)}")


def _left_for_good(view: RunView) -> RunStatus | None:
    """Tell that a run without a script of ours was drained; None if not, or if it is requeued."""
    state = view.state
    if state.drained is None or view.has_script or state.requeued:
        return None
    if view.job is not None:  # its script may have more to do
        return RunStatus(RunPhase.DRAINING, f"{_drained_text(state)}, leaves the nodes")
    return _stopped(state, state.drained)


def _stopped(state: RunState, drained: Drained, *, was_cancelled: bool = False) -> RunStatus:
    """Tell why a drained run is over; scancel looks like preemption to the agents."""
    cause = left_text(drained.cause, state)
    if was_cancelled and drained.cause is Cause.PREEMPTION:
        cause = "the job was cancelled"
    why = cause if drained.cause is Cause.STOP else f"stopped: {cause}"
    step = "" if drained.step is None else f", saved step {drained.step}"
    return RunStatus(RunPhase.STOPPED, f"{why}{step}{unsaved_text(state, drained.step)}")


def _drained_text(state: RunState, back: str = "") -> str:
    drained = state.drained
    if drained is None:
        return ""
    step = "" if drained.step is None else f" at step {drained.step}"
    why = back or left_text(drained.cause, state)
    return f"drained{step} ({why}){unsaved_text(state, drained.step)}"


def _by_records(state: RunState, back: str = "") -> RunStatus:
    running = state.running
    if state.leaving:
        return _leaving(state, back)
    if running is None:
        return _between_rounds(state, back)
    if state.drain is not None:
        return RunStatus(
            RunPhase.PAUSING, f"round {running.number} pauses: {cause_text(state.drain.cause, state)}"
        )
    return RunStatus(RunPhase.RUNNING, f"running {round_text(running)}")


def _between_rounds(state: RunState, back: str) -> RunStatus:
    if state.requeued:
        return RunStatus(RunPhase.REQUEUED, "given back to Slurm" + (f" ({back})" if back else ""))
    if state.ended is not None:
        return RunStatus(RunPhase.RESTARTING, f"between rounds: {ended_text(state.ended, state)}")
    if state.epoch.submission < 0:
        return RunStatus(RunPhase.UNKNOWN, "no agent has written a record yet")
    names = f" of {names_text(state.expected)}" if state.expected else ""
    return RunStatus(RunPhase.STARTING, f"the agents{names} meet for the next round")


def _leaving(state: RunState, back: str) -> RunStatus:
    if state.drained is not None:
        return RunStatus(RunPhase.REQUEUED, f"{_drained_text(state, back)}, leaves the nodes")
    drain = state.drain
    cause = who_asked(state, drain.cause).text or CAUSES[drain.cause].clause if drain is not None else ""
    where = f"; all running ranks stop at step {state.stop_step} at the latest"
    return RunStatus(RunPhase.DRAINING, f"draining: {cause}{'' if (state.stop_step or -1) < 0 else where}")


def round_text(formed: RoundFormed) -> str:
    """Return a round with its nodes and workers, or a job script of the user's own with its nodes."""
    names = names_text(tuple(member.node for member in formed.members))
    if formed.is_script:
        return f"the job script on {names}"
    return f"round {formed.number} on {names} ({count_text(formed.workers, 'worker')})"


class Mark(NamedTuple):
    """A node as its own file name tells of it."""

    name: MemberName
    at: float | None = None  # of its last sign of life, by the file server [s since the epoch]; None: gone


def newest_marks(marks: Iterable[Mark], state: RunState) -> list[Mark]:
    """Return the newest mark of each node in this start of the run, in the order of their names."""
    found: dict[str, Mark] = {}
    for mark in marks:
        known = found.get(mark.name.node)
        is_newer = known is None or (mark.at or 0.0) >= (known.at or 0.0)
        if mark.name.epoch >= state.epoch and is_newer:
            found[mark.name.node] = mark
    return [found[node] for node in sorted(found, key=natural)]


def have_left(marks: Sequence[Mark]) -> bool:
    """Tell whether there were agents and all have gone by themselves."""
    return bool(marks) and all(mark.name.phase in TERMINAL for mark in marks)


def headline(state: RunState, marks: Sequence[Mark]) -> str:
    """Return where the run stands, as far as that is recorded."""
    formed = state.round
    nodes = names_text(tuple(mark.name.node for mark in marks))
    if formed is not None:
        nodes = names_text(tuple(member.node for member in formed.members))
    if have_left(marks):
        after = f" after round {formed.number}" if formed is not None else " before there was a round"
        return f"all agents have left{after} ({nodes}); how their workers ended is not recorded here"
    if state.running is not None:
        count = count_text(len(state.running.members), "node")
        return f"running round {state.running.number} on {count}: {nodes}"
    after = f" after round {formed.number}" if formed is not None else ""
    return f"the agents meet for the next round{after} ({nodes})" if nodes else "no agent is there"


def member_texts(marks: Sequence[Mark], now_s: float) -> list[str]:
    """Return the state of each node, one line each.

    Args:
        marks: of the nodes.
        now_s: wall time [s since the epoch].
    """
    texts = []
    for mark in marks:
        text = f"{mark.name.node} {_WORDS[mark.name.phase].format(round=mark.name.round)}"
        if mark.at is not None:
            seen = "" if mark.name.phase in TERMINAL else "last sign of life "
            text += f", {seen}{span_text(now_s - mark.at)} ago"
        texts.append(text)
    return texts


def size_text(state: RunState, members: Iterable[str]) -> str:
    """Return the wanted size of a run and the nodes that stand by; empty if no size was asked for.

    Args:
        state: of the run.
        members: the listing of ``members/``. A node is believed to be there by its name alone.
    """
    if state.size is None or state.wanted is None:
        return ""
    running = {member.node for member in state.running.members} if state.running is not None else set()
    spare = _joining(state, members) - running
    held = len(running | spare | set(state.expected) - state.lost)
    if 0 < held < state.wanted:
        there = f"{held} {'is' if held == 1 else 'are'} there"
        return f"{count_text(state.wanted, 'node')} wanted ({state.size.detail}), {there}"
    of = f"of {count_text(held, 'node')}" if held else "node" if state.wanted == 1 else "nodes"
    text = f"{state.wanted} {of} ({state.size.detail})"
    if not running or not spare:
        return text
    names = sorted(spare, key=natural)
    return f"{text}; {names_text(tuple(names))} {'stands' if len(names) == 1 else 'stand'} by"


def _joining(state: RunState, members: Iterable[str]) -> set[str]:
    """Return the nodes of this start of the run that wait for a round."""
    names = [name for name in map(parse_name, members) if name is not None and name.epoch == state.epoch]
    return {name.node for name in names if name.phase is Phase.JOINING} - state.lost
