"""Since when and until when a run waits for nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpc_elastic.clock import clock_text, date_text
from hpc_elastic.record.journal import EpochStarted, Record, RoundEnded
from hpc_elastic.report.timeline import span_text
from hpc_elastic.settings.table import in_force

GIVEN_BACK = "the job is given back to Slurm"
FAILS = "the run fails"  # an array that has too few tasks left


def wait_times_text(
    records: Iterable[Record], spec: Mapping[str, Any], now_s: float, here: int, then: str = GIVEN_BACK
) -> str:
    """Return since when the nodes of a run wait for others, until when, and what is then.

    Args:
        records: of the run.
        spec: the job spec as it was stored; empty if nobody knows how long they wait.
        now_s: wall time [s since the epoch].
        here: how many nodes are there.
        then: what happens if too few have come by then.
    """
    began = [record.at for record in records if isinstance(record.entry, EpochStarted | RoundEnded)]
    if not began:
        return ""
    text = f", since {date_text(began[-1])} ({span_text(now_s - began[-1])})"
    if not spec:
        return f"{text}; the log of the first node tells until when"
    low = str(in_force(spec, "nodes")).partition(":")[0]
    if low.isdecimal() and here >= int(low):
        last_call_s = in_force(spec, "last_call_timeout")
        return f"{text}; {last_call_s:g} s after enough have come the round begins without the others"
    timeout = in_force(spec, "join_timeout")
    return f"{text}, until {clock_text(began[-1] + timeout)} (join_timeout = {timeout:g} s); then {then}"
