"""``submit --local N``: the rendered job script on this machine, with agents as nodes.

The script is the one Slurm would get; only `srun` is a stand-in (`local_srun`). Exit code 75 of the
script is a requeue, as it is with Slurm.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping

from hpc_elastic.clock import Clock, SystemClock, date_text
from hpc_elastic.errors import StoreError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import CANCELLED_CODE, LOCAL_JOB
from hpc_elastic.isolated.lookup import argv_here
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, spawn
from hpc_elastic.processes.tail import MAX_LAG, Tail, TailLimits, sink_of, wait_writable
from hpc_elastic.record.journal import Decision, RunEnded
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.client.commands import submit_environment
from hpc_elastic.slurm.end.lifecycle import ended_by
from hpc_elastic.slurm.local.srun import FORWARDED, READY_FILE, node_list, node_name
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import LOCAL, LOCAL_END, to_go_on
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.store import files
from hpc_elastic.text import count_text, for_shell, visible_lines

REQUEUE_PAUSE_S = 1.0
_RECORD_BYTES = 4096  # of the longest usual record
_LOOK_S = 0.1
_REST_S = 2.0  # for a slow reader to take the rest when the run has ended, before the newest part is shown
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_THE_RUN = re.compile(rb"\n(?:\[\d\d:\d\d:\d\d(?: local\d+)?\] |hpc_elastic|srun \(local\): )")
_KILLED = 128  # exit codes from here on: ended by a signal
_WITHOUT_EXPORT = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "TMPDIR", "TZ")


def run_local(request: SubmitRequest, *, nodes: int) -> int:
    """Run a job in the foreground, over all its requeues. The run directory must exist.

    Ctrl-C has the workers save and stop; a second one ends everything at once.

    Args:
        request: the submission.
        nodes: how many agents to start as nodes.

    Returns:
        The exit code of the last start of the script.
    """
    with tempfile.TemporaryDirectory(prefix="hpc_elastic-local-") as scratch:
        runner = LocalRunner(request, nodes, scratch, SystemClock())
        runner.announce()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
        try:
            return runner.run()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def script_environ(
    request: SubmitRequest, environ: Mapping[str, str], *, nodes: int, job_id: str, restart: int
) -> dict[str, str]:
    """Return the environment of the batch script as Slurm would set it."""
    passed = submit_environment(environ, request.header_names)
    if not request.spec.inherit_env:
        passed = {name: value for name, value in passed.items() if name in _WITHOUT_EXPORT}
    cpus = max(1, len(os.sched_getaffinity(0)) // nodes)
    slurm = {
        LOCAL: "1",
        "SLURM_JOB_ID": job_id,
        "SLURM_JOB_NAME": request.spec.name,
        "SLURM_JOB_NODELIST": node_list(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURMD_NODENAME": node_name(0),
    }
    if request.spec.gpus:
        slurm["SLURM_GPUS_ON_NODE"] = str(request.spec.gpus)
    if restart:  # absent in the first start, as with Slurm
        slurm["SLURM_RESTART_COUNT"] = str(restart)
    return {**passed, **slurm}


class LocalRunner:
    """Runs one job on this machine, in the foreground.

    Args:
        request: the submission.
        nodes: how many agents to start as nodes.
        scratch: an empty private directory.
        clock: for times shown to people.
    """

    def __init__(self, request: SubmitRequest, nodes: int, scratch: str, clock: Clock) -> None:
        self._request = request
        self._nodes = nodes
        self._clock = clock
        self._job_id = f"{LOCAL_JOB}{os.getpid()}"
        self._bin = os.path.join(scratch, "bin")
        self._script = os.path.join(
            scratch, os.path.basename(request.paths.script)
        )  # no other user can exchange it
        self._ready = os.path.join(scratch, "srun.pid")
        self._end_file = os.path.join(scratch, "ended_by")
        self._journal = open_log(request.paths, "local")
        self._screen = Screen(self.batch_log, clock)
        self._interrupts = 0
        self._told_to_end = ""  # the name of the signal
        self._to_forward: list[int] = []

    @property
    def batch_log(self) -> str:
        """The file with all that the script prints."""
        return self._request.paths.batch_log.replace("%j", self._job_id)

    def announce(self) -> None:
        """Record the submission and print the next steps."""
        request, now_s = self._request, self._clock.wall()
        submissions.announce(request.paths, request.submission, request.token, now_s=now_s)
        done = Submission(request.submission, request.token, self._job_id, date_text(now_s))
        submissions.record(request.paths, done)
        with open(self._script, "wb") as copy:
            copy.write(request.script.encode("utf-8", "surrogateescape"))
        os.mkdir(self._bin)
        stand_in = os.path.join(self._bin, "srun")
        with open(stand_in, "w") as file:
            file.write(f'#!/bin/sh\nexec {shlex.join(argv_here(_STAND_IN))} "$@"\n')  # noqa: TID251 - a script
        os.chmod(stand_in, 0o700)
        root = for_shell(request.paths.root)
        lines = [
            f"{request.spec.name} runs here as {self._job_id} with {count_text(self._nodes, 'node')}",
            f"run directory: {root}",
            *(f"  hpc-elastic {command} {root}" for command in ("status", "logs -f", "stop")),
            f"logs: {request.paths.logs}; this output: {self.batch_log}",
        ]
        self._screen.say("\n".join(lines))

    def run(self) -> int:
        """Start the script until the run has ended or was asked to leave."""
        try:
            return self._run()
        finally:
            self._screen.close()

    def _run(self) -> int:
        restart = 0
        while True:
            code = self._start(restart)
            try:
                state = self._journal.refresh()
            except StoreError:
                if code != ExitCode.FAILED:
                    raise
                return self._not_again(code)  # `finish` has told why
            is_current = state.epoch.submission >= self._request.submission
            ending, wanted = state.ending if is_current else None, ended_by(self._told_to_end, state)
            if self._told_to_end and code != ExitCode.FAILED and ending in (None, wanted):
                return self._end(wanted)
            if ending is not None:
                return code if code < _KILLED else ending.exit_code
            if code != ExitCode.REQUEUE or self._interrupts:
                return self._not_again(code)
            restart += 1
            self._say(f"requeued: start {restart + 1} follows")
            if self._was_interrupted(REQUEUE_PAUSE_S):
                reason = "interrupted between two starts"
                return self._end(RunEnded(Decision.STOPPED, ExitCode.OK, reason, None))

    def _not_again(self, code: int) -> int:
        """Tell the way to go on, and that the disk is full where `finish` could not; return the exit code."""
        trouble = why_unwritable(self._request.paths.root)
        if trouble:
            self._say_last(f"the end of the run could not be written down: {trouble}")
        where = to_go_on(self._request.paths)
        self._say_last(f"{where}: hpc-elastic submit --resume {self._quoted_root}")
        return code

    @property
    def _quoted_root(self) -> str:
        return for_shell(self._request.paths.root)

    def _start(self, restart: int) -> int:
        """Run the script once and return its exit code."""
        environ = script_environ(
            self._request,
            os.environ,  # noqa: TID251 - a job inherits the environment of its submission
            nodes=self._nodes,
            job_id=self._job_id,
            restart=restart,
        )
        environ["PATH"] = f"{self._bin}:{environ.get('PATH', os.defpath)}"
        environ[READY_FILE], environ[LOCAL_END] = self._ready, self._end_file
        argv = ("bash", self._script, str(self._request.submission))
        script = spawn(ProcessSpec(argv, environ, stdout=self.batch_log, stderr=self.batch_log))
        script.confirm_started(_LOOK_S)
        while script.poll() is None:
            pause_s = self._screen.follow(_LOOK_S)
            caught = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, pause_s)
            if caught is not None and caught.si_signo != signal.SIGCHLD:
                self._take(caught.si_signo, script)
            self._forward()
        script.reap()
        if self._interrupts > 1:
            return self._end(RunEnded(Decision.CANCELLED, CANCELLED_CODE, "interrupted twice", None))
        code = script.exit_code or 0
        return code if code >= 0 else 128 - code

    def _take(self, number: int, script: ChildProcess) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                self._screen.hurry()
                self._say("ending everything at once")
                script.signal_group(signal.SIGKILL)  # the agents follow srun, the workers their agents
                return
            self._say("the workers save and stop; Ctrl-C again ends them at once")
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self._told_to_end = self._told_to_end or signal.Signals(number).name
            files.replace(self._end_file, self._told_to_end.encode())
            self._screen.hurry()
            self._say(f"asked to end by {signal.Signals(number).name}: the workers save and stop")
        self._to_forward.append(number)

    def _forward(self) -> None:
        """Pass signals on to srun as soon as it takes them."""
        if not self._to_forward:
            return
        try:
            with open(self._ready) as file:
                pid = int(file.read())
        except FileNotFoundError:
            return
        for number in self._to_forward:
            os.kill(pid, number)
        self._to_forward.clear()

    def _was_interrupted(self, seconds: float) -> bool:
        caught = signal.sigtimedwait(set(FORWARDED), seconds)
        return caught is not None

    def _end(self, ending: RunEnded) -> int:
        """End the run for good, unless it has ended already; say so and return the exit code."""
        ended = self._journal.commit(lambda _state: ending).ending or ending
        self._say_last(f"{ended.reason}; to go on: hpc-elastic submit --resume {self._quoted_root}")
        return ended.exit_code

    def _say(self, text: str) -> None:
        self._screen.say(f"hpc_elastic: {text}")

    def _say_last(self, text: str) -> None:
        self._screen.show_rest()
        self._say(text)


def why_unwritable(root: str) -> str:
    """Return why no record can be written into a run directory; empty if one can."""
    path = files.private_name(root)
    try:
        files.replace(path, bytes(_RECORD_BYTES), durable=False)
        os.unlink(path)
    except OSError as error:
        return f"{error.strerror}: {root}"
    return ""


class Screen:
    """The terminal, or its stand-in: shows a growing log, and lines of the runner between.

    The run does not wait for its reader: one that is too far behind gets the newest lines,
    those of the run itself, and how much was left out. At the end it waits, up to an interrupt.
    """

    def __init__(self, log: str, clock: Clock) -> None:
        self._clock = clock
        self._sink = sink_of(sys.stdout)
        self._tail = Tail(
            log, self._sink, b"", limits=TailLimits(lag=MAX_LAG, newest=1 << 20, always=_OF_THE_RUN)
        )
        self._ending_since: float | None = None
        self._is_hurried = self._is_short = self._is_left = False

    def say(self, text: str) -> None:
        """Show lines before those that the log has from now on; a character that would act is an escape."""
        self._sink.put(f"{visible_lines(text)}\n".encode())
        self._sink.flush()

    def follow(self, wait_s: float) -> float:
        """Show the new lines of the log, as far as the reader takes them.

        Args:
            wait_s: pause until the next call [s]. A slow reader is waited for as long.

        Returns:
            The rest of the pause [s].
        """
        if self._tail.pump():
            return 0.0
        fd = self._sink.blocked_fd()
        return wait_s if fd is None or not wait_writable([fd], wait_s) else 0.0

    def hurry(self) -> None:
        """Wait for the reader no longer than a few seconds at the end."""
        self._is_hurried = True

    def show_rest(self) -> None:
        """Show the rest of the log, its unfinished last line too; a second call is harmless.

        Of the lines that a reader has not taken after some time, only the newest ones are left.
        """
        if self._ending_since is None:
            self._ending_since = self._clock.monotonic()
        while (self._tail.pump() or self._tail.is_blocked) and self._wait():
            if self._ending_s() >= _REST_S and not self._is_short:
                self._tail.leave_out()
                self._is_short = True
        if not self._is_left:
            self._tail.finish()

    def close(self) -> None:
        """Show all that is left, and wait until the reader has taken it or a signal asks to end."""
        self.show_rest()
        while not self._sink.flush() and self._wait():
            pass

    def _ending_s(self) -> float:
        return 0.0 if self._ending_since is None else self._clock.monotonic() - self._ending_since

    def _wait(self) -> bool:
        """Wait for the reader for a moment; return False when there is no more waiting."""
        fd = self._sink.blocked_fd()
        if fd is not None and not self._is_left:
            wait_writable([fd], _LOOK_S)
            is_late = self._is_hurried and self._ending_s() >= 2 * _REST_S
            self._is_left = is_late or signal.sigtimedwait(_ENDING, 0) is not None
        return not self._is_left


_STAND_IN = "hpc_elastic.slurm.local.srun"
