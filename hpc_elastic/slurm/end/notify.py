"""The message about the end of a run, or about starts without progress: decided, claimed once, and sent.

The last step of ``finish``: the job has been handed back to Slurm before, so no message delays a requeue. A
record claims each event before its message is sent, so that of many scripts one sends it. A message that is
not taken in time is given up, and a note in the records says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess  # noqa: TID251 - starts the sender
from collections.abc import Sequence

from hpc_elastic.clock import Clock
from hpc_elastic.errors import InputError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.isolated import lookup
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import Decision, Note, Notified, Record, RunEvent
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.end.history import saved_nothing_text
from hpc_elastic.slurm.job.notice import Message, body, cut
from hpc_elastic.slurm.run_jobs.job_start import Ended, Say, Start
from hpc_elastic.text import visible, visible_lines

TOTAL_S = (
    20.0  # for a message about a run that has ended; Slurm kills a script that it ends after KillWait, 30 s
)
GOES_ON_S = 5.0  # for one about a job that is requeued
_MORE_S = 2.0  # for the start of the sender, and the end of a command
_IN_VAIN = 2  # starts in a row
_MODULE = "hpc_elastic.slurm.end.send_notice"
_EVENT_OF = {
    Decision.FAILED: RunEvent.FAILED,
    Decision.HELD: RunEvent.HELD,
    Decision.DONE: RunEvent.DONE,
}


class Hooks(NamedTuple):
    """Where messages go, and about which events."""

    webhook: str = ""  # the file with its URL
    template: str = "json"
    command: str = ""
    events: tuple[RunEvent, ...] = ()


class Told(NamedTuple):
    """An event of a run, as `Notified` claims it."""

    event: RunEvent
    about: int
    reason: str


def event_now(records: Sequence[Record], state: RunState, saved: int, *, of_starts: bool) -> Told | None:
    """Return the event that a start of the job has ended with; None: there is no message about it.

    Args:
        records: of the run.
        state: the fold of them.
        saved: the newest durable step; `BEGINNING` if there is none.
        of_starts: whether starts of the job are counted; else the stops within them, in array mode.
    """
    ending = state.ending
    if ending is not None:
        event = _EVENT_OF.get(ending.decision)
        numbers = [record.number for record in records if record.entry == ending]
        return None if event is None or not numbers else Told(event, numbers[-1], ending.reason)
    reason = saved_nothing_text(state.progress, saved, _IN_VAIN, of_starts=of_starts)
    about = max(saved, state.progress.newest)
    return Told(RunEvent.NO_PROGRESS, about, reason) if reason else None


class Messenger:
    """Sends the message about the event that a start of the job has ended with.

    Args:
        hooks: where it goes.
        log: the journal of the run.
        start: the start.
        say: prints a line.
        clock: for the time that the message may take.
    """

    def __init__(self, hooks: Hooks, log: RunLog, start: Start, say: Say, clock: Clock) -> None:
        self._hooks = hooks
        self._log = log
        self._start = start
        self._say = say
        self._clock = clock

    def tell(self, ended: Ended, root_cause: str) -> None:
        """Send it, if there is one to be sent and no other process has claimed it.

        Args:
            ended: its end, which Slurm knows already.
            root_cause: of a failed run, in one line; empty if there is none.

        Raises:
            StoreError: the run directory cannot be read or written.
            RendezvousStateError: a record of the run is damaged.
            OSError: the sender cannot be started.
        """
        if ended.code == ExitCode.RELAUNCH:
            return
        state, saved = self._log.refresh(), newest_step(self._start.paths, BEGINNING)
        told = event_now(self._log.records, state, saved, of_starts=self._start.task is None)
        if told is None or told.event not in self._hooks.events or not self._claims(told):
            return
        message = message_of(told, self._start, state, saved, root_cause)
        if trouble := self._send(message, is_over=state.ending is not None):
            text = f"the message that the run is {told.event.value} was not sent: {'; '.join(trouble)}"
            self._say(text)
            self._log.commit(lambda state: Note(state.epoch, text))

    def _claims(self, told: Told) -> bool:
        """Record that this process sends the message; False if another one has."""
        before = self._log.appended
        self._log.commit(lambda state: Notified(state.epoch, told.event, told.about))
        return self._log.appended != before

    def _send(self, message: Message, *, is_over: bool) -> list[str]:
        """Start a sender for each hook and wait for them; return why messages were not sent.

        The senders of a local run that goes on are not waited for: it goes on once this process has ended.
        """
        hooks, total_s = self._hooks, TOTAL_S if is_over else GOES_ON_S
        trouble: list[str] = []
        wanted: list[tuple[str, str, str]] = []
        try:
            if hooks.webhook:
                wanted.append(("webhook", hooks.webhook, body(hooks.template, message)))
        except InputError as error:
            trouble.append(error.message)
        if hooks.command:
            wanted.append(("command", hooks.command, message.as_json()))
        senders = [_start({"body": text, "total_s": total_s, name: value}) for name, value, text in wanted]
        if self._start.local and not is_over:
            return trouble
        until = self._clock.monotonic() + total_s + _MORE_S
        said = [_wait(sender, until - self._clock.monotonic()) for sender in senders]
        return [*trouble, *filter(None, said)]


def message_of(told: Told, start: Start, state: RunState, saved: int, root_cause: str) -> Message:
    """Return the values of the message about an event."""
    event, reason = told.event, told.reason
    what = event.value if event is not RunEvent.NO_PROGRESS else "making no progress"
    step = None if saved == BEGINNING else saved
    command = f"hpc-elastic explain {start.paths.root}"
    lines = [f"{start.paths.name} is {what}" + (f": {reason}" if reason else ""), root_cause]
    lines += [f"Newest checkpoint: step {step}" if step is not None else "No checkpoint is marked", command]
    return Message(
        event=event.value,
        title=visible(cut(f"{start.paths.name}: {what}")),
        text=visible_lines(cut("\n".join(filter(None, lines)))),
        run=visible(start.paths.name),
        run_dir=visible(start.paths.root),
        job_id=start.job_ref,
        reason=visible(cut(reason)),
        failure=visible(cut(root_cause)),
        step=step,
        requeues=state.requeues,
        command=visible(command),
    )


def _start(sending: dict[str, object]) -> subprocess.Popen[bytes]:
    sender = subprocess.Popen(
        lookup.argv_here(_MODULE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if sender.stdin is not None:
        with sender.stdin as pipe:
            pipe.write(json.dumps(sending).encode())
    return sender


def _wait(sender: subprocess.Popen[bytes], left_s: float) -> str:
    """Return why a sender has failed, empty if it has not; one that takes too long is killed."""
    sender.stdin = None  # it is closed
    try:
        said, _ = sender.communicate(timeout=max(left_s, 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(sender.pid, signal.SIGKILL)
        sender.communicate()
        return "there was no answer in time"
    words = said.decode(errors="replace")
    return words if words or not sender.returncode else f"the sender has failed ({sender.returncode})"
