"""The process that imports modules once and forks each worker. Runs in the workers' interpreter.

While modules are imported, some functions of Python are replaced by ones that take notes and do the same;
afterwards they are put back. The notes are the traces that an import leaves: functions for the interpreter's
end, temporary files, values made once. For this, only the standard library is there.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, ItemsView, Mapping, ValuesView
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any, Final

from hpc_elastic.clock import SystemClock
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.preload import changes, notes, randomness, rules, warm_worker
from hpc_elastic.processes.preload.rules import EnvRead, Imported, PythonCommand, Snapshot, Traces
from hpc_elastic.processes.preload.warm_worker import Fds, WarmStart
from hpc_elastic.processes.process import TELLING

_MOST_PRINTED: Final = 1 << 20
_MOST_OF_ERROR: Final = 500  # characters, of each end of its text
_FDS: Final = 253  # the most that the kernel passes at once
_OWN_FDS: Final = 5  # of a worker: three streams, two pipes
_OF_ALL: Final = frozenset(  # modules that look at all variables
    (ItemsView.__iter__.__code__, ValuesView.__iter__.__code__, type(os.environ).copy.__code__)
)
_OURS: Final = "hpc_elastic"
_SETS_OF_SIGNALS: Final = ("SigBlk", "SigIgn", "SigCgt")
_OF_THREADS: Final = 0b11 << 31  # two signals that the C library handles where there have been threads
_OF_PYTHON: Final = ("random", "tempfile")  # loaded first, so that their use is seen
_DRAW_FOR_OTHERS: Final = frozenset(("os", "random", "secrets", "uuid"))
_NO_DRAWS: Final = frozenset(("seed", "getstate", "setstate"))
_IMPORTING: Final = "importlib."
_STREAMS: Final = ("__stdin__", "__stdout__", "__stderr__")


class Begin(NamedTuple):
    """The state of the interpreter at its start.

    Args:
        path: the search path of a plain start.
        had: the modules that a plain start has loaded.
        link: descriptor of the socket to the agent.
        learned: a file with the modules that other workers have imported; empty if there is none.
        given_path: the search path of workers that run a function; empty: as Python makes it.
    """

    path: list[str]
    had: Collection[str]
    link: int
    learned: str = ""
    given_path: tuple[str, ...] = ()


class _EndError(Exception):
    """This process cannot serve any longer, and has sent the reason."""


def main(begin: Begin, modules: list[str], words: tuple[str, ...]) -> None:
    """Import modules and fork workers; returns in each of them, when its program is over.

    Args:
        begin: the state of the interpreter.
        modules: to be imported, in this order.
        words: the command of the workers.
    """
    command = rules.read_command(words)
    if command is None:
        raise ValueError(f"no command of Python: {words!r}")
    link = socket.socket(fileno=begin.link)
    learned = _read_learned(begin.learned)
    server = _Server(link, command)
    for sig in TELLING:
        signal.signal(sig, signal.SIG_IGN)
    own = set(sys.modules) - set(begin.had)
    has_place = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    path = [warm_worker.first_place(command), *begin.path[1:]] if has_place else begin.path
    sys.path[:] = begin.given_path or path
    try:
        server.refuse_shadows(own)
        for name in [name for name in own if name.partition(".")[0] == _OURS]:
            del sys.modules[name]  # the user's search path may have another version
        server.load(modules, learned)
        worker = server.serve()
    except _EndError:
        os._exit(0)
    warm_worker.run(worker)


class _Server:
    """The imports, and the forks."""

    def __init__(self, link: socket.socket, command: PythonCommand) -> None:
        self._link = link
        self._command = command
        self._env_before = dict(os.environ)
        self._env_after = self._env_before
        self._reads: dict[str, EnvRead] = {}
        self._reads_of_this: set[str] = set()  # import
        self._current = ""
        self._watcher: changes.Watcher | None = None
        self._printed = (b"", b"")
        self._watch = ImportWatch()
        self._all_at_once = bool(getattr(sys.__stderr__, "write_through", False))

    def _tell(self, kind: str, **facts: Any) -> None:
        self._link.send(json.dumps({"kind": kind, **facts}).encode())

    def _end(self, kind: str, **facts: Any) -> None:
        self._tell(kind, **facts)
        raise _EndError

    def refuse_shadows(self, own: Collection[str]) -> None:
        """End if the user has a module that is found before one that this process has loaded for itself."""
        library = os.path.dirname(os.__file__)
        at = sys.path.index(library) if library in sys.path else 0
        for name in sorted(own):
            if "." in name or name == _OURS:
                continue
            spec = PathFinder.find_spec(name, [place or os.getcwd() for place in sys.path[:at]])
            if spec is not None and spec.origin is not None:
                self._end("off", why=f"{spec.origin} takes the place of Python's own module {name}")

    def load(self, modules: list[str], learned: list[Imported]) -> None:
        """Import modules; ends if one of them has an effect that no copy of this process may have.

        Args:
            modules: those that the user has named.
            learned: those that workers have imported.
        """
        began = SystemClock().monotonic()
        thresholds = gc.get_threshold()
        gc.set_threshold(0)  # the objects of imports stay; a look through them takes long, again and again
        warm_worker.prepare_main(self._command)
        stop_noting = self._note_reads()
        if modules or learned:
            self._watch.begin()
        for name in rules.with_needed(modules):
            why = self._import(name)
            if why:
                self._end("blame", modules={name: why})
        taken = self._load_learned(learned)
        stop_noting()
        self._watch.end()
        self._env_after = dict(os.environ)
        self._printed = (_printed(1), _printed(2))
        gc.collect()
        gc.freeze()
        if not gc.get_threshold()[0]:  # no module has set it
            gc.set_threshold(*thresholds)
        pss_kb = _pss_kb()  # before another process shares the memory
        self._watcher = changes.Watcher(self._link)
        found = self._watcher.finding()
        if found is None:
            raise _EndError
        took, loaded = SystemClock().monotonic() - began, found.files
        facts = {"pss_kb": pss_kb, "loaded": loaded, "learned": taken, "watcher": self._watcher.pid}
        self._tell("ready", seconds=took, **facts)

    def _import(self, name: str) -> str:
        """Import a module; return why it cannot be imported, empty if it can."""
        self._current = name
        self._reads_of_this.clear()
        self._tell("importing", name=name)
        self._watch.begin_import()
        before, drawn = _snapshot(), randomness.generators()
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - also SystemExit
            return f"cannot be imported: {_line_of(error)}"
        _end_threads_that_know_of_forks()
        left, now = self._watch.traces(), randomness.generators()  # before anything else draws numbers
        why = rules.unsafe(before, _snapshot()) or randomness.touched(drawn, now) or rules.unfit(left)
        if why:
            self._watch.remove_temporary()
            self._end("blame", modules={name: why})
        return ""

    def _load_learned(self, learned: list[Imported]) -> list[str]:
        """Import modules that workers have imported; return those that are there now."""
        taken, gone = [], {}
        for module in learned:
            name = module.name
            if name not in sys.modules:
                set_before = rules.set_by_program(module.changed, self._env_before, os.environ)
                self._refuse_read(module, rules.read_at_import(set_before, ()))
                why = _why_elsewhere(module) or self._import(name)
                if why:
                    gone[name] = why
                    continue
                self._refuse_read(module, rules.read_at_import(set_before, self._reads_of_this))
            taken.append(name)
        if gone:
            self._end("blame", modules=gone)
        return taken

    def _refuse_read(self, module: Imported, variable: str) -> None:
        """End if a module looks for a variable that the program sets before it imports it."""
        if variable:
            package = module.name.partition(".")[0]
            self._end("blame", modules={package: f"reads {variable}, which the program sets before"})

    def _note_reads(self) -> Callable[[], None]:
        """Take note of the variables that imports look for, until the returned function is called.

        A look through the whole environment, as tqdm's for names that begin with TQDM_, asks for none.
        """
        environ: Any = os.environ
        encode = environ.encodekey

        def note(name: Any) -> Any:
            is_of_all = sys._getframe(2).f_code in _OF_ALL  # above that of __getitem__
            if isinstance(name, str) and not is_of_all:
                self._reads_of_this.add(name)
                if name not in self._reads:
                    self._reads[name] = EnvRead(_reader(), self._current)
            return encode(name)

        def stop() -> None:
            environ.encodekey = encode

        environ.encodekey = note
        return stop

    def serve(self) -> PythonCommand:
        """Fork on demand; returns, in each worker, the command that it is to run."""
        seen_round = ""
        if self._watcher is None:
            raise RuntimeError("nothing has been loaded")
        while True:
            if self._await_request(self._watcher):
                self._take_finding(self._watcher)
                continue
            data, fds = _receive(self._link)
            if not data:
                raise _EndError
            request = json.loads(data)
            if request["round"] != seen_round:
                self._watcher.begin()
                seen_round = request["round"]
            command = self._fork(request, fds, self._watcher)
            if command is not None:
                return command

    def _await_request(self, watcher: changes.Watcher) -> bool:
        """Wait for a request; tell whether there is a finding first, and no request."""
        poller = select.poll()
        for fd in (self._link.fileno(), watcher.fileno()):
            poller.register(fd, select.POLLIN)
        return self._link.fileno() not in dict(poller.poll())

    def _take_finding(self, watcher: changes.Watcher) -> None:
        """End if the file of a module has changed since it was imported; tell how long a look takes."""
        found = watcher.finding()
        if found is None:
            raise _EndError
        if found.changed:
            self._end("changed", path=found.changed)
        self._tell("looked", files=found.files, seconds=found.seconds)

    def _fork(self, request: Any, fds: list[int], watcher: changes.Watcher) -> PythonCommand | None:
        python, flags, kind, program, args = request["command"]
        command = PythonCommand(python, tuple(flags), kind, program, tuple(args))
        differ = rules.differing(self._env_before, request["env"])
        refused = rules.read_by_interpreter(differ)
        if refused:
            self._end("off", why=f"{refused} is not the same for all workers")
        stale = rules.stale_reads(differ, self._reads)
        if stale:
            self._end("blame", modules=stale)
        start = WarmStart(
            command,
            rules.with_changes(request["env"], self._env_before, self._env_after),
            request["cwd"],
            tuple(request["ignore_signals"]),
            tuple(request["cpus"]),
            request["agent"],
            self._printed,
            self._watch.reconfigured,
            self._watch.generators,
            self._all_at_once,
            request["env"],
        )
        more = fds[_OWN_FDS:]
        passed: dict[int, int] = dict(zip(request["fds"], more, strict=False))
        if passed and not self._are_free(passed, fds):
            self._tell("forked", pid=0, number=request["number"])
            for fd in fds:
                os.close(fd)
            return None
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        pid = _fork_twice(self._link)
        if pid == 0:
            given = Fds((fds[0], fds[1], fds[2]), fds[3], fds[4], watcher.keep_verdict(), passed)
            warm_worker.become(start, given)
            for fd in more[len(passed) :]:
                notes.begin(fd)
            warm_worker.place(passed)
            return command
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in fds:
            os.close(fd)
        self._tell("forked", pid=pid, number=request["number"])
        return None

    def _are_free(self, numbers: Collection[int], given: Collection[int]) -> bool:
        """Tell whether a worker has no other use for some descriptors."""
        ours = {*given, self._link.fileno()}  # a worker closes or moves them
        return not any(_is_open(number) for number in numbers if number not in ours)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _fork_twice(link: socket.socket) -> int:
    """Fork a process whose parent becomes the agent, which adopts orphans; return its pid, 0 in it."""
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        second = os.fork()
        if second:
            os.write(writing, second.to_bytes(8, "little"))
            os._exit(0)
        os.close(reading)
        os.close(writing)
        link.close()
        return 0
    os.close(writing)
    pid = int.from_bytes(os.read(reading, 8), "little")
    os.close(reading)
    os.waitpid(first, 0)  # from now on the agent is the parent
    return pid


def _read_learned(path: str) -> list[Imported]:
    if not path:
        return []
    with open(path, encoding="utf-8") as file:
        return [Imported(name, site, tuple(changed)) for name, site, changed in json.load(file)]


def _line_of(error: BaseException) -> str:
    """Return an error as one line; of a long one, such as the output of a compiler, the begin and the end."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - the user's
        words = "(no text)"
    if len(words) > 2 * _MOST_OF_ERROR:
        words = f"{words[:_MOST_OF_ERROR]} ... {words[-_MOST_OF_ERROR:]}"
    return f"{type(error).__name__}: {words}"


