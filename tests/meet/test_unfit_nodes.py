"""Nodes that stay out because they are unfit are not lost: they cost no budget of lost nodes."""

from __future__ import annotations

import pytest

from hpc_elastic.meet import rules
from hpc_elastic.meet.join_progress import too_few_text
from hpc_elastic.record.journal import Cause, Drained, Entry, NodeUnfit, Requeued
from tests.meet.build import E0, after, formed, loss, start
from tests.meet.one_node import SETTINGS

UNFIT = NodeUnfit(E0, "n3", "disk full")
LEFT = Drained(E0, Cause.NODE_LOSS, None, "2 of 3 nodes are left")


@pytest.mark.parametrize(
    ("before", "used"),
    [
        ((UNFIT, LEFT), 0),
        ((formed(1), loss(1, "n2"), UNFIT, LEFT), 1),
        ((UNFIT,), 1),
        ((LEFT,), 1),
    ],
    ids=["unfit", "unfit and lost", "ended by Slurm", "lost"],
)
def test_what_is_charged_for_a_requeue(before: tuple[Entry, ...], used: int) -> None:
    """A start that is left for unfit nodes alone; where Slurm ends the job for a node, that was lost."""
    state = after(start(), *before, Requeued(E0, Cause.NODE_LOSS))
    assert (used, 1) == (state.used(Cause.NODE_LOSS), state.requeues)


def test_unfit_nodes_are_not_called_lost() -> None:
    """An agent says why its start is over."""
    few = rules.TooFew(1, ("n2", "n3"), timed_out=False)
    settings = SETTINGS._replace(min_nodes=3)
    text = too_few_text(few, settings, "/run", {"n3": "disk full"})
    assert "1 node is left, 3 are needed; lost: n2; unfit: n3 (disk full)" == text
    only = too_few_text(few._replace(missing=("n3",)), settings, "/run", {"n3": "disk full"})
    assert "1 node is left, 3 are needed; unfit: n3 (disk full)" == only
