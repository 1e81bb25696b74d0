"""Whatever goes wrong with preloading, the worker is started as without it, and people are told why."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from hpc_elastic.processes.linux import all_processes
from hpc_elastic.processes.preload.preloader import Preloader, PreloadPhase
from hpc_elastic.processes.process import ProcessSpec, spawn
from hpc_elastic.testing.waiting import wait_until
from tests.processes.preload.warm import Place, forked

_MOMENTS = 10


def _pid(preloader: Preloader) -> int:
    return min(preloader.pids)  # the other one has been forked by it


def _spec(place: Place, text: str = "print('ran')\n") -> ProcessSpec:
    place.write("script.py", text)
    return place.spec("-u", "script.py", RANK="1")


def _told_of_deaths(preloader: Preloader, place: Place) -> int:
    preloader.look()
    return sum("was ended by signal 9" in line for line in place.said)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_thing", "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("raise ValueError('of\\ntwo lines')", "cannot be imported: ValueError: of two lines"),
        (  # as that of a compiler
            "raise ValueError('x' * 300_000)",
            f"cannot be imported: ValueError: {'x' * 500} ... {'x' * 500}",
        ),
        (
            "class BadError(Exception):\n    def __str__(self): raise self\nraise BadError",
            "cannot be imported: BadError: (no text)",
        ),
        ("import subprocess\nkept = subprocess.Popen(['true'])", "leaves a child process"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
            "leaves 1 thread running",
        ),
        ("import socket\nkept = socket.socket()", "leaves a socket open"),
        ("kept = open('/dev/full')", "opens the device /dev/full"),
        ("import os\nos.chdir('/')", "changes the working directory to /"),
        (
            "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)",
            "changes which signals are ignored",
        ),
        ("import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)", "handles signals"),
        ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])", "blocks signals"),
        ("import os\nos.umask(0o077)", "changes the mask of new files"),
        ("import random\nrandom.seed(0)", "gives a seed to the random numbers of random"),
        ("import numpy\nnumpy.random.seed(0)", "gives a seed to the random numbers of NumPy"),
        (
            "import numpy\nnumpy.random.rand()",
            "draws random numbers, which would be the same in all copies (of NumPy)",
        ),
    ],
    ids=lambda text: text[:30],
)
def test_a_module_that_cannot_be_shared_is_named_and_the_others_are_preloaded(
    text: str, why: str, place: Place
) -> None:
    """The worker imports it itself."""
    place.write("bad.py", text)
    spec = _spec(place)
    with place.preloaded(("json", "bad"), spec) as preloader:
        assert f"bad is not preloaded: it {why}; workers that need it import it themselves" == place.said[0]
        assert place.said[1].startswith("preloaded json (")
        assert 0 == place.end_of(forked(preloader, spec)).code


def test_a_module_that_leaves_a_file_open_is_named(place: Place) -> None:
    """Copies would share its position."""
    place.write("bad.py", "kept = open(__file__)\n")
    with place.preloaded(("bad",), _spec(place)) as preloader:
        assert preloader.phase is PreloadPhase.OFF
    path = place.path / "bad.py"
    said = f"bad is not preloaded: it leaves {path} open; workers that need it import it themselves"
    assert [said] == place.said


def test_a_module_that_reads_the_rank_as_it_is_imported_is_named(place: Place) -> None:
    """Each worker would have that of nobody; the next round is forked without the module."""
    place.write("reads.py", "import os\nrank = os.environ.get('RANK', 'none')\n")
    spec = _spec(place, "import reads\nprint(reads.rank)\n")
    with place.preloaded(("json", "reads"), spec) as preloader:
        preloader.begin_round(1)
        assert preloader.fork(spec) is None
        assert (
            "reads is no longer preloaded: it reads RANK (in reads), which each worker has for itself; "
            "workers that need it import it themselves"
        ) == place.said[1]
        wait_until(lambda: not preloader.is_importing(), "it is ready again")
        assert "1\n" == place.end_of(forked(preloader, spec)).out


@pytest.mark.parametrize("look", ["items()", "values()", "copy()"])
def test_a_module_that_looks_through_the_whole_environment_is_preloaded(
    place: Place, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """It asks for none of the variables that Slurm sets for each process."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    place.write(
        "looks.py", f"import os\nfound = len(os.environ.{look})\nfor each in os.environ.{look}: pass\n"
    )
    place.write("script.py", "import os, sys\nprint('looks' in sys.modules, os.environ['SLURM_PROCID'])\n")
    spec = place.spec("-u", "script.py", SLURM_PROCID="1")
    assert "True 1\n" == place.warm(spec, "looks").out


