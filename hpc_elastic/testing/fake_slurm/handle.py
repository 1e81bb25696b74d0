"""A fake Slurm in the hands of a test: start, stop, commands, waits."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess  # noqa: TID251 - starts the controller and Slurm's commands
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.isolated.lookup import argv_here
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes import linux
from hpc_elastic.slurm.client.answers import liveliest
from hpc_elastic.testing.fake_slurm import client
from hpc_elastic.testing.fake_slurm.cluster.model import Settings, check_settings

PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")
_START_S = 60.0
LOOKS = 3
_LOOK_PAUSE_S = 0.01
_LONGEST_SOCKET = 100
_STORY_LINES = 60
_OF_A_JOB = ("SLURM_", "SBATCH_", "SRUN_")


_HOSTNAME = """#!/bin/sh
# a node has a name of its own
if [ -n "$SLURMD_NODENAME" ]; then echo "$SLURMD_NODENAME"; else uname -n; fi
"""


class ConditionTimeoutError(AssertionError):
    """A condition did not come true in time; the text has Slurm's story meanwhile."""


class Waits(ABC):
    """A cluster of which tests wait for something."""

    _poll_s = 0.1
    _clock: Clock = SystemClock()

    @abstractmethod
    def job(self, job: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``; empty if Slurm does not know the job."""

    @abstractmethod
    def node_state(self, name: str) -> str:
        """Return the state of a node with its flags, such as `idle`, `mixed+drain`, `down+not_responding`."""

    @abstractmethod
    def story(self) -> str:
        """Return queue, nodes, and the end of the controller's log."""

    @property
    @abstractmethod
    def node_names(self) -> list[str]:
        """Names of the nodes, in order."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until a condition holds.

        Args:
            predicate: the condition.
            timeout: limit [s].
            what: the condition in words, for the message.

        Raises:
            ConditionTimeoutError: it did not hold in time; shows queue, nodes and the controller's log.
        """
        deadline = self._clock.monotonic() + timeout
        while not predicate():
            if self._clock.monotonic() > deadline:
                raise ConditionTimeoutError(f"Waited {timeout:g} s in vain for {what}.\n{self.story()}")
            self._clock.sleep(self._poll_s)

    def wait_state(self, job: str, state: str, timeout: float = 60) -> None:
        """Wait until a job is in a state such as `RUNNING`."""
        self.wait_for(lambda: self.job(job).get("JobState") == state, timeout, f"job {job} to be {state}")

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until every node is idle and answers."""
        names = self.node_names
        self.wait_for(lambda: {"idle"} == set(map(self.node_state, names)), timeout, "all nodes to be idle")


class Process(NamedTuple):
    """A process that Slurm has started for a job."""

    node: str
    step: str  # `batch`, `srun`, or the number of the step
    rank: int  # of a task; for `srun` the number of its step
    pid: int


class FakeSlurm(Waits):
    """A cluster on this machine; use it as a context manager, or with `start` and `stop`.

    Args:
        directory: for its files: programs (``bin``), spool, log; made if it is not there. Jobs may write
            where they like.
        settings: the cluster.
        clock: paces waiting.
    """

    _poll_s = 0.03

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.directory = os.path.abspath(directory)
        self.settings = check_settings(settings or Settings())
        self._clock = clock or SystemClock()
        self._controller: subprocess.Popen[str] | None = None
        self._socket = ""
        self._short = ""  # a directory for the socket where its own has too long a name

    # Start and end

    def start(self) -> None:
        """Start the controller.

        Raises:
            RuntimeError: it did not start; the text is its message.
        """
        os.makedirs(os.path.join(self.directory, "spool"), exist_ok=True)
        os.makedirs(self.bin, exist_ok=True)
        place = os.path.join(self.directory, "socket")
        if len(os.fsencode(place)) > _LONGEST_SOCKET:
            self._short = tempfile.mkdtemp(prefix="slurm-")
            place = os.path.join(self._short, "socket")
        self._socket = place
        for name in PROGRAMS:
            _write_program(os.path.join(self.bin, name), place, name)
        _write(os.path.join(self.bin, "hostname"), _HOSTNAME)
        words = [
            *argv_here("hpc_elastic.testing.fake_slurm"),
            self.directory,
            json.dumps(self.settings._asdict()),
            place,
        ]
        with open(os.path.join(self.directory, "slurmctld.err"), "a", encoding="utf-8") as errors:
            self._controller = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_outside_of_jobs(os.environ),  # noqa: TID251 - the controller's Python may need it
                start_new_session=True,
            )
        if self._controller.stdout is None or self._controller.stdout.readline() != "ready\n":
            raise RuntimeError(f"the controller of the fake Slurm did not start:\n{self._errors()}")

    def stop(self) -> None:
        """Kill all processes of all jobs and end the controller; its files stay."""
        controller, self._controller = self._controller, None
        if controller is None:
            return
        for stream in (controller.stdin, controller.stdout):
            if stream is not None:
                stream.close()
        controller.wait(_START_S)
        if self._short:
            shutil.rmtree(self._short, ignore_errors=True)

    def __enter__(self) -> FakeSlurm:  # noqa: PYI034 - Python 3.10 has no Self, and this has no subclass
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bin(self) -> str:
        """The directory of the programs, to be put first on PATH."""
        return os.path.join(self.directory, "bin")

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes, in order."""
        return list(self.settings.node_names)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of this process, outside of any job, in which the programs are found."""
        found = _outside_of_jobs(os.environ)  # noqa: TID251 - for the programs of a test
        found["PATH"] = f"{self.bin}{os.pathsep}{found.get('PATH', os.defpath)}"
        found["SLURM_CONF"] = os.path.join(self.directory, "slurm.conf")
        return found

    # Users

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that finds the cluster.

        Args:
            argv: the program; no shell is involved.
            env: added to its environment.
            cwd: working directory; that of the cluster if None.
            timeout: limit [s].

        Returns:
            The finished process; its exit code is not checked.
        """
        whole = {**self.environ, **(env or {})}
        return subprocess.run(
            [shutil.which(argv[0], path=whole["PATH"]) or argv[0], *argv[1:]],
            env=whole,
            cwd=cwd or self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def submit(self, *arguments: str, wrap: str | None = None) -> str:
        """Submit a batch job and return its id.

        Args:
            arguments: of sbatch: options, and a script unless `wrap` is given.
            wrap: shell commands.

        Raises:
            AssertionError: sbatch refused it; the text is its message.
        """
        words = [*arguments] if wrap is None else [*arguments, f"--wrap={wrap}"]
        done = self.run(["sbatch", "--parsable", *words])
        if done.returncode != 0:
            raise AssertionError(f"sbatch {shlex.join(words)}: {done.stderr}")  # noqa: TID251 - for tests
        return done.stdout.strip().partition(";")[0]

    def submit_high(self, nodes: int, *options: str) -> str:
        """Take whole nodes in partition `high`, preempting other jobs; returns the job's id."""
        words = ("--partition=high", f"--nodes={nodes}", "--exclusive", "--output=/dev/null", *options)
        return self.submit(*words, wrap="exec sleep 600")

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is left, not even completing."""
        for name in self.command("squeue", "--noheader", "--format=%A").split():
            self.command("scancel", name)
            self.command("scancel", "--signal=KILL", name)
        self.wait_for(lambda: not self.command("squeue", "--noheader"), 60, "all jobs to end")

    # The answers of Slurm

    def command(self, *argv: str) -> str:
        """Run one of Slurm's commands; returns its output, empty if it failed."""
        answer = self._ask(argv[0], argv[1:])
        return str(answer["out"]) if answer["code"] == 0 else ""

    def job(self, job: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``; empty if Slurm does not know the job."""
        return shown_job(self.command("scontrol", "show", "job", "--oneliner", job))

    def node_state(self, name: str) -> str:
        """Return the state of a node with its flags, such as `idle`, `mixed+drain`, `down+not_responding`."""
        shown = self.command("scontrol", "show", "node", "--oneliner", name)
        return shown_fields(shown).get("State", "").lower()

    def accounted(self, job: str) -> list[str]:
        """Return the state of each start of a job, the oldest first, as ``sacct --duplicates`` has them."""
        words = ("sacct", "-D", "-X", "-n", "-P", "-o", "State", "-j", job)
        return self.command(*words).splitlines()

    def processes(self, job: str) -> list[Process]:
        """Return the processes that Slurm has started for a job: script, tasks, and each srun."""
        return [Process(*found) for found in json.loads(self._tell("pids", job))]

    def log(self) -> str:
        """Return the controller's log."""
        with open(os.path.join(self.directory, "slurmctld.log"), encoding="utf-8") as file:
            return file.read()

    def story(self) -> str:
        """Return queue, nodes, and the end of the controller's log."""
        lines = self.log().splitlines()[-_STORY_LINES:]
        shown: list[str] = []
        if self._controller is not None:
            nodes = (f"{name}={self.node_state(name)}" for name in self.node_names)
            shown = [self.command("squeue", "--states=all"), " ".join(nodes)]
        return "\n".join((*shown, *lines, self._errors()))

    def _errors(self) -> str:
        with open(os.path.join(self.directory, "slurmctld.err"), encoding="utf-8") as file:
            return file.read()

    # Waiting

    def wait_tasks(self, job: str, count: int, timeout: float = 60) -> list[Process]:
        """Wait until so many tasks of a job run; a job is RUNNING before its srun has started any."""

        def tasks() -> list[Process]:
            return [one for one in self.processes(job) if one.step.isdigit()]

        self.wait_for(lambda: len(tasks()) == count, timeout, f"{count} tasks of job {job}")
        return tasks()

    # Time and faults

    @property
    def now(self) -> float:
        """Slurm's time [s since the epoch]: the wall time and the seconds of `advance`."""
        return float(self._tell("now"))

    def advance(self, seconds: float) -> None:
        """Move Slurm's clock forward: everything that is due happens before this returns, in its order."""
        self._tell("advance", repr(float(seconds)))

    def skip(self, longest: float = 60.0, *, unless: Callable[[], bool] = lambda: False) -> float:
        """Move Slurm's clock to the next thing that is due, if it is near and no process has anything to do.

        A wait of Slurm's then costs a test no time, and no process is robbed of the time it needs.

        Args:
            longest: how far to go at most [s].
            unless: the condition that a test waits for. It is asked once no process has anything to do, as
                the last of them may just have brought it about.

        Returns:
            How far it went [s]; 0 if a process is at work, or nothing is due so soon.
        """
        acts = self._tell("acts")
        before = self._turns()
        for _ in range(LOOKS):
            self._clock.sleep(_LOOK_PAUSE_S)
            if before is None or self._turns() != before:
                return 0.0
        if unless():
            return 0.0
        return float(self._tell("skip", repr(float(longest)), acts))

    def _turns(self) -> dict[int, str] | None:
        """Return how often each process below the controller had a CPU; None while one is at work.

        Two of them may wait for each other in turns: no look finds them at work, but their turns pass.
        """
        controller = self._controller
        root = None if controller is None else linux.read_stat(controller.pid)
        found = linux.descendants([root]) if root is not None else []
        if any(stat.state not in "STZX" for stat in found):
            return None
        return {stat.pid: linux.turns(stat.pid) for stat in found[1:]}

    def crash(self, node: str) -> None:
        """Power loss of a node: its processes are dead, Slurm notices after its timeout."""
        self._tell("crash", node)

    def boot(self, node: str) -> None:
        """Boot a crashed node."""
        self._tell("heal", node)

    def cut(self, node: str) -> None:
        """Cut a node off the network; its processes live on."""
        self._tell("cut", node)

    def heal(self, node: str) -> None:
        """Connect a node again; processes of jobs that it has lost meanwhile are killed."""
        self._tell("heal", node)

    def drain(self, node: str, reason: str = "test") -> None:
        """Give a node no more jobs."""
        self._must("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def down(self, node: str, reason: str = "test") -> None:
        """Take a node down by hand: its jobs are ended and put back."""
        self._must("scontrol", "update", f"nodename={node}", "state=down", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Put a node back into service."""
        self._must("scontrol", "update", f"nodename={node}", "state=resume")

    def silence(self) -> None:
        """Let all commands fail, as when the controller is down."""
        self._tell("answering", "no")

    def speak(self) -> None:
        """Let the commands answer again."""
        self._tell("answering", "yes")

    # Talking to the controller

    def _must(self, *argv: str) -> None:
        answer = self._ask(argv[0], argv[1:])
        if answer["code"] != 0:
            raise AssertionError(f"{shlex.join(argv)}: {answer['err']}")  # noqa: TID251 - for tests

    def _tell(self, *words: str) -> str:
        answer = self._ask("control", words)
        if answer["code"] != 0:
            raise AssertionError(str(answer["err"]))
        return str(answer["out"])

    def _ask(self, program: str, words: Sequence[str]) -> dict[str, Any]:
        asked = {"program": program, "words": list(words), "environ": {}, "cwd": self.directory}
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(self._socket)
                line = client.WireLine(connection)
                line.send(asked)
                answer = line.answer()
            except OSError:
                answer = None
        if answer is None:
            raise RuntimeError(f"the controller of the fake Slurm is gone:\n{self._errors()}")
        return answer


def _outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_OF_A_JOB)}


def _write_program(path: str, place: str, name: str) -> None:
    words = shlex.join([sys.executable, "-IS", client.__file__, place, name])  # noqa: TID251 - for tests
    _write(path, f'#!/bin/sh\nexec {words} "$@"\n')


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)


def shown_job(text: str) -> dict[str, str]:
    """Return the fields of a job as ``scontrol show job -o`` prints them; of an array its liveliest task."""
    jobs = [shown_fields(line) for line in text.splitlines() if line.startswith("JobId=")]
    return liveliest(jobs) or {}


def shown_fields(line: str) -> dict[str, str]:
    """Return the fields of one line of ``scontrol show ... -o``.

    A value may hold blanks (a command, a comment): it runs on to the next ``Name=``.
    """
    marks = list(re.finditer(r"(?:^| )([A-Z][A-Za-z:/_]*)=", line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):  # Slurm may have said nothing
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields
