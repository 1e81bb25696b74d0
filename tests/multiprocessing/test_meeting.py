"""Function workers exit together: what one leaves behind at its exit, others may still use."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing import start_processes
from hpc_elastic.testing.waiting import wait_until

ALIVE_MS = 300  # a worker that does not wait has exited by then


def return_or_wait(rank: int, place: str) -> int:
    """Return at once, or with rank 1 when told to; with rank 2 leave without returning."""
    Path(place, f"called.{rank}").touch()
    if rank == 1:
        wait_until(Path(place, "go").exists, "the test", timeout_s=120)
    if rank == 2:
        os._exit(0)
    return rank


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_nobody_exits_before_all_have_returned(start_method: str, tmp_path: Path) -> None:
    """Rank 0, long ready, exits only when rank 1 has returned; rank 2 is not waited for."""
    args = {rank: (rank, str(tmp_path)) for rank in range(3)}
    group = start_processes("group", return_or_wait, args, start_method=start_method, log_dir=str(tmp_path))
    wait_until((tmp_path / "called.0").exists, "rank 0 is called")
    early = os.pidfd_open(group.pids()[0])
    poller = select.poll()
    poller.register(early, select.POLLIN)
    assert group.wait(0) is None
    assert [] == poller.poll(ALIVE_MS)
    os.close(early)
    (tmp_path / "go").touch()
    result = group.wait(120)
    assert result is not None
    assert {0: 0, 1: 1, 2: None} == result.return_values
