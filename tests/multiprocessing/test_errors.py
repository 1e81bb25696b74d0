"""Error files: written whole, read whatever they hold, told clearly."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.multiprocessing import errors
from hpc_elastic.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    FailureRecord,
    ProcessFailure,
    failure_record,
    failure_summary,
    first_failures,
    one_line,
    record,
)
from hpc_elastic.multiprocessing.errors.failure import encode_reply, parse_reply


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the path that workers are told to write their error to."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


class BrokenError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_exception_is_recorded_as_torch_does_and_raised(error_file: Path) -> None:
    """The error file has torch's schema, and sub-second time beside it."""

    @record
    def main(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="bad"):
        main("bad")
    body = json.loads(error_file.read_text())["message"]
    assert body["message"] == "ValueError: bad"
    assert "in main" in body["extraInfo"]["py_callstack"]
    assert int(body["extraInfo"]["timestamp"]) == int(body["extraInfo"]["time_s"])
    assert [path.name for path in error_file.parent.iterdir()] == ["error.json"]


def test_an_error_file_is_not_written_through_a_link(error_file: Path, tmp_path: Path) -> None:
    """Whoever guesses a name beside it cannot have another file of the user's written over."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (f"{error_file.name}.{os.getpid()}.tmp", f"{error_file.name}.tmp", error_file.name):
        error_file.with_name(name).symlink_to(victim)

    @record
    def main() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        main()
    assert ("precious", False) == (victim.read_text(), error_file.is_symlink())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_an_error_file_of_somebody_elses_says_nothing(tmp_path: Path) -> None:
    """It would be recorded as what the worker has said."""
    path = tmp_path / "error.json"
    path.write_text('{"message": "forged"}')
    os.chown(path, 65534, 65534)
    assert "<N/A>" == ProcessFailure(0, 1, 1, str(path)).error_file


def test_record_returns_the_value_and_keeps_the_name() -> None:
    """With and without brackets, a function that succeeds is unchanged."""

    @record()
    def main(a: int, *, b: int = 1) -> int:
        return a + b

    assert (main(1, b=2), main.__name__) == (3, "main")


def test_an_exit_with_0_becomes_none(error_file: Path) -> None:
    """sys.exit(0) ends the function without an error."""
    assert record(lambda: sys.exit(0))() is None
    assert not error_file.exists()


def test_an_exit_without_a_code_ends_the_process(error_file: Path) -> None:
    """What stands behind the call of main does not run, and no error is recorded."""
    with pytest.raises(SystemExit) as ended:
        record(sys.exit)()
    assert (None, False) == (ended.value.code, error_file.exists())


@pytest.mark.parametrize("code", [3, "no data"])
def test_failing_exit_is_recorded(code: int | str, error_file: Path) -> None:
    """Where sys.exit was called with a code or a text is recorded, and the exit goes on."""
    with pytest.raises(SystemExit):
        record(lambda: sys.exit(code))()
    assert json.loads(error_file.read_text())["message"]["message"] == f"SystemExit: {code}"


def test_unwritable_error_file_does_not_hide_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's exception comes through when its record cannot be written."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/proc/nowhere/error.json")
    with pytest.raises(BrokenError):
        record(lambda: (_ for _ in ()).throw(BrokenError()))()


def test_exception_without_text_is_recorded(error_file: Path) -> None:
    """An exception whose __str__ fails is recorded by its type."""
    ErrorHandler().record_exception(BrokenError())
    assert "BrokenError" in json.loads(error_file.read_text())["message"]["message"]


def test_record_works_in_plain_python() -> None:
    """A decorated script runs without an agent and still shows its traceback."""
    code = "from hpc_elastic.multiprocessing.errors import record\n@record\ndef main(): 1 / 0\nmain()"
    env = {key: value for key, value in os.environ.items() if key != "TORCHELASTIC_ERROR_FILE"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "ZeroDivisionError" in done.stderr) == (1, True)


def test_child_failure_is_handed_up(error_file: Path, tmp_path: Path) -> None:
    """A launcher under a launcher passes the first child's error file on, with its exit code."""
    child = tmp_path / "child.json"
    child.write_text(json.dumps(encode_reply("ValueError: bad", "TB", 5.5)))

    @record
    def launch() -> None:
        raise ChildFailedError("train.py", {3: ProcessFailure(0, 9, 7, str(child))})

    error_file.write_text("earlier")
    with pytest.raises(ChildFailedError):
        launch()
    body = json.loads(error_file.read_text())["message"]
    assert (body["message"], body["errorCode"]) == ("ValueError: bad", 7)
    assert (tmp_path / "error.1.json").read_text() == "earlier"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b'{"message": {"message": null}}', b"7"]
)
def test_odd_error_files_leave_the_exit_code(tmp_path: Path, content: bytes) -> None:
    """Empty, cut or foreign error files are a failure with an exit code like any other."""
    path = tmp_path / "error.json"
    path.write_bytes(content)
    failure = ProcessFailure(1, 12, -9, str(path), observed_at=4.5)
    assert (failure.exitcode, failure.signal_name(), failure.time_s) == (-9, "SIGKILL", 4.5)
    assert "FAILED" in str(ChildFailedError("x", {0: failure}))


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["message", "extraInfo", "timestamp", "time_s", "py_callstack"]), inner
            )
        ),
    ).map(lambda data: json.dumps(data).encode())
)
def test_any_content_is_read(content: bytes) -> None:
    """No content makes the reader raise."""
    reply = parse_reply(content)
    assert [type(reply.message), type(reply.traceback)] == [str, str]


