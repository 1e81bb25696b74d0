"""The same calls of torch's package and of ours come to the same, where we do not differ on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    with ThreadPoolExecutor() as both:
        theirs, ours = (both.submit(made, package, tmp_path_factory) for package in PACKAGES)
        return [theirs.result(), ours.result()]


def made(package: str, folders: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """Make all calls of one package; torch's stand still or fail now and then, and are made once more."""
    name = package.partition(".")[0]
    if package == PACKAGES[0]:
        with suppress(subprocess.TimeoutExpired, AssertionError):
            return _made(package, folders.mktemp(name), 100)
    return _made(package, folders.mktemp(name), 150)


def _made(package: str, folder: Path, patience_s: float) -> tuple[dict[str, Any], list[str]]:
    script = str(Path(__file__).with_name("same_calls.py"))
    # torch shows what is written in two pieces, as print does then, on two lines
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    argv = [sys.executable, script, package, str(folder)]
    done = subprocess.run(
        argv,
        env=env,
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text()), sorted(done.stdout.splitlines())


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
