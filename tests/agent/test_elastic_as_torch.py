"""The same calls of torch's agent and of ours come to the same, where we do not differ on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.elastic_same_calls import CALLS

PACKAGES = ("torch.distributed.elastic", "hpc_elastic")
REPOSITORY = Path(__file__).parents[2]
VARIABLES = ("TORCH", "PET_", "OMP_", "CUDA_", "LOGLEVEL")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each package came to; both run at the same time."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("calls")
    program = str(Path(__file__).with_name("elastic_same_calls.py"))
    env = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    started = [
        subprocess.Popen(
            [sys.executable, program, package, str(folder / package)],
            env={**env, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for package in PACKAGES
    ]
    for process in started:
        assert process.communicate(timeout=240)[1] is not None
    return [json.loads((folder / package).read_text()) for package in PACKAGES]


@pytest.mark.parametrize("call", CALLS)
def test_calls_come_to_the_same(results: list[dict[str, Any]], call: str) -> None:
    """Results, hooks, events, metrics, environments and texts are those of torch."""
    torch, ours = (found[call] for found in results)
    assert torch == ours


def test_a_failed_run_is_recorded(results: list[dict[str, Any]]) -> None:
    """What is compared is not empty."""
    names = [event["name"].rpartition(".")[2] for event in results[1]["failure"]["events"]]
    assert ["TERMINATED", "FAILED"] == names[-2:]
    assert ["torchelastic", "workers.r.run_failed_with_retries", 1] in results[1]["failure"]["metrics"]
