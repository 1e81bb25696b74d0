"""The picture and the table of the rooms in docs/architecture.md, made from the package itself.

``python -m tests.docs.rooms_page`` writes both again after modules have moved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.docs.pages import DOCS, REPOSITORY

PAGE = DOCS / "architecture.md"
PACKAGE = REPOSITORY / "hpc_elastic"
GROUND = "ground floor"  # the modules that lie in no room, but for the doors below
DOORS = ("__init__", "__main__", "run")  # start programs, or are the package itself
_BEGIN, _END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->\n"

Rooms = Mapping[str, frozenset[str]]  # by room the rooms that it imports


def room_of(module: str) -> str:
    """Return the room of a module, named from the package on."""
    first = module.partition(".")[0]
    return first if (PACKAGE / first).is_dir() else GROUND


def rooms() -> Rooms:
    """Return which rooms there are and what they import; imports for types count."""
    found: dict[str, set[str]] = {}
    for path in _modules(PACKAGE):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if module in DOORS:
            continue
        room = room_of(module)
        imported = {room_of(name) for name in _imported(path) if name.partition(".")[0] not in DOORS}
        found.setdefault(room, set()).update(imported - {room})
    return {room: frozenset(below) for room, below in sorted(found.items())}


def _modules(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if "static_init" not in path.name)


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports, without the package's name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.partition(".")[2] for name in names if name.startswith("hpc_elastic."))


def reduced(found: Rooms) -> Rooms:
    """Return the imports without those that others imply: an arrow from a to c falls away beside a, b, c."""
    reach = {room: _reach(room, found) for room in found}
    return {
        room: frozenset(one for one in below if not any(one in reach[other] for other in below - {one}))
        for room, below in found.items()
    }


def _reach(room: str, found: Rooms) -> frozenset[str]:
    below = found.get(room, frozenset())
    return below.union(*(_reach(one, found) for one in below))


def picture(found: Rooms) -> str:
    """Return the rooms as a Mermaid diagram, each arrow an import."""
    lines = [f"    {_id(room)}[{room}]" for room in found]
    arrows = [
        f"    {_id(room)} --> {_id(one)}" for room, below in reduced(found).items() for one in sorted(below)
    ]
    return "```mermaid\nflowchart TD\n" + "\n".join([*lines, *arrows]) + "\n```\n"


def _id(room: str) -> str:
    return room.replace(" ", "_")


def table(found: Rooms) -> str:
    """Return the subject and the size of each room."""
    rows = ["| room | holds | modules |", "|---|---|---|"]
    rows += [f"| `{room}` | {_first_sentence(room)} | {len(_paths_of(room))} |" for room in found]
    return "\n".join(rows) + "\n"


def _paths_of(room: str) -> list[Path]:
    if room == GROUND:
        return [path for path in sorted(PACKAGE.glob("*.py")) if path.stem not in DOORS]
    return list(_modules(PACKAGE / room))


def _first_sentence(room: str) -> str:
    if room == GROUND:
        return "Errors, exit codes, the clock, paths, texts, JSON with types."
    words = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(words.split("\n\n")[0].split()).replace("|", "\\|")


def made(page: str) -> str:
    """Return a page with the picture and the table made anew."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    found = rooms()
    return f"{head}{_BEGIN}\n{picture(found)}\n{table(found)}\n{_END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
