"""Names of files that are made of what users write."""

from __future__ import annotations

import pytest

from hpc_elastic.paths import own_name, readable_name


@pytest.mark.parametrize(
    ("text", "name"),
    [("a-1.b_C", "a-1.b_C"), ("a b/../c", "a-b-..-c"), ("../..", ""), ("", ""), ("x" * 300, "x" * 64)],
)
def test_a_readable_name(text: str, name: str) -> None:
    """A job name may hold anything, but a file name should not."""
    assert name == readable_name(text)


@pytest.mark.parametrize(
    ("text", "name"), [("a-1.b_C", "a-1.b_C"), ("", ""), ("a b", "a-b-806c5cd3"), ("..", "9608161c")]
)
def test_an_own_name(text: str, name: str) -> None:
    """What is a name stays as it is; from anything else it can be told apart."""
    assert name == own_name(text)
