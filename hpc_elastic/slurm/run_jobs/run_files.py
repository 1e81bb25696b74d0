"""The state of a run by its directory and by Slurm, read for the commands on a login node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hpc_elastic.errors import DamagedError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.ids import LOCAL_JOB
from hpc_elastic.meet.member_names import natural
from hpc_elastic.meet.membership import RUN_ID
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.journal import Decision, Drained, Record, Requeued, RoundFormed
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.settings.table import JOB
from hpc_elastic.settings.values import BadValueError, parse_time_limit_s
from hpc_elastic.slurm.client.answers import SlurmTask, arrays_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_standing import (
    GONE,
    JobFacts,
    is_held_reason,
    job_facts,
)
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.existing_run import was_left
from hpc_elastic.slurm.run_jobs.job_start import same_script
from hpc_elastic.slurm.run_jobs.script_tasks import array_of, is_array_of_script
from hpc_elastic.slurm.run_jobs.submissions import Link, Submission, read_links, read_submissions
from hpc_elastic.store import files
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import read

_NAMED = 8  # of more tasks the array is named


class StoredJob(NamedTuple):
    """The content of ``job.json``."""

    spec: dict[str, Any]


class RunFiles(NamedTuple):
    """The content of the files of a run."""

    paths: RunPaths
    records: list[Record]
    state: RunState
    submissions: list[Submission]
    spec: dict[str, Any]  # the job spec as it was stored; empty for a run without one
    links: tuple[Link, ...] = ()  # the further jobs of the newest submission

    @property
    def name(self) -> str:
        """The run's name for people."""
        return str(self.spec.get("name") or self.paths.name)

    @property
    def submission(self) -> int:
        """The number of the newest submission, -1 without one."""
        return self.submissions[-1].number if self.submissions else -1

    @property
    def job_id(self) -> str:
        """The id of the job that works on the run now, or is to; empty if none is known."""
        now, links = self._link_now, {link.number: link.job_id for link in self.links}
        newest = self.submissions[-1].job_id if self.submissions else ""
        return links.get(now, "") or newest or self.state.job_id

    @property
    def _link_now(self) -> int:
        """The number of the further job that works on the run now, or is to."""
        state = self.state
        if state.epoch.submission != self.submission:
            return 0
        now = state.epoch.link
        is_next = any(link.number == now + 1 for link in self.links) and state.requeued
        return now + is_next

    @property
    def successors(self) -> tuple[str, ...]:
        """The ids of the jobs that take the run up after that one."""
        return tuple(link.job_id for link in self.links if link.number > self._link_now and link.job_id)

    @property
    def handed_back(self) -> Requeued | None:
        """The record that the newest start was handed back to Slurm; None if it was not."""
        entries = (record.entry for record in reversed(self.records))
        found = next((entry for entry in entries if isinstance(entry, Requeued)), None)
        is_newest = found is not None and found.epoch.script == self.state.epoch.script
        return found if is_newest else None

    @property
    def has_script(self) -> bool:
        """Whether `submit` has made a job script for it."""
        return os.path.exists(self.paths.script)

    @property
    def was_interrupted(self) -> bool:
        """Whether its only submission was killed before its job was recorded, and no agent has come."""
        return not self.records and was_left(self.paths)

    @property
    def is_torchruns(self) -> bool:
        """Whether its agents are torchrun's, which only meet in its directory."""
        return not self.submissions and os.path.exists(os.path.join(self.paths.nodes, RUN_ID))

    @property
    def is_script(self) -> bool:
        """Whether its jobs run a job script of the user's own, of whose steps and saves nothing is known."""
        return self.spec.get("mode") == "script"

    @property
    def is_untold(self) -> bool:
        """Whether its workers tell us nothing: their steps and saves are not known."""
        return self.is_torchruns or self.is_script

    @property
    def command_to_go_on(self) -> str:
        """The command that starts the run again; one that `submit` did not make has no script to queue."""
        array = array_of(self.paths)
        root = for_shell((array or self.paths).root)
        if self.is_torchruns:
            return f"the same torchrun command again, with --rdzv-endpoint={root}"
        if self.has_script or array is not None:
            return f"hpc-elastic submit --resume {root}"
        ending = self.state.ending
        if ending is not None and ending.decision is not Decision.DONE and self.job_id and not self.is_local:
            return same_script(root)
        if ending is not None:  # no agent takes it up, even if it starts
            return f"the same command again, with another --run-dir; all that it has saved is in {root}"
        return f"the same command again, with --run-dir {root}"

    @property
    def how_it_ended(self) -> str:
        """That it has ended, for people who want something of a run that works."""
        ending = self.state.ending
        if ending is not None and ending.decision is Decision.HELD:
            return f"the run in {self.paths.root} is held: {ending.reason}"
        return f"the run in {self.paths.root} has ended already" + (
            f": {ending.decision.value}" if ending is not None else ""
        )

    @property
    def how_to_run_again(self) -> str:
        """The advice for a run that has ended; one that is done is not taken up again, a held one waits."""
        decision = self.state.ending.decision if self.state.ending is not None else None
        if decision is Decision.DONE:
            return "there is nothing to go on with; submit a new run"
        if decision is Decision.HELD and self.job_id and not self.is_local:
            return f"scontrol release {self.job_id}; if that job is gone: {self.command_to_go_on}"
        return f"to run it again: {self.command_to_go_on}"

    @property
    def is_local(self) -> bool:
        """Whether the newest start was on one machine without Slurm."""
        return self.job_id.startswith(LOCAL_JOB)


