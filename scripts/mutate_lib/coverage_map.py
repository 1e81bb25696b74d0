"""Which fast test runs which lines of the package, kept from one command to the next.

What was found for a file of tests holds as long as the package, what tests share and the file itself stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeVar

from mutate_lib import plugin, record
from mutate_lib.project import Project
from mutate_lib.pytest_run import interpreter, run_tests
from mutate_lib.tree import begin_recording, make_copy, remove

_AT_ONCE = 8  # files of tests per run of pytest
_One = TypeVar("_One")
_Other = TypeVar("_Other")
_FILE_S = 300.0  # the most that a file of tests may take while its lines are noted


class Test(NamedTuple):
    """A fast test.

    Attributes:
        name: as pytest calls it.
        took_s: while lines were noted.
        lines: of each file of the package, those that it has run.
        elsewhere: files of the package that programs have run which it starts.
    """

    name: str
    took_s: float
    lines: dict[str, frozenset[int]]
    elsewhere: frozenset[str]


class _Ran(TypedDict):
    """What a test has run, as the plugin writes it."""

    lines: dict[str, list[int]]
    elsewhere: list[str]


class Found(NamedTuple):
    """What is known of a file of tests.

    Attributes:
        tests: those that pass.
        broken: the names of those that fail without any fault.
    """

    tests: list[Test]
    broken: list[str]


class Recorder:
    """Finds out which test runs what, or remembers it."""

    def __init__(self, project: Project, jobs: int, say: Callable[[str], None]) -> None:
        self._project = project
        self._jobs = jobs
        self._say = say
        self._known: dict[str, Found] = {}
        self._shared = _digest(
            interpreter(),
            Path(str(record.__file__)).read_text(),
            Path(str(plugin.__file__)).read_text(),
            *(project.read(name) for name in project.sources),
            *(str((project.root / name).stat().st_size) + name for name in project.support_files),
            *(project.read(name) for name in project.support_files if name.endswith(".py")),
        )

    def find(self, files: Sequence[str]) -> dict[str, Found]:
        """Return what the tests of some files run."""
        cache = _cache()
        places = {name: cache / self._key(name) for name in files if name not in self._known}
        self._known.update({name: _read(place) for name, place in places.items() if place.exists()})
        new = [name for name in files if name not in self._known]
        if new:
            self._say(f"noting which lines the fast tests of {len(new)} of {len(files)} files run")
        chunks = list(enumerate(new[at : at + _AT_ONCE] for at in range(0, len(new), _AT_ONCE)))

        def note(chunk: tuple[int, list[str]]) -> dict[str, Found]:
            noted = self._note(*chunk)
            for name, known in noted.items():
                if not known.broken:  # else it may be the load of the machine
                    _write(places[name], known)
            return noted

        for noted in in_threads(self._jobs, note, chunks):
            self._known.update(noted)
        return {name: self._known[name] for name in files}

    def _key(self, name: str) -> str:
        return f"{_digest(self._shared, name, self._project.read(name))}.json"

    def _note(self, number: int, files: list[str]) -> dict[str, Found]:
        """Run the tests of some files and note their lines; those that fail, once more without noting."""
        tree = self._project.root.with_name(f"noting{number}")
        lines = tree.with_name(f"lines{number}")
        make_copy(self._project.root, tree)
        try:
            begin_recording(self._project, tree, tree.with_name(f"map{number}"))
            run = run_tests(tree, files, _FILE_S * len(files), lines=lines)
            if not lines.exists():
                raise RuntimeError(f"pytest did not end on {' '.join(files)}:\n{run.printed[-2000:]}")
            (tree / record.SETTINGS).unlink()
            ran = json.loads(lines.read_text(encoding="utf-8"))
            failed = [one.test for one in run.ended if one.how == "failed"]
            broken = {name for name in failed if run_tests(tree, [name], _FILE_S).exit_code != 0}
        finally:
            remove(tree)
        took = {one.test: one.took_s for one in run.ended if one.how != "skipped"}
        self._say(f"  {len(took)} tests of {len(files)} files{_but(broken)}")
        return {name: _of_file(name, took, ran, broken) for name in files}


def _of_file(name: str, took: dict[str, float], ran: Mapping[str, _Ran], broken: set[str]) -> Found:
    mine = [test for test in took if test.partition("::")[0] == name]
    tests = [
        _test(test, took[test], [ran[one] for one in (test, name) if one in ran])
        for test in mine
        if test not in broken
    ]
    return Found(tests, sorted(broken & set(mine)))


def _test(name: str, took_s: float, ran: Sequence[_Ran]) -> Test:
    files = {file for one in ran for file in one["lines"]}
    lines = {file: frozenset(line for one in ran for line in one["lines"].get(file, ())) for file in files}
    return Test(name, took_s, lines, frozenset(file for one in ran for file in one["elsewhere"]))


def _but(broken: Iterable[str]) -> str:
    return "".join(f"\n  left out, it fails without any fault: {name}" for name in sorted(broken))


def in_threads(jobs: int, function: Callable[[_One], _Other], values: Iterable[_One]) -> list[_Other]:
    """Return what a function gives for each value, several at once; what fails or is stopped ends all."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(function, value) for value in values]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def _cache() -> Path:
    """Return a directory for what is to be remembered, which nobody else can write."""
    path = Path(tempfile.gettempdir()) / f"hpc_elastic-mutate-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else; remove it or set TMPDIR")
    return path


def _write(path: Path, found: Found) -> None:
    tests = [
        [
            test.name,
            test.took_s,
            {name: sorted(some) for name, some in test.lines.items()},
            sorted(test.elsewhere),
        ]
        for test in found.tests
    ]
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"tests": tests, "broken": found.broken}), encoding="utf-8")
    draft.replace(path)


def _read(path: Path) -> Found:
    data = json.loads(path.read_text(encoding="utf-8"))
    tests = [
        Test(name, took_s, {file: frozenset(some) for file, some in lines.items()}, frozenset(elsewhere))
        for name, took_s, lines, elsewhere in data["tests"]
    ]
    return Found(tests, data["broken"])
