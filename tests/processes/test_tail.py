"""Following a log: whole lines, any bytes, bounded memory, never stuck on the console."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.processes.tail import MAX_BAR, Console, Tail, TailLimits, blocked_fds, pump_all
from tests.multiprocessing.waiting import drain


def test_only_whole_lines_are_copied(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """A line without its end waits until the end comes."""
    log = tmp_path / "log"
    log.write_bytes(b"one\ntw")
    tail = Tail(str(log), pipe[1], b"[rank 3] ")
    tail.pump()
    assert drain(pipe[0]) == b"[rank 3] one\n"
    with log.open("ab") as file:
        file.write(b"o\n\n")
    tail.pump()
    assert drain(pipe[0]) == b"[rank 3] two\n[rank 3] \n"


def test_unfinished_last_line_comes_at_the_end(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """finish() completes the last line."""
    log = tmp_path / "log"
    log.write_bytes(b"bye")
    tail = Tail(str(log), pipe[1], b"> ")
    tail.finish()
    assert drain(pipe[0]) == b"> bye\n"


def test_missing_file_is_waited_for(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """A log that does not exist yet is no error."""
    log = tmp_path / "log"
    tail = Tail(str(log), pipe[1], b"")
    assert not tail.pump()
    log.write_bytes(b"here\n")
    tail.pump()
    assert drain(pipe[0]) == b"here\n"


def test_bytes_are_copied_unchanged(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """Invalid UTF-8, carriage returns and NUL bytes go through as they are."""
    data = bytes(range(11, 256)) + b"\r\x00\xff"
    log = tmp_path / "log"
    log.write_bytes(data + b"\n")
    Tail(str(log), pipe[1], b"").pump()
    assert drain(pipe[0]) == data + b"\n"


def test_a_line_of_megabytes_is_one_line(tmp_path: Path) -> None:
    """What a worker prints as one line is one line on the console."""
    log, console = tmp_path / "log", tmp_path / "console"
    line = bytes(range(32, 127)) * 110_000
    log.write_bytes(b"before\n" + line + b"\nafter\n")
    with console.open("wb") as file:
        Tail(str(log), file.fileno(), b"> ").finish()
    assert console.read_bytes() == b"> before\n> " + line + b"\n> after\n"


def test_an_even_longer_line_comes_in_pieces(tmp_path: Path) -> None:
    """A line above the limit is shown in pieces, so that no more is ever held."""
    log, console = tmp_path / "log", tmp_path / "console"
    size = 100_000
    log.write_bytes(b"x" * (3 * size + 5) + b"\n")
    with console.open("wb") as file:
        Tail(str(log), file.fileno(), b"> ", limits=TailLimits(line=size)).finish()
    lines = console.read_bytes().split(b"\n")
    assert [len(line) for line in lines] == [size + 2] * 3 + [7, 0]


def test_a_progress_bar_is_shown_before_it_ends(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """What overwrites itself is no line that is waited for until it ends."""
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"\r%3d%%|%s" % (n % 100, b"#" * 60) for n in range(1500)))
    Tail(str(log), pipe[1], b"").pump()
    assert len(drain(pipe[0])) > MAX_BAR


def test_a_long_line_of_another_system_stays_whole(tmp_path: Path) -> None:
    """That it ends in a carriage return, too, makes it no progress bar."""
    log, console = tmp_path / "log", tmp_path / "console"
    text = b"".join(b"x" * (MAX_BAR + more) + b"\r\n" for more in (0, 1, MAX_BAR - 1, 3 * MAX_BAR)) + b"\r\n"
    log.write_bytes(text)
    with console.open("ab") as file:
        Tail(str(log), file.fileno(), b"").finish()
    assert text == console.read_bytes()


def test_offset_skips_an_earlier_attempt(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """Following begins at the offset."""
    log = tmp_path / "log"
    log.write_bytes(b"old\nnew\n")
    Tail(str(log), pipe[1], b"", offset=4).pump()
    assert drain(pipe[0]) == b"new\n"


def test_truncated_file_is_read_from_its_beginning(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """A log that somebody emptied is followed on."""
    log = tmp_path / "log"
    log.write_bytes(b"a long first line\n")
    tail = Tail(str(log), pipe[1], b"")
    tail.pump()
    log.write_bytes(b"new\n")
    tail.pump()
    assert drain(pipe[0]) == b"a long first line\nnew\n"


def test_full_console_blocks_nobody_and_loses_nothing(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """What a full console cannot take waits in the file, line order kept."""
    lines = b"".join(b"%06d %s\n" % (number, b"y" * 90) for number in range(40_000))
    log = tmp_path / "log"
    log.write_bytes(lines)
    tail = Tail(str(log), pipe[1], b"")
    while tail.pump():
        pass
    assert tail.is_blocked
    assert tail.blocked_fd() == pipe[1]
    received = b""
    while tail.is_blocked or tail.pump():
        received += drain(pipe[0])
        tail.pump()
    assert received + drain(pipe[0]) == lines


def test_closed_console_is_no_error(tmp_path: Path) -> None:
    """When nobody reads the console any more, the log goes on."""
    reading, writing = os.pipe()
    os.close(reading)
    log = tmp_path / "log"
    log.write_bytes(b"one\n" * 10_000)
    tail = Tail(str(log), writing, b"")
    tail.finish()
    assert not tail.is_blocked
    os.close(writing)


def test_one_pump_is_bounded(tmp_path: Path) -> None:
    """A flood is copied in portions, so that the caller's loop gets its turn."""
    log, console = tmp_path / "log", tmp_path / "console"
    log.write_bytes(b"x" * 99 + b"\n" * (4 << 20))
    with console.open("wb") as file:
        assert Tail(str(log), file.fileno(), b"").pump()