def read_run(paths: RunPaths) -> RunFiles:
    """Read the files of a run.

    Raises:
        StoreError: the run directory cannot be read.
        RendezvousStateError: a record is damaged.
        RunDirError: a submission's record is damaged.
    """
    records = read_records(paths)
    done = read_submissions(paths)
    links = tuple(read_links(paths, done[-1].number)) if done else ()
    return RunFiles(paths, records, fold(RunState(), records), done, stored_spec(paths), links)


def stored_spec(paths: RunPaths) -> dict[str, Any]:
    """Return the job spec as it was stored, without its defaults; empty if there is none.

    A field that was edited into an impossible value is left out; `spec_trouble` tells of it.
    """
    return _stored(paths).sound


def submitted_limit_s(paths: RunPaths) -> float | None:
    """Return the time limit of the submission [s]; None if it is not known, or there is none."""
    spec = stored_spec(paths)
    limit = spec.get("time")
    if limit is None or "time-min" in spec.get("sbatch", {}):
        return None
    try:
        return parse_time_limit_s(limit)
    except BadValueError:
        return None


def spec_trouble(paths: RunPaths) -> list[str]:
    """Return the faults of the stored job spec and their consequences, as lines; nothing if it is well."""
    stored = _stored(paths)
    odd = [f"{name} = {value!r}" for name, value in stored.all.items() if name not in stored.sound]
    if not stored.is_readable:
        what = f"{paths.job} cannot be read, so the run's limits are not known here"
    elif odd:
        what = f"{paths.job} has {', '.join(odd)}, which cannot be"
    else:
        return []
    return [what, "fix: mend the file, or bring it back from a backup; submit --resume needs it"]


class _StoredSpec(NamedTuple):
    """The settings in ``job.json``; there are none without the file."""

    all: Mapping[str, Any]
    sound: dict[str, Any]  # those that can be used here
    is_readable: bool = True


def _stored(paths: RunPaths) -> _StoredSpec:
    try:
        data = files.read(paths.job)
        stored = {} if data is None else read(StoredJob, data).spec
    except (OSError, DamagedError):
        return _StoredSpec({}, {}, is_readable=False)
    sound = {}
    for name, value in stored.items():
        row = JOB.get(name)  # None: of another version
        is_default = row is None or (value is None and row.default is None)
        with suppress(BadValueError):
            sound[name] = value if row is None or is_default else row.kind.parse(value)
    return _StoredSpec(stored, sound)


def newest_world_size(records: Iterable[Record]) -> int:
    """Return how many workers the newest round of a run has, over all its starts; 0 before the first."""
    formed = [record.entry for record in records if isinstance(record.entry, RoundFormed)]
    return formed[-1].workers if formed else 0