def _why_elsewhere(module: Imported) -> str:
    """Return why a module is not the one that workers have imported; empty if it is."""
    parent = module.name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return f"cannot be imported: {parent} is not"
    try:
        spec = importlib.util.find_spec(module.name)
    except Exception as error:  # noqa: BLE001 - a finder of the user's
        return f"cannot be found: {_line_of(error)}"
    if spec is None:
        return "cannot be found"
    site = notes.site_of_spec(spec)
    return "" if site == module.site else f"is not in {module.site}, where workers found it"


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and the descriptors of its worker; nothing if the agent has closed the link."""
    fds = array.array("i")
    byte, ancillary, _, _ = link.recvmsg(1, socket.CMSG_LEN(_FDS * fds.itemsize))
    if not byte:
        return b"", []
    for _level, _kind, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    payload, *rest = fds
    with os.fdopen(payload, "rb") as file:
        file.seek(0)
        return file.read(), rest


def _end_threads_that_know_of_forks() -> None:
    """Fork once: libraries that stop their threads before a fork, such as OpenBLAS, have then done so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _snapshot() -> Snapshot:
    files = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            files[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own descriptor
            continue
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        pairs = (line.partition(":") for line in file)
        status = {name: value.strip() for name, _, value in pairs}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        shared = rules.shared_memory(file.read())
    for name in _SETS_OF_SIGNALS:
        status[name] = f"{int(status[name], 16) & ~_OF_THREADS:x}"
    return Snapshot(len(os.listdir("/proc/self/task")), files, os.getcwd(), status, _has_child(), shared)


def _has_child() -> bool:
    """Tell whether this process has started another one, and has not taken note of its end."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _reader() -> str:
    """Return the name of the module that looks for a variable."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "collections.abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?"))


def _printed(fd: int) -> bytes:
    """Return the output of the imports on a descriptor, which is a file for that."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        return file.read(_MOST_PRINTED)


def _pss_kb() -> int:
    """Return the share of memory that is this process's [KiB]; 0 if the kernel does not tell."""
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class Replaced:
    """Attributes that are replaced for a while."""

    def __init__(self) -> None:
        self._all: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, made: Any) -> None:
        """Give an attribute another value."""
        self._all.append((owner, name, vars(owner)[name], made))
        setattr(owner, name, made)

    def put_back(self) -> None:
        """Give all their own values again, also where a module has taken one by its name."""
        own = {id(made): value for _, _, value, made in self._all}
        for owner, name, value, made in self._all:
            if vars(owner).get(name) is made:
                setattr(owner, name, value)
        for module in list(sys.modules.values()):
            try:
                names = object.__getattribute__(module, "__dict__")  # another look would load a lazy module
            except AttributeError:
                continue
            for name, value in list(names.items()):
                if id(value) in own:
                    names[name] = own[id(value)]
        self._all.clear()


