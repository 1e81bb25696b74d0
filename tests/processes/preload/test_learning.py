"""``auto``: the modules that workers import are learned, and preloaded in the next round."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.processes.linux import adopt_orphans, adopts_orphans
from hpc_elastic.processes.preload import notes, rules
from hpc_elastic.processes.preload.preloader import Learning, LessonFile, Lessons, Preloaded, Preloader
from hpc_elastic.processes.preload.rules import Imported
from hpc_elastic.processes.process import ProcessSpec
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until
from tests.processes.preload.warm import Ended, Place, plain_env

SITE = "/env/lib/python3.11/site-packages"
CLOCK = SystemClock()
SHOWS = "import sys\nHAD = set(sys.modules)\n"


class Lesson:
    """A place with installed packages, and preloaders there that learn."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.site = place.path / "lib" / "site-packages"
        self.site.mkdir(parents=True)
        self.file = place.path / "preload.json"
        self.env = {**plain_env(), "PYTHONPATH": str(self.site)}

    def install(self, **modules: str) -> None:
        """Write modules; a name with two underscores is one of a package."""
        for name, text in modules.items():
            path = self.site / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text)

    def worker(self, text: str, rank: int = 0) -> ProcessSpec:
        """Return a worker that runs a script."""
        self.place.write(f"script{rank}.py", SHOWS + text)
        env = {**self.env, "RANK": str(rank), "PARENT": str(os.getpid())}
        out, err = (str(self.place.path / name) for name in ("out", "err"))
        return ProcessSpec((sys.executable, "-u", f"script{rank}.py"), env, out, err, str(self.place.path))

    @contextmanager
    def preloader(self, spec: ProcessSpec, *named: str, clock: Clock = CLOCK) -> Iterator[Preloader]:
        """Give a preloader that has done with what is known."""
        scratch, cwd = str(self.place.path / "scratch"), str(self.place.path)
        wanted = Preloaded(named, spec.argv, self.env, cwd, scratch, LessonFile(str(self.file)))
        made = Preloader(wanted, clock, self.place.said.append)
        had = adopts_orphans()
        adopt_orphans()
        try:
            made.start()
            wait_until(lambda: not made.is_importing(), "it is ready", timeout_s=60.0)
            yield made
        finally:
            made.close()
            adopt_orphans(wanted=had)

    def round_of(self, preloader: Preloader, number: int, *specs: ProcessSpec) -> list[Ended]:
        """Run a round of workers to its end, and wait for the imports for the next."""
        preloader.begin_round(number)
        ended = []
        for spec in specs:
            process = preloader.fork(spec)
            assert process is not None, self.place.said
            ended.append(self.place.end_of(process))
        preloader.end_round(goes_on=True)
        wait_until(lambda: not preloader.is_importing(), "it is ready again", timeout_s=60.0)
        return ended

    def kept(self) -> list[str]:
        """Return the modules in the file."""
        return [name for name, *_ in json.loads(self.file.read_text())["modules"]]


@pytest.fixture
def lesson(place: Place) -> Lesson:
    """Return a place with installed packages."""
    return Lesson(place)


def test_workers_of_the_next_round_find_what_most_of_this_one_have_imported(lesson: Lesson) -> None:
    """Installed modules alone, of workers that are killed, too; a later start of the run knows them."""
    lesson.install(
        third="import inner", inner="", pack__late="", below="", looked_for="", fails="import nothing_there",
        first_only="",
    )  # fmt: skip
    lesson.place.write("own.py", "import below\n")
    text = (
        "import third, own, pack.late, argparse, importlib.util, os\n"
        "try: import fails\nexcept ImportError: pass\n"
        "importlib.util.find_spec('looked_for')\n"
        "if os.environ['RANK'] == '0': import first_only\n"
        "import colorsys\n"
        "print(sorted(HAD & {'third', 'inner', 'own', 'below', 'pack.late', 'looked_for', 'first_only'}))\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n"
    )
    specs = [lesson.worker(text, rank) for rank in (0, 1)]
    with lesson.preloader(specs[0]) as preloader:
        assert ["[]\n", "[]\n"] == [one.out for one in lesson.round_of(preloader, 1, *specs)]
        assert ["third", "below", "pack", "pack.late"] == lesson.kept()
        again = lesson.round_of(preloader, 2, *specs)
    assert ["['below', 'inner', 'pack.late', 'third']\n"] * 2 == [one.out for one in again]
    assert "nothing is preloaded yet: the imports of this round's workers are learned" == lesson.place.said[0]
    assert lesson.place.said[1].startswith("preloaded third, below, pack, pack.late (")
    assert 2 == len(lesson.place.said)
    with lesson.preloader(specs[0], "json") as preloader:
        assert lesson.place.said[2].startswith("preloaded json, third, below, pack, pack.late (")
        lesson.install(third="")
        preloader.begin_round(1)
        worker = preloader.fork(specs[0])
        assert worker is not None
        assert "[]\n" == lesson.place.end_of(worker).out  # it has changed: the worker has started anew