def test_a_process_that_dies_while_it_imports_is_told_with_the_module(place: Place) -> None:
    """For want of memory, for example."""
    place.write("dies.py", "import os\nos.kill(os.getpid(), 9)\n")
    with place.preloaded(("json", "dies"), _spec(place)) as preloader:
        assert preloader.phase is PreloadPhase.READY
    assert "dies is not preloaded: the process was ended by signal 9 while it imported it" == place.said[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_is_killed_or_stopped_when_it_is_ready_is_replaced(
    number: signal.Signals, place: Place
) -> None:
    """This worker is started without it, once; the next is forked by another process."""
    spec = _spec(place)
    with place.preloaded(("json",), spec) as preloader:
        first = _pid(preloader)
        os.kill(first, number)
        preloader.begin_round(1)
        assert preloader.fork(spec) is None
        wait_until(lambda: not preloader.is_importing(), "another is ready")
        assert first != _pid(preloader)
        assert not os.path.exists(f"/proc/{first}")
        assert (0, "ran\n", "") == place.end_of(forked(preloader, spec))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_runs_once_whenever_the_process_is_killed_or_stopped(
    number: signal.Signals, place: Place
) -> None:
    """At moments spread over imports and fork: the worker is a copy of it, or is started in its place."""
    spec = _spec(place, "open('ran', 'a').write('x')\n")
    began = time.monotonic()
    with place.preloaded(("json",), spec) as preloader:
        assert 0 == place.end_of(forked(preloader, spec)).code
    whole_s = time.monotonic() - began
    senders: list[subprocess.Popen[bytes]] = []
    for moment in range(_MOMENTS):

        def send(pid: int, after_s: float = whole_s * moment / _MOMENTS) -> None:
            line = f"sleep {after_s:.4f}; kill -{number.value} {pid} 2>&-"
            senders.append(subprocess.Popen(["sh", "-c", line]))

        with place.preloaded(("json",), spec, send) as preloader:
            preloader.begin_round(1)
            worker = preloader.fork(spec) or spawn(spec)
            assert (0, "", "") == place.end_of(worker)
        assert "x" * (moment + 2) == (place.path / "ran").read_text()
    for sender in senders:
        sender.wait()


def test_a_process_that_is_stopped_while_it_imports_is_given_up(place: Place) -> None:
    """Nobody waits for it."""
    place.write("slow.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    with place.preloaded(("slow",), _spec(place)) as preloader:
        assert preloader.phase is PreloadPhase.OFF
    assert ["slow is not preloaded: the process was stopped while it imported it"] == place.said


def test_it_is_not_replaced_for_ever(place: Place) -> None:
    """After three deaths workers are started without it."""
    with place.preloaded(("json",), _spec(place)) as preloader:
        for death in range(3):
            os.kill(_pid(preloader), signal.SIGKILL)
            wait_until(lambda n=death: _told_of_deaths(preloader, place) > n, "its end is seen")  # type: ignore[misc]
            wait_until(lambda: not preloader.is_importing(), "another is ready, or none")
        assert preloader.phase is PreloadPhase.OFF
    assert place.said[-1].endswith("was ended by signal 9; nothing is preloaded any more")


def test_a_module_that_has_changed_is_imported_anew(place: Place) -> None:
    """A worker of the round that sees it starts anew in its own process; the next is forked again."""
    place.write("mine.py", "value = 'old'\n")
    spec = _spec(place, "import mine\nprint(mine.value)\n")
    with place.preloaded(("mine",), spec) as preloader:
        assert "old\n" == place.end_of(forked(preloader, spec)).out
        place.write("mine.py", "value = 'new value'\n")
        preloader.begin_round(2)
        worker = preloader.fork(spec)
        assert worker is not None
        assert (0, "new value\n", "") == place.end_of(worker)
        wait_until(lambda: preloader.is_importing() or len(place.said) > 1, "it is seen")
        assert f"modules are preloaded anew: {place.path / 'mine.py'} has changed" == place.said[1]
        wait_until(lambda: not preloader.is_importing(), "it is ready again")
        preloader.begin_round(3)
        assert "new value\n" == place.end_of(forked(preloader, spec)).out


def test_a_worker_that_starts_anew_is_as_one_that_python_starts(place: Place) -> None:
    """Descriptors, environment, words and the output of imports are those of a plain start."""
    reading, writing = os.pipe()
    place.write("mine.py", "import os\nprint('imported')\nos.environ['SET'] = 'by mine'\n")
    place.write(
        "script.py",
        "import os, sys, mine\nos.write(int(sys.argv[1]), b'told')\n"
        "print(sys.argv, sys.orig_argv, sorted(os.environ), sorted(os.listdir('/proc/self/fd')))\n",
    )
    spec = place.spec("-u", "script.py", str(writing), RANK="1")
    try:
        cold = place.end_of(spawn(spec, pass_fds=(writing,)))
        with place.preloaded(("mine",), spec) as preloader:
            os.utime(place.path / "mine.py", ns=(1, 1))
            preloader.begin_round(1)
            worker = preloader.fork(spec, (writing,))
            assert worker is not None, place.said
            assert cold == place.end_of(worker)
        assert b"toldtold" == os.read(reading, 9)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_worker_without_a_verdict_on_its_files_starts_anew(place: Place) -> None:
    """The process that looks for changes is killed for want of memory; another one imports."""
    spec = _spec(place, "import sys\nprint('colorsys' in sys.modules)\n")
    with place.preloaded(("colorsys",), spec) as preloader:
        first = _pid(preloader)
        (watcher,) = preloader.pids - {first}
        os.kill(first, signal.SIGSTOP)  # so that it cannot take note first
        os.kill(watcher, signal.SIGKILL)
        os.kill(first, signal.SIGCONT)
        preloader.begin_round(1)
        worker = preloader.fork(spec) or spawn(spec)
        assert "False\n" == place.end_of(worker).out
        wait_until(lambda: not preloader.is_importing() and first not in preloader.pids, "another is ready")
        assert "True\n" == place.end_of(forked(preloader, spec)).out


def test_a_module_of_the_users_that_has_the_name_of_one_of_pythons_is_respected(place: Place) -> None:
    """The preloading process has loaded Python's own for itself."""
    place.write("socket.py", "print('mine')\n")
    spec = _spec(place, "import socket\n")
    with place.preloaded(("json",), spec) as preloader:
        assert preloader.phase is PreloadPhase.OFF
    path = place.path / "socket.py"
    assert [f"nothing is preloaded: {path} takes the place of Python's own module socket"] == place.said


def test_a_worker_outlives_the_process_that_forked_it(place: Place) -> None:
    """It is a child of the agent, as a started one."""
    spec = _spec(place, "import sys\nprint(sys.stdin.read())\n")
    with place.preloaded(("json",), spec) as preloader:
        reading, writing = os.pipe()
        saved = os.dup(0)
        os.dup2(reading, 0)
        try:
            worker = forked(preloader, spec)
        finally:
            os.dup2(saved, 0)
            os.close(saved)
            os.close(reading)
        worker.confirm_started(20.0)
        preloader.close()
        assert worker.poll() is None
        os.write(writing, b"go on")
        os.close(writing)
        assert (0, "go on\n") == place.end_of(worker)[:2]


def test_a_worker_that_is_given_up_never_runs(place: Place) -> None:
    """A process that is stopped and goes on later forks nobody who runs beside the worker in its place."""
    spec = _spec(place, "open('ran', 'a').write('x')\n")
    before = {stat.pid for stat in all_processes()}  # other tests leave a resource tracker
    with place.preloaded(("json",), spec) as preloader:
        os.kill(_pid(preloader), signal.SIGSTOP)
        preloader.begin_round(1)
        assert preloader.fork(spec) is None
        wait_until(lambda: not preloader.is_importing(), "another is ready")
    below = [stat for stat in all_processes() if stat.parent == os.getpid() and not stat.is_dead]
    assert [] == [stat for stat in below if stat.pid not in before and stat.name.startswith("python")]
    assert not (place.path / "ran").exists()


def test_a_process_that_becomes_slow_in_a_round_stays(place: Place) -> None:
    """The other workers of the round are started without it, and its late answers count no more."""
    spec = _spec(place, "open('ran', 'a').write('x')\n")
    with place.preloaded(("json",), spec) as preloader:
        assert 0 == place.end_of(forked(preloader, spec)).code
        pid = _pid(preloader)
        os.kill(pid, signal.SIGSTOP)
        assert [None, None] == [preloader.fork(spec) for _ in range(2)]
        os.kill(pid, signal.SIGCONT)
        preloader.begin_round(2)
        assert 0 == place.end_of(forked(preloader, spec)).code
        assert pid == _pid(preloader)
    assert "xx" == (place.path / "ran").read_text()
    assert 1 == len(place.said)


@pytest.mark.slow
def test_a_process_that_is_slow_from_the_first_worker_on_stays(place: Place) -> None:
    """Another one would import everything anew; the workers of this round are started without it."""
    place.write(
        "slow.py",
        "import os\ndef wait():\n    os.path.exists('slow') and open('slow').read()\n"
        "os.register_at_fork(before=wait)\n",
    )
    spec = _spec(place)
    with place.preloaded(("slow",), spec) as preloader:
        pid = _pid(preloader)
        os.mkfifo(place.path / "slow")
        preloader.begin_round(1)
        assert preloader.fork(spec) is None
        os.close(os.open(place.path / "slow", os.O_WRONLY))  # whose reader is there
        (place.path / "slow").unlink()
        assert (0, "ran\n", "") == place.end_of(forked(preloader, spec))
        assert pid == _pid(preloader)
    assert 1 == len(place.said)


def test_it_is_told_once_that_workers_wait_for_a_slow_file_system(place: Place) -> None:
    """A look that is quick is not worth a line."""
    with place.preloaded(("json",), _spec(place)) as preloader:
        for seconds in (0.9, 2.5, 3.0):
            preloader._heed({"kind": "looked", "files": 2893, "seconds": seconds})
    (told,) = place.said[1:]
    assert told.startswith("workers have waited 2.5 s for a look at 2893 files of preloaded modules, whether")


def test_descriptors_that_are_passed_have_the_same_numbers_in_a_worker(place: Place) -> None:
    """One whose number the process uses itself is started by Python instead."""
    reading, writing = os.pipe()
    used, free = (fcntl.fcntl(writing, fcntl.F_DUPFD, 77) for _ in range(2))
    place.write("keeps.py", f"import os\nos.dup2(os.open('/dev/null', os.O_RDONLY), {used})\n")
    spec = _spec(place, "import os\nos.write(int(os.environ['FD']), b'told')\n")
    try:
        with place.preloaded(("keeps",), spec) as preloader:
            preloader.begin_round(1)
            for number in (writing, free):
                told = spec._replace(env={**spec.env, "FD": str(number)})
                worker = preloader.fork(told, (reading, writing, free))
                assert worker is not None, place.said
                assert 0 == place.end_of(worker).code
                assert b"told" == os.read(reading, 9)
            assert preloader.fork(spec, (used,)) is None
            assert PreloadPhase.READY is preloader.phase
    finally:
        for number in (reading, writing, used, free):
            os.close(number)


def test_the_directory_that_is_missing_is_told_as_without_preloading(place: Place) -> None:
    """A worker that cannot be started says so."""
    spec = _spec(place)
    with place.preloaded(("json",), spec) as preloader:
        worker = forked(preloader, spec._replace(cwd="/no/such/place"))
        with pytest.raises(Exception, match="cannot change to the directory '/no/such/place'"):
            worker.confirm_started(20.0)
        worker.reap()


@pytest.mark.parametrize("argv", [("/bin/sh", "-c", "true"), (sys.executable, "--version")], ids=repr)
def test_a_command_that_is_none_of_python_is_told(argv: tuple[str, ...], place: Place) -> None:
    """There is nothing to fork."""
    made = place.preloader(("json",), place.spec()._replace(argv=argv))
    made.start()
    assert (PreloadPhase.OFF, []) == (made.phase, made.fds())
    name = os.path.basename(argv[0])
    assert [
        f"nothing is preloaded: {name} is not started as python SCRIPT, python -m MODULE or python -c CODE"
    ] == place.said


def test_a_worker_of_another_interpreter_is_started_without_it(place: Place) -> None:
    """Its flags count, too."""
    spec = _spec(place)
    with place.preloaded(("json",), spec) as preloader:
        preloader.begin_round(1)
        assert preloader.fork(place.spec("-O", "-u", "script.py")) is None
        assert PreloadPhase.READY is preloader.phase
