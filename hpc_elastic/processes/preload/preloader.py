"""The agent's side of the preloading process: starts it, asks it for workers, replaces it.

The modules that a run's workers import are noted, kept in the run directory, and preloaded in another round.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from hpc_elastic import typed_json
from hpc_elastic.clock import Clock
from hpc_elastic.errors import DamagedError, StoreError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import read_stat, send_kill
from hpc_elastic.processes.preload.notes import NoteBook
from hpc_elastic.processes.preload.rules import (
    Imported,
    PythonCommand,
    imported_by_most,
    is_fit_to_learn,
    read_command,
)
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, WorkerStartError, open_stdio, spawn
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.text import count_text
from hpc_elastic.typed_json import Prose

_CODE: Final = (
    "import os, sys; path = sys.path[:]; had = frozenset(sys.modules); "
    "at = path.index(os.path.dirname(os.__file__)); sys.path[:] = [*path[at:at + 2], {home!a}]; "
    "from hpc_elastic.processes.preload.server import Begin, main; "
    "main(Begin(path, had, {link}, {learned!a}, {path!a}), {modules!a}, {words!a})"
)
_ANSWER_S: Final = 2.0  # for all workers of a round; a longer wait would cost a heartbeat
_END_MS: Final = 100
_SLOW_S: Final = 1.0  # the agent reports a longer look at all files, once
_MOST_DEATHS: Final = 3
_MESSAGE: Final = 1 << 18  # bytes; more than the kernel lets a process send at once
_MIB: Final = 1024
_MOST_FDS: Final = 200  # the kernel passes 253 at once
_MOST_SHOWN: Final = 6  # packages
_FORMAT: Final = 1
_MOST_MODULES: Final = 500
_MOST_BYTES: Final = 1 << 18
_QUIET_S: Final = 10.0  # workers that import nothing for so long have begun their work
_LOOK_S: Final = 1.0
_READ_S: Final = 20.0  # between two looks of a spare at the file of the run
_MOST_AT_WORK: Final = 3  # so often modules are imported anew while a round works
_MOST_BLAMED: Final = 8  # of the learned modules; each costs another start of the process


class PreloadPhase(Enum):
    """How far the process is."""

    IMPORTING = "importing"
    READY = "ready"
    OFF = "off"


class Preloaded(NamedTuple):
    """The modules to be preloaded, and the workers that they are for.

    Args:
        modules: to be imported, in this order.
        argv: the command of the workers.
        env: the variables that all workers have in common.
        cwd: their working directory.
        scratch: a private directory for the output of the imports.
        lessons: keeps the modules that workers import; None: nothing is learned.
        path: the search path of workers that run a function; empty: as Python makes it.
    """

    modules: tuple[str, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    scratch: str
    lessons: LessonFile | None = None
    path: tuple[str, ...] = ()


class Preloader:
    """One process that has imported modules, and is forked for each worker.

    No call waits for longer than two seconds in a round. After any failure the worker is started as
    without preloading. A process that lives is not given up for being slow, only if a signal has stopped it.
    """

    def __init__(self, wanted: Preloaded, clock: Clock, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._clock = clock
        self._say = say
        self._modules = list(wanted.modules)
        self._command = read_command(wanted.argv)
        self._process: ChildProcess | None = None
        self._link: socket.socket | None = None
        self._importing = ""
        self._has_learned = False  # the process has learned modules
        self._given: tuple[Imported, ...] = ()  # the learned modules that it was to import
        self._answers: dict[int, int] = {}  # pid by the number of the request
        self._asked = 0
        self._answered = 0  # requests of this round
        self._deaths = 0
        self.blamed: dict[str, str] = {}
        """The modules that cannot be preloaded, and why."""
        self._learned = Learning(wanted.lessons, clock)
        self._round = ""
        self._answer_until = 0.0
        self._watcher = 0  # the process beside it that looks for changes
        self._ending: list[ChildProcess] = []  # killed, and not reaped yet
        self._is_slow_told = False
        self.phase = PreloadPhase.OFF
        self.pids: set[int] = set()
        """The processes that belong to no worker; always the same set."""

    def start(self) -> None:
        """Start the process; returns at once. Where the workers' command is none of Python, only tell so."""
        if self._command is None:
            self._say(
                f"nothing is preloaded: {os.path.basename(self._wanted.argv[0])} is not started as "
                "python SCRIPT, python -m MODULE or python -c CODE"
            )
            return
        if self._modules or self._learned.is_on:
            self._start(self._command)

    def _start(self, command: PythonCommand) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link = theirs.fileno()
        learned = self._write_learned()
        code = _CODE.format(
            home=_home(),
            link=link,
            learned=learned,
            path=self._wanted.path,
            modules=self._modules,
            words=command.words,
        )
        out, err = (os.path.join(self._wanted.scratch, f"preload.{name}") for name in ("out", "err"))
        for path in (out, err):
            with open(path, "wb"):
                pass
        argv = (*command.interpreter, "-c", code)
        spec = ProcessSpec(argv, self._wanted.env, out, err, self._wanted.cwd)
        try:
            process = spawn(spec, pass_fds=(link,))
        except WorkerStartError as error:
            ours.close()
            self._say(f"nothing is preloaded: {error}")
            return
        finally:
            theirs.close()
        self._process, self._link, self.phase = process, ours, PreloadPhase.IMPORTING
        self.pids.add(process.pid)

    def _write_learned(self) -> str:
        """Return a file with the modules that have been learned; empty if there is none."""
        modules = self._given = self._learned.lessons.modules
        if not modules:
            return ""
        path = os.path.join(self._wanted.scratch, "preload.learned")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(modules, file)
        return path

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when `look` has something to do."""
        return [] if self._link is None else [self._link.fileno()]

    def look(self) -> None:
        """Take note of messages of the process, and of its end; never blocks."""
        self._reap()
        while self._link is not None and _is_readable(self._link, 0.0):
            self._take()
        if self.phase is PreloadPhase.READY and self._learned.look(self._given):
            self._restart()

    def end_round(self, *, goes_on: bool) -> None:
        """Take note that the workers of a round have ended.

        Args:
            goes_on: others follow, for which it pays to preload the modules of these.
        """
        self._learned.end_round()
        if goes_on:
            self._import_learned()

    def stand_by(self) -> None:
        """Take note of messages and, from time to time, of lessons, on a node that waits for a round."""
        self.look()
        if self._learned.is_due():
            self.look_for_lessons()

    def look_for_lessons(self) -> None:
        """Import the modules of other nodes' workers, if none of this node have run yet."""
        self._learned.read_again()
        self._import_learned()

    def _import_learned(self) -> None:
        is_bare = self.phase is PreloadPhase.READY and not self._has_learned
        if is_bare and self._learned.lessons.modules != self._given:
            self._restart()

    def is_importing(self) -> bool:
        """Tell whether it pays to wait for the imports; a process that a signal has stopped is given up."""
        self.look()
        if self.phase is PreloadPhase.IMPORTING:
            self._replace_stopped()
        return self.phase is PreloadPhase.IMPORTING

    def _replace_stopped(self) -> None:
        """Give the process up if a signal has stopped it: it would go on at some time, or never."""
        stat = None if self._process is None else read_stat(self._process.pid)
        if stat is not None and stat.state == "T":  # a debugger that traces it halts it for moments, "t"
            self._replace("was stopped")

    def begin_round(self, number: int, *, writes: bool = True) -> None:
        """Take note that workers of another round are going to be started.

        Args:
            number: of the round.
            writes: this node keeps the lessons for later starts of the run.
        """
        self._learned.begin_round(writes=writes)
        self._round = str(number)
        self._answer_until = self._clock.monotonic() + _ANSWER_S
        self._answered = 0

    def fork(self, spec: ProcessSpec, pass_fds: tuple[int, ...] = ()) -> ChildProcess | None:
        """Have a worker forked, which becomes a child of this process.

        Args:
            spec: the worker.
            pass_fds: further descriptors that it has under the same numbers.

        Returns:
            The worker; None where it must be started as without preloading.

        Raises:
            WorkerStartError: one of its log files cannot be opened.
        """
        self.look()
        command = read_command(spec.argv)
        is_same = command is not None and self._command is not None
        if self.phase is not PreloadPhase.READY or not is_same or self._link is None or command is None:
            return None
        if self._answered and self._clock.monotonic() > self._answer_until:
            return None  # the others of this round have taken all the time
        if command.interpreter != (self._command.interpreter if self._command else ()):
            return None
        if len(pass_fds) > _MOST_FDS:
            return None
        stdio = open_stdio(spec)
        notes = self._learned.open_book()
        started, starting = os.pipe()
        waiting, go = os.pipe()
        fds = (*stdio, starting, waiting, *pass_fds, *notes)
        try:
            pid = self._ask(self._link, self._request(spec, command, pass_fds), fds)
            if pid is None:
                os.close(started)
                return None
            os.write(go, b"g")  # the worker waits for it: one that is given up never runs
            return ChildProcess(spec, pid, started)
        finally:
            for fd in (*stdio, starting, waiting, go):
                os.close(fd)

    def _request(self, spec: ProcessSpec, command: PythonCommand, pass_fds: tuple[int, ...]) -> bytes:
        self._asked += 1
        facts = {
            "number": self._asked,
            "round": self._round,
            "command": command,
            "env": dict(spec.env),
            "cwd": spec.cwd or os.getcwd(),
            "ignore_signals": spec.ignore_signals,
            "cpus": spec.cpus,
            "agent": os.getpid(),
            "fds": pass_fds,
        }
        return json.dumps(facts).encode()

    def _ask(self, link: socket.socket, request: bytes, fds: tuple[int, ...]) -> int | None:
        """Send a request and return the pid of the worker, None if there is none.

        A process that is slow stays; its late answer counts no more.
        """
        payload = _in_memory(request)
        try:
            socket.send_fds(link, [b"f"], [payload, *fds], socket.MSG_DONTWAIT)
        except BlockingIOError:  # it is slow, and has not taken the earlier ones yet
            return None
        except OSError:
            self._replace("takes no more requests")
            return None
        finally:
            os.close(payload)
        self._answers.clear()
        while self._asked not in self._answers and self._link is link:
            if not _is_readable(link, max(0.0, self._answer_until - self._clock.monotonic())):
                if not self._answered:
                    self._replace_stopped()
                return None
            self._take()
        self._answered += 1
        return self._answers.get(self._asked) or None

    def _take(self) -> None:
        """Take one message."""
        try:
            data = self._link.recv(_MESSAGE) if self._link is not None else b""
        except OSError:
            data = b""
        self._heed(json.loads(data) if data else {"kind": ""})

    def _heed(self, told: dict[str, Any]) -> None:
        match told["kind"]:
            case "importing":
                self._importing = str(told["name"])
            case "ready":
                self._become_ready(told)
            case "forked":
                self._answers[int(told["number"])] = int(told["pid"])
            case "looked":
                self._tell_slow(int(told["files"]), float(told["seconds"]))
            case "changed":
                self._say(f"modules are preloaded anew: {told['path']} has changed")
                self._restart()
            case "blame":
                self._drop(told["modules"])
            case "off":
                self._say(f"nothing is preloaded: {told['why']}")
                self._forget()
            case _:
                self._replace(self._how_ended())

    def _become_ready(self, told: Mapping[str, Any]) -> None:
        self.phase, self._importing = PreloadPhase.READY, ""
        self._watcher = int(told["watcher"])
        self.pids.add(self._watcher)
        learned = [str(name) for name in told["learned"]]
        self._has_learned = bool(learned)
        names = _names_text([*self._modules, *learned])
        if not names:
            self._say("nothing is preloaded yet: the imports of this round's workers are learned")
            return
        memory = f", {told['pss_kb'] // _MIB} MiB" if told["pss_kb"] else ""
        self._say(f"preloaded {names} ({told['loaded']} modules, {told['seconds']:.1f} s{memory})")

    def _tell_slow(self, files: int, seconds: float) -> None:
        if seconds <= _SLOW_S or self._is_slow_told:
            return
        self._is_slow_told = True
        self._say(
            f"workers have waited {seconds:.1f} s for a look at {count_text(files, 'file')} of preloaded "
            "modules, whether one has changed: the file system is slow"
        )

    def _drop(self, blamed: Mapping[str, str]) -> None:
        """Go on without the modules that are to blame."""
        no = "no longer" if self.phase is PreloadPhase.READY else "not"
        for name, why in blamed.items():
            self._say(f"{name} is {no} preloaded: it {why}; workers that need it import it themselves")
            self.blamed[name] = why
            if name in self._modules:
                self._modules.remove(name)
        if self._learned.blame(blamed, for_good=True):
            self._say("too many modules that workers import cannot be preloaded: no more are learned")
        self._restart()

    def _replace(self, why: str) -> None:
        """Start another process in place of one that is gone or does not answer; at most three times."""
        self._deaths += 1
        at = self._importing
        if at and (at in self._modules or self._learned.has(at)):
            self._say(f"{at} is not preloaded: the process {why} while it imported it")
            self.blamed[at] = f"is being imported as its process {why}"
            if at in self._modules:
                self._modules.remove(at)
            self._learned.blame({at: self.blamed[at]}, for_good=False)
        else:
            again = "another is started" if self._deaths < _MOST_DEATHS else "nothing is preloaded any more"
            self._say(f"the process that has preloaded modules {why}; {again}")
        if self._deaths < _MOST_DEATHS:
            self._restart()
        else:
            self._forget()

    def _how_ended(self) -> str:
        if self._process is None:
            return "is gone"
        self._process.reap() if _has_ended(self._process) else None
        code = self._process.exit_code
        if code is None:
            return "has closed its link"
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def _restart(self) -> None:
        self._forget()
        self.start()

    def _forget(self) -> None:
        """End the process in any state; one that waits in the kernel for a file server is reaped later."""
        if self._link is not None:
            self._link.close()
        self._link, self.phase, self._importing = None, PreloadPhase.OFF, ""
        if self._watcher:
            send_kill(self._watcher)
        if self._process is not None:
            send_kill(self._process.pid)
            self._ending.append(self._process)
            _has_ended(self._process)
            if self._watcher:  # an orphan now, which this process adopts
                self._ending.append(ChildProcess(self._process.spec, self._watcher, -1))
                _has_ended(self._ending[-1])
        self._process, self._watcher = None, 0
        self._reap()

    def _reap(self) -> None:
        """Give the pids of ended processes back."""
        for process in [one for one in self._ending if one.poll() is not None]:
            process.reap()
            self.pids.discard(process.pid)
            self._ending.remove(process)

    def close(self) -> None:
        """End the process for good."""
        self._forget()
        self._learned.close()