def test_a_node_that_stands_by_preloads_the_modules_of_other_nodes_workers(lesson: Lesson) -> None:
    """A spare imports them while it waits; it looks for them once in 20 seconds."""
    lesson.install(third="")
    spec = lesson.worker("print('third' in HAD)\n")
    clock = FakeClock()
    with lesson.preloader(spec, clock=clock) as preloader:
        LessonFile(str(lesson.file)).write(Lessons(modules=(Imported("third", str(lesson.site)),)))
        preloader.stand_by()
        assert not preloader.is_importing()
        clock.advance(21.0)
        preloader.stand_by()
        assert preloader.is_importing()
        wait_until(lambda: not preloader.is_importing(), "it is ready")
        assert "True\n" == lesson.round_of(preloader, 1, spec)[0].out


def test_learned_modules_that_cannot_be_shared_are_left_out_for_the_run(lesson: Lesson) -> None:
    """Each is told once, and the others are preloaded."""
    lesson.install(
        good="",
        threads="from threading import Event, Thread\nThread(target=Event().wait, daemon=True).start()",
        gone="",
        reads="import os\nvalue = os.environ.get('LEVEL')\n",
        linked="",
    )
    other = lesson.place.path / "other" / "site-packages"
    other.mkdir(parents=True)
    (other / "linked.py").write_text("")
    text = (
        "import os, good, threads, gone\n"
        f"sys.path.insert(0, {str(other)!r})\nimport linked\n"
        "os.environ['LEVEL'] = 'high'\nimport reads\nprint(reads.value)\nos._exit(0)\n"
    )
    spec = lesson.worker(text)
    with lesson.preloader(spec) as preloader:
        preloader.begin_round(1)
        process = preloader.fork(spec)
        assert process is not None
        lesson.place.end_of(process)
        (lesson.site / "gone.py").unlink()
        preloader.end_round(goes_on=True)
        wait_until(lambda: not preloader.is_importing(), "it is ready again", timeout_s=60.0)
    said, themselves = lesson.place.said[1:], "workers that need it import it themselves"
    assert [
        f"threads is not preloaded: it leaves 1 thread running; {themselves}",
        f"reads is not preloaded: it reads LEVEL, which the program sets before; {themselves}",
        f"gone is not preloaded: it cannot be found; {themselves}",
        f"linked is not preloaded: it is not in {other}, where workers found it; {themselves}",
    ] == said[:-1]
    assert said[-1].startswith("preloaded good (")
    assert ["good"] == lesson.kept()
    del lesson.place.said[:]
    (lesson.site / "gone.py").write_text("")
    with lesson.preloader(spec) as preloader:
        assert "high\n" == lesson.round_of(preloader, 1, spec)[0].out
    assert 1 == len(lesson.place.said), lesson.place.said
    assert ["good"] == lesson.kept()


def test_a_worker_that_tells_its_imports_sees_what_a_started_one_sees(lesson: Lesson) -> None:
    """Module, arguments, path, environment, streams, signals, descriptors."""
    lesson.worker("")
    observer = (Path(__file__).parent / "observer.py").read_text(encoding="utf-8")
    spec = lesson.worker(observer)
    lesson.place.write("script0.py", observer)
    cold = lesson.place.cold(spec)
    with lesson.preloader(spec) as preloader:
        (warm,) = lesson.round_of(preloader, 1, spec)
    facts = [json.loads(one.out.partition("\n")[0]) for one in (cold, warm)]
    assert facts[0] == facts[1]


def test_modules_are_learned_while_a_round_works_when_nothing_is_imported_any_more(tmp_path: Path) -> None:
    """So that they are preloaded by the time that a worker fails; at most three times in a round."""
    clock = FakeClock()
    learning = Learning(LessonFile(str(tmp_path / "preload.json")), clock)
    learning.begin_round(writes=True)
    noting = notes.Noting(os.dup(learning.open_book()[0]))
    learned, given = [], learning.lessons.modules
    for number in range(5):
        noting.find_spec("no_such_module")
        noting._write(f"m{number}\t{SITE}\n")
        for seconds in (2.0, 9.0, 2.0, 20.0):
            clock.advance(seconds)
            learned.append(learning.look(given))
            given = learning.lessons.modules
    assert [False, False, True, False] * 3 + [False] * 8 == learned
    assert ("m0", "m1", "m2") == tuple(one.name for one in learning.lessons.modules)
    learning.end_round()
    assert ("m0", "m1", "m2", "m3", "m4") == tuple(one.name for one in learning.lessons.modules)
    other = Learning(LessonFile(str(tmp_path / "preload.json")), clock)
    assert learning.lessons == other.lessons


