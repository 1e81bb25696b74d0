"""Whether Slurm was told to take a node away, by what Slurm says about it."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.client.answers import LostNodeState, states_of, taken_away

LOST_AT = 1000.0
SET_DOWN = LostNodeState("down", "repair", 10.0, in_job=False)
RELEASED = LostNodeState("idle", "", 10.0, in_job=False)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param(SET_DOWN, "it was set down in Slurm (repair)", id="down"),
        pytest.param(SET_DOWN._replace(reason=""), "it was set down in Slurm", id="without-reason"),
        pytest.param(
            SET_DOWN._replace(words="DOWN+DRAIN"), "it was set down in Slurm (repair)", id="drained"
        ),
        pytest.param(SET_DOWN._replace(in_job=True), "it was set down in Slurm (repair)", id="in-the-job"),
        pytest.param(
            SET_DOWN._replace(words="idle+powering_down"), "it was set down in Slurm (repair)", id="power"
        ),
        pytest.param(
            SET_DOWN._replace(words="idle+power"), "it was set down in Slurm (repair)", id="power-saved"
        ),
        pytest.param(RELEASED, "Slurm took it from the job though it was up", id="released"),
        pytest.param(
            RELEASED._replace(words="mixed"),
            "Slurm took it from the job though it was up",
            id="released-and-used",
        ),
        pytest.param(RELEASED._replace(in_job=True), None, id="agent-died"),
        pytest.param(RELEASED._replace(words="draining", in_job=True), None, id="draining-alone"),
        pytest.param(SET_DOWN._replace(words="down+not_responding"), None, id="crashed"),
        pytest.param(SET_DOWN._replace(words="down*"), None, id="crashed-in-short"),
        pytest.param(RELEASED._replace(words="unknown"), None, id="unknown"),
        pytest.param(SET_DOWN._replace(up_since=LOST_AT), None, id="started-anew"),
        pytest.param(RELEASED._replace(up_since=LOST_AT + 60), None, id="rebooted-and-back"),
        pytest.param(SET_DOWN._replace(up_since=None), None, id="nobody-knows"),
    ],
)
def test_a_node_is_taken_only_if_it_was_up_all_the_time(state: LostNodeState, reason: str | None) -> None:
    """One that fails does not answer, or has started anew."""
    assert reason == taken_away(state, LOST_AT)


def test_states_stand_beside_their_reasons() -> None:
    """Slurm writes `none` for a node without one."""
    rows = [("n1", "idle", "none"), ("n2", "down", "power")]
    assert {"n1": ("idle", ""), "n2": ("down", "power")} == states_of(rows)
