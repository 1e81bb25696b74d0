"""Checkpoints of PyTorch: when they count, onto how many ranks they load, and what faults do to them."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints as marks
from hpc_elastic.record.journal import Decision, StopAgreed
from hpc_elastic.record.save_interval import SHORTEST_S
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.worker.channel import GIVE_UP, Channel
from tests.frameworks.local_runs import SAVE_EVERY, STEP_TIME_S, LocalRun
from tests.frameworks.ranks import RankServer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
LIMIT_S = 60.0


@contextmanager
def held_up(path: Path) -> Iterator[threading.Event]:
    """Hold up whoever opens a file for writing, by a lease on it.

    Returns:
        An event that is set when somebody is held up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    somebody = threading.Event()
    old = signal.signal(signal.SIGIO, lambda *_: somebody.set())
    lease = os.open(path, os.O_WRONLY)
    try:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield somebody
    finally:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(lease)
        signal.signal(signal.SIGIO, old)


def wait_for(somebody: threading.Event) -> None:
    """Wait until a writer is held up."""
    wait_until(somebody.is_set, "a writer of the file", timeout_s=LIMIT_S)


def part(directory: Path, step: int, rank: int, start: int = 1) -> Path:
    """Return the file of a rank's part of a checkpoint."""
    return directory / f"step-{step}-{start}" / f"__{rank}_0.distcp"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("saved_by", [1, 2, 3])
def test_a_state_loads_onto_another_number_of_ranks(
    ranks: RankServer, tmp_path: Path, kind: str, saved_by: int
) -> None:
    """To the last bit: weights, optimizer, schedule, tensors and values of one's own."""
    saved = ranks.run(saved_by, "train", tmp_path, kind, 4, 4)
    assert [[4, saved_by]] * saved_by == [value["latest"] for value in saved]
    for loaded_by in (2, 4):
        loaded = ranks.run(loaded_by, "train", tmp_path, kind, 0, None)
        assert [4] * loaded_by == [value["start"] for value in loaded]
        assert [saved[0]["seen"]] * loaded_by == [value["loaded"] for value in loaded]


def test_a_checkpoint_of_ddp_loads_into_fsdp(ranks: RankServer, tmp_path: Path) -> None:
    """Names and shapes of the state are those of the model, not of what is wrapped around it."""
    saved = ranks.run(2, "train", tmp_path, "ddp", 3, 3)
    assert [saved[0]["seen"]] * 2 == [
        value["loaded"] for value in ranks.run(2, "train", tmp_path, "fsdp", 0, None)
    ]


def test_a_training_in_pieces_ends_as_one_that_was_left_alone(ranks: RankServer, tmp_path: Path) -> None:
    """Killed after a checkpoint, it goes on there, and the result is the same to the last bit."""
    whole = ranks.run(2, "train", tmp_path / "whole", "ddp", 8, None)
    results = ranks.start(2, "die_after", tmp_path / "pieces", 5).results()
    assert [-signal.SIGKILL] * 2 == [result.code for result in results], results
    pieces = ranks.run(2, "train", tmp_path / "pieces", "ddp", 4, None)
    assert [4, 4] == [value["start"] for value in pieces]
    assert whole[0]["seen"] == pieces[0]["seen"]


@pytest.fixture
def in_run(tmp_path: Path) -> Callable[[int], tuple[list[dict[str, str]], list[Channel]]]:
    """Return a function that gives ranks a place in a run, and the agents' ends of their channels."""

    def place(world: int) -> tuple[list[dict[str, str]], list[Channel]]:
        (tmp_path / "run").mkdir(mode=0o700, exist_ok=True)  # as an agent has done
        channels = [Channel.create(str(tmp_path / f"channel-{rank}")) for rank in range(world)]
        run = {Env.RUN_DIR: str(tmp_path / "run"), Env.ROUND: "1", Env.CHECKPOINT: ""}
        return [{**run, Env.CHANNEL: channel.path} for channel in channels], channels

    return place


