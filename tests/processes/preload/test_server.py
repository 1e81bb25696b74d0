"""The parts of the process that preloads: its look at itself, its words, and what it takes from the agent."""

from __future__ import annotations

import array
import atexit
import importlib
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.processes.preload import changes, server
from hpc_elastic.processes.preload.rules import Imported, Traces
from hpc_elastic.processes.preload.server import ImportWatch, Registered, Replaced, name_of


def test_a_process_sees_its_own_state(tmp_path: Path) -> None:
    """Threads, files, directory, signals, children, shared memory."""
    before = server._snapshot()
    assert os.getcwd() == before.cwd  # another test may have left a child
    assert before == server._snapshot()._replace(status=before.status)
    free, kept = threading.Event(), mmap.mmap(-1, 4096)
    thread = threading.Thread(target=free.wait)
    thread.start()
    child = subprocess.Popen(["true"])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    with open(tmp_path / "open", "wb") as file:
        after = server._snapshot()
        assert str(tmp_path / "open") == after.files[file.fileno()]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    free.set()
    thread.join()
    child.wait()
    kept.close()
    assert (before.threads + 1, True) == (after.threads, after.has_child)
    assert before.status["SigBlk"] != after.status["SigBlk"]
    assert ["/dev/zero (deleted)"] == [name for _, name in after.shared - before.shared]


def test_signals_that_the_c_library_handles_for_threads_do_not_count() -> None:
    """Only their bits are left out of the sets."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("SigCgt:")]
    caught = int(line.split()[1], 16)
    assert caught & ~(1 << 31 | 1 << 32) == int(server._snapshot().status["SigCgt"], 16)


def test_an_error_is_told_in_one_line() -> None:
    """Of a long one the begin and the end."""
    assert "ValueError: two lines" == server._line_of(ValueError("two\n  lines"))
    assert f"KeyError: '{'x' * 900}'" == server._line_of(KeyError("x" * 900))
    long = "a" * 500 + "b" + "c" * 500
    assert f"OSError: {'a' * 500} ... {'c' * 500}" == server._line_of(OSError(long))


def test_a_learned_module_is_taken_only_from_where_workers_have_found_it() -> None:
    """And only below a package that is there."""
    site = str(Path(pytest.__file__).parents[1])
    assert "" == server._why_elsewhere(Imported("pytest", site))
    assert "is not in /else/site-packages, where workers found it" == server._why_elsewhere(
        Imported("pytest", "/else/site-packages")
    )
    assert "cannot be found" == server._why_elsewhere(Imported("no_such_module", site))
    assert "" == server._why_elsewhere(Imported("json.decoder", ""))
    assert "cannot be imported: no_such is not" == server._why_elsewhere(Imported("no_such.part", site))


def test_learned_modules_are_read_from_their_file(tmp_path: Path) -> None:
    """None without a file."""
    assert [] == server._read_learned("")
    path = tmp_path / "learned"
    path.write_text(json.dumps([["a.b", "/site-packages", ["X"]]]))
    assert [Imported("a.b", "/site-packages", ("X",))] == server._read_learned(str(path))


def test_a_request_comes_with_its_descriptors() -> None:
    """The first is the request itself; a closed link brings nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    payload, other = os.memfd_create("request"), os.open(os.devnull, os.O_RDONLY)
    os.write(payload, b"request")
    sent = array.array("i", [payload, other, other])
    with ours, theirs:
        ours.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        data, fds = server._receive(theirs)
        assert (b"request", 2) == (data, len(fds))
        for fd in (*fds, payload, other):
            assert server._is_open(fd)
            os.close(fd)
            assert not server._is_open(fd)
        ours.close()
        assert (b"", []) == server._receive(theirs)


