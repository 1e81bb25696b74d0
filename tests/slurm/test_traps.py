"""The signals of a trap, as shells take them."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.job.traps import trap_of


@pytest.mark.parametrize("signals", ["USR1 TERM", '"USR1" TERM', "'SIGUSR1' \"15\"", "10 SIGTERM # both"])
def test_the_name_of_a_signal_may_be_quoted(signals: str) -> None:
    """Quotes change nothing for a shell."""
    found = trap_of(f"trap handler {signals}")
    assert found is not None
    assert {"USR1", "TERM"} == found.signals


@pytest.mark.parametrize("command", ['trap handler "USR1 TERM"', 'trap handler "$SIG"', "trap handler"])
def test_words_that_name_no_signals_make_no_trap(command: str) -> None:
    """A shell would refuse them, or they are known only when it runs."""
    assert trap_of(command) is None
