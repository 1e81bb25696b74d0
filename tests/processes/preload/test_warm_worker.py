"""A worker that was forked cannot tell that Python has not started it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.processes.preload.randomness import Generators, seeded, touched
from hpc_elastic.processes.preload.rules import PythonCommand
from hpc_elastic.processes.preload.warm_worker import Fds, WarmStart, become, first_place
from hpc_elastic.processes.process import ProcessSpec
from tests.processes.preload.warm import Place, forked

OBSERVER = (Path(__file__).parent / "observer.py").read_text(encoding="utf-8")


def _facts(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(text.partition("\n")[0])
    return facts


@pytest.mark.parametrize(
    "words",
    [
        ("-u", "observer.py", "a b", "--flag"),
        ("observer.py",),
        ("-u", "./observer.py"),
        ("-u", "link.py"),
        ("-u", "-m", "pack.observer", "x"),
        ("-u", "-m", "pack", "x"),
        ("-B", "-X", "dev", "pack", "x"),
        ("-OO", "-u", "-c", OBSERVER, "x"),
        ("-I", "observer.py"),
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_a_forked_worker_sees_what_a_started_one_sees(words: tuple[str, ...], place: Place) -> None:
    """Module, arguments, path, flags, environment, streams, signals, descriptors, session, limits."""
    for name in ("observer.py", "pack/observer.py", "pack/__main__.py"):
        place.write(name, OBSERVER)
    place.write("pack/__init__.py", "")
    (place.path / "link.py").symlink_to("pack/observer.py")
    spec = place.spec(*words, RANK="3", LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="1")
    cold, warm = place.cold(spec), place.warm(spec)
    assert _facts(cold.out) == _facts(warm.out)
    assert (cold.code, cold.err) == (warm.code, warm.err)
    assert len(cold.out.splitlines()) == len(warm.out.splitlines())


def test_signals_and_cpus_are_those_that_are_asked_for(place: Place) -> None:
    """Ignored signals stay ignored, the worker may use its CPUs alone, and a module may stop `gc`."""
    place.write("observer.py", f"import quiet\n{OBSERVER}")
    place.write("quiet.py", "import gc\ngc.disable()\n")
    cpus = (min(os.sched_getaffinity(0)),)
    spec = place.spec("-u", "observer.py")
    spec = spec._replace(ignore_signals=(signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), cpus=cpus)
    cold = _facts(place.cold(spec).out)
    assert not cold["gc"][0]
    assert cold == _facts(place.warm(spec, "quiet").out)


@pytest.mark.parametrize(
    "end",
    [
        "1 / 0",
        "def f():\n    raise KeyError('x')\nf()",
        "class Odd(BaseException): pass\nraise Odd('y')",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('z') from e",
        "x = = 3",
        "import sys; sys.exit('told')",
        "import sys; sys.exit(7)",
        "import sys; sys.exit()",
        "raise SystemExit",
        "import os; os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import os; os.abort()",
        "import atexit; atexit.register(print, 'bye'); raise KeyboardInterrupt",
        "import threading; threading.Thread(target=print, args=('late',)).start()",
        "import sys; sys.excepthook = lambda *_: print('mine'); 1 / 0",
        "import sys; sys.stdout.write('no line end')",
        "import no_such_module",
        "import traceback\ndef f(): traceback.print_stack(limit=1)\nf()",
    ],
)
def test_a_forked_worker_ends_as_a_started_one(end: str, place: Place) -> None:
    """The same exit code or signal, the same trace, the same output."""
    place.write("end.py", f"print('begin')\n{end}\n")
    for words in (("-u", "end.py"), ("-m", "end")):
        spec = place.spec(*words)
        assert place.cold(spec) == place.warm(spec, "atexit")


def test_stacks_that_are_written_at_a_crash_begin_as_those_of_a_started_one(place: Place) -> None:
    """The frames that ran the script come after its own."""
    place.write("end.py", "import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)\n")
    spec = place.spec("-u", "end.py")
    cold, warm = place.cold(spec), place.warm(spec)
    assert -signal.SIGSEGV == cold.code == warm.code
    lines = [line for line in cold.err.splitlines() if line.startswith("  File")]
    assert lines == [line for line in warm.err.splitlines() if line.startswith("  File")][: len(lines)]


def test_a_script_that_is_missing_is_told_as_python_tells_it(place: Place) -> None:
    """With Python's words and exit code."""
    spec = place.spec("-u", "gone.py")
    assert place.cold(spec) == place.warm(spec)