def test_long_lines_of_two_logs_do_not_mix(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """A line that went out in part is finished before another log has its turn."""
    console = Console(pipe[1])
    tails = []
    for letter in (b"a", b"b"):
        log = tmp_path / letter.decode()
        log.write_bytes((letter * 60_000 + b"\n") * 40)
        tails.append(Tail(str(log), console, b""))
    received = b""
    while pump_all(tails) or blocked_fds(tails):
        received += drain(pipe[0])
    lines = (received + drain(pipe[0])).split(b"\n")
    assert sorted(lines) == [b"", *([b"a" * 60_000] * 40), *([b"b" * 60_000] * 40)]


def test_chosen_lines_only(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """A tail with a choice copies the lines that it wants, the unfinished last one too."""
    log = tmp_path / "log"
    log.write_bytes(b"loss 1\nnoise\n\nloss 2")
    Tail(str(log), pipe[1], b"> ", wanted=lambda line: b"loss" in line).finish()
    assert drain(pipe[0]) == b"> loss 1\n> loss 2\n"


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"x" * 700, b"\n\n", b"\xff\x00"]), max_size=60),
    st.integers(1, 5),
)
def test_lines_do_not_depend_on_how_they_come(parts: list[bytes], step: int) -> None:
    """However a log grows, the console has its lines with the prefix."""
    with tempfile.TemporaryDirectory() as folder:
        log, console = Path(folder, "log"), Path(folder, "console")
        with console.open("wb") as file, log.open("wb", buffering=0) as writing:
            tail = Tail(str(log), file.fileno(), b"> ")
            for number, part in enumerate(parts):
                writing.write(part)
                if number % step == 0:
                    tail.pump()
            tail.finish()
        text = b"".join(parts)
        lines = text[:-1].split(b"\n") if text.endswith(b"\n") else text.split(b"\n") if text else []
        assert console.read_bytes() == b"".join(b"> " + line + b"\n" for line in lines)


