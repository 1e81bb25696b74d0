"""The modules that a run's workers import: noted, kept in the run directory, preloaded in another round."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from hpc_elastic import typed_json
from hpc_elastic.clock import Clock
from hpc_elastic.errors import DamagedError, StoreError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.preload.notes import NoteBook
from hpc_elastic.processes.preload.rules import Imported, imported_by_most, is_fit_to_learn
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.typed_json import Prose

_FORMAT: Final = 1
_MOST_MODULES: Final = 500
_MOST_BYTES: Final = 1 << 18
_QUIET_S: Final = 10.0  # workers that import nothing for so long have begun their work
_LOOK_S: Final = 1.0
_READ_S: Final = 20.0  # between two looks of a spare at the file of the run
_MOST_AT_WORK: Final = 3  # so often modules are imported anew while a round works
_MOST_BLAMED: Final = 8  # of the learned modules; each costs another start of the process


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