def _has_ended(process: ChildProcess) -> bool:
    """Wait a moment for the end of a process that is about to end; tell whether it has."""
    poller = select.poll()
    if process.pidfd is not None:  # the link is closed a moment before the end
        poller.register(process.pidfd, select.POLLIN)
        poller.poll(_END_MS)
    return process.poll() is not None


def _names_text(names: list[str]) -> str:
    """Return the packages of some modules, in a line."""
    if len(names) <= _MOST_SHOWN:
        return ", ".join(names)
    packages = list(dict.fromkeys(name.partition(".")[0] for name in names))
    shown = packages[:_MOST_SHOWN]
    more = len(packages) - len(shown)
    rest = f" and {count_text(more, 'more package')}" if more else ""
    return f"{len(names)} modules of {', '.join(shown)}{rest}"


def _home() -> str:
    """Return the directory that this package is in."""
    return os.path.abspath(__file__).removesuffix("/hpc_elastic/processes/preload/preloader.py")


def _is_readable(link: socket.socket, wait_s: float) -> bool:
    poller = select.poll()
    poller.register(link, select.POLLIN)
    return bool(poller.poll(wait_s * 1000))


def _in_memory(data: bytes) -> int:
    """Return a descriptor of a file in memory with this content."""
    fd = os.memfd_create("hpc_elastic", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    return fd


class Lessons(NamedTuple):
    """The modules that are preloaded because workers have imported them.

    Args:
        format: of the record.
        modules: in the order of their imports.
        left_out: those that a copy of a process cannot have, and why.
    """

    format: int = _FORMAT
    modules: tuple[Imported, ...] = ()
    left_out: Mapping[str, Prose] = {}

    def with_modules(self, found: Iterable[Imported]) -> Lessons:
        """Return the lessons with more modules; one that is known, or left out, counts no more."""
        known = {module.name for module in self.modules}
        new = [one for one in found if one.name not in known and not self._is_left_out(one.name)]
        return self._replace(modules=(*self.modules, *new)[:_MOST_MODULES])

    def _is_left_out(self, name: str) -> bool:
        return any(is_below(name, one) for one in self.left_out)

    def without(self, blamed: Mapping[str, str], *, for_good: bool) -> Lessons:
        """Return the lessons without some modules and all that is below them.

        Args:
            blamed: their names, and why.
            for_good: they are never learned again.
        """
        kept = [one for one in self.modules if not any(is_below(one.name, name) for name in blamed)]
        left_out = {**self.left_out, **blamed} if for_good else self.left_out
        return self._replace(modules=tuple(kept), left_out=left_out)


def is_below(name: str, package: str) -> bool:
    """Tell whether a module is this one or below it."""
    return name == package or name.startswith(f"{package}.")


class LessonFile:
    """The lessons of a run in its run directory, written by one node at a time."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> Lessons:
        """Return the lessons; none where there is no file of this user, or a damaged one."""
        try:
            found = typed_json.read(Lessons, read_plain(self._path, limit=_MOST_BYTES))
        except (OSError, StoreError, DamagedError):
            return Lessons()
        if found.format != _FORMAT:
            return Lessons()
        fit = [one for one in found.modules if is_fit_to_learn(one)]
        return found._replace(modules=tuple(fit[:_MOST_MODULES]))

    def write(self, lessons: Lessons) -> None:
        """Write the lessons, if that is possible; without them a later start learns them again."""
        data = {
            "format": _FORMAT,
            "modules": [list(one) for one in lessons.modules],
            "left_out": dict(lessons.left_out),
        }
        with suppress(OSError):
            files.replace(self._path, json.dumps(data).encode(), durable=False)


class Learning:
    """The modules that the workers of this node import, and the lessons from them.

    Args:
        file: where it is kept; None: nothing is learned.
        clock: of this process.
    """

    def __init__(self, file: LessonFile | None, clock: Clock) -> None:
        self._file = file
        self._writes = False
        self._not_here: set[str] = set()  # left out as long as this process lives
        self._clock = clock
        self.lessons = self._kept = Lessons() if file is None else file.read()
        self._books: list[NoteBook] = []
        self._begun: list[int] = []
        self._since = 0.0  # when the newest import began
        self._look_at = 0.0
        self._read_at = clock.monotonic()
        self._times = 0  # in this round
        self._blamed = 0
        self.is_on = file is not None

    def has(self, name: str) -> bool:
        """Tell whether a module, or one below it, has been learned."""
        return any(is_below(one.name, name) for one in self.lessons.modules)

    def is_due(self) -> bool:
        """Tell whether lessons of other nodes have not been read for long."""
        return self._clock.monotonic() >= self._read_at + _READ_S

    def read_again(self) -> None:
        """Take over the lessons of other nodes, if this one has learned nothing."""
        self._read_at = self._clock.monotonic()
        if self._file is not None and self.is_on and not self.lessons.modules:
            self._kept = self._file.read()
            self.lessons = self._known_here(self._kept)

    def _known_here(self, lessons: Lessons) -> Lessons:
        return lessons.without(dict.fromkeys(self._not_here, ""), for_good=False)

    def begin_round(self, *, writes: bool) -> None:
        """Take note that workers of another round are going to be started."""
        self._close_books()
        self._times = 0
        self._writes = writes
        self._write()

    def open_book(self) -> tuple[int, ...]:
        """Return the descriptor of the memory for another worker's notes; none if nothing is learned."""
        if not self.is_on:
            return ()
        book = NoteBook()
        self._books.append(book)
        return (book.fd,)

    def look(self, given: Collection[Imported]) -> bool:
        """Tell whether the workers have begun their work, and have imported more than is preloaded.

        Args:
            given: the learned modules that are preloaded.
        """
        now = self._clock.monotonic()
        if not self._books or now < self._look_at or self._times >= _MOST_AT_WORK:
            return False
        self._look_at = now + _LOOK_S
        begun = [book.begun for book in self._books]
        if begun != self._begun:
            self._begun, self._since = begun, now
        if now - self._since < _QUIET_S or not any(begun):
            return False
        self._learn()
        is_more = tuple(given) != self.lessons.modules
        self._times += is_more
        return is_more

    def end_round(self) -> None:
        """Learn from workers that have ended."""
        self._learn()
        self._close_books()

    def _learn(self) -> None:
        """Learn from the notes, and keep it."""
        if self.is_on:
            books = [book.imported() for book in self._books if book.used]
            self.lessons = self._known_here(self.lessons.with_modules(imported_by_most(books)))
            self._write()

    def _write(self) -> None:
        if self._writes and self._file is not None and self.lessons != self._kept:
            self._file.write(self.lessons)
            self._kept = self.lessons

    def blame(self, blamed: Mapping[str, str], *, for_good: bool) -> bool:
        """Leave modules out; tell whether nothing is learned any more, for too many of them.

        Args:
            blamed: their names, and why.
            for_good: later starts of the run leave them out, too.
        """
        mine = {name: why for name, why in blamed.items() if self.has(name)}
        if not mine:
            return False
        self._not_here.update(mine)
        self.lessons = self.lessons.without(mine, for_good=for_good)
        self._write()
        self._blamed += len(mine)
        if self._blamed <= _MOST_BLAMED or not self.is_on:
            return False
        self.is_on, self.lessons = False, Lessons(left_out=self.lessons.left_out)
        return True

    def close(self) -> None:
        """Give all memory back."""
        self._close_books()

    def _close_books(self) -> None:
        for book in self._books:
            book.close()
        self._books, self._begun = [], []