def test_what_the_script_has_written_itself_can_be_imported(place: Place) -> None:
    """No listing of a directory that was read before the fork hides a new file."""
    text = "open('made.py', 'w').write('print(5)'); import made, sys; print('json' in sys.modules)"
    place.write("script.py", text)
    spec = place.spec("-u", "script.py")
    assert "5\nTrue\n" == place.warm(spec).out


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_works_in_a_forked_worker(method: str, place: Place) -> None:
    """Its children find the script's functions, and their values come back."""
    place.write(
        "script.py",
        "import multiprocessing, os\n"
        "def double(x): return 2 * x, os.environ['RANK']\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(pool.map(double, [1, 2, 3]))\n",
    )
    spec = place.spec("-u", "script.py", RANK="4")
    expected = f"{[(2 * x, '4') for x in (1, 2, 3)]}\n"
    assert (0, expected, "") == place.warm(spec, "multiprocessing", "multiprocessing.pool")


def test_random_numbers_and_keys_are_each_workers_own(place: Place) -> None:
    """Copies of one process would all draw the same, also from a generator that a module has made."""
    place.write(
        "makes.py",
        "import random, numpy\nown = random.Random()\nclass Own(random.Random): pass\nother = [Own()]\n",
    )
    place.write(
        "script.py",
        "import random, multiprocessing\n"
        "import makes, numpy\n"
        "print(random.random(), numpy.random.rand(), multiprocessing.current_process().authkey.hex())\n"
        "print(makes.own.random(), makes.other[0].random())\n",
    )
    spec = place.spec("-u", "script.py")
    with place.preloaded(("makes", "multiprocessing"), spec) as preloader:
        assert place.said[0].startswith("preloaded makes, multiprocessing ("), place.said
        drawn = [place.end_of(forked(preloader, spec)).out.split() for _ in range(3)]
    assert 15 == len({number for numbers in drawn for number in numbers})


@pytest.mark.torch
def test_random_numbers_of_torch_are_each_workers_own(place: Place) -> None:
    """Its generator has a fixed seed, which copies of one process would share."""
    place.write("script.py", "import torch\nprint(torch.rand(1, dtype=torch.float64).item())\n")
    spec = place.spec("-u", "script.py")
    with place.preloaded(("torch",), spec) as preloader:
        assert place.said[0].startswith("preloaded torch ("), place.said
        assert 3 == len({place.end_of(forked(preloader, spec)).out for _ in range(3)})


def test_a_seed_is_told_from_numbers_that_are_drawn() -> None:
    """Of Python's, NumPy's and PyTorch's generators, known before or not."""
    none = Generators()
    own = random.Random(3)
    before = Generators(own.getstate())
    own.random()
    assert "" == seeded(before, Generators(own.getstate()))
    own.getrandbits(624 * 32 * 50)
    assert "" == seeded(before, Generators(own.getstate()))
    own.seed(3)
    assert "" == seeded(before, Generators(own.getstate()))
    own.seed(4)
    assert "random" == seeded(before, Generators(own.getstate()))
    assert "NumPy" == seeded(none, Generators(is_numpy_seeded=True))
    assert "" == seeded(none, Generators(torch=1 << 60))
    assert "" == seeded(Generators(torch=5), Generators(torch=5))
    assert "PyTorch" == seeded(none, Generators(torch=5))
    assert "PyTorch" == seeded(Generators(torch=1 << 60), Generators(torch=1 << 61))
    assert "gives a seed to the random numbers of NumPy" == touched(none, Generators(is_numpy_seeded=True))
    assert "" == touched(none, none)