def test_a_checkpoint_counts_when_the_parts_of_all_ranks_are_on_disk(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """The loop goes on meanwhile, the agents see a critical section, and the next save waits."""
    environ, channels = in_run(2)
    paths = RunPaths(tmp_path / "run")
    with held_up(part(tmp_path / "run" / "saved", 1, 1)) as somebody:
        group = ranks.start(2, "save_held_up", None, tmp_path, environ=environ)
        wait_for(somebody)
        for rank in (0, 1):
            wait_until((tmp_path / f"went-on-{rank}").exists, "the loop", timeout_s=LIMIT_S)
        assert marks.latest(paths) is None
        assert ["saving", "saving"] == [critical.name for one in channels if (critical := one.critical)]
    assert [[[1], [2, 1]]] * 2 == group.values()
    assert [None, None] == [channel.critical for channel in channels]
    newest = marks.latest(paths)
    assert newest is not None
    assert (2, str(tmp_path / "run/saved/step-2-1")) == newest


def test_a_rank_that_is_killed_in_the_middle_of_a_save_loses_that_one_alone(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """The checkpoint before it stays the newest, and what is left of the broken one goes later."""
    environ, _ = in_run(2)
    saved = tmp_path / "run" / "saved"
    with held_up(part(saved, 4, 1)) as somebody:
        group = ranks.start(2, "train", None, "ddp", 100, 2, environ=environ)
        wait_for(somebody)
        os.kill(group.pids[1], signal.SIGKILL)
        results = group.results()
    assert -signal.SIGKILL == results[1].code
    assert 1 == results[0].code, results
    newest = marks.latest(RunPaths(tmp_path / "run"))
    assert newest is not None
    assert 2 == newest.step
    forget_states(tmp_path)
    environ = [{**own, Env.ROUND: "2", Env.CHECKPOINT: marks.to_env(newest)} for own in environ]
    group = ranks.start(2, "train", None, "ddp", 4, 2, environ=environ)
    after = group.values()
    assert all("Warning" not in result.printed for result in group.results())
    assert [2, 2] == [value["start"] for value in after]
    assert [6, 4] == after[0]["all"]  # rank 0 removes the old ones
    left = set(os.listdir(saved))
    assert {"step-4-2", "step-6-2", "began.json"} == left - {"step-6-1"}  # rank 0 may have begun that one


def forget_states(memory: Path) -> None:
    """Empty the node's memory: the next start has files alone."""
    for path in (*memory.glob("rescued*"), *memory.glob("copy-*")):
        path.unlink()


def fill(path: Path) -> None:
    """Have the disk be full for one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")


def test_a_full_disk_costs_a_checkpoint_and_not_the_training(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """The ranks say so and go on; the next one counts."""
    environ, _ = in_run(2)
    fill(part(tmp_path / "run" / "saved", 2, 1))
    results = ranks.start(2, "save_with_failures", None, 3, environ=environ).results()
    assert [[3, 1]] * 2 == [result.value for result in results], results
    for result in results:
        assert "the checkpoint of step 2 was not saved on rank 1: OSError: [Errno 28]" in result.printed


def test_saves_that_always_fail_end_the_training(ranks: RankServer, tmp_path: Path, in_run: Any) -> None:
    """The third in a row is an error, which names the step, the rank and the place; so is the last one."""
    environ, _ = in_run(2)
    for steps, failed in ((9, 4), (2, 2)):
        for step in (2, 3, 4):
            fill(part(tmp_path / "run" / "saved", step, 1))
        results = ranks.start(2, "save_with_failures", None, steps, environ=environ).results()
        words = f"StoreError: the checkpoint of step {failed} was not saved on rank 1: OSError: [Errno 28]"
        assert all(result.value.startswith(words) for result in results), results
        forget_states(tmp_path)


def test_ranks_with_different_newest_checkpoints_load_that_of_rank_0(
    ranks: RankServer, tmp_path: Path
) -> None:
    """A rank that has missed the newest one would else train from another step than the others."""
    ranks.run(2, "train", tmp_path, "ddp", 4, 2)
    (tmp_path / "run").mkdir()
    run = {Env.RUN_DIR: str(tmp_path / "run"), Env.ROUND: "1"}
    newest = [marks.to_env(marks.Checkpoint(step, str(tmp_path / f"step-{step}-0"))) for step in (2, 4)]
    environ = [{**run, Env.CHECKPOINT: text} for text in newest]
    found = ranks.run(2, "train", None, "ddp", 0, None, environ=environ)
    assert [2, 2] == [value["start"] for value in found]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"width": 9}, "model.layers.0.weight is [8, 4] float32 in it and [9, 4] float32 here"),
        ({"dtype": "float64"}, "model.layers.0.bias is [8] float32 in it and [8] float64 here"),
        (
            {"optimizer": "Adagrad"},
            "optimizer.state.layers.0.bias.exp_avg is [8] float32 in it and absent",
        ),
    ],
    ids=["model", "dtype", "optimizer"],
)
def test_a_checkpoint_of_something_else_changes_nothing(
    ranks: RankServer, tmp_path: Path, choices: dict[str, Any], words: str
) -> None:
    """One error names the tensors; neither the training nor the checkpoint is written over."""
    ranks.run(2, "train", tmp_path, "ddp", 2, 2)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for name, text, is_unchanged in ranks.run(2, "load_other", tmp_path, choices):
        assert "RefusedStateError" == name
        assert words in text
        wrong, total = map(int, re.findall(r"(\d+) of (\d+) tensors", text)[0])
        assert wrong <= total
        assert "fix: load it into the model, optimizers and dtypes that it was saved from" in text
        assert is_unchanged
    assert before == {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}


def test_a_refusal_that_no_restart_can_change_ends_the_run(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """Each start of the program would find the same, until no restart is left."""
    environ, channels = in_run(2)
    ranks.run(2, "train", None, "ddp", 2, 2, environ=environ)
    assert [0, 0] == [channel.word[0] for channel in channels]
    for place in environ:
        del place[Env.CHECKPOINT]  # the newest one
    ranks.run(2, "load_other", None, {"width": 9}, environ=environ)
    for channel in channels:
        kind, text = channel.word
        assert GIVE_UP == kind
        assert re.search(r"\d+ of \d+ tensors differ from those in the checkpoint .*/saved/step-2-1: ", text)


def test_a_checkpoint_that_others_can_write_to_ends_the_run(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """A restart finds it as it is; the reason has the command that mends it."""
    environ, (channel,) = in_run(1)
    ranks.run(1, "train", None, "ddp", 2, 2, environ=environ)
    path = tmp_path / "run" / "saved" / "step-2-1"
    path.chmod(0o702)
    again = [{**environ[0], Env.CHECKPOINT: marks.to_env(marks.latest(RunPaths(tmp_path / "run")))}]
    ((kind, *_),) = ranks.run(1, "load_other", None, {}, environ=again)
    assert "UnfitFileError" == kind
    assert channel.word[0] == GIVE_UP
    assert f"chmod -R go-w {path}" in channel.word[1]


@pytest.mark.parametrize("kind", ["values", "shapes", "names", "statistics", "sent statistics"])
def test_what_each_rank_has_for_itself_comes_back_to_it(
    ranks: RankServer, tmp_path: Path, in_run: Any, kind: str
) -> None:
    """Experts and stages under one name, statistics of batches; another number of ranks has no such parts.

    No rank keeps its state for all at a fault, but rank 0 whose statistics DDP gives to the others anyway.
    """
    environ, _ = in_run(2)
    first = ranks.run(2, "experts", None, kind, 3, environ=environ)
    assert [kind == "sent statistics", False] == [value["keeps"] for value in first]
    assert first[0]["seen"] != first[1]["seen"]
    again = ranks.run(2, "experts", tmp_path / "run" / "saved", kind, 0)
    assert [3, 3] == [value["start"] for value in again]
    assert [value["seen"] for value in first] == [value["loaded"] for value in again]
    (other,) = ranks.start(1, "experts", tmp_path / "run" / "saved", kind, 0).results()
    if kind.endswith("statistics"):
        assert first[0]["seen"] == other.value["loaded"]
    else:
        words = r"^InputError: .*: (net|optimizer)\..* was not the same on the 2 ranks that have saved the ch"
        assert re.match(words, other.value)


@pytest.mark.parametrize(
    ("kind", "kept_at"),
    [
        ("momentum", [False] * 4),
        ("late", [True, True, True, False]),
        ("save", [True, True, False, False]),
        ("buffer", [True, True, True, True]),
        ("buffer save", [True, True, False, False]),
    ],
)
def test_ranks_that_are_equal_for_a_moment_only_keep_no_state_for_others(
    ranks: RankServer, in_run: Any, kind: str, kept_at: list[bool]
) -> None:
    """As in local SGD: optimizers are compared too, and at each save buffers as well, to the last element."""
    environ, _ = in_run(2)
    assert [kept_at] * 2 == ranks.run(2, "local_steps", kind, environ=environ)


def test_a_state_that_is_cut_otherwise_than_its_parameter_is_refused(ranks: RankServer) -> None:
    """The next start would make a whole tensor of it, with which no step is possible."""
    assert ["optimizer.state.weight.row is cut into other parts than its parameter"] * 2 == ranks.run(
        2, "cut_otherwise"
    )


def test_what_differs_between_ranks_needs_a_rule_for_another_number_of_them(
    ranks: RankServer, tmp_path: Path
) -> None:
    """The same number of ranks load their own state; others are told what to do, or do it."""
    assert [[0, 10], [0, 20]] == ranks.run(2, "positions", tmp_path, False)
    assert [[1, 11], [1, 21]] == ranks.run(2, "positions", tmp_path, False)
    (result,) = ranks.start(1, "positions", tmp_path, False).results()
    assert "InputError" in result.value
    assert "'loader' was not the same on the 2 ranks that have saved the checkpoint" in result.value
    assert "Resharded(loader, reshard)" in result.value
    assert [[2, 34]] == ranks.run(1, "positions", tmp_path, True)


def test_workers_of_a_data_loader_may_be_made_while_a_save_is_under_way(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """They are forked from a process with a thread that writes, and both end well."""
    environ, _ = in_run(2)
    with held_up(part(tmp_path / "run" / "saved", 1, 1)) as somebody:
        group = ranks.start(2, "with_loader_workers", None, tmp_path, environ=environ)
        wait_for(somebody)
        for rank in (0, 1):
            wait_until((tmp_path / f"went-on-{rank}").exists, "the loop", timeout_s=LIMIT_S)
    batches = [[0, 1], [2, 3], [4, 5]]
    assert [[batches, batches, [2, 1]]] * 2 == group.values()


def test_what_a_resume_needs_is_never_removed(ranks: RankServer, tmp_path: Path) -> None:
    """Of five checkpoints the two newest stay; half a checkpoint does not count as one of them."""
    ranks.run(2, "train", tmp_path, "ddp", 5, 1)
    assert {"step-4-0", "step-5-0"} == set(os.listdir(tmp_path))
    for half in ("step-6-0", "step-7-0"):
        (tmp_path / half).mkdir()
    found = ranks.run(2, "train", tmp_path, "ddp", 1, 1)
    assert [5, 5] == [value["start"] for value in found]
    assert {"step-5-0", "step-6-0", "step-6-1", "step-7-0"} == set(os.listdir(tmp_path))


def test_all_ranks_save_at_the_step_for_which_rank_0_finds_it_time(ranks: RankServer, tmp_path: Path) -> None:
    """By its own clock alone; the next start knows the cost of a save from the checkpoint."""
    first = ranks.run(2, "save_by_time", tmp_path, 9, 10.0)
    assert [[6], [6]] == [steps for steps, _, _ in first]
    again = ranks.run(2, "save_by_time", tmp_path, 8, 10.0)
    assert [[7, 8], [7, 8]] == [steps for steps, _, _ in again], "saves cost nothing by that clock"
    assert [[6, 7, 8]] * 2 == [there for _, there, _ in again]
    assert [SHORTEST_S] * 2 == [every_s for _, _, every_s in again]


def test_one_process_needs_no_process_group(ranks: RankServer, tmp_path: Path) -> None:
    """It goes on where it has ended, though there are gradients before the state, and warns of nothing."""
    (first,) = ranks.run(1, "train_alone", tmp_path)
    (again,) = ranks.run(1, "train_alone", tmp_path)
    assert [0, [2], 0] == [first[0], first[2], first[3]]
    assert [2, [4, 2], 0] == [again[0], again[2], again[3]]
    (whole,) = ranks.run(1, "train_alone", tmp_path)
    assert 4 == whole[0]


def test_without_a_run_and_a_directory_nothing_is_saved(ranks: RankServer) -> None:
    """A script that is tried without an agent neither fails nor finds the files of another try."""
    (found,) = ranks.run(1, "train_alone", None)
    assert [0, [], 0] == [found[0], found[2], found[3]]


def test_ranks_without_a_process_group_are_told_so(ranks: RankServer, tmp_path: Path) -> None:
    """Each would save the whole state to the same files."""
    for result in ranks.start(2, "without_group", tmp_path).results():
        assert "there are 2 ranks, and no process group" in result.value
        assert "fix: call torch.distributed.init_process_group first" in result.value


def test_threads_of_groups_are_at_rest_when_the_interpreter_ends(ranks: RankServer, tmp_path: Path) -> None:
    """One that dropped its last tensor then would abort the process of a complete training."""
    assert [True] == ranks.run(1, "busy_at_the_end", tmp_path)


def test_an_interval_that_is_none_is_refused(ranks: RankServer, tmp_path: Path) -> None:
    """The error names it."""
    (result,) = ranks.start(1, "train", tmp_path, "ddp", 1, "often").results()
    assert result.value.startswith("InputError: hpc_elastic.frameworks: every is 'often'")
    assert 'fix: give a positive whole number, "auto" or None' in result.value


def test_a_value_that_pickle_refuses_is_named(ranks: RankServer, tmp_path: Path) -> None:
    """Pickle names only the function."""
    (result,) = ranks.start(1, "save_a_function", tmp_path).results()
    assert "RefusedStateError" in result.value
    assert "pickle cannot save a value of this rank: 'warmup': " in result.value
    assert "fix: leave it out, or give an object whose state_dict has" in result.value


@pytest.mark.parametrize(
    ("wrong", "words", "fix"),
    [
        ("no names", "the state is a list, in place of a dict", 'write {"model": model, "optimizer": optim'),
        ("own", "an object of the state has the name 'own', which values of single ranks have", "rename it"),
        ("one name", "two objects of the state have the name 'm.weight'", "rename one"),
        ("around", "the optimizer 'a' is around another one, inner, whose state is not in", "give both: "),
        (
            "its own way",
            "Cut does not give the state of 'a': not consolidated",
            "use an optimizer whose state",
        ),
        ("sparse", "m.a is of the layout sparse_coo, and cannot be saved and loaded", "make a plain tensor"),
        ("mkldnn", "a is of the layout _mkldnn, and cannot", "make a plain tensor"),
        ("quantized", "m._packed_params._packed_params is quantized, and cannot", "make a plain tensor"),
        ("lazy", "m.weight is lazy: it has no size before the first batch", "make a plain tensor"),
        ("meta", "m.weight is on the device meta: it has no content", "make a plain tensor"),
        ("expanded", "a is expanded: several of its elements are one", "make a plain tensor"),
        ("no module", "no module of the state has all parameters of the optimizer 'a'", "give both: "),
        (
            "live list",
            "'a' is a list with modules or other objects that have a state",
            "give each one a name",
        ),
        ("a function", "pickle cannot save a value of this rank: 'a': ", "leave it out, or give an object"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of kinds of tensors that PyTorch gives up
def test_a_wrong_state_is_refused_before_the_first_step(
    tmp_path: Path, wrong: str, words: str, fix: str
) -> None:
    """The first save may be hours later, and a list would come back with modules that no step uses."""
    torch = pytest.importorskip("torch")
    from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - needs torch

    model = torch.nn.Linear(2, 2)
    states: dict[str, Any] = {
        "no names": [model],
        "no module": {"a": torch.optim.SGD(model.parameters())},
        "own": {"own": model},
        "one name": {"m": model, "m.weight": torch.zeros(2)},
        "around": {"m": model, "a": _around(torch.optim.SGD(model.parameters()))},
        "its own way": {"m": model, "a": _cut(model.parameters())},
        "sparse": {"m": torch.nn.ParameterDict({"a": torch.eye(2).to_sparse()})},
        "mkldnn": {"a": torch.ones(2, 2).to_mkldnn()},
        "quantized": {"m": torch.ao.nn.quantized.dynamic.Linear(2, 2)},
        "lazy": {"m": torch.nn.LazyLinear(2)},
        "meta": {"m": torch.nn.Linear(2, 2, device="meta")},
        "expanded": {"a": torch.zeros(1).expand(2)},
        "live list": {"a": [model, 1]},
        "a function": {"model": model, "a": lambda: model},
    }
    with pytest.raises(InputError) as caught:
        next(Checkpoints(tmp_path).steps(2, states[wrong]))
    assert str(caught.value).startswith(f"hpc_elastic.frameworks.torch.Checkpoints: {words}")
    assert f"fix: {fix}" in str(caught.value)


def _around(inner: Any) -> Any:
    """Return an optimizer that has another one, as SAM."""
    outer = type(inner)(inner.param_groups, lr=0.1)
    outer.inner = inner
    return outer


def _cut(parameters: Any) -> Any:
    """Return an optimizer of whose state each rank has a part, as ZeroRedundancyOptimizer."""
    import torch  # noqa: PLC0415 - loaded by the test

    class Cut(torch.optim.SGD):  # type: ignore[misc]
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("not consolidated")

    return Cut(parameters)


def test_an_object_with_another_name_than_in_the_checkpoint_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would begin anew without a word; an optimizer without tensors shows in no other way."""
    torch = pytest.importorskip("torch")
    from hpc_elastic.frameworks.torch import Checkpoints, Replicated, Resharded  # noqa: PLC0415 - needs torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    kept = {"model": model, "optimizer": optimizer}
    list(Checkpoints(tmp_path, every=1).steps(1, {**kept, "schedule": schedule}))
    with pytest.raises(
        InputError, match=r"other optimizers than .*: it has no 'o', the state has no 'optimizer'"
    ):
        next(Checkpoints(tmp_path).steps(2, {"model": model, "o": optimizer, "schedule": schedule}))
    assert "it has no" not in caplog.text
    next(Checkpoints(tmp_path).steps(2, {**kept, "lr": schedule}))
    assert "it has no 'lr', the state has no 'schedule'" in caplog.text
    for wrapper, value in ((Replicated, 3), (lambda one: Resharded(one, sum), Path)):
        with pytest.raises(InputError, match=r"(3|the class Path) is no object with state_dict and"):
            wrapper(value)
    with pytest.raises(InputError, match="reshard is None"):
        Resharded(schedule, None)  # type: ignore[arg-type]


def test_a_class_in_place_of_its_object_is_named_before_the_first_step(tmp_path: Path) -> None:
    """It has the methods of an object, but no state."""
    torch = pytest.importorskip("torch")
    from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - needs torch

    state = {"model": torch.nn.Linear(2, 2), "schedule": torch.optim.lr_scheduler.StepLR}
    with pytest.raises(InputError, match="'schedule' is the class StepLR, which has no state of its own"):
        next(Checkpoints(tmp_path).steps(2, state))


@pytest.mark.parametrize("name", ["rescue", "memory"])
def test_a_switch_is_true_or_false(name: str) -> None:
    """A text would count as yes, whatever it says."""
    from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - needs torch

    with pytest.raises(InputError, match=f"{name} is 'no'"):
        Checkpoints(**{name: "no"})  # type: ignore[arg-type]


def test_copies_on_other_nodes_need_copies() -> None:
    """The error names the argument that is in the way."""
    from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - needs torch

    with pytest.raises(InputError, match="replicas=1 needs the copies of memory=True, and memory is False"):
        Checkpoints(replicas=1, memory=False)
    number: Any = 2
    with pytest.raises(InputError, match=r"replicas is 2\n  fix: give 0 or 1, or leave it out"):
        Checkpoints(replicas=number)


def test_a_stop_while_a_save_is_under_way_waits_for_it(tmp_path: Path) -> None:
    """Real agents end no worker until the save is durable; then the step of the stop is saved too."""
    run = LocalRun(tmp_path / "run", "fsdp_shards").start(2, 1, "--step-time", str(STEP_TIME_S))
    try:
        wait_until(run.directory.exists, "the run", timeout_s=LIMIT_S)
        with held_up(part(run.directory / "saved", 2 * SAVE_EVERY, 1)) as somebody:
            wait_for(somebody)
            run.ask_to_stop()
            wait_until(lambda: StopAgreed in run.kinds(), "the step of the stop", timeout_s=LIMIT_S)
            newest = marks.latest(run.paths)
            assert newest is not None
            assert SAVE_EVERY == newest.step
        assert 2 * SAVE_EVERY < run.stopped()
        ending = run.state().ending
        assert ending is not None
        assert Decision.STOPPED is ending.decision
    finally:
        run.end()


AFTER_PRELOAD = """
import importlib, sys
from hpc_elastic.processes.preload.rules import with_needed
for name in with_needed(["torch", "hpc_elastic.frameworks.torch"]):
    importlib.import_module(name)
had = set(sys.modules)
import torch
from hpc_elastic.frameworks.torch import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
assert 0 == checkpoints.load({"model": torch.nn.Linear(2, 2)})
late = [name for name in set(sys.modules) - had if name.startswith(("torch", "hpc_elastic.frameworks"))]
assert [] == late, late
"""


def test_a_preloaded_worker_imports_nothing_more_for_its_checkpoints(tmp_path: Path) -> None:
    """The name of the package is enough for --preload."""
    subprocess.run([sys.executable, "-c", AFTER_PRELOAD, str(tmp_path)], check=True, timeout=LIMIT_S)