class Registered:
    """The functions that are to be called at the end, as far as Python shows them."""

    def __init__(self) -> None:
        self.count = _exit_functions()
        self.threads = len(_at_end_of_threads())
        self.objects = frozenset(_finalizers())
        self.processes = frozenset(_finalizers_of_processes())

    def names_since(self) -> list[str]:
        """Return the names of those that have been added, beside those of `atexit`."""
        calls = _at_end_of_threads()[self.threads :]
        found = [_called(call) for call in calls]
        found += [info.func for key, info in _finalizers().items() if key not in self.objects]
        of_processes = _finalizers_of_processes()
        found += [
            getattr(one, "_callback", one) for key, one in of_processes.items() if key not in self.processes
        ]
        return [name_of(function, "?") for function in found]


class ImportWatch:
    """Takes notes while modules are imported.

    Attributes:
        reconfigured: the settings that imports have given to the standard streams, by descriptor, in order.
    """

    def __init__(self) -> None:
        self.reconfigured: dict[int, list[dict[str, Any]]] = {}
        self._replaced = Replaced()
        self._registered = Registered()
        self._at_end: list[str] = []
        self._temporary: list[str] = []
        self._drawers: list[str] = []
        self._asked_pid: list[dict[str, Any]] = []
        self._generators: list[
            tuple[Any, Any, str]
        ] = []  # with their first states and the modules that made them

    def begin(self) -> None:
        """Take notes from now on."""
        for name in _OF_PYTHON:
            _load_pythons(name)
        self._watch_exit_functions()
        self._watch_numbers()
        self._watch_pid()
        self._watch_names()
        for fd, name in enumerate(_STREAMS):
            self._watch_stream(fd, getattr(sys, name))

    def end(self) -> None:
        """Put everything back."""
        self._replaced.put_back()
        tempfile: Any = sys.modules.get("tempfile")
        if type(getattr(tempfile, "_name_sequence", None)).__module__ == __name__:
            tempfile._name_sequence = None
        for name in _STREAMS:
            stream = getattr(sys, name)
            if stream is not None:
                vars(stream).pop("reconfigure", None)

    @property
    def generators(self) -> list[Any]:
        """The generators that were made without a seed."""
        return [generator for generator, _, _ in self._generators]

    def begin_import(self) -> None:
        """Forget the traces of earlier imports."""
        for noted in (self._at_end, self._temporary, self._drawers, self._asked_pid):
            noted.clear()
        self._registered = Registered()

    def traces(self) -> Traces:
        """Return the traces of the import."""
        pid, asked = os.getpid(), list(self._asked_pid)
        unseen = _exit_functions() - self._registered.count - len(self._at_end)
        return Traces(
            at_end=(*self._at_end, *self._registered.names_since()),
            is_unseen_at_end=unseen > 0,
            temporary=tuple(path for path in self._temporary if not path or os.path.lexists(path)),
            drawers=(*self._drawers, *self._drawn_from()),
            pid_keepers=tuple(str(names.get("__name__", "?")) for names in asked if _has_number(names, pid)),
        )

    def remove_temporary(self) -> None:
        """Remove the temporary files of the import, as no function for its end is called in this process."""
        shutil: Any = sys.modules.get("shutil")  # `tempfile` has loaded it
        for path in filter(None, self._temporary):
            with suppress(OSError):
                os.unlink(path)
                continue
            shutil.rmtree(path, ignore_errors=True)

    def _drawn_from(self) -> list[str]:
        random: Any = sys.modules.get("random")
        return [
            module
            for generator, first, module in self._generators
            if random.Random.getstate(generator) != first
        ]

    def _watch_exit_functions(self) -> None:
        own = atexit.register

        def register(function: Any, *args: Any, **kwargs: Any) -> Any:
            self._at_end.append(name_of(function, _caller()))
            return own(function, *args, **kwargs)

        self._replaced.replace(atexit, "register", register)

    def _watch_numbers(self) -> None:
        own = os.urandom

        def urandom(size: int) -> bytes:
            self._drawers.append(_caller(_DRAW_FOR_OTHERS))
            return own(size)

        self._replaced.replace(os, "urandom", urandom)
        random: Any = sys.modules.get("random")
        if not hasattr(random, "Random"):
            return
        if getattr(random, "_urandom", None) is own:
            self._replaced.replace(random, "_urandom", urandom)
        self._watch_common(random)
        give_seed = random.Random.seed

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            give_seed(generator, a, version)
            self._generators[:] = [each for each in self._generators if each[0] is not generator]
            caller = _caller(_DRAW_FOR_OTHERS)
            if a is None and caller != "tempfile":  # whose generator asks for the number of its process
                self._generators.append((generator, random.Random.getstate(generator), caller))

        self._replaced.replace(random.Random, "seed", seed)

    def _watch_common(self, random: Any) -> None:
        """Take note of draws from the common generator of ``random``."""

        def noting(own: Callable[..., Any]) -> Callable[..., Any]:
            def draw(*args: Any, **kwargs: Any) -> Any:
                self._drawers.append(_caller(_DRAW_FOR_OTHERS))
                return own(*args, **kwargs)

            return draw

        common = getattr(random, "_inst", random)
        for name, value in list(vars(random).items()):
            if getattr(value, "__self__", None) is common and name not in _NO_DRAWS:
                self._replaced.replace(random, name, noting(value))

    def _watch_pid(self) -> None:
        own = os.getpid

        def getpid() -> int:
            self._asked_pid.append(sys._getframe(1).f_globals)
            return own()

        self._replaced.replace(os, "getpid", getpid)

    def _watch_names(self) -> None:
        tempfile: Any = sys.modules.get("tempfile")
        if not hasattr(tempfile, "_RandomNameSequence"):
            return
        base = tempfile._RandomNameSequence

        def next_name(names: Any) -> str:
            name: str = base.__next__(names)
            self._temporary.append(_path_of(sys._getframe(1).f_locals, name))
            return name

        kind = type("Names", (base,), {"__next__": next_name, "__module__": __name__})
        tempfile._name_sequence = kind()

    def _watch_stream(self, fd: int, stream: Any) -> None:
        if not hasattr(stream, "reconfigure"):
            return
        own: Callable[..., None] = stream.reconfigure

        def reconfigure(**settings: Any) -> None:
            own(**settings)
            self.reconfigured.setdefault(fd, []).append(settings)

        stream.reconfigure = reconfigure


