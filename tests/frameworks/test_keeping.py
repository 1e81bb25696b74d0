"""The moment at which a rank keeps its state: what counts, and what is said where nothing does."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.memory.copies import MemorySource, Rescued, found_in  # noqa: E402
from hpc_elastic.frameworks.torch.memory.node_memory import NodeMemory  # noqa: E402
from hpc_elastic.frameworks.torch.memory.rescue import Rescue  # noqa: E402
from hpc_elastic.frameworks.torch.rank_groups import RankGroups  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import load_torch  # noqa: E402
from hpc_elastic.ids import Env  # noqa: E402
from hpc_elastic.worker.channel import Channel  # noqa: E402

pytestmark = pytest.mark.torch
LARGE = 40_000  # elements, too many to be copied after each step


class Program:
    """A training of one rank, as far as it is needed.

    Args:
        folder: in the memory of its node.
        optimizer: its kind.
    """

    def __init__(self, folder: Path, optimizer: Any = torch.optim.SGD) -> None:
        self.folder = str(folder)
        self.model = torch.nn.Linear(3, 2)
        self.model.register_buffer("queue", torch.zeros(LARGE))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.state = {"model": self.model, "optimizer": self.optimizer, "epoch": 0}
        path = str(folder / "1.0")
        Channel.create(path).close()
        self.rescue = Rescue(load_torch(), Channel.open(path), Rescued(1, 0, 0, 1))

    def step(self, number: int) -> None:
        """Make a step up to its end."""
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        self.state["epoch"] = number

    def done(self, number: int) -> None:
        """Make a whole step."""
        self.step(number)
        self.rescue.reached(number, self.state)

    def kept(self) -> list[int]:
        """Keep the state as at a fault; return the steps of what is there."""
        self.rescue.keep(0.0)
        return [one.step for one in found_in(self.folder)]

    def loaded(self, name: str) -> Any:
        """Return a tensor of what was kept."""
        (found,) = found_in(self.folder)
        source = MemorySource(load_torch(), RankGroups(0, 1, None), found, 0, self.folder)
        kind = source.stored()[name]
        content = {name: torch.empty(kind.shape, dtype=kind.dtype)}
        source.fill(content)
        return content[name]


@pytest.fixture
def new_program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Return a function that makes a program; it keeps nothing at the end of the tests."""
    made: list[Program] = []

    def new(**options: Any) -> Program:
        made.append(Program(tmp_path, **options))
        return made[-1]

    yield new
    for one in made:
        one.rescue.stop()


@pytest.fixture
def program(new_program: Callable[..., Program]) -> Program:
    """A program."""
    return new_program()


