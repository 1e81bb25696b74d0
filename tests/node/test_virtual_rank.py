"""Workers that see one GPU alone."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.node.workers.worker_env import give_own_device, visible_devices


@pytest.mark.parametrize(
    ("agents", "virtual", "workers"),
    [
        (None, False, None),
        ("4,5", False, "4,5"),
        ("", False, ""),
        (None, True, "1"),
        ("4, 5", True, "5"),
        ("GPU-1,GPU-2,GPU-3", True, "GPU-2"),
    ],
)
def test_what_the_second_worker_sees(agents: str | None, virtual: bool, workers: str | None) -> None:
    """Its own of those that the agent sees, or all that the agent sees."""
    assert workers == visible_devices(1, agents, virtual=virtual)


@pytest.mark.parametrize("kind", [InputError, ValueError])
@pytest.mark.parametrize("agents", ["4", "", "4,"])
def test_a_worker_without_a_gpu(agents: str, kind: type[Exception]) -> None:
    """Who would get none is told which are there."""
    with pytest.raises(kind, match=f"local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES={agents}"):
        visible_devices(1, agents, virtual=True)


def test_environment_of_a_worker() -> None:
    """The worker is local rank 0 with its own GPU; its own environment goes before the agent's."""
    env = {"LOCAL_RANK": "1"}
    give_own_device(env, 1, {"CUDA_VISIBLE_DEVICES": "6,7"})
    assert {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "7"} == env
    env = {"CUDA_VISIBLE_DEVICES": "2,3"}
    give_own_device(env, 1, {"CUDA_VISIBLE_DEVICES": "6,7"})
    assert "3" == env["CUDA_VISIBLE_DEVICES"]


def test_an_agent_without_an_environment_of_gpus() -> None:
    """Then the number of the worker is that of its GPU."""
    for environ in (None, {}, {"OTHER": "1"}):
        env = {"LOCAL_RANK": "3"}
        give_own_device(env, 3, environ)
        assert {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3"} == env


def test_the_first_and_the_last_gpu_are_given() -> None:
    """As many workers as GPUs."""
    assert ["6", "7"] == [visible_devices(rank, "6,7", virtual=True) for rank in (0, 1)]
