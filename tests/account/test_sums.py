"""Every second of a run is in one bucket, in the run and on each of its nodes."""

from __future__ import annotations

import pytest

from hpc_elastic.account.account import account_of, seconds_of_nodes
from hpc_elastic.account.spans import Bucket
from tests.account.reference import expected_seconds
from tests.account.simulated import Simulated, Trouble

SEEDS = range(200)
_NAMES = {
    Bucket.TRAINING: "train",
    Bucket.AGAIN: "again",
    Bucket.LOST: "lost",
    Bucket.SAVING: "save",
    Bucket.NOTICING: "notice",
    Bucket.STOPPING: "stop",
    Bucket.MEETING: "meet",
    Bucket.STARTING: "init",
    Bucket.IMPORTING: "init",
    Bucket.LOADING: "init",
    Bucket.DRAINING: "drain",
    Bucket.ENDING: "end",
    Bucket.QUEUED: "queue",
    Bucket.DOWN: "down",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_buckets_are_those_of_the_reference(seed: int) -> None:
    """A run whose writers agree has the seconds of each bucket that an independent computation has."""
    run = Simulated(seed)
    found: dict[str, float] = {}
    for bucket, span_s in account_of(run.history()).seconds.items():
        found[_NAMES[bucket]] = found.get(_NAMES[bucket], 0.0) + span_s
    assert pytest.approx(expected_seconds(run.told, failed=run.failed)) == found


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_are_the_wall_time_whatever_is_wrong(seed: int) -> None:
    """With torn lines, a skewed clock and one that is set, spans neither overlap nor leave gaps."""
    run = Simulated(seed, Trouble(skewed=seed % 2 == 0, steps=True, torn=True))
    account = account_of(run.history())
    spans = account.series.spans
    ends = [span.begin + span.seconds for span in spans]
    assert pytest.approx([span.begin for span in spans[1:]]) == ends[:-1]
    assert pytest.approx(account.wall_s) == ends[-1] - spans[0].begin
    nodes = seconds_of_nodes(spans)
    assert set(run.nodes) == set(nodes)
    assert pytest.approx([account.wall_s] * len(nodes)) == [sum(each.values()) for each in nodes.values()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_that_is_set_changes_no_second(seed: int) -> None:
    """The wall time is the true one, to the second, though a node's clock jumps while its agent lives."""
    run = Simulated(seed, Trouble(steps=True))
    assert pytest.approx(run.wall_s, abs=1.0) == account_of(run.history()).wall_s
