"""`hpc-elastic checkpoints`, and going back to one of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.app import run
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import FailedSave, note_failed
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import Decision, Epoch, EpochStarted, Role, RunEnded
from hpc_elastic.record.run_log import open_log

TRAIN = """
import os, sys
from hpc_elastic import worker
saved = worker.latest_checkpoint()
begin = saved.step if saved else 0
open(os.environ["BEGINS"], "a").write(f"{begin} ")
for step in range(begin + 10, begin + 30, 10):
    path = f"{worker.run_dir()}/{step}-{os.environ['HPC_ELASTIC_ROUND']}"
    with worker.atomic_write(path) as file:
        file.write(b"x")
    worker.checkpoint_saved(step, path)
sys.exit(3)
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Run a training that saves two steps and fails, on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BEGINS", str(tmp_path / "begins"))
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["submit", "--local", "1", "--allow-local-run-dir", "--max-restarts", "0"]
    words += ["--run-dir", str(tmp_path / "run")]
    assert 0 != run([*words, "--", sys.executable, str(tmp_path / "train.py")])
    return RunPaths(tmp_path / "run")


def begins(paths: RunPaths) -> str:
    """Return the steps that the starts have begun from."""
    return Path(paths.root).with_name("begins").read_text()


@pytest.mark.slow
def test_a_run_goes_back_on_purpose(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The start goes on from the step, and the one after it from what that has saved; nothing is deleted."""
    resume = ["submit", "--resume", paths.root]
    assert 0 != run([*resume, "--from-step", "10"])
    assert "0 10 " == begins(paths)
    assert {"10-1", "20-1", "20-2", "30-2"} <= set(os.listdir(paths.root))
    capfd.readouterr()
    assert 0 == run(["checkpoints", paths.root])
    shown = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [("30", "next"), ("20", "whole"), ("20", "left"), ("10", "whole")] == [
        (row[0], next(word for word in row if word in ("next", "whole", "left"))) for row in shown[1:5]
    ]
    assert f"to go back: hpc-elastic submit --resume {paths.root} --from-step 20".split() == shown[5]
    assert 0 != run(resume)
    assert "0 10 30 " == begins(paths)


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--local", "3"], ["--json"], ["--dry-run"]])
def test_a_start_that_is_refused_goes_back_nowhere(
    paths: RunPaths, more: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The next one goes on from the newest checkpoint; a dry run changes nothing either."""
    assert 0 == run(["checkpoints", paths.root])
    before = capfd.readouterr().out
    asked = run(["submit", "--resume", paths.root, "--from-step", "10", *more])
    assert asked == (0 if more == ["--dry-run"] else 2)
    capfd.readouterr()
    assert 0 == run(["checkpoints", paths.root])
    assert before == capfd.readouterr().out


def test_a_step_without_a_checkpoint_queues_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--from-step` alone is refused, too."""
    assert 2 == run(["submit", "--from-step", "5", "--", "train.py"])
    assert "--resume RUN --from-step N" in capsys.readouterr().err


def test_the_table_and_its_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step, time, size, ranks, state, source and place; the failed save at the end."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.journal)
    (tmp_path / "five").write_bytes(bytes(2048))
    write_mark(paths, MarkName(5, 1, 0, 1), str(tmp_path / "five"), world_size=3)
    write_mark(paths, MarkName(9, 1, 0, 2, 0, "teacher"), None, world_size=2)
    note_failed(paths, FailedSave(7, 1, 0.0, "No space left on device"))
    assert 0 == run(["checkpoints", paths.root])
    head, first, second, failed = capsys.readouterr().out.splitlines()
    assert ["STEP", "SAVED", "SIZE", "RANKS", "STATE", "SOURCE", "PATH"] == head.split()
    assert ["2K", "3", "next", "checkpoint_saved,", "round", "1", f"{tmp_path}/five"] == first.split()[3:]
    assert "half: 1 of 2 ranks" in second
    assert "checkpoint_saved teacher, round 1" in second
    assert "the last save, of step 7, has failed: No space left on device" == failed
    assert 0 == run(["checkpoints", paths.root, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (1, "checkpoints", paths.root) == (found["format"], found["kind"], found["run"])
    assert [(5, "next", 2048), (9, "half", None)] == [
        (one["step"], one["state"], one["size"]) for one in found["checkpoints"]
    ]
    assert [7] == [one["step"] for one in found["failed"]]


@pytest.mark.parametrize(
    ("decision", "has_script", "said"),
    [
        (Decision.FAILED, True, "to go back: hpc-elastic submit --resume {} --from-step 5"),
        (None, True, "to go back, once the run has ended: hpc-elastic submit --resume {} --from-step 5"),
        (Decision.DONE, True, None),
        (Decision.FAILED, False, None),
    ],
)
def test_the_way_back_is_one_that_is_open(
    decision: Decision | None,
    has_script: bool,
    said: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`submit --resume` takes up no run that is done, or that `submit` has not started."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.journal)
    log = open_log(paths, "n1", Role.AGENT)
    log.commit(lambda _: EpochStarted(Epoch(0, 0, 0, 0), "7", ("n1",)))
    if decision is not None:
        log.commit(lambda _: RunEnded(decision, 0, "over", None))
    if has_script:
        Path(paths.script).touch()
    for step in (5, 9):
        (tmp_path / str(step)).touch()
        write_mark(paths, MarkName(step, 1, 0, 1), str(tmp_path / str(step)), world_size=1)
    assert 0 == run(["checkpoints", paths.root])
    rest = capsys.readouterr().out.splitlines()[3:]
    assert rest == ([] if said is None else [said.format(paths.root)])


def test_a_run_without_checkpoints_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the function that marks one."""
    os.mkdir(RunPaths(tmp_path).journal)
    assert 0 == run(["checkpoints", str(tmp_path)])
    assert "none is marked (hpc_elastic.worker.checkpoint_saved)\n" == capsys.readouterr().out