def test_flat_format_is_read() -> None:
    """The older format with a plain message and a time is read."""
    reply = parse_reply(b'{"message": "boom", "timestamp": "17"}')
    assert (reply.message, reply.time_s) == ("boom", 17.0)


def test_missing_file_leaves_the_signal() -> None:
    """Without an error file the message names the signal and the pid."""
    assert ProcessFailure(0, 12, -9, "").message == "Signal 9 (SIGKILL) received by PID 12"
    failure = ProcessFailure(0, 12, 1, "/nowhere")
    assert (failure.text, failure.error_file) == ("", "<N/A>")
    assert failure.message.startswith("To enable traceback")
    assert failure.error_file_data["errorTraits"]["category"] == "system_terminated_error"
    assert "errorTraits" not in ProcessFailure(0, 12, -9, "/nowhere").error_file_data
    assert ProcessFailure(0, 12, -60, "").signal_name() == "SIG60"


def test_record_survives_the_journal() -> None:
    """A record comes back from JSON as it was; odd data takes defaults."""
    one = FailureRecord(3, 1, "n2", 77, -11, "m", "tb", "tail", "/log", 1.25)
    assert FailureRecord.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert FailureRecord.from_json({"rank": "x", "new": 1, "exitcode": 4}) == FailureRecord(
        rank=-1, exitcode=4
    )
    assert (one.exit_status, FailureRecord(0, exitcode=7).exit_status) == (139, 7)


def test_record_is_bounded(tmp_path: Path) -> None:
    """However long the worker's words are, the journal's record stays small."""
    (tmp_path / "e").write_text(json.dumps(encode_reply("m" * 10**6, "\n" * 10**5 + "end", 1.0)))
    (tmp_path / "log").write_bytes(b"\x00" * 10**6)
    failure = ProcessFailure(0, 1, 1, str(tmp_path / "e"))
    found = failure_record(failure, rank=0, node="n", log=str(tmp_path / "log"))
    assert len(json.dumps(found.to_json())) < 48 * 1024


def test_first_failure_comes_first() -> None:
    """Failures of a node are ordered below the second."""
    records = [FailureRecord(0, timestamp=5.5), FailureRecord(1, timestamp=5.25)]
    assert [one.rank for one in first_failures(records)] == [1, 0]


def test_summary_tells_the_root_cause() -> None:
    """Rank, node, exit, error, traceback and log of the first; one line for each of the others."""
    text = failure_summary(
        "train.py",
        [
            FailureRecord(
                3, 1, "n2", 77, 1, "ValueError: bad", "Traceback\n  here", "", "/logs/3/stderr.log", 5.0
            ),
            *(FailureRecord(rank, 0, "n1", 8, -9) for rank in range(10)),
        ],
    )
    for part in (
        "train.py FAILED",
        "rank      : 3 (local_rank: 1)",
        "node      : n2",
        "exitcode  : 1 (pid: 77)",
        "error     : ValueError: bad",
        "    Traceback\n      here",
        "log       : /logs/3/stderr.log",
        "rank 0 on n1: signal 9 (SIGKILL)",
        "... and 2 more",
    ):
        assert part in text
    assert text.index("ValueError") < text.index("rank 0 on n1")


