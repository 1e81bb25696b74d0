"""The worker's side of the run: the functions of `hpc_elastic.worker`.

The agent sees the blocks of a worker's code in the memory that it shares with the worker: entering and
leaving cost two writes there and no call of the system. A handler in C writes the stacks of this process,
so that also one that is stuck in a call of a library tells where it is.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.checkpoints import Checkpoint, MarkName, WayBack
from hpc_elastic.store import files
from hpc_elastic.text import visible
from hpc_elastic.typed_json import whole_number
from hpc_elastic.worker.channel import BAD_NODE, COMPUTE, GIVE_UP, Channel, ChannelError, section_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import BinaryIO

    from hpc_elastic.clock import Clock

STOP_WAIT_S = 30.0
_WHERE = "hpc_elastic.worker"
_FIRST_POLL_S = 0.001
_LONGEST_POLL_S = 0.010
_FOR_EVER_S = 1e9
_SAVES_PER_SWEEP = 16  # of marks that are not needed any more
_TELL_AFTER = 3  # questions without a step
_SIGNALS = range(signal.SIGRTMIN + 9, signal.SIGRTMIN + 15)  # timers use + 8, the C library the first ones
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)


class WorkerProgress:
    """This process's place in a run.

    Args:
        environ: the variables that the agent set; an empty mapping means that there is no agent.
        channel: the way to the agent, or None.
        clock: paces the wait for the stop step.
    """

    def __init__(
        self, environ: Mapping[str, str], channel: Channel | None, clock: Clock | None = None
    ) -> None:
        self._channel = channel
        self._clock = clock or SystemClock()
        self._stop_wait_s = _number(environ, Env.STOP_WAIT_S, STOP_WAIT_S)
        self._warned = False
        run_dir = environ.get(Env.RUN_DIR)
        self._paths = RunPaths(run_dir) if run_dir else None
        self._round = int(_number(environ, Env.ROUND, 0))
        self._rank = int(_number(environ, "RANK", 0))
        self._world_size = int(_number(environ, "WORLD_SIZE", 1))
        self._resume_from = environ.get(Env.CHECKPOINT)
        self._own: dict[str, Checkpoint] = {}  # the last saves of this process, by the names of the objects
        self._branch = 0
        self._back_to: dict[str, int] = {}  # the steps that this process has gone back to, by the same names
        self._saves = 0  # by this process
        self._critical = CriticalDepth(channel, self._clock)
        self._ticked: tuple[int, float] | None = None  # the last reported step, and when [s]
        self._stopping_at: float | None = None  # when should_stop() first answered yes [s]
        self._asked = 0  # how often should_stop() was called before any step was reported

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> WorkerProgress:
        """Attach to the agent that the environment names; without one, stand alone."""
        path = environ.get(Env.CHANNEL)
        channel = None
        if path:
            try:
                channel = Channel.open(path)
                _arm_stacks(channel)
            except (OSError, ChannelError) as error:
                _warn(f"no channel to the agent ({error}); it cannot ask this rank to stop")
        return cls(environ, channel)

    @property
    def attached(self) -> bool:
        """An agent listens."""
        return self._channel is not None

    @property
    def run_dir(self) -> str | None:
        """The run directory, None without a run."""
        return None if self._paths is None else self._paths.root

    def tick(self, step: int, total: int | None = None) -> None:
        """Publish a completed step, and how many the run is to have."""
        total = None if total is None else _whole("total", total, 0)
        step = _whole("step", step, 0)
        if total is not None and self._channel is not None:
            self._channel.total = total
        self._ticked = step, self._clock.monotonic()
        if self._channel is not None:
            self._channel.tick(step, self._ticked[1])
            if self._channel.hang:
                self._hang_for_a_drill(self._channel)

    @property
    def branch(self) -> int:
        """How often this process has gone back to an earlier step."""
        return self._branch

    def resumed(self, step: int, name: str = "") -> None:
        """Publish the step that this rank goes on from; if the run goes back to it, record that."""
        step, name = _whole("step", step, 0), checkpoints.check_name(name)
        if self._channel is not None:
            self._channel.resumed = step
        own = self._own.get(name)
        done = [*([self._ticked[0]] if self._ticked else ()), *([own.step] if own else ())]
        is_within = any(step < one for one in done)
        if is_within or (not done and self._begins_earlier(step, name)):
            self._go_back(step, name, is_within=is_within)

    def _begins_earlier(self, step: int, name: str) -> bool:
        """Tell whether a step is before the one that this round was to go on from."""
        offered = self.latest_checkpoint(name)
        return offered is not None and step < offered.step

    def _go_back(self, step: int, name: str, *, is_within: bool) -> None:
        self._branch += is_within
        self._back_to[name] = step
        self._own.pop(name, None)
        self._ticked = None
        if self._rank == 0 and self._paths is not None:
            place = self._round, self._branch
            checkpoints.write_way_back(self._paths, WayBack(*place, step, *place, name))

    def _hang_for_a_drill(self, channel: Channel) -> None:
        """Make no progress, as the owner of the run wants to see the consequences: hpc-elastic drill."""
        _warn(f"rank {self._rank} hangs after step {channel.last_step}: hpc-elastic drill --hang")
        while channel.hang:
            self._clock.sleep(_LONGEST_POLL_S)

    def critical(self, name: str) -> CriticalSection:
        """Return a section of code in which this worker is not ended."""
        return CriticalSection(name, self._critical)

    def time_left(self) -> float | None:
        """Return how long until this worker is ended [s]; None while no stop is requested."""
        until = None if self._channel is None else self._channel.until
        return None if until is None else max(0.0, until - self._clock.monotonic())

    def section(self, name: str, timeout: float | None = None) -> Block:
        """Return a context manager for a block of code that has a name and may have a limit [s]."""
        text: object = name
        if not isinstance(text, str) or not text or not text.isprintable():
            raise InputError(f"the name of a section must be a short text, not {name!r}", where=_WHERE)
        limit: object = timeout
        if limit is not None and not (isinstance(limit, int | float) and 0 < limit < _FOR_EVER_S):
            raise InputError(
                f"the timeout of section {name!r} is {timeout!r}",
                where=_WHERE,
                fix="give a positive number of seconds, or leave it out",
            )
        limit_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        return Block(self._channel, section_name(name), limit_ms, self._clock if name == COMPUTE else None)

    def report_bad_node(self, reason: str) -> None:
        """Have the agent keep this node out of the run."""
        self._say(BAD_NODE, reason, "this node is bad")

    def give_up(self, reason: str) -> None:
        """Have the agent end the run as failed."""
        self._say(GIVE_UP, reason, "the run is given up")

    def _say(self, kind: int, reason: str, what: str) -> None:
        text: object = reason
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"the reason must be a text, not {reason!r}",
                where=_WHERE,
                fix="name the fault in a few words",
            )
        words = visible(" ".join(text.split()))
        if self._channel is None:
            _warn(f"rank {self._rank}: {what}: {words}; no agent listens")
        elif self._channel.say(kind, words):
            _warn(f"rank {self._rank}: {what}: {words}")

    def should_stop(self) -> bool:
        """Answer True from the agreed stop step on, False before and without an agent."""
        channel = self._channel
        if channel is None:
            return False
        if self._ticked is None:
            self._count_asking(channel)
        channel.mark_asking()
        last = channel.last_step
        if last is None or not channel.drain:
            return False
        stop = self._wait_for_stop_step(channel)
        if stop is None or last < stop:
            return False
        if channel.stopped_at is None:
            channel.stopped_at = last
            self._stopping_at = self._clock.monotonic()
        return True

    def _count_asking(self, channel: Channel) -> None:
        """Take each question but the first for a step, as long as no step is reported.

        All ranks ask equally often; a loop may ask once before its first step.
        """
        self._asked += 1
        if self._asked > 1:
            channel.tick(self._asked)
        if self._asked == _TELL_AFTER and self._rank == 0:
            _warn(
                "should_stop() is called and tick() is not: each call counts as a step. Call "
                "tick(step) before it, so that logs name the step and a rank that hangs is noticed"
            )

    def _wait_for_stop_step(self, channel: Channel) -> int | None:
        deadline = self._clock.monotonic() + self._stop_wait_s
        pause_s = _FIRST_POLL_S
        while (stop := channel.stop_step) is None:
            if self._clock.monotonic() >= deadline:
                self._warn_once(
                    f"a stop was requested, but no stop step was agreed in {self._stop_wait_s:g} s; going on"
                )
                return None
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        return stop

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            _warn(text)

    def checkpoint_saved(
        self, step: int, path: str | os.PathLike[str] | None, *, shards: int, name: str = ""
    ) -> None:
        """Write this rank's mark, then tell the agent."""
        step, shards = _whole("step", step, 0), _whole("shards", shards, 1)
        where = None if path is None else _saved_at(path, step)
        self._refuse_backwards(step, checkpoints.check_name(name))
        if self._paths is not None:
            took_s = self._saved_in(step)
            mark = self._mark(step, shards, name)
            checkpoints.write_mark(self._paths, mark, where, self._world_size, took_s)
            self._count_save(step, took_s)
            self._remove_old_marks(self._paths)
        self._own[name] = Checkpoint(step, where)
        if self._channel is not None:
            self._channel.checkpoint_step = step

    def checkpoint_failed(self, step: int, *, shards: int, name: str = "") -> None:
        """Take this rank's mark back, as other ranks could not save theirs."""
        self._own.pop(name, None)
        if self._paths is not None:
            checkpoints.remove_mark(self._paths, self._mark(step, shards, name))

    def _mark(self, step: int, shards: int, name: str) -> MarkName:
        return MarkName(step, self._round, self._rank, shards, self._branch, name)

    def _refuse_backwards(self, step: int, name: str) -> None:
        """Refuse a step before the last one that was saved.

        Raises:
            InputError: it is.
        """
        own = self._own.get(name)
        if own is not None and step < own.step:
            raise step_error(step, own.step)

    def _count_save(self, step: int, took_s: float | None) -> None:
        """Count the time of a save that the loop has waited for; beside one that went on it cost none."""
        waited = self._ticked is None or self._ticked[0] <= step
        if self._channel is not None and took_s is not None and waited:
            self._channel.add_saving(took_s)

    def _remove_old_marks(self, paths: RunPaths) -> None:
        """Take this rank's old marks away; now and then, since each time costs a listing."""
        if self._saves % _SAVES_PER_SWEEP == 0:
            checkpoints.remove_superseded(paths, self._rank)
        self._saves += 1

    def _saved_in(self, step: int) -> float | None:
        """Return how long a save has taken up to now [s], None if it is unknown.

        It began with the critical section around it, else when the loop was left for it, else with the
        step that is saved.
        """
        ticked = self._ticked[1] if self._ticked is not None and self._ticked[0] == step else None
        began = [at for at in (self._critical.since, self._stopping_at, ticked) if at is not None]
        return self._clock.monotonic() - began[0] if began else None

    def atomic_write(self, path: str | os.PathLike[str]) -> AtomicWrite:
        """Return a context manager that writes a file whole or not at all."""
        try:
            return AtomicWrite(path, self._round)
        except TypeError:
            raise InputError(f"the file to write must be a path, not {path!r}", where=_WHERE) from None

    def latest_checkpoint(self, name: str = "") -> Checkpoint | None:
        """Return this rank's last save, else the checkpoint of the round, else that of the run directory."""
        if name in self._own:
            return self._own[name]
        back_to = self._back_to.get(name)
        if self._resume_from is not None and not name and back_to is None:
            return checkpoints.from_env(self._resume_from)
        if self._paths is None:
            return None
        found = checkpoints.find(self._paths, checkpoints.check_name(name), most=back_to)
        if found.text and self._rank == 0:
            _warn(found.text)
        return found.checkpoint


