"""Imports leave nothing in the preloading process that its copies must not share, or the module is named."""

from __future__ import annotations

import os

import pytest

from hpc_elastic.processes.preload.preloader import PreloadPhase
from hpc_elastic.processes.preload.rules import Snapshot, Traces, shared_memory, unfit, unsafe
from tests.processes.preload.warm import Place, forked

AT_END = "registers a function for its end, which each copy would call"
DRAWS = "draws random numbers, which would be the same in all copies (in bad)"
TEMPORARY = "leaves a temporary file or directory, which the first copy that ends may remove: "
SHARED = "makes memory that all copies would share ("
BAD = {
    "a temporary directory": ("import tempfile\nkept = tempfile.TemporaryDirectory()", TEMPORARY),
    "one that is made and named": (
        "import tempfile\nkept = tempfile.mkdtemp('x', 'y', '.')",
        f"{TEMPORARY}./y",
    ),
    "one whose name is bytes": ("import tempfile\nkept = tempfile.mkdtemp(b'x')", TEMPORARY),
    "a temporary file": ("import os, tempfile\nos.close(tempfile.mkstemp()[0])", TEMPORARY),
    "a file that stays": ("import tempfile\ntempfile.NamedTemporaryFile(delete=False).close()", TEMPORARY),
    "a temporary name": (
        "import os, tempfile\nos.mkdir(next(tempfile._get_candidate_names()))",
        f"{TEMPORARY}of a name that is not known",
    ),
    "shared memory": ("import mmap\nkept = mmap.mmap(-1, 8)", f"{SHARED}/dev/zero (deleted))"),
    "shared memory to be read": (
        "import mmap\nkept = mmap.mmap(-1, 8, prot=mmap.PROT_READ)",
        f"{SHARED}/dev/zero (deleted))",
    ),
    "a lock between processes": (
        "import multiprocessing\nkept = multiprocessing.Lock()",
        f"{SHARED}/dev/shm/sem.",
    ),
    "an exit function": ("import atexit\natexit.register(lambda: None)", f"{AT_END}: bad.<lambda>"),
    "one by its name": (
        "from atexit import register\n@register\ndef tidy(): pass",
        f"{AT_END}: bad.tidy",
    ),
    "one of Python's": (
        "import atexit, shutil\natexit.register(shutil.rmtree, 'gone')",
        f"{AT_END}: shutil.rmtree",
    ),
    "a part of one": (
        "import atexit, functools, logging\natexit.register(functools.partial(logging.shutdown))",
        f"{AT_END}: functools.partial",
    ),
    "one out of sight": (
        "import atexit\n[c.cell_contents(len, '') for c in getattr(atexit.register, '__closure__', ())[:1]]",
        f"{AT_END}; workers",
    ),
    "one of threads": (
        "import threading\ndef tidy(): pass\nthreading._register_atexit(tidy)",
        f"{AT_END}: bad.tidy",
    ),
    "a finalizer": (
        "import gc, weakref\nclass Kept: pass\nkept = Kept()\nweakref.finalize(kept, gc.collect)",
        f"{AT_END}: gc.collect",
    ),
    "a finalizer of multiprocessing": (
        "import gc\nfrom multiprocessing.util import Finalize\nFinalize(None, gc.collect, exitpriority=1)",
        f"{AT_END}: gc.collect",
    ),
    "a random name": ("import uuid\nname = uuid.uuid4().hex[:8]", DRAWS),
    "a secret": ("import secrets\nname = secrets.token_hex()", DRAWS),
    "random bytes": ("from os import urandom\nname = urandom(4)", DRAWS),
    "a number of the system": ("import random\nname = random.SystemRandom().random()", DRAWS),
    "a common number": ("from random import randint\nname = randint(0, 9)", DRAWS),
    "a generator that is used": ("import random\nname = random.Random().random()", DRAWS),
    "one that is kept": ("import random\nkept = random.Random()\nkept.gauss(0, 1)", DRAWS),
    "a generator of NumPy": ("import numpy\nkept = numpy.random.default_rng()", DRAWS),
    "an old one of NumPy": ("import numpy\nkept = numpy.random.RandomState()", DRAWS),
    "the process": ("import os\nkept = os.getpid()", "keeps the number of its process (in bad)"),
}
GOOD = {
    "seeds": "import random, uuid\nkept = random.Random(3).random()\nuuid.uuid5(uuid.NAMESPACE_DNS, 'x')",
    "a seed that follows": "import random\nkept = random.Random()\nkept.seed(3)\nkept.random()",
    "a generator of NumPy with a seed": "import numpy\nkept = numpy.random.default_rng(3).random()",
    "a file that is gone": "import tempfile\nwith tempfile.TemporaryDirectory() as kept: pass",
    "where such files are made": "import tempfile\nkept = tempfile.gettempdir()",
    "the process, asked for": "import os\nkept = [os.getpid()]",
    "logs and pools": "import logging, concurrent.futures.thread, concurrent.futures.process",
}


