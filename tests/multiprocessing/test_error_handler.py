"""Which error file a process has, and what goes into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.multiprocessing.errors import ChildFailedError, ErrorHandler, ProcessFailure, record


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the path that this process is told to write its error to."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def test_a_handler_may_choose_the_file(error_file: Path, tmp_path: Path) -> None:
    """Who overrides where the error file is finds it there."""

    class Elsewhere(ErrorHandler):
        def _get_error_file_path(self) -> str:
            return str(tmp_path / "mine.json")

    Elsewhere().record_exception(OSError("x"))
    assert (tmp_path / "mine.json").exists()
    assert not error_file.exists()


def test_a_launchers_own_error_is_not_recorded(error_file: Path) -> None:
    """Where the child that failed has left no error file, there is none of its launcher either."""

    def launch() -> None:
        raise ChildFailedError("train.py", {3: ProcessFailure(0, 9, 7, "")})

    with pytest.raises(ChildFailedError):
        record(launch)()
    assert not error_file.exists()


def test_a_handler_with_an_initializer_of_its_own_writes_the_users_error(error_file: Path) -> None:
    """It need not call that of the class above."""

    class Own(ErrorHandler):
        def __init__(self) -> None:
            self.calls = 0

    def fail() -> None:
        raise KeyError("lr")

    with pytest.raises(KeyError, match="lr"):
        record(fail, error_handler=Own())()
    assert "KeyError" in error_file.read_text()


def test_a_handler_that_fails_at_a_success_makes_no_failure_of_it(
    error_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done; the log says what is wrong with the handler."""

    class Proud(ErrorHandler):
        def record_success(self) -> None:
            raise ValueError("no server")

    assert 7 == record(lambda: 7, error_handler=Proud())()
    assert not error_file.exists()
    assert "record_success of Proud failed: ValueError: no server" in caplog.text
