"""The pages of the documentation, taken apart for the tests: blocks, code spans, headings, links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
ENTRANCES = ("README.md", "CONTRIBUTING.md")

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CELL = re.compile(r"(?<!\\)\|")


class Block(NamedTuple):
    """A fenced block, and the text that is shown right below it, if any."""

    page: str
    line: int
    info: str
    code: str
    output: str | None

    @property
    def place(self) -> str:
        """Where it is: page and line."""
        return f"{self.page}:{self.line}"

    @property
    def language(self) -> str:
        """The first word of the fence."""
        return (self.info.split() or [""])[0]

    @property
    def marks(self) -> tuple[str, ...]:
        """The other words of the fence."""
        return tuple(self.info.split()[1:])


def pages() -> list[Path]:
    """Return all pages, the README first."""
    return [*(REPOSITORY / name for name in ENTRANCES), *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return the path of a page below the repository."""
    return str(page.relative_to(REPOSITORY))


def text_of(page: Path) -> str:
    """Return the text of a page."""
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; a block ``text`` belongs to the one right above it."""
    text = text_of(page)
    found: list[Block] = []
    end_of_last = -1
    for fence in _FENCE.finditer(text):
        info, body = fence["info"].strip(), fence["body"]
        below = text[end_of_last : fence.start()].strip() == "" and end_of_last >= 0
        if info == "text" and below and found[-1].output is None:
            found[-1] = found[-1]._replace(output=body)
        else:
            line = text[: fence.start()].count("\n") + 1
            found.append(Block(name_of(page), line, info, body, None))
        end_of_last = fence.end()
    return found


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in pages() for block in blocks(page)]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def spans(page: Path) -> list[str]:
    """Return what stands between single backquotes."""
    return _SPAN.findall(prose(page))


def first_cells(page: Path) -> list[str]:
    """Return the code spans in the first cells of the rows of all tables."""
    rows = [line for line in prose(page).splitlines() if line.startswith("|")]
    cells = [_CELL.split(row)[1] for row in rows]
    return [span.replace(r"\|", "|") for cell in cells for span in _SPAN.findall(cell)]


def definitions(page: Path) -> list[str]:
    """Return the signatures that a page shows: in first cells, after bullets, in ``python signature``."""
    bullets = re.findall(r"^ *- `([^`\n]+)`", prose(page), re.MULTILINE)
    shown = "".join(block.code for block in blocks(page) if "signature" in block.marks)
    return [*first_cells(page), *bullets, *re.split(r"^(?=[A-Za-z_])", shown, flags=re.MULTILINE)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    return {_anchor(heading) for heading in _HEADING.findall(prose(page))}


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page."""
    return _LINK.findall(prose(page))
