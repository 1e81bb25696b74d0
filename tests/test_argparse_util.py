"""Flags whose defaults come from the environment."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from hpc_elastic.argparse_util import check_env, env


@pytest.mark.parametrize(
    ("variable", "words", "value"),
    [(None, [], "bar"), (None, ["-f", "x"], "x"), ("y", [], "y"), ("y", ["--foo=x"], "x"), ("", [], "")],
)
def test_a_value(variable: str | None, words: list[str], value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line goes before the variable, the variable before the default."""
    if variable is not None:
        monkeypatch.setenv("PET_FOO", variable)
    parser = ArgumentParser()
    parser.add_argument("-f", "--foo", action=env, default="bar")
    assert value == parser.parse_args(words).foo


def test_a_required_value_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the line must have it; its type holds for both."""
    parser = ArgumentParser()
    parser.add_argument("--foo", action=env, type=int, required=True)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([])
    monkeypatch.setenv("PET_FOO", "3")
    parser = ArgumentParser()
    parser.add_argument("--foo", action=env, type=int, required=True)
    assert 3 == parser.parse_args([]).foo


@pytest.mark.parametrize(
    ("variable", "words", "value"),
    [
        (None, [], False),
        (None, ["--verbose"], True),
        ("1", [], True),
        ("0", [], False),
        ("0", ["--verbose"], True),
        ("true", [], True),
    ],
)
def test_a_switch(
    variable: str | None, words: list[str], value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 is as if it were given."""
    if variable is not None:
        monkeypatch.setenv("PET_VERBOSE", variable)
    parser = ArgumentParser()
    parser.add_argument("--verbose", action=check_env)
    assert value is parser.parse_args(words).verbose


def test_a_switch_with_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named."""
    monkeypatch.setenv("PET_VERBOSE", "2")
    with pytest.raises(ValueError, match="PET_VERBOSE: '2' is neither 1 nor 0\n  fix: set it to 1 or 0"):
        ArgumentParser().add_argument("--verbose", action=check_env)
