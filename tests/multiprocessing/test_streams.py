"""Redirecting the own streams, following logs into a stream, one program by itself."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing.redirects import redirect, redirect_stderr, redirect_stdout
from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
from hpc_elastic.multiprocessing.tail_log import TailLog, tail_logfile
from tests.multiprocessing.waiting import wait_line


def test_everything_is_redirected_and_comes_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Python, C code and child processes write to the file, and afterwards to the console again."""
    path = tmp_path / "out"
    path.write_text("earlier")
    with capfd.disabled(), redirect_stdout(str(path)):
        print("python")  # noqa: T201
        ctypes.CDLL(None).printf(b"c\n")
        ctypes.CDLL(None).fflush(None)
        subprocess.run(["echo", "child"], check=True)
    assert sorted(path.read_text().splitlines()) == ["c", "child", "python"]
    with redirect_stderr(str(tmp_path / "err")):
        print("error", file=sys.stderr)  # noqa: T201
    assert (tmp_path / "err").read_text() == "error\n"
    print("back")  # noqa: T201
    assert capfd.readouterr().out == "back\n"


def test_unknown_stream_is_refused() -> None:
    """The error names the streams that can be redirected."""
    with (
        pytest.raises(ValueError, match="unknown standard stream <stdin>, must be one of"),
        redirect("stdin", "/x"),
    ):
        pass


def test_stream_without_a_descriptor_is_redirected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python prints to an object, the descriptor itself is redirected."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with redirect_stdout(str(tmp_path / "out")):
        os.write(1, b"x")
    assert (tmp_path / "out").read_bytes() == b"x"


def test_tail_log_prints_all_ranks_with_headers(tmp_path: Path) -> None:
    """Whole lines of all logs come out, even of those that did not exist at the start."""
    out = io.StringIO()
    files = {0: str(tmp_path / "0"), 1: str(tmp_path / "1"), 10: str(tmp_path / "never")}
    tail = TailLog("trainer", files, out, {1: "<1>"}, interval_sec=0.01).start()
    for name in ("0", "1"):
        (tmp_path / name).write_bytes(b"one\n\xff two\nend")
    assert not tail.stopped()
    tail.stop()
    tail.stop()
    assert tail.stopped()
    lines = out.getvalue().splitlines()
    assert sorted(lines) == sorted(
        [f"{head}{line}" for head in ("[trainer0]:", "<1>") for line in ("one", "\ufffd two", "end")]
    )


def test_tail_log_filters_lines(tmp_path: Path) -> None:
    """The filter sees the line with its end."""
    (tmp_path / "0").write_text("keep\ndrop\nkeep too\n")
    out = io.StringIO()
    TailLog("t", {0: str(tmp_path / "0")}, out, log_line_filter=lambda line: line == "keep\n").start().stop()
    assert out.getvalue() == "[t0]:keep\n"


def test_tail_log_without_files_or_stream_does_nothing(tmp_path: Path) -> None:
    """It starts and stops all the same."""
    for tail in (TailLog("t", {}, io.StringIO()), TailLog("t", {0: str(tmp_path / "0")}, None)):
        tail.start().stop()
        assert tail.stopped()


def test_closed_stream_is_logged_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the stream does not reach who stops the tail."""
    (tmp_path / "0").write_text("x\n")
    out = io.StringIO()
    tail = TailLog("t", {0: str(tmp_path / "0")}, out)
    out.close()
    tail.start().stop()
    assert "error in log tailer for t" in caplog.text


def test_log_that_cannot_be_read_is_logged_not_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that is none, such as a directory, is told at the end; one that never came is not."""
    logs = {0: str(tmp_path), 1: str(tmp_path / "never")}
    TailLog("t", logs, io.StringIO()).start().stop()
    assert 1 == caplog.text.count("error in log tailer for t")
    assert "it is a directory, not a plain file" in caplog.text


def test_tail_logfile_ends_with_its_writer(tmp_path: Path) -> None:
    """What was written before the end was announced is printed."""
    (tmp_path / "0").write_text("a\nb")
    finished, out = threading.Event(), io.StringIO()
    finished.set()
    tail_logfile("> ", str(tmp_path / "0"), out, finished, 0.01)
    assert out.getvalue() == "> a\n> b\n"


def test_handler_runs_one_program(tmp_path: Path) -> None:
    """Arguments become texts, the environment is added to, output goes to the files."""
    out, err = str(tmp_path / "out"), str(tmp_path / "err")
    handler = get_subprocess_handler(
        "sh", ("-c", "echo $0 $A; echo e >&2; exit 3", 7), {"A": "x"}, out, err, 2
    )
    assert (handler.local_rank_id, handler.proc.wait(120)) == (2, 3)
    assert (handler.proc.poll(), handler.proc.returncode) == (3, 3)
    assert (Path(out).read_text(), Path(err).read_text()) == ("7 x\n", "e\n")


def test_handler_signals_the_group(tmp_path: Path, fifo: str) -> None:
    """Close sends the signal to the program and to what it started."""
    handler = SubprocessHandler("sh", ("-c", f"sleep 1000 & echo $! > {fifo}; wait"), {}, None, None, 0)
    child = int(wait_line(fifo))
    with pytest.raises(subprocess.TimeoutExpired):
        handler.proc.wait(0.01)
    pidfd = os.pidfd_open(child)
    handler.close(signal.SIGKILL)
    assert handler.proc.wait(120) == -9
    os.close(pidfd)


def test_handler_names_a_missing_program() -> None:
    """A missing program is the same error as elsewhere."""
    with pytest.raises(FileNotFoundError, match="no-such"):
        SubprocessHandler("no-such", (), {}, None, None, 0)