def test_files_of_modules_are_known_by_time_size_and_inode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module without a file, or with one that is gone, is no obstacle."""
    path = tmp_path / "mine.py"
    path.write_text("x")
    for name, file in (
        ("mine", str(path)),
        ("gone", str(tmp_path / "gone.py")),
        ("odd", 5),
        ("rel", "rel.py"),
    ):
        module = types.ModuleType(name)
        vars(module)["__file__"] = file
        monkeypatch.setitem(sys.modules, f"test_{name}", module)
    found = changes.look(changes.files_of_modules())
    stat = path.stat()
    assert (stat.st_mtime_ns, 1, stat.st_ino) == found[str(path)]
    assert (0, 0, 0) == found[str(tmp_path / "gone.py")]
    assert {5, "rel.py"}.isdisjoint(found)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[ImportWatch]:
    """A watch that is over at the end of the test, and begins when pytest has made its directories."""
    assert tmp_path.is_dir()
    made = ImportWatch()
    made.begin()
    made.begin_import()
    yield made
    made.end()


def test_a_watch_takes_notes_of_one_import_and_forgets_them(watch: ImportWatch, tmp_path: Path) -> None:
    """Each kind of trace, with the module that has left it."""
    path = tempfile.mkdtemp("y", "x", tmp_path)
    os.urandom(1)
    random.random()
    atexit.register(_tidy)
    atexit.unregister(_tidy)
    found = watch.traces()
    assert (path,) == found.temporary
    assert (__name__, __name__) == found.drawers
    assert (f"{__name__}._tidy",) == found.at_end
    assert not found.is_unseen_at_end
    watch.remove_temporary()
    assert not os.path.exists(path)
    assert () == watch.traces().temporary
    watch.begin_import()
    assert Traces() == watch.traces()


def test_a_generator_without_a_seed_is_known_until_it_gets_one(watch: ImportWatch) -> None:
    """And counts as drawn from as soon as its state is another one."""
    own, other = random.Random(), random.Random(3)
    assert [own] == watch.generators
    assert () == watch.traces().drawers
    other.random()
    own.random()
    assert (__name__,) == watch.traces().drawers
    own.seed(3)
    assert [] == watch.generators
    assert () == watch.traces().drawers


def test_a_module_that_keeps_the_number_of_the_process_is_known_by_its_values(watch: ImportWatch) -> None:
    """Not one that has asked for it alone."""
    names = {"__name__": "keeps", "os": os}
    exec("os.getpid()", names)  # noqa: S102 - as the code of a module
    assert () == watch.traces().pid_keepers
    exec("kept = os.getpid()", names)  # noqa: S102 - as above
    assert {"keeps"} == set(watch.traces().pid_keepers)


def test_functions_are_pythons_own_after_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In modules that have taken them by name, too; one that somebody else has replaced stays."""
    before = os.urandom, os.getpid, atexit.register, random.Random.seed, vars(random)["random"]
    module = types.ModuleType("takes")
    monkeypatch.setitem(sys.modules, "takes", module)
    monkeypatch.setitem(sys.modules, "odd", object())
    watch = ImportWatch()
    watch.begin()
    vars(module)["urandom"] = os.urandom
    watch.end()
    assert before == (os.urandom, os.getpid, atexit.register, random.Random.seed, vars(random)["random"])
    assert before[0] is vars(module)["urandom"]
    assert vars(tempfile)["_name_sequence"] is None
    own, made, others = object(), object(), object()  # a number would be that of other modules, too
    owner, replaced = types.SimpleNamespace(x=own), Replaced()
    replaced.replace(owner, "x", made)
    owner.x = others
    replaced.put_back()
    assert others is owner.x


def test_functions_for_the_end_are_named_with_their_module() -> None:
    """Native code, which has none, with the module that has registered it."""
    assert "builtins.len" == name_of(len, "mine")
    assert f"{__name__}._tidy" == name_of(_tidy, "mine")
    assert "mine.(native code)" == name_of(types.SimpleNamespace(__module__=None), "mine")
    importlib.import_module("concurrent.futures.thread")  # has a function for the end of threads
    assert [] == Registered().names_since()


def test_a_random_name_is_told_as_the_path_that_is_made_of_it() -> None:
    """With the names that functions of `tempfile` give to its parts."""
    assert "/d/pNs" == server._path_of({"dir": "/d", "prefix": "p", "suffix": "s"}, "N")
    assert "/d/pNs" == server._path_of({"dir": b"/d", "pre": b"p", "suf": b"s"}, "N")
    assert "" == server._path_of({}, "N")
    assert "" == server._path_of({"dir": "/d"}, "N")


def _tidy() -> None:
    """Do nothing."""


def test_the_memory_of_a_process_is_read_from_the_kernel() -> None:
    """Its share of all that it has mapped, in KiB: an interpreter has some megabytes of its own."""
    assert 1 << 10 < server._pss_kb() < 1 << 24
