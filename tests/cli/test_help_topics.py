"""Pages that messages name can be read in a plain install, by ``hpc-elastic help TOPIC``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli import app, pages
from hpc_elastic.cli.commands import COMMANDS, OF_NODES

REPOSITORY = Path(__file__).parents[2]
_TOPIC = re.compile(r"hpc-elastic help ([a-z][a-z/-]*)")


def texts() -> Iterator[tuple[str, str]]:
    """Yield the texts of the package that are no docstrings, with the names of their files."""
    for path in sorted((REPOSITORY / "hpc_elastic").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        own = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own:
                yield path.name, node.value


def test_messages_name_pages_that_an_installation_has() -> None:
    """None names a file of the source tree; each topic is a page."""
    found = list(texts())
    assert [] == [(name, text) for name, text in found if re.search(r"(?<!/)\bdocs/[\w/-]+\.md", text)]
    named = {topic for _, text in found for topic in _TOPIC.findall(text)}
    assert set() == named - pages.topics().keys() - COMMANDS.keys() - OF_NODES.keys()
    assert {"stopping", "job-file", "coming-from-torchrun"} <= named


def test_a_page_is_printed_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """With the folder before it, too, where a command or another page has the name; `topics` lists all."""
    for topic, title in (("stopping", "# "), ("how-to/logs", "# "), ("reference/frameworks", "# ")):
        assert 0 == app.run(["help", topic])
        assert capsys.readouterr().out.startswith(title)
    assert 0 == app.run(["help", "logs"])
    assert "Usage: hpc-elastic logs" in capsys.readouterr().out
    assert 0 == app.run(["help", "topics"])
    listed = capsys.readouterr().out.split()
    assert {"stopping", "python-of-workers", "reference/frameworks", "coming-from-torchrun"} <= set(listed)
    assert len(listed) == len(set(listed))


def test_an_unknown_topic_is_told_like_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of a page alone is answered with its command."""
    assert 2 == app.run(["help", "nosuch"])
    said = capsys.readouterr().err
    assert "No such command or page 'nosuch'" in said
    assert "hpc-elastic help topics" in said
    assert 2 == app.run(["help", "stoppings"])
    assert "did you mean stopping" in capsys.readouterr().err
    assert 2 == app.run(["troubleshooting"])
    assert "fix: hpc-elastic help troubleshooting" in capsys.readouterr().err
