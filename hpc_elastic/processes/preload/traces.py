"""The traces of imports inside an interpreter: functions for its end, temporary files, values made once.

Some functions of Python are replaced, while modules are imported, by ones that take notes and do the same;
afterwards they are put back. Runs in the workers' interpreter, with the standard library alone.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from hpc_elastic.processes.preload.rules import Traces

_OF_PYTHON: Final = ("random", "tempfile")  # loaded first, so that their use is seen
_DRAW_FOR_OTHERS: Final = frozenset(("os", "random", "secrets", "uuid"))
_NO_DRAWS: Final = frozenset(("seed", "getstate", "setstate"))
_IMPORTING: Final = "importlib."
_STREAMS: Final = ("__stdin__", "__stdout__", "__stderr__")


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
        for notes in (self._at_end, self._temporary, self._drawers, self._asked_pid):
            notes.clear()
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