def name_of(function: Any, registrar: str) -> str:
    """Return module and name of a function.

    Args:
        function: anything that can be called.
        registrar: the module that has registered it, which stands for that of native code.
    """
    module = getattr(function, "__module__", None)
    if not isinstance(module, str):
        return f"{registrar}.(native code)"
    return f"{module}.{getattr(function, '__qualname__', type(function).__name__)}"


def _load_pythons(name: str) -> None:
    """Load a module of Python's own, none of the user's."""
    spec = importlib.util.find_spec(name)
    if spec is not None and os.path.dirname(spec.origin or "") == os.path.dirname(os.__file__):
        importlib.import_module(name)


def _caller(beside: Collection[str] = ()) -> str:
    """Return the name of the module that has called the caller, beside some that do so for others."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", "?"))
        if name not in beside and not name.startswith(_IMPORTING):
            break
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?"))


def _path_of(names: Mapping[str, Any], name: str) -> str:
    """Return the path that a function of `tempfile` makes of a random name; empty if that is not known."""
    prefix, suffix = names.get("prefix", names.get("pre")), names.get("suffix", names.get("suf"))
    try:
        head = os.path.join(os.fsdecode(names["dir"]), os.fsdecode(prefix))
        return f"{head}{name}{os.fsdecode(suffix)}"
    except (KeyError, TypeError):
        return ""


def _has_number(names: Mapping[str, Any], number: int) -> bool:
    """Tell whether a module has a number among its values."""
    return any(type(value) is int and value == number for value in list(names.values()))


def _exit_functions() -> int:
    return int(vars(atexit)["_ncallbacks"]())


def _at_end_of_threads() -> list[Any]:
    return list(vars(threading).get("_threading_atexits", ()))


def _called(call: Any) -> Any:
    """Return the function of a call at the end of threads: a partial one, since Python 3.13 a closure."""
    names = getattr(getattr(call, "__code__", None), "co_freevars", ())
    values = (cell.cell_contents for cell in getattr(call, "__closure__", None) or ())
    return getattr(call, "func", dict(zip(names, values, strict=True)).get("func", call))


def _finalizers() -> dict[Any, Any]:
    return dict(vars(weakref.finalize)["_registry"])


def _finalizers_of_processes() -> dict[Any, Any]:
    return dict(getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", ()))
