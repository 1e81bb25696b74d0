"""An agent that starts from one file: it needs no other of the package, and trusts no file of others."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_elastic.isolated.argv import own_argv, start_argv
from hpc_elastic.isolated.lookup import NEEDED
from hpc_elastic.isolated.one_file import unexplained
from hpc_elastic.testing.fake_slurm import FakeSlurm

REPOSITORY = Path(__file__).parents[2]
TRUSTED = 0o700


class Packages(NamedTuple):
    """An environment that has the package as pip installs it."""

    python: str
    home: Path

    def file(self) -> bytes:
        """Return the content of the file that an agent of it starts from."""
        return run(*own_argv(self.python, "hpc_elastic.isolated.one_file")).stdout

    def start(self, file: Path) -> tuple[str, ...]:
        """Return the words that start a command of it from a file."""
        return start_argv(self.python, str(self.home), str(file))


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program."""
    return subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, check=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Make an environment with the package and all that it needs."""
    place = tmp_path_factory.mktemp("installed")
    assert 0 == run(sys.executable, "-I", "-m", "venv", "--without-pip", str(place)).returncode
    (packages,) = place.glob("lib/python*/site-packages")
    home = packages / "hpc_elastic"
    shutil.copytree(REPOSITORY / "hpc_elastic", home, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "sbatch_templates", home / "sbatch_templates")
    for name in NEEDED[1:]:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            origin = Path(found.origin)
            source = origin.parent if origin.name.startswith("__init__.") else origin
            (packages / source.name).symlink_to(source)
    return Packages(str(place / "bin" / "python"), home)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that nobody else can write to."""
    place = tmp_path / "run dir"
    place.mkdir(TRUSTED)
    return place


@pytest.fixture
def file(base: Packages, folder: Path) -> Path:
    """The file of an environment, where nobody else can write."""
    path = folder / "start.bin"
    path.write_bytes(base.file())
    path.chmod(0o600)
    return path


@pytest.mark.slow
def test_an_agent_needs_no_other_file_of_the_package(
    base: Packages, file: Path, folder: Path, tmp_path: Path
) -> None:
    """All modules of a start are in the file: it works while the others are not there."""
    hidden = tmp_path / "hidden"
    kept = ("__init__.py", "isolated")
    moved = [path for path in base.home.iterdir() if path.name not in kept]
    hidden.mkdir()
    for path in moved:
        path.rename(hidden / path.name)
    try:
        words = ("run", "--run-dir", str(folder / "r"), "--no-python", "/bin/echo", "works")
        done = run(*base.start(file), *words)
    finally:
        for path in moved:
            (hidden / path.name).rename(path)
    assert (0, b"works\n") == (done.returncode, done.stdout), done.stderr
    assert b"note:" not in done.stderr


@pytest.mark.slow
def test_a_module_that_is_not_in_the_file_is_found_where_it_is_installed(base: Packages, file: Path) -> None:
    """A command that no agent needs, with packages of others, works as without the file."""
    for words in (("version",), ("render", "--nodes", "2", "--time", "1h", "--", "train.py")):
        own, others = run(*base.start(file), *words), run(*own_argv(base.python), *words)
        assert 0 == own.returncode, own.stderr
        assert len(others.stdout.splitlines()) == len(own.stdout.splitlines())
        assert b"note:" not in own.stderr


def truncate(file: Path) -> None:
    """Take away the last byte."""
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    """Leave nothing in it."""
    os.truncate(file, 0)


def cut_head(file: Path) -> None:
    """Leave the versions and a part of the sizes."""
    os.truncate(file, file.read_bytes().index(b"0" * 10) + 5)


def age(file: Path) -> None:
    """Have another version of the package have made it."""
    file.write_bytes(file.read_bytes().replace(b"__version__", b"__vers1on__", 1))


def other_python(file: Path) -> None:
    """Have another Python have made it."""
    file.write_bytes(file.read_bytes().replace(sys.version.encode(), b"2.7.18", 1))


def open_file(file: Path) -> None:
    """Let the group write to it."""
    file.chmod(0o660)


def open_folder(file: Path) -> None:
    """Let everybody write to its directory."""
    file.parent.chmod(0o777)


def middle_of(data: bytes, part: str) -> int:
    """Return the place in the middle of a part of the file."""
    sizes = re.search(rb"\n(\d{20})(\d{20})(\d{20})", data)
    assert sizes is not None
    listed, agents, codes = map(int, sizes.groups())
    lengths = (sizes.start(1), 60, 16, listed, agents, codes - agents)
    ends = tuple(itertools.accumulate(lengths))
    assert len(data) == ends[-1]
    at = ("head", "sizes", "sums", "index", "modules of agents", "other modules").index(part)
    return ends[at] - lengths[at] // 2 - 1