def test_the_state_of_the_newest_step_is_kept(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """In forward and backward of the next one; once, by one rank of the node."""
    program.done(1)
    program.done(2)
    weight = program.model.weight.detach().clone()
    program.model(torch.ones(1, 3)).sum().backward()
    assert [2] == program.kept()
    assert torch.equal(weight, program.loaded("model.weight"))
    assert "the state of step 2 is kept" in caplog.text
    caplog.clear()
    assert [2] == program.kept()
    assert "" == caplog.text


def test_a_folder_that_was_wiped_is_no_failure_of_a_save(tmp_path: Path) -> None:
    """Others may empty /dev/shm; the checkpoint is durable."""
    folder = tmp_path / "memory"
    folder.mkdir()
    Channel.create(str(folder / "1.0")).close()
    environ = {Env.CHANNEL: str(folder / "1.0"), Env.RUN_DIR: str(tmp_path), Env.ROUND: "1"}
    memory = NodeMemory(load_torch(), RankGroups(0, 1, None), environ, rescue=True, copies=True)
    shutil.rmtree(folder)
    memory.saved(1)
    memory.stop()


def test_a_folder_that_is_wiped_in_the_middle_of_a_run_costs_the_state_alone(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """The training goes on, and the reason is told at the fault."""
    program.done(1)
    shutil.rmtree(program.folder)
    program.done(2)
    program.rescue.keep(0.0)
    assert "the state was not kept: [Errno 2]" in caplog.text
    assert not Path(program.folder).exists()


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 128 kB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # files of channels are open


def in_folder(memory: Path, name: str) -> Program:
    """Return a program whose folder has this name."""
    folder = memory / name
    folder.mkdir()
    return Program(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_state_that_does_not_fit_into_the_memory_for_it_is_told(
    small_memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With both sizes; no part of it stays. Where others have left too little of it, the same."""
    small = in_folder(small_memory, "small")
    small.done(1)
    assert [] == small.kept()
    words = r"the state was not kept: .*it has 160032 bytes, and this node has \d+ bytes of memory for it"
    assert re.search(words, caplog.text)
    assert [] == [*small_memory.rglob("rescued*")]
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_memory)], check=True)
    filling = small_memory / "filling"
    filling.write_bytes(bytes(900 << 10))
    caplog.clear()
    full = in_folder(small_memory, "full")
    full.done(1)
    assert [] == full.kept()
    assert re.search(words, caplog.text)
    filling.unlink()
    roomy = in_folder(small_memory, "roomy")
    roomy.done(1)
    assert [1] == roomy.kept()


@pytest.mark.slow
def test_a_state_of_very_many_tensors_is_kept(program: Program) -> None:
    """A hundred thousand of them; what is loaded is what they were."""
    count = 50_000
    program.model.many = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)) for _ in range(count)])
    program.optimizer = torch.optim.SGD(program.model.many.parameters(), lr=0.5, momentum=0.9)
    for number, parameter in enumerate(program.model.many):
        parameter.grad = torch.full((2,), float(number % 7))
    program.state["optimizer"] = program.optimizer
    program.optimizer.step()
    program.rescue.reached(1, program.state)
    assert [1] == program.kept()
    last = count - 1
    assert [1 - 0.5 * (last % 7)] * 2 == program.loaded(f"model.many.{last}").tolist()
    assert [float(last % 7)] * 2 == program.loaded(f"optimizer.state.many.{last}.momentum_buffer").tolist()


def test_without_a_step_nothing_is_kept_and_nothing_is_said(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is new."""
    assert [] == program.kept()
    assert "not kept" not in caplog.text


def test_a_loaded_state_is_not_new(program: Program) -> None:
    """It is in memory or in a file already."""
    program.done(1)
    program.rescue.began(None)
    assert [] == program.kept()


def test_a_fault_in_the_step_of_an_optimizer_says_so(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tensors are partly those of the next step."""
    program.done(1)
    program.optimizer.register_step_pre_hook(lambda *_: program.rescue.keep(0.0))
    program.optimizer.step()
    assert [] == found_in(program.folder)
    assert "was not kept: an optimizer was in the middle of a step" in caplog.text


def test_a_fault_between_the_step_of_an_optimizer_and_its_end_says_so(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """As in an evaluation in the body of the loop."""
    program.done(1)
    program.step(2)
    assert [] == program.kept()
    words = "was not kept: an optimizer had made the step after step 1, and the loop had not told its end"
    assert words in caplog.text


def test_a_step_that_changes_nothing_is_a_step(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """The hook shows it, as a schedule or values of the program may have gone on."""
    program.done(1)
    program.optimizer.zero_grad()
    program.optimizer.step()
    assert [] == program.kept()
    assert "had made the step after step 1" in caplog.text


def _averaged(program: Program) -> str:
    program.model.weight.data.copy_(torch.ones(2, 3))
    return "model.weight was changed through .data"


def _by_hand(program: Program) -> str:
    with torch.no_grad():
        program.model.bias.sub_(0.1)
    return "model.bias was changed, and"


def _in_forward(program: Program) -> str:
    program.model.queue[5] = 1.0
    return "model.queue was changed, and"


@pytest.mark.parametrize("change", [_averaged, _by_hand, _in_forward])
def test_a_state_that_was_changed_is_not_kept(
    program: Program, caplog: pytest.LogCaptureFixture, change: Callable[[Program], str]
) -> None:
    """The reason names the tensor; after the next step there is a state again."""
    program.done(1)
    words = change(program)
    assert program.rescue._kept().startswith(words)
    program.done(2)
    assert [2] == program.kept()
    assert "was not kept" not in caplog.text


class Lookahead(torch.optim.Optimizer):  # type: ignore[misc]
    """Was not made by PyTorch's class, and has no hooks; some libraries have such ones."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [*parameters], "lr": lr}]
        self.state: dict[Any, Any] = {}
        self.defaults: dict[str, Any] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""

    def step(self, closure: Any = None) -> None:  # noqa: ARG002 - as PyTorch's
        """Make a step."""
        for parameter in self.param_groups[0]["params"]:
            parameter.data -= 0.1 * parameter.grad


def test_an_optimizer_without_hooks_is_seen_in_its_parameters(
    new_program: Callable[..., Program], caplog: pytest.LogCaptureFixture
) -> None:
    """Between its step and the end of the loop's nothing is kept."""
    program = new_program(optimizer=Lookahead)
    program.done(1)
    program.step(2)
    assert [] == program.kept()
    assert "was not kept: model." in caplog.text


def test_the_state_of_an_optimizer_without_hooks_is_kept_until_its_next_step(
    new_program: Callable[..., Program],
) -> None:
    """Its parameters have not changed."""
    program = new_program(optimizer=Lookahead)
    program.done(1)
    assert [1] == program.kept()


def test_a_state_that_changes_while_it_is_written_is_not_kept(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a program that goes on; no part of the file stays."""
    from hpc_elastic.frameworks.torch.memory.copies import Slot  # noqa: PLC0415

    write = Slot.write

    def write_and_change(*args: Any) -> Any:
        found = write(*args)
        program.model.weight.data.add_(1.0)
        return found

    monkeypatch.setattr(Slot, "write", write_and_change)
    program.done(1)
    assert [] == program.kept()
    assert "model.weight was changed through .data" in caplog.text
    assert not [path for path in Path(program.folder).iterdir() if "rescued" in path.name]


def test_parameters_that_are_not_finite_are_not_kept(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """No training goes on from them."""
    program.step(1)
    program.model.weight.data[0] = torch.nan
    program.rescue.reached(1, program.state)
    assert [] == program.kept()
    assert "was not kept: model.weight is not finite" in caplog.text


def test_a_state_of_a_kind_that_cannot_be_kept_is_told_once(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """On rank 0, after its first step."""
    caplog.set_level(logging.INFO)
    program.state["sparse"] = torch.eye(2).to_sparse()
    program.done(1)
    program.done(2)
    assert 1 == caplog.text.count("the state is not kept when another rank fails: sparse is a Tensor")
    assert not program.rescue.is_able


@pytest.mark.parametrize("way", ["by place", "by name"])
def test_a_step_with_a_closure_begins_once_that_has_returned(program: Program, way: str) -> None:
    """Its arguments reach it as they are; until the gradients are there nothing has changed."""
    program.done(1)
    kept: list[list[int]] = []

    def closure() -> Any:
        program.optimizer.zero_grad()
        loss = program.model(torch.ones(1, 3)).sum()
        loss.backward()
        if not kept:
            program.rescue._keeps = False  # of this look alone
            kept.append([] if program.rescue._kept() else [1])
            program.rescue._keeps = True
        return loss

    before = program.model.weight.tolist()
    loss = program.optimizer.step(closure) if way == "by place" else program.optimizer.step(closure=closure)
    assert loss is not None
    assert before != program.model.weight.tolist()
    assert [[1]] == kept
    assert not program.rescue._kept() or program.rescue._kept().startswith("an optimizer had made the step")


class Pauses:
    """A clock that counts its pauses."""

    def __init__(self) -> None:
        self.now, self.count = 0.0, 0

    def monotonic(self) -> float:
        """Return the time [s]."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now, self.count = self.now + seconds, self.count + 1


@pytest.mark.parametrize("has_groups", [True, False])
def test_a_program_that_ends_with_its_process_group_keeps_its_state_at_once(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_groups: bool
) -> None:
    """It has failed; the CPU waits for no step that is under way. One without a group has come to its end."""
    program.done(1)
    program.step(2)
    clock: Any = Pauses()
    program.rescue._clock = clock
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: has_groups)
    program.rescue._at_end()
    assert 0 == clock.count
    assert has_groups == ("the state was not kept: an optimizer had made the step" in caplog.text)
    assert has_groups != program.rescue.is_able
