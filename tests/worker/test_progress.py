"""The functions that training code calls, without and with an agent's environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.checkpoints import Checkpoint
from hpc_elastic.worker.channel import BAD_NODE, GIVE_UP, Channel
from hpc_elastic.worker.progress import WorkerProgress


class SteppingClock:
    """A clock on which only sleeping takes time; `then` runs after each sleep."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        """Return the time slept so far [s]."""
        return self.now_s

    def wall(self) -> float:
        """Return the same."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Move the clock [s]."""
        self.now_s += seconds
        self.sleeps.append(seconds)


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    """Return the agent's end of a fresh channel."""
    return Channel.create(str(tmp_path / "channel"))


def test_alone_nothing_asks_to_stop() -> None:
    """Without an agent every call works and there is nothing to resume from."""
    progress = WorkerProgress.from_environment({})
    progress.tick(1)
    assert not progress.attached
    assert not progress.should_stop()
    assert progress.latest_checkpoint() is None


def test_the_first_word_of_a_worker_counts(channel: Channel, capfd: pytest.CaptureFixture[str]) -> None:
    """The agent reads it with its reason on one line; without an agent it is printed."""
    progress = WorkerProgress({"RANK": "3"}, Channel.open(channel.path))
    assert (0, "") == channel.word
    progress.report_bad_node("wrong sum\n  on GPU 1\x1b[2J")
    progress.give_up("later")
    assert (BAD_NODE, r"wrong sum on GPU 1\x1b[2J") == channel.word
    WorkerProgress({}, None).give_up("the loss is nan")
    assert [
        r"hpc_elastic.worker: rank 3: this node is bad: wrong sum on GPU 1\x1b[2J",
        "hpc_elastic.worker: rank 0: the run is given up: the loss is nan; no agent listens",
    ] == capfd.readouterr().err.splitlines()


def test_a_huge_reason_is_cut_at_a_character(channel: Channel) -> None:
    """Of a reason 512 bytes are kept."""
    WorkerProgress({}, Channel.open(channel.path)).give_up("ä" * 255 + "xyz" + "ö" * 10**6)
    assert (GIVE_UP, "ä" * 255 + "xy") == channel.word


@pytest.mark.parametrize("reason", ["", " \n", None, b"ECC", 7])
def test_a_reason_must_be_a_text(channel: Channel, reason: Any) -> None:
    """An empty one would tell nothing to the person who reads the ledger."""
    progress = WorkerProgress({}, Channel.open(channel.path))
    for say in (progress.report_bad_node, progress.give_up):
        with pytest.raises(InputError, match="the reason must be a text"):
            say(reason)
    assert (0, "") == channel.word


def test_the_run_directory_is_told(tmp_path: Path) -> None:
    """It is where checkpoints of this run and no other go; without a run there is none."""
    assert str(tmp_path) == WorkerProgress.from_environment({Env.RUN_DIR: str(tmp_path)}).run_dir
    assert WorkerProgress.from_environment({}).run_dir is None


def test_alone_own_save_is_remembered(tmp_path: Path) -> None:
    """Without a run directory a save is known to this process only."""
    progress = WorkerProgress.from_environment({})
    (tmp_path / "c").touch()
    progress.checkpoint_saved(3, tmp_path / "c", shards=1)
    assert Checkpoint(3, str(tmp_path / "c")) == progress.latest_checkpoint()


def test_marks_do_not_add_up(tmp_path: Path) -> None:
    """Of so many saves a bounded number of marks is left, the newest among them."""
    progress = WorkerProgress.from_environment({Env.RUN_DIR: str(tmp_path)})
    for step in range(200):
        progress.checkpoint_saved(step, None, shards=1)
    left = os.listdir(tmp_path / "checkpoints")
    assert checkpoints.KEPT <= len(left) < checkpoints.KEPT + 16
    assert Checkpoint(199, None) == checkpoints.latest(RunPaths(tmp_path))


