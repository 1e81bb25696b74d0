"""A worker that ends at the very moment its group is looked at."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import pytest

from hpc_elastic.multiprocessing.context import SubprocessContext
from tests.multiprocessing.waiting import FOR_EVER, MakeContext, wait_readable


def test_a_failure_between_two_looks_is_not_taken_for_success(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends after the failures were noted is not counted among those that have ended well."""
    context = make_context("", FOR_EVER)
    context.start()
    first, last = (process for process in context._processes.values())
    assert first.pidfd is not None
    assert last.pidfd is not None
    wait_readable(first.pidfd)
    note = SubprocessContext._note_failures

    def note_and_then_end_the_last(group: SubprocessContext, ended: Mapping[int, int]) -> None:
        note(group, ended)
        if last.pidfd is not None and last.poll() is None:
            os.kill(last.pid, signal.SIGKILL)
            wait_readable(last.pidfd)

    monkeypatch.setattr(SubprocessContext, "_note_failures", note_and_then_end_the_last)
    assert context.look() is None
    assert last.pidfd in context.exit_fds()  # so that whoever waits looks again
    result = context.look()
    assert result is not None
    assert {1: -signal.SIGKILL} == {rank: failure.exitcode for rank, failure in result.failures.items()}