def step_error(step: int, newest: int) -> InputError:
    """Return the error of steps that are counted backwards or begin anew."""
    return InputError(
        f"step {step} comes after step {newest}: steps are counted over the whole run, and never anew",
        where="the number of a step",
        fix="with epochs: step = epoch * len(loader) + i; "
        f"to go back on purpose, load that state and call worker.resumed({step}) first",
    )


def _whole(name: str, value: int, least: int) -> int:
    """Return a whole number of any type, numpy's and torch's among them."""
    try:
        number = value.__index__()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # RuntimeError: torch's
        raise InputError(f"{name} must be a whole number, not {value!r}", where=_WHERE) from None
    if number < least:
        raise InputError(f"{name} must be at least {least}, not {number}", where=_WHERE)
    return number


def _saved_at(path: str | os.PathLike[str], step: int) -> str:
    """Return the absolute path of a checkpoint, a file or a directory, that is there."""
    try:
        where = os.path.abspath(os.fspath(path))
    except TypeError:
        raise InputError(f"the checkpoint's path must be a path, not {path!r}", where=_WHERE) from None
    if checkpoints.is_absent(where):
        raise InputError(
            f"the checkpoint of step {step} is not there: {where} does not exist",
            where="checkpoint_saved",
            fix="save it first, and give the path where it was saved, below worker.run_dir()",
        )
    return where


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environ.get(name) or default)
    except ValueError:
        _warn(f"{name}={environ[name]!r} is not a number; using {default:g}")
        return default