def test_run_directory_alone_keeps_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With only a run directory set, the next process finds the newest save, from any directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c").mkdir()
    environ = {Env.RUN_DIR: str(tmp_path)}
    WorkerProgress.from_environment(environ).checkpoint_saved(3, "c", shards=1)
    monkeypatch.chdir("/")
    assert Checkpoint(3, str(tmp_path / "c")) == WorkerProgress.from_environment(environ).latest_checkpoint()


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be resumed from; the error names the step and where it was looked for."""
    monkeypatch.chdir(tmp_path)
    progress = WorkerProgress.from_environment({Env.RUN_DIR: str(tmp_path)})
    (tmp_path / "file").touch()
    for path in ("none", "file/below"):
        said = f"checkpoint_saved: the checkpoint of step 3 is not there: {tmp_path}/{path} does not exist"
        with pytest.raises(InputError, match=re.escape(said)):
            progress.checkpoint_saved(3, path, shards=1)
    assert progress.latest_checkpoint() is None


def test_round_decides_what_to_resume_from(tmp_path: Path) -> None:
    """What the agent says holds for all ranks, also when the directory has something newer."""
    WorkerProgress.from_environment({Env.RUN_DIR: str(tmp_path)}).checkpoint_saved(9, None, shards=1)
    chosen = Checkpoint(5, "/data/five")
    environ = {Env.RUN_DIR: str(tmp_path), Env.CHECKPOINT: checkpoints.to_env(chosen)}
    assert chosen == WorkerProgress.from_environment(environ).latest_checkpoint()
    environ[Env.CHECKPOINT] = checkpoints.to_env(None)
    assert WorkerProgress.from_environment(environ).latest_checkpoint() is None


def in_round(run_dir: Path, number: int, rank: int = 0) -> WorkerProgress:
    """Return a process of a round, which was told the newest checkpoint."""
    found = checkpoints.to_env(checkpoints.latest(RunPaths(run_dir)))
    environ = {Env.RUN_DIR: str(run_dir), Env.ROUND: str(number), Env.CHECKPOINT: found, "RANK": str(rank)}
    return WorkerProgress.from_environment(environ)


def test_a_round_that_goes_back_takes_the_later_ones_with_it(tmp_path: Path) -> None:
    """Also if it ends before its first save: the newer checkpoints are left."""
    first = in_round(tmp_path, 1)
    for step in (10, 20):
        first.checkpoint_saved(step, tmp_path, shards=1)
    second = in_round(tmp_path, 2)
    second.resumed(10)
    assert 10 == getattr(second.latest_checkpoint(), "step", None)
    third = in_round(tmp_path, 3)
    assert 10 == getattr(third.latest_checkpoint(), "step", None)
    third.resumed(10)
    third.checkpoint_saved(15, tmp_path, shards=1)
    assert 15 == checkpoints.newest_step(RunPaths(tmp_path), -1)
    assert 1 == sum(name.startswith("from.") for name in os.listdir(RunPaths(tmp_path).checkpoints))


def test_a_process_that_goes_back_saves_the_same_steps_again(tmp_path: Path) -> None:
    """In another branch, which all ranks count alike; one of them writes the record."""
    ranks = [in_round(tmp_path, 1, rank) for rank in (0, 1)]
    for rank in ranks:
        rank.checkpoint_saved(10, tmp_path, shards=2)
        rank.checkpoint_saved(20, tmp_path, shards=2)
        rank.tick(20)
    for rank in ranks:
        rank.resumed(10)
        assert 10 == getattr(rank.latest_checkpoint(), "step", None)
        rank.tick(11)
    assert 10 == checkpoints.newest_step(RunPaths(tmp_path), -1)
    for rank in ranks:
        rank.checkpoint_saved(20, tmp_path, shards=2)
    assert [1, 1] == [rank.branch for rank in ranks]
    newest = next(checkpoints.complete_marks(os.listdir(RunPaths(tmp_path).checkpoints)))
    assert (20, 1) == (newest.step, newest.branch)


def test_a_step_that_was_told_as_it_is_goes_nowhere_back(tmp_path: Path) -> None:
    """A state in memory is newer than the checkpoint."""
    first = in_round(tmp_path, 1)
    first.checkpoint_saved(10, tmp_path, shards=1)
    for step in (10, 12):
        later = in_round(tmp_path, 2)
        later.resumed(step)
        assert 0 == later.branch
    assert 1 == len(os.listdir(RunPaths(tmp_path).checkpoints))


def test_a_save_of_an_earlier_step_is_refused(tmp_path: Path) -> None:
    """Steps that are counted anew in each epoch would never be resumed from; the error has the line."""
    progress = in_round(tmp_path, 1)
    progress.checkpoint_saved(8, tmp_path, shards=1)
    with pytest.raises(InputError, match="step 3 comes after step 8") as refused:
        progress.checkpoint_saved(3, tmp_path, shards=1)
    assert "step = epoch * len(loader) + i" in str(refused.value)
    progress.checkpoint_saved(3, tmp_path, shards=1, name="other")
    progress.checkpoint_saved(8, tmp_path, shards=1)


def test_each_object_has_its_own_checkpoints(tmp_path: Path) -> None:
    """In this process and in the next round."""
    progress = in_round(tmp_path, 1)
    for name in ("student", "teacher"):
        progress.checkpoint_saved(len(name), tmp_path / ".", shards=1, name=name)
    for one in (progress, in_round(tmp_path, 2)):
        assert [7, 7, None] == [
            getattr(one.latest_checkpoint(name), "step", None) for name in ("student", "teacher", "")
        ]


def test_a_mark_is_taken_back(tmp_path: Path) -> None:
    """The save of other ranks has failed: neither this process nor a later one goes on from it."""
    progress = in_round(tmp_path, 1)
    progress.checkpoint_saved(5, tmp_path, shards=1)
    progress.checkpoint_failed(5, shards=1)
    assert [None, None] == [one.latest_checkpoint() for one in (progress, in_round(tmp_path, 2))]
    progress.checkpoint_saved(4, tmp_path, shards=1)


def test_mark_names_round_and_rank(tmp_path: Path) -> None:
    """A mark carries the round, the rank and the number of shards."""
    environ = {Env.RUN_DIR: str(tmp_path), Env.ROUND: "4", "RANK": "1", "WORLD_SIZE": "2"}
    WorkerProgress.from_environment(environ).checkpoint_saved(8, tmp_path, shards=2)
    names = [path.name for path in Path(RunPaths(tmp_path).checkpoints).iterdir()]
    assert ["000000000008.4.1.2.json"] == names


def test_save_is_told_to_the_agent(channel: Channel) -> None:
    """The agent sees a durable checkpoint and ticks without touching a file."""
    progress = WorkerProgress.from_environment({Env.CHANNEL: channel.path})
    assert progress.attached
    assert (None, 0, None, False) == (
        channel.last_step, channel.ticks, channel.checkpoint_step, channel.asks_should_stop
    )  # fmt: skip
    assert channel.resumed is None
    progress.resumed(0)
    assert 0 == channel.resumed
    progress.tick(7)
    progress.tick(7)
    progress.checkpoint_saved(7, None, shards=1)
    assert not progress.should_stop()
    assert (7, 2, 7, True) == (
        channel.last_step, channel.ticks, channel.checkpoint_step, channel.asks_should_stop
    )  # fmt: skip


def test_stops_from_the_agreed_step_on(channel: Channel) -> None:
    """The answer is yes exactly from the stop step on, and the first yes is recorded."""
    progress = WorkerProgress.from_environment({Env.CHANNEL: channel.path})
    channel.request_drain()
    channel.stop_step = 3
    answers = []
    for step in (1, 2, 3, 4):
        progress.tick(step)
        answers.append(progress.should_stop())
    assert [False, False, True, True] == answers
    assert 3 == channel.stopped_at


def test_rank_that_has_not_ticked_does_not_hold(channel: Channel) -> None:
    """Before the first tick a drain neither stops nor delays a rank."""
    progress = WorkerProgress({Env.STOP_WAIT_S: "1000"}, Channel.open(channel.path), clock := SteppingClock())
    channel.request_drain()
    assert not progress.should_stop()
    assert [] == clock.sleeps
    assert 0 == channel.stop_bound


def test_wait_for_the_stop_step_is_bounded(channel: Channel, capsys: pytest.CaptureFixture[str]) -> None:
    """When no stop step is ever agreed, training goes on after the limit, with one warning."""
    clock = SteppingClock()
    progress = WorkerProgress({Env.STOP_WAIT_S: "2"}, Channel.open(channel.path), clock)
    channel.request_drain()
    progress.tick(1)
    assert not progress.should_stop()
    assert 2 <= clock.now_s < 2.02
    assert max(clock.sleeps) <= 0.010
    progress.tick(2)
    assert not progress.should_stop()
    assert 1 == capsys.readouterr().err.count("no stop step was agreed in 2 s")


def test_missing_channel_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A channel that cannot be opened costs the stop request, not the training."""
    progress = WorkerProgress.from_environment({Env.CHANNEL: str(tmp_path / "none")})
    progress.tick(1)
    assert not progress.should_stop()
    assert "no channel to the agent" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_foreign_channel_file_is_a_warning(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not a channel of this version is not used."""
    (tmp_path / "channel").write_bytes(content)
    assert not WorkerProgress.from_environment({Env.CHANNEL: str(tmp_path / "channel")}).attached
    assert "no channel to the agent" in capsys.readouterr().err


def test_wrong_values_are_refused() -> None:
    """Negative steps and zero shards are errors of the caller."""
    progress = WorkerProgress.from_environment({})
    with pytest.raises(InputError, match="step must be at least 0, not -1"):
        progress.tick(-1)
    with pytest.raises(InputError, match="step must be at least 0, not -2"):
        progress.checkpoint_saved(-2, None, shards=1)
    with pytest.raises(InputError, match="shards must be at least 1, not 0"):
        progress.checkpoint_saved(2, None, shards=0)


@pytest.mark.parametrize("step", ["x", 2.5, None], ids=repr)
def test_a_step_is_a_whole_number(step: Any) -> None:
    """Anything else is refused with its value."""
    progress = WorkerProgress.from_environment({})
    said = re.escape(f"step must be a whole number, not {step!r}")
    with pytest.raises(InputError, match=said):
        progress.tick(step)
    with pytest.raises(InputError, match=said):
        progress.checkpoint_saved(step, None, shards=1)
    with pytest.raises(InputError, match="path must be a path, not 7"):
        progress.checkpoint_saved(1, 7, shards=1)  # type: ignore[arg-type]


def test_wrong_values_are_refused_without_an_agent_too() -> None:
    """Else a script that has worked by itself fails in its job."""
    progress = WorkerProgress.from_environment({})
    with pytest.raises(InputError, match="total must be a whole number, not 'x'"):
        progress.tick(1, total="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the file to write must be a path, not 5"):
        progress.atomic_write(5)  # type: ignore[arg-type]


def test_numbers_of_other_types_count(channel: Channel, tmp_path: Path) -> None:
    """Such as numpy's."""

    class Five:
        def __index__(self) -> int:
            return 5

    five: Any = Five()
    progress = WorkerProgress.from_environment({Env.CHANNEL: channel.path, Env.RUN_DIR: str(tmp_path)})
    progress.tick(five)
    progress.checkpoint_saved(five, None, shards=1)
    assert (5, 5) == (channel.last_step, channel.checkpoint_step)
    assert Checkpoint(5) == checkpoints.latest(RunPaths(tmp_path))


def test_wrong_number_in_the_environment_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that is no number is replaced by its default."""
    WorkerProgress.from_environment({Env.STOP_WAIT_S: "soon"})
    assert "HPC_ELASTIC_STOP_WAIT_S='soon' is not a number; using 30" in capsys.readouterr().err


def test_import_is_light() -> None:
    """Neither torch nor anything else that is large is imported for the worker functions."""
    heavy = "{'torch', 'numpy', 'asyncio', 'logging', 'socket', 'dataclasses', 'inspect', 'subprocess'}"
    code = (
        "import sys; before = set(sys.modules); from hpc_elastic import worker; worker.tick(1);"
        f"print(sorted((set(sys.modules) - before) & {heavy}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == found.stdout.strip()