def test_summary_without_error_file_shows_the_log(tmp_path: Path) -> None:
    """The last lines of stderr stand in for a traceback; of a progress bar only its last state."""
    log = tmp_path / "stderr.log"
    log.write_bytes(
        b"".join(b"line %d\n" % number for number in range(99)) + b" 1%\r 2%\rSegmentation fault\n"
    )
    found = failure_record(ProcessFailure(0, 7, -11, ""), rank=0, node="n1", log=str(log))
    text = failure_summary("x", [found])
    assert "signal 11 (SIGSEGV)" in text
    assert "    line 98\n    Segmentation fault" in text
    assert "line 3\n" not in text
    assert one_line(found) == "rank 0 on n1: signal 11 (SIGSEGV) (pid 7): Segmentation fault"


@pytest.mark.parametrize(
    ("exitcode", "words"), [(-9, "ran out of memory"), (137, "SIGKILL"), (127, "not found")]
)
def test_summary_explains_how_it_ended(exitcode: int, words: str) -> None:
    """Signals and exit codes with a usual meaning are explained."""
    assert words in failure_summary("x", [FailureRecord(0, exitcode=exitcode)])


def test_child_failed_error_names_the_earliest() -> None:
    """The first failure is the one with the earliest time; an empty error is refused."""
    failures = {4: ProcessFailure(0, 1, 1, "", 9.0), 5: ProcessFailure(1, 2, 2, "", 8.75)}
    error = ChildFailedError("train.py", failures)
    assert error.get_first_failure()[0] == 5
    assert str(error).index("rank      : 5") < str(error).index("rank 4")
    with pytest.raises(ValueError, match="at least one"):
        ChildFailedError("x", {})


def test_unknown_name_is_an_attribute_error() -> None:
    """Names load lazily, and an unknown one fails as usual."""
    with pytest.raises(AttributeError, match="nonsense"):
        _ = errors.nonsense
    assert all(getattr(errors, name) for name in errors.__all__)


def test_failures_of_one_second_are_told_apart_by_the_files(tmp_path: Path) -> None:
    """Where only whole seconds were recorded, as torch does, the file's own time says which was first."""
    found = []
    for rank, part_ns in enumerate((750_000_000, 250_000_000)):
        path = tmp_path / f"{rank}.json"
        path.write_text(json.dumps({"message": {"message": "m", "extraInfo": {"timestamp": "1700000000"}}}))
        os.utime(path, ns=(0, 1700000000 * 10**9 + part_ns))
        found.append(ProcessFailure(rank, 1, 1, str(path)))
    assert [round(failure.time_s % 1, 3) for failure in found] == [0.75, 0.25]
    assert [failure.timestamp for failure in found] == [1700000000] * 2
    assert ChildFailedError("x", dict(enumerate(found))).get_first_failure()[0] == 1


def test_file_copied_later_keeps_its_recorded_time(tmp_path: Path) -> None:
    """The file's own time counts only within the recorded second."""
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "old", "timestamp": 1700000000}))
    failure = ProcessFailure(0, 1, 1, str(path))
    assert (failure.time_s, failure.message, failure.text) == (1700000000.0, "old", "old")
    assert failure.timestamp_isoformat().startswith("2023-11-1")


def test_failures_of_different_workers_share_nothing() -> None:
    """What is noted of one failure is not in another's data."""
    one, two = ProcessFailure(0, 1, 1, ""), ProcessFailure(1, 1, -9, "", 3.0)
    one.error_file_data["note"] = 1
    assert two.error_file_data == {"message": "<NONE>"}
    assert two == ProcessFailure(1, 1, -9, "", 3.0) != one
    assert "exitcode=-9" in repr(two)


def test_child_failed_error_can_be_stored_and_framed() -> None:
    """It goes through pickle, and its frame can be chosen."""
    error = ChildFailedError("train.py", {4: ProcessFailure(0, 1, 1, "", 9.0)})
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (again.name, again.failures) == (error.name, error.failures)
    assert error.format_msg("#", "~").startswith("#" * 60 + "\ntrain.py FAILED\n" + "~" * 60)


@pytest.mark.parametrize(
    ("content", "expected", "words"),
    [
        ({"message": {"message": "m"}}, {"message": {"message": "m", "errorCode": 3}}, ""),
        ({"other": 1}, {"other": 1}, "does not have field `message`. cannot override error code: 3"),
        ({"message": "text"}, {"message": "text"}, "has a new message format"),
    ],
)
def test_parent_copy_carries_the_exit_code(
    error_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: object,
    expected: object,
    words: str,
) -> None:
    """The exit code is put where it belongs; other forms are copied as they are, with a word."""
    child = tmp_path / "child.json"
    child.write_text(json.dumps(content))
    ErrorHandler().dump_error_file(str(child), 3)
    assert json.loads(error_file.read_text()) == expected
    assert words in capsys.readouterr().err