def _warn(text: str) -> None:
    sys.stderr.write(f"hpc_elastic.worker: {text}\n")
    sys.stderr.flush()


def _arm_stacks(channel: Channel) -> None:
    """Have this process write the stacks of all its threads when its agent signals it, if that can be.

    The agent knows the first process that attaches, and another one only when that has ended: a script
    may prepare something before it trains.
    """
    if channel.pid not in (0, os.getpid()) and _is_there(channel.pid):
        return
    number = next((number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL), 0)
    if number:
        number = _register(number, channel.stacks_path)
    channel.attach(os.getpid(), number)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _register(number: int, path: str) -> int:
    """Return the signal, or 0 if there is no way to write the stacks."""
    try:
        import faulthandler  # noqa: PLC0415 - not part of every Python

        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)  # stays open as long as this process
        faulthandler.register(number, file=descriptor, all_threads=True)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return 0
    return number


class Block:
    """Tells the agent while it is entered; may be entered again once it was left.

    Args:
        channel: the way to the agent, or None.
        name: as the channel keeps it.
        timeout_ms: limit of the whole block [ms]; 0: none of its own.
        clock: measures the block, so that the agent can compare ranks; None: it does not.
    """

    __slots__ = ("_channel", "_clock", "_depth", "_entered", "_name", "_timeout_ms")

    def __init__(
        self, channel: Channel | None, name: bytes, timeout_ms: int, clock: Clock | None = None
    ) -> None:
        self._channel = channel
        self._name = name
        self._timeout_ms = timeout_ms
        self._depth = 0
        self._clock = clock
        self._entered = 0.0

    def __enter__(self) -> None:
        if self._channel is not None:
            self._depth = self._channel.enter(self._name, self._timeout_ms)
            if self._clock is not None:
                self._entered = self._clock.monotonic()

    def __exit__(self, *_error: object) -> None:
        if self._channel is not None:
            if self._clock is not None:
                self._channel.add_computed(self._clock.monotonic() - self._entered)
            self._channel.leave(self._depth)


