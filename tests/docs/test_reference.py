"""The reference tells every public name, with its real signature, every flag, variable and exit code."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import re
from typing import Any

import pytest

from hpc_elastic.cli.run.flags import parser
from hpc_elastic.exit_codes import ExitCode
from tests.docs.pages import DOCS, REPOSITORY, blocks, definitions, first_cells, spans, text_of
from tests.docs.public import PAGES, Name, Shown, difference, methods, public_names, real_signature, shown

REFERENCE = DOCS / "reference"
COMMAND_LINE = REFERENCE / "command-line.md"
_WORD = re.compile(r"\w+")
_VARIABLE = re.compile(r"(HPC_ELASTIC|TORCHELASTIC|TORCH_ELASTIC|PET)_[A-Z0-9_]*[A-Z0-9]")


@functools.cache
def _spans(page: str) -> tuple[str, ...]:
    return tuple(spans(REFERENCE / page))


@functools.cache
def _signatures(page: str) -> dict[str, Shown]:
    found = (shown(text.strip()) for text in definitions(REFERENCE / page))
    return {_without_module(one.name): one for one in found if one is not None}


def _without_module(name: str) -> str:
    """Return `name` of ``module.name``, and ``Class.method`` as it is."""
    owner, _, last = name.rpartition(".")
    return last if owner.islower() else name


@functools.cache
def _words(page: str) -> frozenset[str]:
    texts = [*_spans(page), *(block.code for block in blocks(REFERENCE / page) if "signature" in block.marks)]
    return frozenset(word for text in texts for word in _WORD.findall(text))


NAMES = public_names()


@pytest.mark.parametrize("page", sorted(set(PAGES.values())))
def test_every_public_name_is_told(page: str) -> None:
    """A name that can be imported is in the reference, and so are its methods; once for all its places."""
    told = _words(page)
    elsewhere = {(one.name, id(one.value)) for one in NAMES if one.page != page and _is_told(one)}
    mine = [one for one in NAMES if one.page == page and (one.name, id(one.value)) not in elsewhere]
    missing = {one.place for one in mine if not _is_told(one)}
    missing |= {f"{one.name}.{method}" for one in mine for method in methods(one.value) if method not in told}
    assert set() == missing


def _is_told(one: Name) -> bool:
    return one.name in _words(one.page)


def _namespace(one: Name) -> dict[str, Any]:
    return {**vars(importlib.import_module(one.module)), **{name.name: name.value for name in NAMES}}


@pytest.mark.parametrize("page", sorted(set(PAGES.values())))
def test_signatures_are_the_real_ones(page: str) -> None:
    """What has parameters is shown with them, on one of its pages: names, order, kinds and defaults."""
    elsewhere = {id(one.value) for one in NAMES if one.page != page and one.name in _signatures(one.page)}
    wrong: dict[str, str] = {}
    for one in (name for name in NAMES if name.page == page):
        real = real_signature(one.value)
        text = _signatures(page).get(one.name)
        if real is None or (text is None and (not real.parameters or id(one.value) in elsewhere)):
            continue
        slip = "not shown" if text is None else difference(text, real, _namespace(one))
        if slip:
            wrong[one.place] = slip
    assert {} == wrong


@pytest.mark.parametrize("page", sorted(set(PAGES.values())))
def test_signatures_of_methods_are_the_real_ones(page: str) -> None:
    """What is shown as ``Class.method(...)`` has these parameters."""
    mine = {name.name: name for name in NAMES if name.page == page}
    wrong: dict[str, str] = {}
    for dotted, text in _signatures(page).items():
        owner, _, method = dotted.rpartition(".")
        if owner not in mine:
            continue
        member = getattr(mine[owner].value, method, None)
        slip = (
            difference(text, inspect.signature(member), _namespace(mine[owner]))
            if callable(member)
            else "there is no such method"
        )
        if slip:
            wrong[dotted] = slip
    assert {} == wrong


def _flags() -> set[str]:
    shown = [action for action in parser()._actions if action.help != argparse.SUPPRESS]
    options = [option for action in shown for option in action.option_strings]
    return {option for option in options if "_" not in option}


def test_every_flag_of_run_is_told() -> None:
    """The table of flags has those that `hpc-elastic run` knows, and no other."""
    cells = [word for cell in first_cells(COMMAND_LINE) for word in cell.replace(",", " ").split()]
    told = {word for word in cells if word.startswith("-")}
    assert _flags() == told


def test_every_exit_code_is_told() -> None:
    """The table of exit codes has all of them."""
    cells = set(re.findall(r"^\| (\d+) \|", text_of(COMMAND_LINE), re.MULTILINE))
    assert set() == {str(int(code)) for code in ExitCode} - cells


def _variables_of_the_code() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "hpc_elastic").rglob("*.py"))
    constants = (
        node.value
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {value for value in constants if _VARIABLE.fullmatch(value)}


def test_every_environment_variable_is_told() -> None:
    """What the package reads from or puts into the environment is on the page of the command line."""
    told = {word for span in spans(COMMAND_LINE) for word in _WORD.findall(span)}
    assert set() == _variables_of_the_code() - told
