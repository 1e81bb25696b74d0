"""Options that sbatch takes though its help does not list them, from recordings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import options_taken
from tests.slurm.conftest import StandIn

RECORDED = Path(__file__).parents[1] / "recorded"
OLDEST = {"hint", "prefer", "kill-on-invalid-dep", "wait-all-nodes"}
NEWER = OLDEST | {"extra", "segment"}


@pytest.mark.parametrize(
    ("version", "hidden"),
    [
        ("22.05", OLDEST),
        ("24.11", NEWER),
        ("26.05", NEWER | {"mem-update", "resources", "external", "container-type"}),
    ],
)
def test_what_each_version_takes(version: str, hidden: set[str]) -> None:
    """Options that its help does not list are taken; beginnings of names and misspelt ones are not."""
    listed = parse.help_options((RECORDED / version / "sbatch_help.txt").read_text())
    told = (RECORDED / version / "sbatch_asked.txt").read_text().split("$ sbatch --test-only ")[1:]
    said = {word: words for word, _, words in (part.partition("\n") for part in told)}
    names = {word.removeprefix("--").partition("=")[0] for word in said}
    assert {"extra-node", "requeu", "exclusiv", "me", "licences", "foo"} <= names
    assert hidden - listed == options_taken(names, listed, said.__getitem__)


def test_nobody_is_asked_about_what_the_help_lists_or_what_is_no_name() -> None:
    """Each question starts a program."""
    nobody: dict[str, str] = {}
    assert frozenset() == options_taken(["mem", "--x", "a=b", ""], {"mem"}, nobody.__getitem__)


def test_sbatch_itself_is_asked(slurm_dir: StandIn) -> None:
    """With a word that queues nothing, and only where the help is silent."""
    names = Slurm(dict(os.environ)).option_names(("mem", "hint", "hnt"))
    assert names is not None
    assert {"mem", "hint"} <= names
    assert "hnt" not in names
    asked = [call["argv"] for call in slurm_dir.calls("sbatch")]
    assert [["--help"], *[["--test-only", word] for word in ("--hint=x", "--hint", "--hnt=x")]] == asked
    assert [] == slurm_dir.submissions()
