"""The workers of one node in one round: their processes, their channels, their logs."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hpc_elastic.account.log_marks import STREAMS
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.context import RunProcsResult, StartSettings, SubprocessContext
from hpc_elastic.multiprocessing.errors import FailureRecord, ProcessFailure, failure_record
from hpc_elastic.multiprocessing.group import NO_EVENTS
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsSpecs, log_line_prefix
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.decision import Group
from hpc_elastic.node.spec import WorkerGroup, WorkerState
from hpc_elastic.node.stop_rules import KILL_AFTER_S, NO_STEP
from hpc_elastic.node.workers.worker_env import RunEnv, place_of, substitute, substitute_texts, worker_env
from hpc_elastic.paths import RunPaths
from hpc_elastic.processes.linux import read_stat
from hpc_elastic.record.journal import RoundFormed, Verdict, WorkerWord
from hpc_elastic.worker.channel import BAD_NODE, GIVE_UP, SETTLE_S, Channel, WorkerView
from hpc_elastic.worker.request_pipe import ask

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.functions import MultiprocessContext
    from hpc_elastic.multiprocessing.group import Filters, ProcessGroup
    from hpc_elastic.processes.numa import NumaOptions

Results: TypeAlias = tuple[Mapping[int, Any], Mapping[int, ProcessFailure]]
"""What workers returned and how they failed, by global rank."""


_STOPPED = "T"  # by a signal, in /proc/PID/stat
_VERDICTS = {BAD_NODE: Verdict.BAD_NODE, GIVE_UP: Verdict.GIVE_UP}
NOT_FOUND: Final = 127  # exit code of shells, env and container runtimes
_SAID: Final = (
    re.compile(r"(?:.*: )?([^\s:]+): (?:command )?not found"),  # shells
    re.compile(r"(?:\S*/)?env: ['\u2018]?([^'\u2019]+?)['\u2019]?: No such file or directory"),
)
_SAID_BY_RUNTIMES: Final = (  # of containers, with an exit code of their own
    re.compile(r'.*"([^"]+)": executable file not found in \$PATH.*'),
    re.compile(r"ch-run\[\d+\]: error: can't execve\(2\): (.+): No such file or directory.*"),
)
_NO_MODULE: Final = r"ModuleNotFoundError: No module named \S+"
_PYTHON: Final = r"(?:python|pypy)[\d.]*"
_RUNTIMES: Final = ("apptainer", "singularity", "enroot", "podman", "docker", "ch-run")
_ON_THIS_NODE: Final = ("sh", "bash", "dash", "ksh", "zsh", "env")  # they look in the PATH that they get


class Command(NamedTuple):
    """The work of each worker: a program, or a function if one is given."""

    role: str
    argv: tuple[str, ...]  # of a program
    logs: LogsSpecs
    prefixes: str  # template of the prefix of a line shown on the console
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()  # of the function
    start_method: str = "spawn"  # of the function: spawn, fork or forkserver
    numa: NumaOptions | None = None  # binds each worker to the CPUs near its GPU
    filters: Filters = ((), ())  # which teed lines of stdout, of stderr, go to a common file, too
    virtual_local_rank: bool = False  # each worker sees its own GPU alone, and is local rank 0


class Busy(NamedTuple):
    """A worker in a critical section."""

    rank: int
    name: str
    since: float  # monotonic time [s]


class LocalGroup:
    """Workers from their start to the last one's end."""

    def __init__(
        self, formed: RoundFormed, node_id: str, scratch: str, run: RunEnv, settings: StartSettings
    ) -> None:
        self.formed = formed
        self.place = place_of(formed.members, node_id)
        self.slots = formed.members[self.place.group_rank].slots
        self.result: RunProcsResult | None = None
        self.views: Sequence[WorkerView] = ()  # of the workers by local rank, at the last look
        self.events = NO_EVENTS  # that end the wait for the next look
        self._node_id = node_id
        self._run = run
        self._settings = settings
        self._scratch = scratch
        self._channels: list[Channel] = []
        self._context: ProcessGroup | None = None
        self._logs: LogsSpecs | None = None
        self._stopping = False
        self._signalled = False
        self._ended_well = False  # all by themselves, before a request to end
        self._gone = False
        self._outcome = Group.STOPPED  # when all are gone
        self._until: float | None = None  # the end of their time, as the workers know it
        self._stop_step: int | None = None  # that the workers know
        self._drain_at: float | None = None
        self._asked: list[int] | None = None  # the workers that were asked to keep their state
        self._searched = "", ""  # the workers' program, and their PATH
        self.keeps_left_overs: Callable[[float], bool] | None = None  # while they still save

    def start(self, command: Command, *, restarts: int) -> None:
        """Start all workers.

        Raises:
            InputError: the command cannot be started, or the function not be handed to a process.
            OSError: no space or no permission for logs or channels.
        """
        self._logs = command.logs
        given = self._settings.base_env
        environ = os.environ if given is None else given  # noqa: TID251 - workers inherit it
        self._searched = "".join(command.argv[:1]), environ.get("PATH", os.defpath)
        self._channels = [
            Channel.create(os.path.join(self._scratch, f"{self.formed.number}.{local_rank}"))
            for local_rank in range(self.slots)
        ]
        envs = {
            local_rank: {
                **worker_env(self.formed, self._node_id, local_rank, self._run, restarts=restarts),
                Env.CHANNEL: self._channels[local_rank].path,
            }
            for local_rank in range(self.slots)
        }
        prefixes = self._prefixes(command, envs)
        if command.virtual_local_rank:
            from hpc_elastic.node.workers.worker_env import give_own_device  # noqa: PLC0415 - rare

            for local_rank, env in envs.items():
                give_own_device(env, local_rank)
        try:
            self._context = self._started(command, envs, prefixes)
        except (RuntimeError, ValueError) as error:  # CPUs that cannot be bound to, a site's own log specs
            if isinstance(error, InputError):
                raise
            raise InputError(str(error)) from error

    def _started(
        self, command: Command, envs: Mapping[int, Mapping[str, str]], prefixes: Mapping[int, str]
    ) -> ProcessGroup:
        if command.function is not None:
            return _start_function(command, envs, prefixes, self._settings)
        context = SubprocessContext(
            command.role,
            command.argv[0],
            {rank: substitute(command.argv[1:], rank) for rank in envs},
            envs,
            command.logs,
            prefixes,
            command.numa,
            *command.filters,
            settings=self._settings,
        )
        context.start()
        return context

    def end(self) -> None:
        """End all started workers, in any state; waits for it."""
        self.keeps_left_overs = None
        if self._context is not None:
            self._context.close(signal.SIGTERM, timeout=KILL_AFTER_S)
            self.remove_empty_logs()

    def forget(self) -> None:
        """Unmap the channels of workers that are gone; nothing of the group is read after it."""
        for channel in self._channels:
            channel.close()
        self._channels = []

    def remove_empty_logs(self) -> None:
        """Leave no files of workers that have written nothing; those of a failed one are named to people."""
        failed = self.result.failures if self.result is not None else {}
        if isinstance(self._logs, DefaultLogsSpecs):
            logs = self.context.logs
            self._logs.remove_empty(logs, [rank for rank in range(self.slots) if rank not in failed])

    def own_logs(self, paths: RunPaths) -> list[str]:
        """Return stdout and stderr of each worker, by local rank; empty where it is no log of the run."""
        found, made = [], self.context.logs
        for local_rank in range(self.slots):
            place = paths.worker_logs(self.formed.number, self.place.base_rank + local_rank)
            for name, given in zip(STREAMS, (made.stdouts, made.stderrs), strict=True):
                path = os.path.join(place, name)
                found.append(path if given.get(local_rank) == path else "")
        return found

    def _prefixes(self, command: Command, envs: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
        return {
            local_rank: log_line_prefix(
                command.prefixes,
                role_name=env["ROLE_NAME"],
                rank=int(env["RANK"]),
                local_rank=local_rank,
                node=self._run.node,
            )
            for local_rank, env in envs.items()
        }

    def describe(self, view: WorkerGroup, state: WorkerState) -> None:
        """Bring torch's view of the worker group up to date."""
        place, pids = self.place, self.context.pids()
        view.state = state
        view.group_rank, view.group_world_size = place.group_rank, len(self.formed.members)
        view.master_addr, view.master_port = self.formed.master_addr, self.formed.master_port
        for worker in view.workers:
            worker.id = pids.get(worker.local_rank)
            worker.global_rank = place.base_rank + worker.local_rank
            worker.role_rank = place.role_base + worker.local_rank
            worker.world_size, worker.role_world_size = place.world_size, place.role_world_size

    @property
    def channels(self) -> list[Channel]:
        """The channels of the workers, by local rank."""
        return self._channels

    @property
    def word(self) -> WorkerWord | None:
        """The word of the first worker that has said that this node is bad, or that it gives up."""
        for local_rank, view in enumerate(self.views):
            kind, reason = view.word
            if kind in _VERDICTS:
                node = self.formed.members[self.place.group_rank].node
                return WorkerWord(_VERDICTS[kind], self.place.base_rank + local_rank, node, reason)
        return None

    @property
    def context(self) -> ProcessGroup:
        """The processes; only after `start`."""
        if self._context is None:
            raise RuntimeError("the workers have not been started")
        return self._context

    def status(self, now: float) -> Group:
        """Look at the processes and at `views` without blocking; copies new lines of logs to the console.

        Workers that have ended well count as running while their leftovers are ended.
        """
        if self._gone:
            return self._outcome
        context = self.context
        status = self._look(context, now)
        self.events = NO_EVENTS if status.is_gone else context.events()
        self.views = [channel.view() for channel in self._channels]
        return status

    def _look(self, context: ProcessGroup, now: float) -> Group:
        if not self._stopping and not self._ended_well:
            self.result = context.look() or self.result
            if self.result is None:
                return Group.RUNNING
            if self.result.is_failed():
                return Group.FAILED
            keeps = self.keeps_left_overs is not None and self.keeps_left_overs(now)
            if keeps and not context.poll_stopped(now):  # something is left
                return Group.RUNNING
            self._ended_well = True
            context.begin_stop(signal.SIGTERM, now + self._settings.grace_s)
        if context.poll_stopped(now):
            self._end()
            return self._outcome
        return Group.STOPPING if self._stopping else Group.RUNNING

    def _end(self) -> None:
        by_themselves = self._ended_well and not self._stopped_by_request()
        self._outcome = Group.SUCCEEDED if by_themselves else Group.STOPPED
        self._gone = True
        self.keeps_left_overs = None  # it knows this group
        for channel in self._channels:
            channel.unlink()

    @property
    def is_stopping(self) -> bool:
        """Whether the workers have got the signal to end."""
        return self._stopping and not self._gone

    def _stopped_by_request(self) -> bool:
        """Tell whether a worker ended because should_stop() told it to, or may have for its own signal."""
        return self._signalled or any(channel.stopped_at is not None for channel in self._channels)

    def stop(self, number: int, kill_at: float) -> None:
        """Ask the workers to end; SIGKILL at `kill_at` by the monotonic clock [s].

        A worker that ignores the signal without ever having chosen to (agents under Slurm start
        workers so, because Slurm may signal them directly) is killed at once.
        """
        self._stopping = True
        context = self.context
        pids = context.pids() if number in self._settings.ignore_signals else {}
        context.begin_stop(number, kill_at)
        self.events = context.events()
        for pid in pids.values():
            if _ignores(pid, number):
                _kill_group(pid)

    def signal(self, number: int | None) -> None:
        """Send a signal to every worker that runs, not to its children; None sends nothing."""
        ended = self.context.exit_codes()
        for local_rank, pid in self.context.pids().items():
            if number is not None and local_rank not in ended:
                self._signalled = True
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def request_drain(self, now: Callable[[], float]) -> None:
        """Ask the workers to stop at the step that is going to be agreed on."""
        if self._drain_at is None:
            for channel in self._channels:
                channel.request_drain()
            self._drain_at = now()

    def set_until(self, until: float) -> None:
        """Tell the workers how long they have, by the monotonic clock [s]."""
        if until != self._until:
            self._until = until
            for channel in self._channels:
                channel.until = until

    def busy(self) -> list[Busy]:
        """Return the live workers in critical sections, longest first."""
        found = [(local_rank, channel.critical) for local_rank, channel in enumerate(self._channels)]
        if self._gone or not any(section for _, section in found):
            return []
        ended = self.context.exit_codes()
        base = self.place.base_rank
        busy = [Busy(base + rank, at.name, at.since) for rank, at in found if at and rank not in ended]
        return sorted(busy, key=lambda one: one.since)

    def is_rescuing(self, now: float, until: float) -> bool:
        """Ask the live workers to keep their state in this node's memory, once; tell whether one still does.

        A worker that was stopped (SIGSTOP) goes on, as it could not answer otherwise.

        Args:
            now: monotonic time [s].
            until: when they are not waited for any longer.
        """
        if self._gone or now >= until:
            return False
        ended = self.context.exit_codes()
        if self._asked is None:
            self._asked = [
                rank for rank, channel in enumerate(self._channels) if rank not in ended and ask(channel)
            ]
        keeping = [rank for rank in self._asked if self._channels[rank].keeper and rank not in ended]
        for rank in keeping:
            _let_go_on(self.context.pids()[rank])
        return bool(keeping)

    def stop_bound(self, now: float) -> int | None:
        """Return the first step at which all ranks here can stop, or None if it is too early to tell.

        `NO_STEP` if no worker here asks whether to stop.
        """
        if self._drain_at is None or now - self._drain_at < SETTLE_S:
            return None
        bounds = [channel.stop_bound for channel in self._channels if channel.asks_should_stop]
        return max(bounds, default=NO_STEP)

    def set_stop_step(self, step: int) -> None:
        """Tell the workers the agreed step."""
        if step != self._stop_step:
            self._stop_step = step
            for channel in self._channels:
                channel.stop_step = step

    def failures(self) -> dict[int, ProcessFailure]:
        """Return the failures by global rank."""
        found = self.result.failures if self.result else {}
        return {self.place.base_rank + local_rank: failure for local_rank, failure in found.items()}

    def values(self) -> dict[int, Any]:
        """Return the workers' return values by global rank; programs return None."""
        found = self.result.return_values if self.result else {}
        return {self.place.base_rank + local_rank: value for local_rank, value in found.items()}

    def first_failure(self) -> FailureRecord | None:
        """Return the earliest failure on this node as plain data."""
        result = self.result
        if result is None or not result.failures:
            return None
        local_rank, failure = min(result.failures.items(), key=lambda item: item[1].time_s)
        log = result.stderrs.get(local_rank, "")
        rank = self.place.base_rank + local_rank
        found = failure_record(failure, rank=rank, node=self._run.node, log=log)
        missing = missing_program_text(found.exitcode, found.stderr_tail, *self._searched)
        module = missing_module_text(found.message or found.stderr_tail, sys.executable, *self._searched)
        told = module or ("" if found.message else missing)
        return found._replace(message=told) if told else found


def _let_go_on(pid: int) -> None:
    """Continue a process that a signal has stopped."""
    stat = read_stat(pid)
    if stat is not None and stat.state == _STOPPED:
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def _ignores(pid: int, number: int) -> bool:
    """Tell whether a process has a signal set to be ignored."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            line = next(line for line in status if line.startswith(b"SigIgn:"))
    except (OSError, StopIteration):
        return False
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class EntrypointError(InputError, TypeError):
    """A function or its arguments cannot be handed to a worker process."""


def _start_function(
    command: Command,
    envs: Mapping[int, Mapping[str, str]],
    prefixes: Mapping[int, str],
    settings: StartSettings,
) -> MultiprocessContext:
    """Start workers that run a function.

    Args:
        command: has a function.
        envs: environment by local rank.
        prefixes: the prefix of each teed line, by local rank.
        settings: how processes are started.

    Raises:
        EntrypointError: the function or an argument cannot be pickled.
        InputError: the workers cannot be started.
        OSError: no space or no permission for logs.
    """
    from pickle import PicklingError  # noqa: PLC0415 - rare

    from hpc_elastic.multiprocessing.functions import MultiprocessContext  # noqa: PLC0415 - rare, 30 ms

    function = command.function
    if function is None:
        raise ValueError("there is no function to run")
    context = MultiprocessContext(
        command.role,
        function,
        {rank: substitute_texts(command.args, rank) for rank in envs},
        envs,
        command.start_method,
        command.logs,
        prefixes,
        command.numa,
        *command.filters,
        settings=settings,
    )
    try:
        context.start()
    except (PicklingError, AttributeError, TypeError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise EntrypointError(
            f"the function {name} or one of its arguments cannot be handed to a new process: {error}",
            where=f"start_method {command.start_method!r}",
            fix="define the function at the top level of a module, or use the start method 'fork'",
        ) from error
    return context


def missing_program_text(exitcode: int, stderr_tail: str, program: str, path: str) -> str:
    """Return that a program was not found; empty where the output of the worker does not tell which one.

    Args:
        exitcode: of the worker.
        stderr_tail: the last lines of its output.
        program: the worker's own; one that starts others in a container has another PATH for them.
        path: PATH of the worker.
    """
    runtime = os.path.basename(program)
    lines = [line.strip() for line in reversed(stderr_tail.splitlines())]
    if exitcode != NOT_FOUND:
        lines = lines[:1] if runtime in _RUNTIMES else []
    ways = _SAID_BY_RUNTIMES if exitcode != NOT_FOUND else (*_SAID, *_SAID_BY_RUNTIMES)
    found = (said.fullmatch(line) for line in lines for said in ways)
    name = next((match[1] for match in found if match is not None), "")
    if not name:
        return ""
    where = f", looked for in PATH {path}" if runtime in _ON_THIS_NODE else ""
    return (
        f"command not found: {name}{f' in the image that {runtime} runs' if runtime in _RUNTIMES else where}"
    )


def missing_module_text(text: str, own: str, program: str, path: str) -> str:
    """Return that a worker's Python lacks a module, with the Pythons it may be taken for; else nothing.

    Args:
        text: the end of its output, or its message.
        own: the agent's Python.
        program: that the agent has started.
        path: PATH of the worker.
    """
    said = re.fullmatch(_NO_MODULE, text.rstrip().rpartition("\n")[2])
    name = os.path.basename(program)
    if said is None or not (name in _RUNTIMES or re.fullmatch(_PYTHON, name)):
        return ""
    if name in _RUNTIMES:
        return f"{said[0]}; its Python is that of the image which {name} runs"
    from shutil import which  # noqa: PLC0415 - after a failure

    mine = which(program, path=path) or program
    first = which("python3", path=path)
    others = [f"the agent's is {own}"] if own != mine else []
    if first is not None and os.path.dirname(first) not in (os.path.dirname(mine), os.path.dirname(own)):
        others.append(f"the first on PATH is {first}")
    return f"{said[0]}; {', '.join((f'its Python is {mine}', *others))}"
