"""The page for people who come from torchrun leaves out none of its flags, names or defects."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.docs.pages import DOCS, REPOSITORY, first_cells, spans, text_of

PAGE = DOCS / "coming-from-torchrun.md"
_TEST = re.compile(r"tests/[\w/]+(?:\.py)?(?:::\w+)?")


def test_tests_that_are_named_exist() -> None:
    """What is said to show something is there: a directory, a file, or a test in it."""
    named = {test for page in DOCS.rglob("*.md") for span in spans(page) for test in _TEST.findall(span)}
    missing = {test for test in named if not _exists(test)}
    assert set() == missing
    assert named


def _exists(test: str) -> bool:
    path, _, function = test.partition("::")
    place = REPOSITORY / path
    return place.exists() and (not function or f"def {function}(" in place.read_text(encoding="utf-8"))


@pytest.mark.torch
def test_every_flag_of_torchrun_is_in_the_table() -> None:
    """The table of flags has those of torch's parser, in the spelling with dashes."""
    run = importlib.import_module("torch.distributed.run")
    options = [option for action in run.get_args_parser()._actions for option in action.option_strings]
    told = {word for cell in first_cells(PAGE) for word in cell.replace(",", " ").split()}
    assert set() == {option for option in options if "_" not in option} - told


def _torchs_modules() -> Iterator[ModuleType]:
    for name in ("run", "argparse_util", "launch"):
        yield importlib.import_module(f"torch.distributed.{name}")
    for package in ("elastic", "launcher"):
        module = importlib.import_module(f"torch.distributed.{package}")
        yield module
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            try:
                yield importlib.import_module(found.name)
            except ModuleNotFoundError:
                continue  # it needs a package that torch does not bring along


def _public(module: ModuleType) -> list[str]:
    of_module = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return list(getattr(module, "__all__", of_module))


def _ours(module: ModuleType) -> ModuleType | None:
    name = module.__name__.replace("torch.distributed.elastic", "hpc_elastic")
    try:
        return importlib.import_module(name.replace("torch.distributed", "hpc_elastic"))
    except ModuleNotFoundError:
        return None


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_every_name_of_torch_is_here_or_said_not_to_be() -> None:
    """A public name of torch's package can be imported here, or the page says why it cannot."""
    not_here = text_of(PAGE).partition("## Missing names")[2]
    spelled = re.findall(r"`([^`]+)`", not_here)
    told = {*spelled, *(name.rpartition(".")[2] for name in spelled)}
    missing = {
        f"{module.__name__}.{name}"
        for module in _torchs_modules()
        if module.__name__ not in told
        for name in _public(module)
        if not hasattr(_ours(module), name) and name not in told
    }
    assert set() == missing