class CriticalDepth:
    """How deep this process is in critical sections, over all its threads.

    Args:
        channel: the way to the agent, None without one.
        clock: tells since when.
    """

    def __init__(self, channel: Channel | None, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._lock = threading.Lock()
        self._depth = 0
        self.since: float | None = None  # when the outermost one was entered [s]

    def enter(self, name: bytes) -> None:
        """Go one deeper; only the outermost section is reported."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self.since = self._clock.monotonic()
                if self._channel is not None:
                    self._channel.enter_critical(name, self.since)

    def leave(self) -> None:
        """Come up again."""
        with self._lock:
            if self._depth == 0:
                raise RuntimeError("no critical section has been entered")
            self._depth -= 1
            if self._depth == 0:
                self.since = None
                if self._channel is not None:
                    self._channel.leave_critical()


class CriticalSection:
    """A block in which this worker is not ended; made by `hpc_elastic.worker.critical`.

    Sections may be nested, used again, and be in several threads at once.

    Args:
        name: for people, e.g. ``saving``.
        depth: of this process.

    Raises:
        InputError: the name is empty or no text.
    """

    def __init__(self, name: str, depth: CriticalDepth) -> None:
        text: object = name  # training code may give anything
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"the name of a critical section is {name!r}", where="critical", fix="name it")
        self._name = section_name(name)
        self._depth = depth

    def begin(self) -> None:
        """Enter the section; `end` must always follow."""
        self._depth.enter(self._name)

    def end(self) -> None:
        """Leave the section.

        Raises:
            RuntimeError: none has been entered.
        """
        self._depth.leave()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()


class AtomicWrite:
    """A context manager: temporary file in the same directory, fsync, rename, fsync directory.

    With several live writers of one target the last one wins, whole.

    Args:
        path: the file to create or replace.
        round_number: the round this process belongs to. Files that killed writers of earlier rounds
            left behind for the same target is removed on success.
    """

    def __init__(self, path: str | os.PathLike[str], round_number: int = 0) -> None:
        self._target = os.path.abspath(os.fspath(path))
        self._directory, name = os.path.split(self._target)
        self._prefix = f".{name}.unfinished-"
        self._round = round_number
        unique = f"{round_number}-{os.getpid()}-{os.urandom(4).hex()}"
        self._temporary = os.path.join(self._directory, self._prefix + unique)
        self._file: BinaryIO | None = None

    def __enter__(self) -> BinaryIO:
        with files.named(self._target):
            self._file = files.retry(lambda: open(self._temporary, "xb"))  # noqa: SIM115 - closed in __exit__
        return self._file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK and error.filename is None:
            error.filename = self._target  # a write names no file
        try:
            if kind is None:
                with files.named(self._target):
                    file.flush()
                    os.fsync(file.fileno())
            _close(file)  # all is safe by now, or given up
            if kind is None:
                files.move(self._temporary, self._target)
        except BaseException:
            _close(file)
            _remove(self._temporary)
            raise
        if kind is None:
            self._remove_leftovers()
        else:
            _remove(self._temporary)

    def _remove_leftovers(self) -> None:
        if self._round == 0:
            return
        try:
            names = os.listdir(self._directory)
        except OSError:
            return  # the next success gets them
        for name in names:
            if name.startswith(self._prefix):
                number = whole_number(name[len(self._prefix) :].split("-")[0])
                if number is not None and number < self._round:
                    _remove(os.path.join(self._directory, name))


def _close(file: BinaryIO) -> None:
    try:
        file.close()
    except OSError:
        pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # a leftover of this round; the next round removes it
