"""The list of mutants that are explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutate_lib.equivalents import FILE, parse, reason_for, stale
from mutate_lib.mutants import Source
from mutate_lib.project import Project, module_name

PROJECT = Project.find(Path(__file__).parents[2], "hpc_elastic")
ENTRY = """
[[equivalent]]
module = "m"
scope = "f"
before = "return a < b"
after = "return (a <= b)"
reason = "a and b are never the same"
"""


def test_each_explained_mutant_exists() -> None:
    """Who changes the code of an explained mutant explains it anew, or removes it from the list."""
    explained = parse(PROJECT.read(FILE))
    files = {PROJECT.file_of(one.module) for one in explained}
    sources = [Source(module_name(PROJECT, file), PROJECT.read(file)) for file in files]
    assert [] == stale(explained, sources)


def test_an_explained_mutant_is_known() -> None:
    """The reason is that of the same fault in the same function."""
    flipped, _ = sorted(Source("m", "def f(a, b):\n    return a < b\n").mutants(), key=lambda one: one.kind)
    assert "a and b are never the same" == reason_for(flipped, parse(ENTRY))
    assert None is reason_for(flipped._replace(scope="g"), parse(ENTRY))


def test_an_entry_without_a_reason_is_refused() -> None:
    """What nobody has explained is no equivalent."""
    with pytest.raises(ValueError, match="reason"):
        parse(ENTRY.replace("a and b are never the same", " "))


def test_an_entry_for_code_that_has_changed_is_stale() -> None:
    """A fault that cannot be made any more is named."""
    now = Source("m", "def f(a):\n    return a\n")
    assert ["f"] == [one.scope for one in stale(parse(ENTRY), [now])]
