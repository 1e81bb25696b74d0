"""The tensors of a training, by the way in which they change."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.memory.layout import (  # noqa: E402
    Layout,
    UnfitStateError,
    Whole,
    versions,
    without_parameters,
)
from hpc_elastic.frameworks.torch.train_state import TrainState, load_torch  # noqa: E402

pytestmark = pytest.mark.torch
LARGE = 40_000  # elements, too many to be copied after each step


class Statistics(torch.nn.Module):  # type: ignore[misc]
    """Has buffers, and a frozen layer; a program may put other tensors in the place of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.frozen = torch.nn.Linear(2, 1).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("other", self.mean)
        self.register_buffer("large", torch.zeros(LARGE))
        self.register_buffer("later", None)

    def forward(self, x: Any) -> Any:
        """Return what the layer makes of a batch."""
        return self.layer(x)


class WithExtraState(Statistics):
    """Has a state that is no tensor of its own."""

    def get_extra_state(self) -> Any:
        """Return it."""
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        """Take it."""


class Quantized(Statistics):
    """Makes a tensor for its state, as layers of quantized weights do."""

    made: Any = torch.zeros(2)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}made"] = self.made.clone()


def stepped(module: Any, outer: Any = None) -> TrainState:
    """Return the state of a module after a step of an optimizer; `outer` has the module in it."""
    optimizer = torch.optim.SGD(module.layer.parameters(), lr=0.1)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return TrainState(load_torch(), {"model": outer or module, "optimizer": optimizer})


def noted(layout: Layout) -> Whole:
    """Return the notes of the end of a step."""
    fixed, numbers = layout.note()
    groups = {one.name: without_parameters(one.value) for one in layout.optimizers}
    return Whole(1, groups, pickle.dumps({}), fixed, numbers, layout.on_host())


def kept(layout: Layout, whole: Whole) -> dict[str, float]:
    """Return the first number of each tensor of the module that is kept."""
    tensors, _ = layout.content(whole)
    return {
        ".".join(name.split(".")[-2:]): tensor.flatten()[0].item()
        for name, tensor in tensors.items()
        if "optimizer" not in name
    }


@pytest.mark.parametrize("wrapper", ["none", "checkpointed"])
def test_tensors_that_take_the_place_of_others_are_kept(wrapper: str) -> None:
    """Buffers are assigned in each step, large ones too; of two that were one, one may change."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: PLC0415

    module = Statistics()
    wrapped = module if wrapper == "none" else checkpoint_wrapper(module)
    layout = Layout(load_torch(), stepped(module, torch.nn.Sequential(wrapped)))
    assert layout.read()
    before = noted(layout)
    module.mean = module.mean + 1
    module.large = module.large + 2
    module.frozen.weight.data = torch.full((1, 2), 3.0)
    assert versions(before.fixed.values()) == before.versions
    assert layout.read()
    found = kept(layout, noted(layout))
    assert (1.0, 0.0, 2.0) == (found["0.mean"], found["0.other"], found["0.large"])
    assert 3.0 == found["frozen.weight"]
    assert 0.0 == kept(layout, before)["0.large"]
    module.large.data = torch.ones(LARGE)
    assert versions(noted(layout).fixed.values()) != before.versions


def test_a_module_that_gets_other_tensors_needs_another_layout() -> None:
    """One more, one of another size, or one less."""
    for change in (
        lambda module: module.register_buffer("more", torch.zeros(1)),
        lambda module: setattr(module, "mean", torch.zeros(3)),
        lambda module: setattr(module, "mean", None),
        lambda module: setattr(module, "later", torch.zeros(1)),
        lambda module: module.add_module("more", torch.nn.Linear(1, 1)),
    ):
        module = Statistics()
        layout = Layout(load_torch(), stepped(module))
        assert layout.read()
        change(module)
        assert not layout.read()


def test_a_parameter_that_no_optimizer_updates_any_more_is_not_kept() -> None:
    """The module has another one."""
    module = Statistics()
    layout = Layout(load_torch(), stepped(module))
    module.layer.weight = torch.nn.Parameter(torch.ones(1, 2))
    with pytest.raises(UnfitStateError, match=r"model\.layer\.weight was replaced by another tensor"):
        layout.content(noted(layout))


def test_a_state_that_is_not_in_tensors_of_modules_is_not_kept() -> None:
    """No step shows how it changes."""
    with pytest.raises(UnfitStateError, match=r"^model\._extra_state is no parameter or buffer"):
        Layout(load_torch(), stepped(WithExtraState()))
    module = Quantized()
    layout = Layout(load_torch(), stepped(module))
    assert layout.read()
    assert 0.0 == kept(layout, noted(layout))["model.made"]
    layout = Layout(load_torch(), stepped(module))
    module.made = torch.ones(2)
    with pytest.raises(UnfitStateError, match=r"^model\.made changes, and is no parameter or buffer"):
        layout.read()
