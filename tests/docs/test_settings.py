"""The pages tell each setting with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.settings.of_commands import FINISH, RUN
from hpc_elastic.settings.setting import Setting
from hpc_elastic.settings.table import JOB
from tests.docs.pages import DOCS, name_of, pages, prose
from tests.docs.settings_page import PAGE, page

COMMAND_LINE, END = DOCS / "reference" / "command-line.md", DOCS / "reference" / "finish.md"
_CELL = re.compile(r"(?<!\\)\|")
_NAME = re.compile(r"`(-?-?[\w-]+)")


def _table_rows(place: Path, head: str) -> dict[str, str]:
    """Return the default cells of the tables of a page that begin with this head, by each name in a row."""
    found: dict[str, str] = {}
    is_wanted = False
    for line in prose(place).splitlines():
        is_wanted = line.startswith(head) or (is_wanted and line.startswith("|"))
        if is_wanted:
            cells = _CELL.split(line)
            found.update((name, cells[2].strip()) for name in _NAME.findall(cells[1]))
    return found


def test_the_page_of_the_settings_is_that_of_the_table() -> None:
    """``python -m tests.docs.settings_page`` writes it."""
    assert page() == PAGE.read_text(encoding="utf-8")


def _is_told(value: object, cell: str) -> bool:
    """Tell whether a cell begins with a default, which may be followed by what holds elsewhere."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.match(rf"`?{re.escape(text)}`?(?:$|[;,])", cell) is not None


def _wrong(rows: tuple[Setting, ...], cells: dict[str, str]) -> dict[str, str]:
    """Return the flags whose cell tells another default; only those that have a plain one."""
    plain = [row for row in rows if row.reader_default and not row.is_switch and not row.written.default]
    return {
        row.reader_flag: cells.get(row.reader_flag, "not told")
        for row in plain
        if not _is_told(row.reader_default, cells.get(row.reader_flag, ""))
    }


def test_the_tables_of_flags_tell_the_true_defaults() -> None:
    """Of ``run`` and of ``finish``."""
    assert {} == _wrong(RUN, _table_rows(COMMAND_LINE, "| flag | default |"))
    assert {} == _wrong(FINISH, _table_rows(END, "| flag | default |"))


def test_every_flag_of_finish_is_told() -> None:
    """The table has those of the parser, and no other."""
    told = set(_table_rows(END, "| flag | default |")) - {"flag"}
    assert {row.reader_flag for row in FINISH} == told


PAGES = [place for place in pages() if place != PAGE and "| setting | default |" in prose(place)]


@pytest.mark.parametrize("place", PAGES, ids=name_of)
def test_settings_have_the_same_default_on_every_page(place: Path) -> None:
    """Where a page has a table of settings of its own."""
    cells = _table_rows(place, "| setting | default |")
    rows = [JOB[name] for name in cells if name in JOB]
    plain = [row for row in rows if row.holds]
    wrong = {row.name: cells[row.name] for row in plain if not _is_told(row.holds, cells[row.name])}
    assert rows
    assert {} == wrong