def remove(file: Path) -> None:
    """Remove it."""
    file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (truncate, "it is not complete"),
        (empty, "it was made by another version of Python or of hpc_elastic"),
        (cut_head, "it is not complete"),
        (age, "it was made by another version of Python or of hpc_elastic"),
        (other_python, "it was made by another version of Python or of hpc_elastic"),
        (open_file, "another user can write to it"),
        (open_folder, "another user can write to it"),
        (remove, "No such file or directory"),
    ],
)
def test_an_unfit_file_is_not_used(base: Packages, file: Path, spoil: object, why: str) -> None:
    """The installed package starts in its place, and the first node of a job says so."""
    assert callable(spoil)
    spoil(file)
    done = run(*base.start(file), "run", "--help", SLURM_NODEID="0")
    assert 0 == done.returncode, done.stderr
    assert b"usage" in done.stdout
    told = f"note: {file} is not used, and the installed package starts: {why}\n"
    assert told == done.stderr.decode()
    assert b"" == run(*base.start(file), "run", "--help", SLURM_NODEID="1").stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("head", "it was made by another version of Python or of hpc_elastic"),
        ("sizes", "it is damaged"),
        ("sums", "it is damaged"),
        ("index", "it is damaged"),
        ("modules of agents", "it is damaged"),
        ("other modules", "it is damaged"),
    ],
)
def test_a_file_with_one_wrong_bit_is_not_used(base: Packages, file: Path, part: str, why: str) -> None:
    """A damaged block of the right size is noticed by every process that reads it."""
    data = bytearray(file.read_bytes())
    data[middle_of(bytes(data), part)] ^= 1
    file.write_bytes(data)
    told = f"note: {file} is not used, and the installed package starts: {why}\n"
    for words in (("run", "--help"), ("version",)):
        done = run(*base.start(file), *words, SLURM_NODEID="0")
        assert 0 == done.returncode, done.stderr
        is_read = part != "other modules" or words[0] != "run"
        assert (told if is_read else "") == done.stderr.decode()


@pytest.mark.slow
@pytest.mark.fake_slurm(nodes=1)
def test_a_job_starts_without_room_for_its_file(
    base: Packages, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    """The installed package starts, and the log says so, where the disk took the job but not the file."""
    root = tmp_path / "run"
    options = ("--run-dir", str(root), "--nodes", "1", "--time", "10m", "--allow-local-run-dir")
    words = (*own_argv(base.python), "submit", *options, "--", "/bin/echo", "works")
    limit = (resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))  # smaller than the file
    done = subprocess.run(
        words, capture_output=True, check=False, preexec_fn=lambda: resource.setrlimit(*limit)
    )
    assert 0 == done.returncode, done.stderr
    assert not (root / "start.bin").exists()
    (job,) = {word for word in done.stdout.decode().replace(",", " ").split() if word.isdigit()}
    fake_slurm.wait_state(job, "COMPLETED")
    (log,) = root.glob("slurm-*.out")
    told = "start.bin is not used, and the installed package starts: No such file or directory"
    assert 1 <= log.read_text().count(told)


RACE = """
import importlib, sys, threading
sys.path.append({home!r})
from hpc_elastic.isolated.start import InstalledPackages
sys.path.pop()

class Finders(list):
    def __iter__(self):
        for finder in list.__iter__(self):
            if threading.current_thread() is second and finder is list.__getitem__(self, -1):
                first.start()
                first.join()
            yield finder

def find():
    found.append(importlib.import_module("found_late").__name__)

found = []
first = threading.Thread(target=importlib.import_module, args=("psutil",))
second = threading.Thread(target=find)
sys.meta_path = Finders([*sys.meta_path, InstalledPackages()])
second.start()
second.join()
print(found, "psutil" in sys.modules)
"""
"""One thread has asked where modules are found; before it goes on another makes the packages known."""


def test_two_threads_that_import_at_once_find_installed_packages(base: Packages) -> None:
    """Both find the module of a package, whichever of them makes the packages known."""
    module = base.home.parent / "found_late.py"
    module.touch()
    try:
        done = run(base.python, "-I", "-S", "-c", RACE.format(home=str(base.home.parent)))
    finally:
        module.unlink()
    assert b"['found_late'] True\n" == done.stdout, done.stderr


EXPLAINED = """
class Kind:
    "Kept: help texts are made of it."

def plain():
    "Not kept."
    return [text for text in ("kept",)], (lambda: "kept")()

def loads():
    "Both a docstring and a value."
    return "Both a docstring and a value."
"""


def test_functions_in_the_file_do_the_same_without_docstrings() -> None:
    """A text that a function loads stays, and so do those of classes, lambdas and comprehensions."""
    scope: dict[str, Any] = {}
    exec(unexplained(compile(EXPLAINED, "explained", "exec")), scope)  # noqa: S102 - a module is made of it
    assert (None, (["kept"], "kept")) == (scope["plain"].__doc__, scope["plain"]())
    assert "Both a docstring and a value." == scope["loads"]()
    assert "Kept: help texts are made of it." == scope["Kind"].__doc__