class SlurmAnswer(NamedTuple):
    """The answer of Slurm about the newest job."""

    job: JobFacts | None  # None: Slurm did not answer
    fields: dict[str, str]  # as scontrol gives them
    trouble: str = ""  # why there is no answer


def ask_job(run: RunFiles, slurm: Slurm) -> SlurmAnswer:
    """Ask Slurm, or this machine for a local run, about the newest job. Never raises for Slurm."""
    if not run.job_id:
        return SlurmAnswer(None, {})
    if run.is_local:
        return SlurmAnswer(_local_job(run), {})
    try:
        tasks = tasks_of(run, slurm) if is_array(run) else []
        if tasks:
            facts, told = facts_of(tasks)
            return SlurmAnswer(facts, told | _begin(tasks, slurm) if told["Reason"] == "BeginTime" else told)
        fields = slurm.show_job(run.job_id)
    except SlurmNotFoundError as error:
        return SlurmAnswer(None, {}, f"{error.command} is not on PATH here, so Slurm was not asked")
    except SlurmCommandError as error:
        return SlurmAnswer(None, {}, " ".join(str(error).split()))
    return SlurmAnswer(GONE, {}) if fields is None else SlurmAnswer(job_facts(fields), fields)


def with_excluded(asked: SlurmAnswer, slurm: Slurm) -> SlurmAnswer:
    """Return the same with the nodes that the job leaves out, which are a question of their own.

    Never raises for Slurm. The tasks of an array may differ, so the answer has no facts of them.
    """
    job_id = asked.fields.get("JobId", "")
    if not job_id.isdecimal() or "NumTasks" in asked.fields:
        return asked
    try:
        found = slurm.excluded_by(job_id)
    except (SlurmNotFoundError, SlurmCommandError):
        return asked
    return asked._replace(fields={**asked.fields, "ExcNodeList": found})


def _begin(tasks: Iterable[SlurmTask], slurm: Slurm) -> dict[str, str]:
    """Return which tasks wait for their time and until when; nothing if Slurm does not say."""
    try:
        return begin_of(task for array in arrays_of(tasks) for task in slurm.show_tasks(array))
    except (SlurmNotFoundError, SlurmCommandError):
        return {}


def _local_job(run: RunFiles) -> JobFacts:
    """Return facts about a local run: it lives as long as the process that was started for it."""
    if not os.path.exists(f"/proc/{run.job_id.removeprefix(LOCAL_JOB)}"):
        return GONE
    return GONE._replace(state=JobState.RUNNING, word="RUNNING", restarts=max(run.state.epoch.restart, 0))


class SavedCheckpoint(NamedTuple):
    """The newest durable checkpoint."""

    step: int
    path: str | None
    age_s: float  # by the file server's clock and this machine's, for display only


def newest_checkpoint(paths: RunPaths, now_s: float) -> SavedCheckpoint | None:
    """Return the newest complete checkpoint, None if workers have marked none.

    Args:
        paths: the files of the run.
        now_s: wall time [s since the epoch].
    """
    try:
        found = checkpoints.newest(paths)
        if found is None:
            return None
        names, of_step = files.list_names(paths.checkpoints), f"{found.step:012d}."
        marks = [name for name in names if name.startswith(of_step)]
        saved_at = max(os.stat(os.path.join(paths.checkpoints, name)).st_mtime for name in marks)
    except (OSError, ValueError):
        return None
    return SavedCheckpoint(found.step, found.path, max(now_s - saved_at, 0.0))


def is_array(run: RunFiles) -> bool:
    """Tell whether the newest submission of a run is an array in Slurm."""
    is_of_tasks = run.spec.get("mode") == "array" or is_array_of_script(run.paths)
    return is_of_tasks and bool(run.job_id) and not run.is_local


def tasks_of(run: RunFiles, slurm: Slurm) -> list[SlurmTask]:
    """Return the tasks of the newest submission that are not over.

    Raises:
        SlurmError: Slurm is not there or does not answer.
    """
    token = run.submissions[-1].token if run.submissions else ""
    return slurm.array_tasks(token, run.job_id)


