"""docs/architecture.md shows the rooms as they are."""

from __future__ import annotations

import re

from tests.docs.pages import REPOSITORY
from tests.docs.rooms_page import PAGE, made, reduced


def test_the_picture_is_that_of_the_package() -> None:
    """`python -m tests.docs.rooms_page` writes it again after modules have moved."""
    page = PAGE.read_text(encoding="utf-8")
    assert made(page) == page


def test_an_arrow_that_others_imply_is_left_out() -> None:
    """The picture has the arrows from a to b and from b to c, and none from a to c."""
    found = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset[str]()}
    assert {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()} == reduced(found)


def test_the_files_of_the_walks_exist() -> None:
    """Each file that a walk names is a file of the repository."""
    named = re.findall(r"`((?:hpc_elastic|sbatch_templates)/[\w./]+)`", PAGE.read_text(encoding="utf-8"))
    assert named
    assert [] == [name for name in named if not (REPOSITORY / name).exists()]