def test_learning_ends_when_too_many_modules_cannot_be_shared(tmp_path: Path) -> None:
    """Each of them costs another start of the process that preloads."""
    file = LessonFile(str(tmp_path / "preload.json"))
    file.write(Lessons(modules=tuple(Imported(f"m{number}", SITE) for number in range(20))))
    learning = Learning(file, FakeClock())
    assert not learning.blame({"unknown": "x"}, for_good=True)
    assert [False] * 8 + [True] == [learning.blame({f"m{n}": "x"}, for_good=True) for n in range(9)]
    assert (False, ()) == (learning.is_on, learning.lessons.modules)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"format": 2, "modules": []}', b'{"modules": 3}', b"\0" * 300_000]
)
def test_lessons_that_are_damaged_count_as_none(data: bytes, tmp_path: Path) -> None:
    """As a file that is not there, or a name that is none of a module."""
    file = tmp_path / "preload.json"
    assert Lessons() == LessonFile(str(file)).read()
    file.write_bytes(data)
    assert Lessons() == LessonFile(str(file)).read()
    odd = [["a-b", SITE, []], ["x", "/home/me", []], ["hpc_elastic.api", SITE, []], ["fit", SITE, []]]
    file.write_text(json.dumps({"format": 1, "modules": odd, "left_out": {}}))
    assert (Imported("fit", SITE),) == LessonFile(str(file)).read().modules
    file.chmod(0o664)  # others may have written it
    assert Lessons() == LessonFile(str(file)).read()


def test_notes_of_workers_are_read_whatever_is_in_them() -> None:
    """A worker may be killed while it writes, and a module may vanish after it was looked for."""
    lines = f"a\t{SITE}\nb\t{SITE}\tX\tY\n-a\nc\t/home/me\n..\t{SITE}\n\xff\nd\t{SITE}\ne\t/x/si"
    found = rules.noted(lines.encode("latin-1"))
    assert [Imported("b", SITE, ("X", "Y")), Imported("d", SITE)] == found
    assert [] == rules.noted(b"")


def test_a_module_counts_when_more_than_half_of_the_workers_have_imported_it() -> None:
    """With the variables that the program of any of them had set."""
    a, b, c = Imported("a", SITE), Imported("b", SITE, ("X",)), Imported("c", SITE)
    assert [a, b] == rules.imported_by_most([[a, b, c], [b._replace(changed=()), a], [a]])
    assert [] == rules.imported_by_most([[a], [b]]) == rules.imported_by_most([])


@pytest.mark.parametrize(
    ("path", "site"),
    [
        (f"{SITE}/torch/__init__.py", SITE),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "/usr/lib/python3/dist-packages"),
        ("/usr/lib/python3.11/json/__init__.py", ""),
        ("/home/me/model.py", ""),
        (None, ""),
    ],
)
def test_installed_modules_are_told_from_those_of_a_project(path: str | None, site: str) -> None:
    """The modules of a project change, and what they do at import is their own."""
    assert site == rules.installed_in(path)


def test_a_variable_that_the_program_sets_before_an_import_counts_if_that_reads_it() -> None:
    """Or if a library may read it out of sight; one that another import has set does not count."""
    before = {"A": "1", "B": "1", "OMP_NUM_THREADS": "1"}
    set_before = rules.set_by_program(["A", "B", "OMP_NUM_THREADS"], before, {**before, "B": "2"})
    assert {"A", "OMP_NUM_THREADS"} == set_before
    assert "OMP_NUM_THREADS" == rules.read_at_import(set_before, ())
    assert "A" == rules.read_at_import({"A"}, {"A", "C"})
    assert "" == rules.read_at_import({"A"}, {"B"})


def test_a_worker_cannot_have_written_more_notes_than_there_is_room() -> None:
    """It may write any number into the memory that it shares with its agent."""
    book = notes.NoteBook()
    room = os.fstat(book.fd).st_size
    os.pwrite(book.fd, b"\xff" * room, 0)
    assert 0 < book.used < room
    assert [] == book.imported()
    book.close()


@pytest.mark.parametrize(
    "argv", [("python3", "-m"), ("python3", "-u", "-c"), ("python3",), ("python3", "-X")]
)
def test_a_command_without_its_program_is_none(argv: tuple[str, ...]) -> None:
    """Python itself says so, in a process of its own."""
    assert rules.read_command(argv) is None
