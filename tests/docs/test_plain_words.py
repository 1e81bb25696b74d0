"""Pages and docstrings are in plain technical English: no turn of phrase hides the subject of a sentence."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, REPOSITORY, name_of

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
PACKAGE = REPOSITORY / "hpc_elastic"
_PEOPLE = "(?<!user )(?<!users )(?<!person )(?<!people )(?<!administrator )(?<!reader )(?<!owner )"
REFUSED = {
    r"\b(nobody|somebody|whoever|whomever|whatever)\b": "name the subject: a node, the agent, Slurm",
    r"\b(is|are|was|were|be|been|being) told\b": "name the speaker: the agent reports, the message says",
    r"\blet be\b": "say that it stays as it is, or continues",
    rf"\b{_PEOPLE}who\b": "name the node, the agent or the process; use `that`",
    r"\bwhat\b": "name the thing in place of a clause with `what`",
}
"""Patterns that no sentence may have, and the better way."""

_CODE = re.compile(r"``.+?``|^```.*?^```$|^    .*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_QUESTION = re.compile(r"\"[^\"\n]*\"|(?:(?<=[.:;|] )|(?<=^)|(?<=\())[^.:;|\n]*\?")
_LABEL = re.compile(r"(?<=\|) (?:what|who)(?: \w+){0,2} (?=\|)", re.IGNORECASE)  # the head of a column


def prose(text: str) -> str:
    """Return a page without code, questions and heads of columns; lines keep their numbers."""
    text = _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = (_LABEL.sub(" ", _LABEL.sub(" ", line)) for line in text.split("\n"))
    return "\n".join(_QUESTION.sub("", line) for line in lines)


def found_in(text: str) -> list[str]:
    """Return each refused turn of phrase with its line and the better way."""
    lines = enumerate(prose(text).split("\n"), start=1)
    return [
        f"line {number}: '{line[max(0, hit.start() - 30) : hit.end() + 30].strip()}': {better}"
        for number, line in lines
        for pattern, better in REFUSED.items()
        for hit in re.finditer(pattern, line, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_their_subjects(page: Path) -> None:
    """No page has a refused turn of phrase."""
    assert [] == found_in(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Who loses reads what the other wrote.", ["who", "what"]),
        ("Nobody is told.", ["nobody", "is told"]),
        ("The user who owns it can end it.", []),
        ("| what | why |\n|---|---|\n| `who` | the owner |", []),
        ("## What happened?", []),
        ('It says "what to do" and asks (what is it?).', []),
        ("```\nwhat\n```\nThe rest is let be.", ["let be"]),
    ],
)
def test_a_turn_of_phrase_is_found_in_prose_alone(text: str, refused: list[str]) -> None:
    """Code, questions and heads of columns are no prose."""
    found = found_in(text)
    assert len(refused) == len(found)
    assert all(any(each in line.lower() for line in found) for each in refused)


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions, without indentation and parameters."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            yield re.sub(r"^ +(\w+:)?", "", text, flags=re.MULTILINE)


def folders() -> list[str]:
    """Return the folders of the package; `.` for its own modules."""
    return [".", *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))]


@pytest.mark.parametrize("folder", folders())
def test_docstrings_name_their_subjects(folder: str) -> None:
    """No docstring of a folder has a refused turn of phrase."""
    modules = sorted((PACKAGE / folder).glob("*.py" if folder == "." else "**/*.py"))
    assert [] == [
        f"{module.relative_to(PACKAGE)}: {found}"
        for module in modules
        for text in docstrings(module)
        for found in found_in(text)
    ]


def messages(path: Path) -> Iterator[str]:
    """Yield the texts of a module with more than one word that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value if " " in node.value.strip() else ""


@pytest.mark.parametrize("folder", folders())
def test_messages_name_their_subjects(folder: str) -> None:
    """No message, help text or heading of a folder has a refused turn of phrase; ``__name__`` is code."""
    modules = sorted((PACKAGE / folder).glob("*.py" if folder == "." else "**/*.py"))
    assert [] == [
        f"{module.relative_to(PACKAGE)}: {found}"
        for module in modules
        for text in messages(module)
        for found in found_in(text)
    ]


def comments(path: Path) -> Iterator[str]:
    """Yield the comments of a module."""
    with tokenize.open(path) as file:
        yield from (
            token.string
            for token in tokenize.generate_tokens(file.readline)
            if token.type == tokenize.COMMENT
        )


@pytest.mark.parametrize("folder", folders())
def test_comments_name_their_subjects(folder: str) -> None:
    """No comment of a folder has a refused turn of phrase."""
    modules = sorted((PACKAGE / folder).glob("*.py" if folder == "." else "**/*.py"))
    assert [] == [
        f"{module.relative_to(PACKAGE)}: {found}"
        for module in modules
        for text in comments(module)
        for found in found_in(text)
    ]