def test_nothing_is_copied_without_a_place_or_a_source(
    error_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing child file, or no file of the own, is no error."""
    ErrorHandler().dump_error_file("/nowhere/error.json", 3)
    assert not error_file.exists()
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    ErrorHandler().dump_error_file("/nowhere/error.json", 3)
    assert "no error file defined for parent" in capsys.readouterr().err


def test_own_handler_is_used(error_file: Path) -> None:
    """A handler that is given to record hears of the start and of the exception."""

    class Own(ErrorHandler):
        heard: list[str] = []  # noqa: RUF012 - looked at below

        def initialize(self) -> None:
            self.heard.append("start")

        def record_exception(self, e: BaseException) -> None:
            self.heard.append(repr(e))

    def main() -> None:
        raise OSError("x")

    with pytest.raises(OSError, match="x"):
        record(main, Own())()
    assert Own.heard == ["start", "OSError('x')"]
    assert not error_file.exists()


def test_fault_handler_that_cannot_be_had_is_only_warned_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where stderr is no descriptor the function runs all the same."""

    def refuse(*, all_threads: bool) -> None:
        raise RuntimeError("no descriptor")

    monkeypatch.setattr("faulthandler.enable", refuse)
    assert record(lambda: 5)() == 5
    assert "Unable to enable fault handler. RuntimeError: no descriptor" in capfd.readouterr().err


class Telling(ErrorHandler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def set_entrypoint_fn_name(self, fn_name: str) -> None:
        """Take the name."""
        self.told.append(fn_name)

    def record_success(self) -> None:
        """Take the end."""
        self.told.append("success")

    def record_exception(self, e: BaseException) -> None:
        """Take the failure."""
        self.told.append(str(e))


class Older:
    """A handler written for an earlier torch."""

    def initialize(self) -> None:
        """Do nothing."""

    def record_exception(self, e: BaseException) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("program", "told"),
    [(lambda: 3, "success"), (lambda: sys.exit(0), "success"), (lambda: 1 / 0, "division by zero")],
    ids=["returns", "exits", "fails"],
)
def test_handlers_hear_what_is_run_and_how_it_ends(program: Any, told: str, error_file: Path) -> None:
    """By the names of torch 2.14; those that lack them are called as before."""
    handler = Telling()
    for each in (handler, Older()):
        with suppress(ZeroDivisionError):
            record(program, each)()  # type: ignore[arg-type]
    assert [program.__qualname__, told] == handler.told
    assert not error_file.exists()


class Enriching(ErrorHandler):
    """Says more of workers that a signal has ended."""

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Add a line."""
        return f"{message}\n  device fault, says a log beside {error_file}"


@pytest.mark.parametrize(
    ("handler", "exitcode", "count"),
    [(Enriching, -signal.SIGABRT, 1), (Enriching, 3, 0), (Older, -signal.SIGABRT, 0), (ErrorHandler, -6, 0)],
)
def test_handlers_may_say_more_of_an_end_by_a_signal(
    handler: Callable[[], ErrorHandler],
    exitcode: int,
    count: int,
    error_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the first failure alone, as with torch 2.14; nothing is added to what is stored of it."""
    monkeypatch.setattr(errors, "get_error_handler", handler)
    error_file.write_text('{"message": "Fatal signal received", "timestamp": 1}')
    first = ProcessFailure(0, 997, exitcode, str(error_file))
    error = ChildFailedError("train.py", {0: first, 1: ProcessFailure(1, 998, -6, "/none", 2.0)})
    told = str(error).splitlines()
    assert count == told.count(f"  device fault, says a log beside {error_file}")
    assert count == str(error).count("device fault")
    assert "device" not in first.message


def test_the_usual_handler_logs_what_is_run(caplog: pytest.LogCaptureFixture, error_file: Path) -> None:
    """At level DEBUG, and only if somebody has named it; success writes no error file."""
    caplog.set_level("DEBUG", logger="hpc_elastic.multiprocessing.errors.error_handler")
    handler = ErrorHandler()
    handler.record_success()
    assert [] == caplog.messages
    handler.set_entrypoint_fn_name("train")
    handler.record_success()
    assert not error_file.exists()
    handler.record_exception(ValueError("bad"))
    assert ["train has returned", "train has failed"] == caplog.messages
    assert "bad" in error_file.read_text()


def test_keyboard_interrupt_is_not_recorded(error_file: Path) -> None:
    """Who interrupts knows why."""

    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(main)()
    assert not error_file.exists()
