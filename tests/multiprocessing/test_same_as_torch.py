"""The same calls of torch's package and of ours come to the same, where we do not differ on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("torch.distributed.elastic.multiprocessing", "hpc_elastic.multiprocessing")
SAME_WORDS = {"args", "envs"}
"""Refusals whose text is compared too; of the others only the kind."""

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], list[str]]]:
    """Give what each package came to, and the lines on its console; both run at the same time."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    root = str(Path(__file__).parents[2])
    script = str(Path(__file__).with_name("same_calls.py"))
    folders = [tmp_path_factory.mktemp("calls") for _ in PACKAGES]
    # torch shows what is written in two pieces, as print does then, on two lines
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    env["PYTHONPATH"] = root
    started = [
        subprocess.Popen(
            [sys.executable, script, package, str(folder)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for package, folder in zip(PACKAGES, folders, strict=True)
    ]
    outputs = [process.communicate(timeout=240) for process in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output[1]
    return [
        (json.loads((folder / "found.json").read_text()), sorted(output[0].splitlines()))
        for folder, output in zip(folders, outputs, strict=True)
    ]


CALLS = (
    *("values", "function_failure", "program_failure", "program_killed", "files", "chosen_lines"),
    *("prefixes", "small_things", "recorded", "failures", "streams", "one_program"),
)


@pytest.mark.parametrize("call", CALLS)
def test_calls_come_to_the_same(results: list[tuple[dict[str, Any], list[str]]], call: str) -> None:
    """Return values, files, failures and texts are those of torch."""
    torch, ours = (found[call] for found, _ in results)
    assert torch == ours


def test_no_call_is_forgotten(results: list[tuple[dict[str, Any], list[str]]]) -> None:
    """Every call that is made is compared."""
    assert {*CALLS, "refusals"} == set(results[1][0])


def test_the_same_is_refused(results: list[tuple[dict[str, Any], list[str]]]) -> None:
    """What torch refuses is refused with an error of the same kind."""
    torch, ours = (found["refusals"] for found, _ in results)
    assert {name: error[0] for name, error in torch.items()} == {
        name: error[0] for name, error in ours.items()
    }
    assert {name: torch[name][1] for name in SAME_WORDS} == {name: ours[name][1] for name in SAME_WORDS}


def test_the_console_shows_the_same(results: list[tuple[dict[str, Any], list[str]]]) -> None:
    """Teed lines and their headers are those of torch; order between ranks is chance."""
    assert results[0][1] == results[1][1]
    assert "[job0]:tee 0" in results[1][1]
