"""Parameters of a handler: what is refused, and how options are read."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from hpc_elastic.rendezvous import RendezvousParameters, parameters


def params(**config: Any) -> RendezvousParameters:
    """Return parameters with some options."""
    return RendezvousParameters("b", "e", "r", 1, 2, **config)


def test_values_are_kept() -> None:
    """What is given can be read; everything else is an option."""
    given = RendezvousParameters("b", "e", "r", 1, 2, "addr", extra="1")
    assert ("b", "e", "r", 1, 2, "addr") == (
        given.backend, given.endpoint, given.run_id, given.min_nodes, given.max_nodes, given.local_addr,
    )  # fmt: skip
    assert {"extra": "1"} == given.config
    assert ("1", None, 7) == (given.get("extra"), given.get("other"), given.get("other", 7))


NAMELESS = r"^The rendezvous backend name must be a non-empty string\.$"
TOO_FEW = r"^The minimum number of rendezvous nodes \(0\) must be greater than zero\.$"
BELOW = (
    r"^The maximum number of rendezvous nodes \(2\) must be greater than or equal to the minimum "
    r"number of rendezvous nodes \(3\)\.$"
)


@pytest.mark.parametrize(
    ("backend", "low", "high", "text"), [("", 1, 1, NAMELESS), ("b", 0, 1, TOO_FEW), ("b", 3, 2, BELOW)]
)
def test_senseless_values_are_refused(backend: str, low: int, high: int, text: str) -> None:
    """Each wrong value has its message."""
    with pytest.raises(ValueError, match=text):
        RendezvousParameters(backend, "e", "r", low, high)


@pytest.mark.parametrize("value", ["1", "True", "tRue", "T", "t", "Yes", "y", 1, True], ids=repr)
def test_true(value: object) -> None:
    """Many words mean yes."""
    assert params(x=value).get_as_bool("x") is True


@pytest.mark.parametrize("value", ["0", "False", "faLse", "F", "f", "No", "n", 0, False], ids=repr)
def test_false(value: object) -> None:
    """Many words mean no."""
    assert params(x=value).get_as_bool("x") is False


@pytest.mark.parametrize(
    "value", ["01", "Flse", "Ture", "g", "4", "_", "truefalse", 2, -1, 1.0, Fraction(1), ""], ids=repr
)
def test_neither(value: object) -> None:
    """Everything else is refused."""
    with pytest.raises(ValueError, match="option 'x' does not represent a valid boolean value"):
        params(x=value).get_as_bool("x")


def test_an_option_that_is_not_given_has_its_default() -> None:
    """A default stands in, none for nothing."""
    assert (None, True, None, 5) == (
        params().get_as_bool("x"), params().get_as_bool("x", default=True),
        params().get_as_int("x"), params().get_as_int("x", 5),
    )  # fmt: skip


def test_whole_numbers() -> None:
    """Numbers may be text; what is none is refused."""
    assert [0, 10, -3] == [params(x=value).get_as_int("x") for value in ("0", 10, " -3 ")]
    for value in ("a", "0a", "3b", "", "1.5"):
        with pytest.raises(ValueError, match="option 'x' does not represent a valid integer value"):
            params(x=value).get_as_int("x")


def test_one_node_is_the_least_and_may_be_the_most() -> None:
    """The bounds may be the same."""
    given = RendezvousParameters("b", "e", "r", 1, 1)
    assert (1, 1, None, {}) == (given.min_nodes, given.max_nodes, given.local_addr, given.config)


def test_a_default_that_is_false_is_one() -> None:
    """It is not taken for none at all."""
    assert params().get_as_bool("x", default=False) is False
    assert 0 == params().get_as_int("x", 0)
    assert params(x=None).get_as_bool("x", default=True) is None


def test_numbers_have_a_bound() -> None:
    """In both directions; the bound itself is allowed, infinity is no whole number."""
    most = parameters._MOST
    assert [most, -most] == [params(x=value).get_as_int("x") for value in (most, -most)]
    for value in (most + 1, -most - 1):
        with pytest.raises(ValueError, match=f"option 'x' must be {most} at most"):
            params(x=value).get_as_int("x")
    with pytest.raises(ValueError, match="does not represent a valid integer value"):
        params(x=float("inf")).get_as_int("x")


@pytest.mark.parametrize("value", [1e9, -1e9, "0", "1.5"])
def test_seconds_are_read(value: float | str) -> None:
    """As numbers or as text, up to 31 years."""
    assert float(value) == parameters.seconds_of(params(t=value), "t")
    assert (3.0, 3.0, None) == (
        parameters.seconds_of(params(), "t", 3.0),
        parameters.seconds_of(params(t=None), "t", 3.0),
        parameters.seconds_of(params(t=None), "t"),
    )


@pytest.mark.parametrize("value", [1.0000001e9, "1e10", "nan", "inf", "soon", [], 10**400])
def test_what_is_no_number_of_seconds_is_refused(value: Any) -> None:
    """With its name and value."""
    with pytest.raises(
        ValueError, match=r"^The rendezvous configuration option 't' .* is not a number of sec"
    ):
        parameters.seconds_of(params(t=value), "t")