@pytest.mark.parametrize("name", BAD)
def test_a_module_whose_traces_cannot_be_shared_is_named(name: str, place: Place) -> None:
    """The worker imports it itself, and the other modules are preloaded."""
    text, why = BAD[name]
    place.write("bad.py", text)
    place.write("script.py", "import sys\nprint('bad' in sys.modules, 'json' in sys.modules)\nimport bad\n")
    spec = place.spec("-u", "script.py")
    with place.preloaded(("json", "bad"), spec) as preloader:
        assert place.said[0].startswith(f"bad is not preloaded: it {why}"), place.said
        ended = place.end_of(forked(preloader, spec))
    assert (0, "False True\n") == ended[:2], ended


@pytest.mark.parametrize("name", GOOD)
def test_a_module_without_such_traces_is_preloaded(name: str, place: Place) -> None:
    """As each worker that Python starts would have the same."""
    place.write("good.py", GOOD[name])
    place.write("script.py", "import sys\nprint('good' in sys.modules)\n")
    assert "True\n" == place.warm(place.spec("-u", "script.py"), "good").out, place.said


def test_a_temporary_directory_of_a_module_is_each_workers_own(place: Place) -> None:
    """The first that ends takes away none of another's."""
    (place.path / "made").mkdir()
    text = f"import tempfile\nplace = tempfile.TemporaryDirectory(dir={str(place.path / 'made')!r})\n"
    place.write("uses.py", text)
    place.write("script.py", "import os, uses\nprint(uses.place.name, os.path.isdir(uses.place.name))\n")
    spec = place.spec("-u", "script.py")
    with place.preloaded(("json", "uses"), spec) as preloader:
        assert [] == os.listdir(place.path / "made")  # the one that was made to try it is gone
        told = [place.end_of(forked(preloader, spec)).out.split() for _ in range(2)]
    assert ["True", "True"] == [is_there for _, is_there in told]
    assert 2 == len({path for path, _ in told})
    assert not os.path.exists(place.said[0].rpartition(": ")[2].partition(";")[0])


def test_traces_of_one_import_are_not_those_of_the_next(place: Place) -> None:
    """The module that has left them is named, and no other."""
    place.write("first.py", "import logging, json\n")
    place.write("second.py", "import uuid\nname = uuid.uuid4()\n")
    place.write("third.py", "import logging\n")
    spec = place.spec("-u", "-c", "pass")
    with place.preloaded(("first", "second", "third"), spec) as preloader:
        assert PreloadPhase.READY is preloader.phase
        assert ["second"] == list(preloader.blamed)
    assert place.said[1].startswith("preloaded first, third (")


def test_traces_are_judged_by_the_tables() -> None:
    """Of a function its name counts, or a package that it is below; the worst trace is told."""
    assert "" == unfit(Traces())
    assert "" == unfit(
        Traces(at_end=("logging.shutdown", "torch._C.tidy"), drawers=("numpy.random._pickle",))
    )
    assert unfit(Traces(at_end=("logging.shutdown", "torchx.tidy"))).endswith(": torchx.tidy")
    assert unfit(Traces(at_end=("logging.shutdown_all",))).endswith(": logging.shutdown_all")
    assert AT_END == unfit(Traces(is_unseen_at_end=True))
    assert unfit(Traces(drawers=("rich.style", "mine"))).endswith("(in mine)")
    everything = Traces(("a.b",), True, ("/tmp/x",), ("c",), ("d",))
    assert f"{TEMPORARY}/tmp/x" == unfit(everything)


def test_memory_that_copies_share_is_read_from_the_map_of_a_process() -> None:
    """Files that are only read are none of it, unless they are no longer there."""
    rows = (
        ("1000-2000", "rw-p", "/usr/lib/libc.so"),
        ("2000-3000", "r--s", "/usr/lib/gconv-modules.cache"),
        ("3000-4000", "r--s", "/dev/shm/mine"),
        ("4000-5000", "r--s", "/tmp/gone (deleted)"),
        ("5000-6000", "rw-s", "/home/me/with a blank"),
        ("6000-7000", "rw-s", ""),
        ("7000-8000", "rw-p", ""),
    )
    text = "".join(f"{at} {rights} 00000000 00:01 1   {path}".rstrip() + "\n" for at, rights, path in rows)
    found = shared_memory(text)
    named = ["/dev/shm/mine", "/home/me/with a blank", "/tmp/gone (deleted)", "without a file"]
    assert named == sorted(name for _, name in found)
    before = Snapshot(1, {}, "/", {})
    assert "" == unsafe(before._replace(shared=found), before._replace(shared=found))
    assert SHARED in unsafe(before, before._replace(shared=found))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("torch._dynamo", "torch._inductor.compile_fx", "hpc_elastic.frameworks.torch", "accelerate"),
        *("sklearn.datasets", "matplotlib.pyplot", "transformers.trainer", "lightning.pytorch"),
    ],
)
def test_packages_that_many_use_are_preloaded(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that they leave behind is known, and harmless."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # some set it while they are imported, if nobody has
    spec = place.spec("-u", "-c", f"import sys; print({name!r} in sys.modules)")
    assert "True\n" == place.warm(spec, name).out, place.said
