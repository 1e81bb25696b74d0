"""Loggers by module."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hpc_elastic.utils.log_level import get_log_level
from hpc_elastic.utils.logging import _derive_module_name, get_logger

AT_IMPORT = get_logger("own name")


def test_a_logger_is_named_for_its_module() -> None:
    """Without a name, or with an empty one, it is that of the caller."""
    assert [__name__] * 3 == [get_logger().name, get_logger(None).name, get_logger("").name]
    assert "own name" == AT_IMPORT.name
    assert get_logger("one") is get_logger("one") is not get_logger("other")


def test_code_without_a_module_has_a_file() -> None:
    """What was started in an odd way is called by its file; who has no caller has no name."""
    there: dict[str, Any] = {"get_logger": get_logger, "__name__": None}
    exec(compile("found = get_logger().name", "/some/where/odd-one.py", "exec"), there)  # noqa: S102 - odd on purpose
    assert "odd-one" == there["found"]
    assert __name__ == _derive_module_name(depth=1)
    assert _derive_module_name(depth=10_000) is None


@pytest.mark.parametrize(("level", "number"), [(None, logging.WARNING), ("DEBUG", 10), ("INFO", 20)])
def test_the_level_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, level: str | None, number: int
) -> None:
    """LOGLEVEL decides, each time."""
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("LOGLEVEL", level)
    assert number == get_logger("levels").level
    assert "WARNING" == get_log_level()


def test_a_level_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what it may be."""
    monkeypatch.setenv("LOGLEVEL", "LOUD")
    with pytest.raises(ValueError, match="'LOUD': the environment variable LOGLEVEL must be one of CRITICAL"):
        get_logger("levels")