def test_a_progress_bar_is_seen_while_it_grows(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """Each version is shown once the next one overwrites it, the last one when its line ends."""
    log = tmp_path / "log"
    tail = Tail(str(log), pipe[1], b"> ")
    shown = []
    for written in (b"\r 1%", b"\r 2%", b"\r 3%\r", b"\r 4%", b"\nend\r", b"\n"):
        with log.open("ab") as file:
            file.write(written)
        tail.pump()
        shown.append(drain(pipe[0]))
    assert [b"", b">  1%\n", b">  2%\n", b">  3%\n", b">  4%\n", b"> end\r\n"] == shown


def flood(first: int, last: int) -> bytes:
    """Return numbered lines of 100 bytes."""
    return b"".join(b"%09d %s\n" % (number, b"y" * 89) for number in range(first, last))


def read_on(tail: Tail, fd: int) -> bytes:
    """Return what a reader gets that reads all from now on."""
    received = b""
    while tail.pump() or tail.is_blocked:
        received += drain(fd)
    tail.finish()
    return received + drain(fd)


def accounted_for(received: bytes, log: Path, prefix: bytes = b"") -> list[bytes]:
    """Return what was shown, in runs of lines, after checking that each gap is told with its size."""
    told = re.compile(
        re.escape(prefix)
        + rb"\.\.\. ([\d,]+) bytes were left out here; they are in "
        + re.escape(bytes(log))
        + rb"\n"
    )
    parts = told.split(received)
    shown = [part.replace(prefix, b"") for part in parts[::2]]
    at, written = 0, log.read_bytes()
    for text, size in zip(shown, [*parts[1::2], b"0"], strict=True):
        assert text == written[at : at + len(text)]
        at += len(text) + int(size.replace(b",", b""))
    assert len(written) == at
    return shown


def test_a_console_that_is_too_far_behind_gets_the_newest_lines(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    """One line in the place of what was left out tells how much that is; nothing else is lost."""
    log = tmp_path / "log"
    log.write_bytes(flood(0, 5_000))
    tail = Tail(str(log), pipe[1], b"[rank 3] ", limits=TailLimits(lag=1 << 20))
    tail.pump()
    with log.open("ab") as file:
        file.write(flood(5_000, 50_000))
    first, last = accounted_for(read_on(tail, pipe[0]), log, b"[rank 3] ")
    assert [flood(0, 5_000), flood(49_345, 50_000)] == [first, last]


def test_a_console_that_is_a_file_misses_nothing(tmp_path: Path) -> None:
    """Nobody is waited for there."""
    log, console = tmp_path / "log", tmp_path / "console"
    log.write_bytes(flood(0, 50_000))
    with console.open("wb") as file:
        Tail(str(log), file.fileno(), b"", limits=TailLimits(lag=1 << 20)).finish()
    assert log.read_bytes() == console.read_bytes()


def test_some_lines_are_shown_whatever_is_left_out(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """They stand where they were, with what was left out before and after them told."""
    log = tmp_path / "log"
    ours = [b"[12:00:0%d] round %d\n" % (number, number) for number in range(3)]
    log.write_bytes(
        flood(0, 20_000) + ours[0] + ours[1] + flood(20_000, 40_000) + ours[2] + flood(40_000, 60_000)
    )
    always = re.compile(rb"\n\[[\d:]+\] ")
    tail = Tail(str(log), pipe[1], b"", limits=TailLimits(lag=1 << 20, newest=1000, always=always))
    tail.pump()
    received = read_on(tail, pipe[0])
    assert [ours[0] + ours[1], ours[2], flood(59_990, 60_000)] == accounted_for(received, log)[1:]


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["unfinished", "whole"])
def test_of_a_very_long_line_the_newest_part_is_shown(
    tmp_path: Path, pipe: tuple[int, int], end: bytes
) -> None:
    """A line that is longer than what is to be shown is no reason to show nothing."""
    log = tmp_path / "log"
    log.write_bytes(b"first\n")
    tail = Tail(str(log), pipe[1], b"", limits=TailLimits(line=1 << 22, lag=1 << 20, newest=999))
    tail.pump()
    with log.open("ab") as file:
        file.write(b"x" * (4 << 20) + end)
    received = read_on(tail, pipe[0])
    left_out = 6 + (4 << 20) + len(end) - 1000 - 6
    told = f"... {left_out:,} bytes were left out here; they are in {log}\n".encode()
    assert b"first\n" + told + b"x" * (1000 - len(end)) + b"\n" == received


def test_any_bytes_may_be_left_out(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """Bytes that are no UTF-8 are counted like all others, and those that are shown are unchanged."""
    log = tmp_path / "log"
    log.write_bytes((bytes(range(128, 256)) + b"\x00\xff\r\n") * 40_000)
    tail = Tail(str(log), pipe[1], b"", limits=TailLimits(lag=1 << 20))
    tail.pump()
    assert 2 == len(accounted_for(read_on(tail, pipe[0]), log))
