"""The code in the documentation runs, and prints what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(
    r"^```python runnable\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block ``python runnable``, and the block ``text`` right below it."""

    place: str
    code: str
    output: str | None


def blocks(path: Path) -> list[Block]:
    """Return the runnable blocks of a page."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(f"{path.name}:{text[: found.start()].count(chr(10)) + 1}", found["code"], found["output"])
        for found in BLOCK.finditer(text)
    ]


ALL = [block for path in sorted(DOCS.glob("*.md")) for block in blocks(path)]


@pytest.mark.parametrize("block", ALL, ids=[block.place for block in ALL])
def test_code_runs_as_shown(block: Block, tmp_path: Path) -> None:
    """A reader who copies the block into a file gets what the page promises."""
    (tmp_path / "block.py").write_text(block.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "block.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    if block.output is not None:
        assert block.output == done.stdout


def test_every_runnable_block_is_found() -> None:
    """A block with a slip in its fence is not passed over in silence."""
    marked = sum(path.read_text(encoding="utf-8").count("python runnable") for path in DOCS.glob("*.md"))
    assert 0 < marked == len(ALL)