def job_ids(run: RunFiles, slurm: Slurm) -> tuple[str, ...]:
    """Return the ids of the jobs of the newest submission: in array mode `scale` may have added some."""
    if not is_array(run):
        return (run.job_id,)
    try:
        found = arrays_of(tasks_of(run, slurm))
    except (SlurmCommandError, SlurmNotFoundError):
        return (run.job_id,)
    return found or (run.job_id,)


def drain_times(paths: RunPaths) -> list[float]:
    """Return how long the drains of a run have taken, from the request to the last worker's end [s].

    Raises:
        StoreError: the journal cannot be read.
    """
    return drains_of(read_records(paths))


def drains_of(records: Iterable[Record]) -> list[float]:
    """Return the same for the records of a run."""
    entries = (record.entry for record in records)
    return [entry.took_s for entry in entries if isinstance(entry, Drained) and entry.took_s is not None]


def begin_of(shown: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return which tasks of an array are not to begin yet, in the fields of ``scontrol show job``; pure.

    Args:
        shown: the fields of each task. Those that had no node yet are one, with several numbers.

    Returns:
        `JobId` as scontrol takes it, `EligibleTime` of the last of them, and `Restarts` unless some have
        been requeued and others not; nothing if none waits for its time.
    """
    waiting = [task for task in shown if task.get("Reason") == "BeginTime"]
    names = {_name(task): task.get("ArrayJobId", "") for task in waiting}
    if not names or not all(names.values()):
        return {}
    is_long = len(names) > _NAMED or not all(re.fullmatch(r"\d+_\d+", name) for name in names)
    found = {
        "JobId": ",".join(sorted(set(names.values()), key=int) if is_long else sorted(names, key=natural))
    }
    if times := [task["EligibleTime"] for task in waiting if task.get("EligibleTime")]:
        found["EligibleTime"] = max(times)
    restarts = {task.get("Restarts", "") for task in waiting}
    if len(restarts) == 1 or "0" not in restarts:
        found["Restarts"] = max(restarts)
    return found


def _name(task: Mapping[str, str]) -> str:
    return f"{task.get('ArrayJobId', '')}_{task.get('ArrayTaskId', '')}"


def facts_of(tasks: Sequence[SlurmTask]) -> tuple[JobFacts, dict[str, str]]:
    """Return how an array stands as a whole, and the same in the fields of ``scontrol show job``.

    A restart count is a task's own, so the whole has none.
    """
    running = [task for task in tasks if task.is_running]
    waiting = [task for task in tasks if task.is_waiting]
    paused = [task for task in running if task.state is JobState.SUSPENDED]
    active = [task for task in running if task.state is not JobState.SUSPENDED]
    state = JobState.RUNNING if active else JobState.SUSPENDED if paused else JobState.PENDING
    state = state if running or waiting else JobState.COMPLETING
    words = [
        f"{len(found)} {'task' if len(found) == 1 else 'tasks'} {does if len(found) == 1 else do}"
        for found, does, do in (
            (active, "runs", "run"),
            (paused, "is suspended", "are suspended"),
            (waiting, "waits", "wait"),
        )
        if found
    ]
    arrays = arrays_of(tasks)
    of = f" (arrays {', '.join(arrays)})" if len(arrays) > 1 else ""
    nodes = ",".join(sorted({task.node for task in running if task.node}))
    why = next((task.reason for task in waiting if task.reason not in ("", "None")), "None")
    facts = JobFacts(
        state,
        state.value,
        why if state is JobState.PENDING else "None",
        0,
        may_requeue=True,
        nodes=len(running),
        preempted=False,
        node_list=nodes,
        held=state is JobState.PENDING and all(is_held_reason(task.reason) for task in waiting),
    )
    return facts, {
        "JobId": ",".join(arrays),
        "Reason": why,
        "JobState": (", ".join(words) or "its tasks end") + of,
        "NodeList": nodes,
        "NumTasks": str(len(running) + len(waiting)),
    }
