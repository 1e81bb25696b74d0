"""The examples are what the documentation shows, and no longer than a page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, Block, all_blocks, blocks

EXAMPLES = REPOSITORY / "examples"
PAGE_LINES = 85  # without blank ones
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
_SHOWN = re.compile(r"# (examples/\S+)\n")


def excerpts() -> list[Block]:
    """Return the blocks that name the example's file they are from."""
    return [block for block in all_blocks() if _SHOWN.match(block.code)]


def file_of(block: Block) -> Path:
    """Return the file that an excerpt is from."""
    found = _SHOWN.match(block.code)
    assert found is not None
    return REPOSITORY / found[1]


def parts(code: str) -> list[list[str]]:
    """Return the pieces of an excerpt between lines ``...``, as lines without indentation."""
    found: list[list[str]] = [[]]
    for line in (line.strip() for line in code.splitlines()):
        if line == "...":
            found.append([])
        else:
            found[-1].append(line)
    return [_without_blank_ends(piece) for piece in found]


def _without_blank_ends(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip("\n").split("\n")


def place_of(piece: list[str], lines: list[str], start: int) -> int | None:
    """Return where a piece ends in a file, from a line on; None if it is not there."""
    ends = range(start + len(piece), len(lines) + 1)
    return next((end for end in ends if lines[end - len(piece) : end] == piece), None)


@pytest.mark.parametrize("block", excerpts(), ids=lambda block: block.place)
def test_what_is_shown_is_the_example(block: Block) -> None:
    """Line by line and in the same order, with nothing between but where the page says so."""
    lines = [line.strip() for line in file_of(block).read_text().splitlines()]
    at = 0
    for piece in parts(block.code.partition("\n")[2]):
        end = place_of(piece, lines, at)
        assert end is not None, f"{block.place}: not in {file_of(block).name}: {piece}"
        at = end


@pytest.mark.parametrize("name", NAMES)
def test_each_example_is_shown_and_is_one_page(name: str) -> None:
    """A page of the documentation has its lines, or a whole file of it."""
    files = [path for path in (EXAMPLES / name).iterdir() if path.is_file()]
    whole = {path.read_text() for path in files}
    shown = [file_of(block).parent.name for block in excerpts()]
    assert name in shown or whole & {block.code for block in all_blocks()}
    for path in files:
        length = len([line for line in path.read_text().splitlines() if line.strip()])
        assert length <= PAGE_LINES, path


def test_the_job_script_of_torchrun_is_shown_whole() -> None:
    """It can be copied from the page."""
    script = (EXAMPLES / "torchrun" / "train.sbatch").read_text()
    assert [script] == [block.code for block in all_blocks() if "--rdzv-backend=hpc_elastic" in block.code]


@pytest.mark.parametrize("name", NAMES)
def test_what_to_change_is_what_the_example_does(name: str) -> None:
    """The page of an example imports what its program imports."""
    program = ast.parse((EXAMPLES / name / "train.py").read_text())
    for block in blocks(EXAMPLES / name / "README.md"):
        if block.language == "python":
            assert _ours(ast.parse(block.code)) <= _ours(program), block.place


def _ours(tree: ast.Module) -> set[tuple[str, str]]:
    """Return what a program imports from this package."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        (node.module or "", name.name)
        for node in found
        if (node.module or "").startswith("hpc_elastic")
        for name in node.names
    }