@pytest.mark.parametrize(("statement", "is_seeded"), [("", False), ("numpy.random.seed(3)", True)])
def test_a_seed_of_numpy_is_seen_in_its_common_generator(statement: str, *, is_seeded: bool) -> None:
    """One that NumPy draws itself is none."""
    pytest.importorskip("numpy")
    code = (
        "import numpy.random\nfrom hpc_elastic.processes.preload.randomness import generators\n"
        f"{statement}\nprint(generators().is_numpy_seeded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{is_seeded}\n" == done.stdout


def test_a_script_is_searched_for_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python does: the directory that its links lead to; a command and a module have the working one."""
    monkeypatch.chdir(tmp_path)
    for name in ("real/train.py", "archive/__main__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "train.py").symlink_to(tmp_path / "real" / "train.py")
    (tmp_path / "json").mkdir()  # a program of this name would be a directory with its parts
    found = [
        first_place(PythonCommand("python", (), kind, program, ()))
        for kind, program in (("", "train.py"), ("", "archive"), ("-m", "json"), ("-c", "pass"))
    ]
    assert [f"{tmp_path}/real", f"{tmp_path}/archive", str(tmp_path), ""] == found


@pytest.mark.parametrize("is_known", [True, False])
def test_a_worker_begins_once_its_agent_knows_of_it(tmp_path: Path, *, is_known: bool) -> None:
    """An agent that has given it up, or has died, closes the pipe; then nothing of it runs."""
    (go, let_go), (told, starting), (verdict, unchanged) = os.pipe(), os.pipe(), os.pipe()
    os.write(unchanged, b"y")
    stdio = tuple(os.open(os.devnull, os.O_RDWR) for _ in range(3))
    agent, child = os.getpid(), os.fork()
    if child == 0:
        try:  # a forked child must never return into pytest
            os.close(let_go)
            os.close(told)
            command = PythonCommand(sys.executable, (), "-c", "pass", ())
            start = WarmStart(command, {}, str(tmp_path), (), (), agent)
            become(start, Fds((stdio[0], stdio[1], stdio[2]), starting, go, verdict, {}))
            os._exit(0)
        finally:
            os._exit(1)
    for fd in (go, starting, verdict, unchanged, *stdio):
        os.close(fd)
    if is_known:
        os.write(let_go, b"1")
    os.close(let_go)
    _, status = os.waitpid(child, 0)
    assert (0 if is_known else 127) == os.waitstatus_to_exitcode(status)
    assert b"" == os.read(told, 99)
    os.close(told)


def test_what_imports_print_is_in_the_output_of_each_worker(place: Place) -> None:
    """As if each had imported the module."""
    place.write("loud.py", "import sys\nprint('loaded')\nprint('careful', file=sys.stderr)\n")
    place.write("script.py", "import loud\nprint('done')\n")
    spec = place.spec("-u", "script.py")
    assert place.cold(spec) == place.warm(spec, "loud")


@pytest.mark.parametrize(
    "settings",
    [
        "stdout, line_buffering=True",
        "stdout, write_through=True",
        "stdout, newline='\\r\\n'",
        "stdout, encoding='utf-16', errors='replace'",
        "stderr, line_buffering=False, encoding='latin-1'",
        "stdin, encoding='latin-1', newline=None",
    ],
)
def test_settings_that_an_import_gives_to_a_stream_hold(settings: str, place: Place) -> None:
    """Whatever the worker's own streams are; what it has not flushed is lost, as its program ends at once."""
    name, _, words = settings.partition(", ")
    place.write("sets.py", f"import sys\nsys.{name}.reconfigure({words})\n")
    place.write(
        "script.py",
        "import os, sets, sys\n"
        "for s in (sys.stdin, sys.stdout, sys.stderr):\n"
        "    print(s.encoding, s.errors, s.line_buffering, s.write_through, vars(s))\n"
        "print('ä', file=sys.stderr)\nos._exit(0)\n",
    )
    for flags in ((), ("-u",)):
        spec = place.spec(*flags, "script.py")
        assert _bytes_of(place, place.cold, spec) == _bytes_of(
            place, lambda one: place.warm(one, "sets"), spec
        )


def _bytes_of(place: Place, run: Callable[[ProcessSpec], object], spec: ProcessSpec) -> tuple[bytes, bytes]:
    """Run a worker that writes texts of any encoding, and return what it has written."""
    out, err = place.path / "raw.out", place.path / "raw.err"
    for path in (out, err):
        path.unlink(missing_ok=True)
    for name in ("out", "err"):
        (place.path / name).touch()
    run(spec._replace(stdout=str(out), stderr=str(err)))
    return out.read_bytes(), err.read_bytes()


def test_functions_that_are_watched_in_imports_are_pythons_own_again(place: Place) -> None:
    """Also where a module has taken one by its name."""
    place.write(
        "takes.py",
        "from os import urandom, getpid\nfrom random import random\nfrom atexit import register\n"
        "import sys\nimport tempfile\ntempfile.gettempdir()\n",
    )
    place.write(
        "script.py",
        "import os, random, atexit, tempfile, takes, sys\n"
        "print(os.urandom, os.getpid, atexit.register, type(random.random), random._urandom)\n"
        "print(takes.urandom, takes.getpid, takes.register, type(takes.random))\n"
        "print(random.Random.seed.__module__, tempfile._name_sequence, vars(sys.stdout))\n",
    )
    spec = place.spec("-u", "script.py")
    assert place.cold(spec) == place.warm(spec, "takes")


def test_what_imports_change_in_the_environment_is_there(place: Place) -> None:
    """As if each worker had imported the module; its own variables stay."""
    place.write("sets.py", "import os\nos.environ['KMP_THING'] = 'x'\nos.environ.pop('GONE', None)\n")
    place.write("script.py", "import os, sets\nprint(os.environ['KMP_THING'], 'GONE' in os.environ)\n")
    spec = place.spec("-u", "script.py", RANK="1")
    assert place.cold(spec) == place.warm(spec, "sets")


def test_a_module_is_imported_once_and_its_state_is_each_workers_own(place: Place) -> None:
    """What one worker changes no other sees."""
    place.write("state.py", "seen = []\n")
    place.write("script.py", "import os, state\nstate.seen.append(os.environ['RANK'])\nprint(state.seen)\n")
    spec = place.spec("-u", "script.py")
    with place.preloaded(("state",), spec) as preloader:
        ranks = [place.spec("-u", "script.py", RANK=str(rank)) for rank in range(2)]
        assert ["['0']\n", "['1']\n"] == [place.end_of(forked(preloader, rank)).out for rank in ranks]


def test_a_module_that_the_script_prints_to_before_is_the_same_stream(place: Place) -> None:
    """A log handler that an import has made writes to the worker's own stream."""
    place.write("logs.py", "import logging\nlogging.basicConfig(format='%(message)s')\n")
    place.write("script.py", "import logging, logs\nlogging.warning('one')\n")
    for words in (("-u", "script.py"), ("script.py",)):
        spec = place.spec(*words)
        assert (0, "", "one\n") == place.cold(spec) == place.warm(spec, "logs")


def test_hash_seed_and_limits_of_a_worker_hold(place: Place) -> None:
    """A seed that is given, and the limit of core files, are those of a started worker."""
    place.write("script.py", "import resource\nprint(hash('x'), resource.getrlimit(resource.RLIMIT_CORE))\n")
    seed = str(random.randrange(1, 1000))
    spec = place.spec("-u", "script.py", PYTHONHASHSEED=seed)
    cold = place.cold(spec)
    with place.preloaded(("json",), spec) as preloader:  # whose environment lacks the seed
        preloader.begin_round(1)
        assert preloader.fork(spec) is None
    assert ["nothing is preloaded: PYTHONHASHSEED is not the same for all workers"] == place.said[1:]
    assert cold == place.cold(spec)
