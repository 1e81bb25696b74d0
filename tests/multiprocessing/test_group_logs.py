"""The teed logs of a group whose console does not keep up: nobody waits for long, and the end is shown."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing.group import GroupLogs
from hpc_elastic.multiprocessing.logs import LogsDest
from tests.multiprocessing.waiting import drain

LINE = b"%07d " + b"x" * 91 + b"\n"


def lines(last: int) -> bytes:
    """Return numbered lines of 100 bytes."""
    return b"".join(LINE % number for number in range(last))


def test_a_slow_console_gets_the_last_lines_of_each_rank(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has not taken when the time is up is left out, and said to be."""
    logs = {rank: str(tmp_path / str(rank)) for rank in range(2)}
    common = str(tmp_path / "common")
    dest = LogsDest(tee_stdouts=logs, filtered_stdout=common)
    prefixes = {rank: b"[rank %d] " % rank for rank in logs}
    with os.fdopen(os.dup(pipe[1]), "w") as console:
        monkeypatch.setattr(sys, "stdout", console)
        group = GroupLogs(dest, prefixes, (("00 xxx",), ()), in_background=False)
        group.open()
        for path in logs.values():
            Path(path).write_bytes(lines(30_000) + b"last words")
        assert not group.copy_rest(0.0)
        assert not group.copy_rest(2.4)
        assert not group.copy_rest(2.6)
        received = b""
        while not group.copy_rest(2.7):
            received += drain(pipe[0])
        group.finish()
        received += drain(pipe[0])
    for rank, path in logs.items():
        told = rb"\[rank %d\] \.\.\. ([\d,]+) bytes were left out here; they are in %s\n" % (
            rank,
            re.escape(os.fsencode(path)),
        )
        (left_out,) = re.findall(told, received)
        shown = [line for line in received.split(b"\n") if line.startswith(prefixes[rank] + b"0")]
        assert 3_000_000 == 100 * len(shown) + int(left_out.replace(b",", b""))
        assert prefixes[rank] + lines(30_000)[-100:-1] == shown[-1]
        assert prefixes[rank] + b"last words\n" in received
    assert 2 * 300 == len(Path(common).read_bytes().splitlines())


def test_a_stuck_console_is_left_behind(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads it; the workers' node goes on after five seconds."""
    log = str(tmp_path / "0")
    with os.fdopen(os.dup(pipe[1]), "w") as console:
        monkeypatch.setattr(sys, "stdout", console)
        group = GroupLogs(LogsDest(tee_stdouts={0: log}), {0: b""}, ((), ()), in_background=False)
        group.open()
        Path(log).write_bytes(lines(30_000))
        assert [False, False, False, True] == [group.copy_rest(now) for now in (0.0, 2.4, 2.5, 5.0)]
        group.finish()
