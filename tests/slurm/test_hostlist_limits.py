"""How many hosts a host list may name."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client import parse


@pytest.fixture(autouse=True)
def _at_most_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_HOSTS", 10)


@pytest.mark.parametrize(
    "text", ["n[1-10]", "n[5-14]", "a[1-9],b", "a[1-5][1-2]", "a[1-4],b[1-4],c[1-2]", "n[3,1-9]", "n[10]"]
)
def test_as_many_as_are_allowed_are_named(text: str) -> None:
    """However they are written; how high their numbers are does not matter."""
    assert (1 if text == "n[10]" else 10) == len(parse.expand(text))


@pytest.mark.parametrize(
    "text",
    [
        "n[1-11]",
        "n[0-10]",
        "a[1-9],b[1-2]",
        "a[1-5][1-3]",
        "a[1-10][1-2]",
        "a[1-4],b[1-4],c[1-3]",
        "n[3,1-10]",
        "n[0-999999999]",
    ],
)
def test_one_more_is_refused(text: str) -> None:
    """With the list, whether one range is too large or all together are too many."""
    with pytest.raises(InputError, match="more than 10 hosts"):
        parse.expand(text)


@pytest.mark.parametrize(("length", "more"), [(30, ""), (100, ""), (101, " and 1 more characters")])
def test_a_message_quotes_only_the_beginning_of_a_long_list(length: int, more: str) -> None:
    """A hundred characters of it."""
    text = "n[" + "1" * (length - 2)
    with pytest.raises(InputError) as error:
        parse.expand(text)
    assert f"{text[:100]!r}{more} is not a host list" in str(error.value)
