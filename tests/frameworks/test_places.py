"""The places of tensors in modules, and whether a training has the objects that it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.memory.layout import Objects, places_in  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import TrainState, load_torch  # noqa: E402
from hpc_elastic.frameworks.torch.trees import Entry  # noqa: E402

pytestmark = pytest.mark.torch


class Training:
    """A network and its optimizer, beside a schedule, a number and a tensor, some of them in dicts."""

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        self.net[1].register_buffer("later", None)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.rates = torch.optim.lr_scheduler.ConstantLR(self.optimizer)
        self.inner = {"rates": self.rates, "t": torch.zeros(1)}
        self.state: dict[str, Any] = {"net": self.net, "o": self.optimizer, "in": self.inner, "n": 1}
        self.objects = self.seen()

    def seen(self) -> Objects:
        """Return the objects as they are now."""
        return Objects(torch, self.entries(), [])

    def entries(self) -> list[Entry]:
        """Return the objects of now."""
        return TrainState(load_torch(), self.state).entries


def _nothing(_: Training) -> None:
    pass


def _another_number(one: Training) -> None:
    one.state["n"] = 2


def _another_tensor(one: Training) -> None:
    one.inner["t"] = torch.ones(1)


def _another_module(one: Training) -> None:
    one.state["net"] = torch.nn.Sequential()


def _another_kind_of_value(one: Training) -> None:
    one.state["n"] = "1"


def _another_dict(one: Training) -> None:
    one.state["in"] = dict(one.inner)


def _one_more(one: Training) -> None:
    one.state["m"] = 1


def _one_more_inside(one: Training) -> None:
    one.inner["m"] = 1


def _another_schedule(one: Training) -> None:
    one.inner["rates"] = torch.optim.lr_scheduler.ConstantLR(one.optimizer)


@pytest.mark.parametrize(
    ("change", "are_alike"),
    [
        (_nothing, True),
        (_another_number, True),
        (_another_tensor, True),
        (_another_kind_of_value, True),
        (_another_schedule, True),  # its values are read anew, as those of a number
        (_another_dict, True),
        (_another_module, False),
        (_one_more, False),
        (_one_more_inside, False),
    ],
)
def test_objects_are_alike_by_name_and_kind(change: Callable[[Training], None], are_alike: bool) -> None:
    """Modules and optimizers are the same; tensors and values may be others, in other dicts."""
    training = Training()
    change(training)
    assert are_alike == training.objects.are_alike(training.entries())


def test_a_value_that_becomes_a_tensor_is_another_kind() -> None:
    """It has a name among the tensors then."""
    training = Training()
    training.state["n"] = torch.zeros(1)
    assert not training.objects.are_alike(training.entries())


def _more_parameters(one: Training) -> None:
    one.net.append(torch.nn.Linear(1, 1))


def _more_buffers(one: Training) -> None:
    one.net[1].register_buffer("more", torch.zeros(1))


def _fewer_in_a_group(one: Training) -> None:
    one.optimizer.param_groups[0]["params"].pop()


def _another_group(one: Training) -> None:
    one.optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def _a_loaded_state(one: Training) -> None:
    one.optimizer.load_state_dict(one.optimizer.state_dict())


def _a_buffer_that_was_empty(one: Training) -> None:
    one.net[1].later = torch.zeros(1)


def _a_first_step(one: Training) -> None:
    one.net(torch.ones(3, 2)).sum().backward()
    one.optimizer.step()


@pytest.mark.parametrize(
    ("change", "are_unchanged"),
    [
        (_nothing, True),
        (_another_number, True),
        (_more_parameters, False),
        (_more_buffers, False),
        (_fewer_in_a_group, False),
        (_another_group, False),
        (_a_loaded_state, False),
        (_a_buffer_that_was_empty, False),
        (_a_first_step, False),
    ],
)
def test_objects_are_unchanged_as_long_as_they_hold_as_many_tensors(
    change: Callable[[Training], None], are_unchanged: bool
) -> None:
    """Else the training is laid out anew."""
    training = Training()
    change(training)
    assert are_unchanged == training.objects.are_unchanged()


class Gives(torch.nn.Module):  # type: ignore[misc]
    """Gives another tensor for one of its own in its state.

    Args:
        other: makes that tensor.
    """

    def __init__(self, other: Callable[[Any], Any]) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(4.0))
        self.register_buffer("empty", None)
        self._other = other

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}w"] = self._other(self.w)
        destination[f"{prefix}made"] = torch.zeros(1)


OTHERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "itself": (lambda w: w, True),
    "detached": (lambda w: w.detach(), True),
    "a copy": (lambda w: w.detach().clone(), False),
    "its beginning": (lambda w: w.detach()[:3], False),
    "its end": (lambda w: w.detach()[1:], False),
    "another shape": (lambda w: w.detach().view(2, 2), False),
    "another dtype": (lambda w: w.detach().view(torch.int32), False),
    "another layout": (lambda w: w.detach().to_sparse(), False),
    "a number": (lambda _: 3, False),
    "nothing": (lambda _: None, False),
}


@pytest.mark.parametrize(("other", "has_place"), OTHERS.values(), ids=OTHERS)
def test_a_tensor_has_a_place_if_the_state_gives_the_very_one(
    other: Callable[[Any], Any], has_place: bool
) -> None:
    """Of the same memory and form; those that are made for the state have none."""
    module = Gives(other)
    train = TrainState(load_torch(), {"m": module})
    (entry,) = train.entries
    tensors = {f"m.{name}": one for name, one in module.state_dict().items()}
    found = places_in(train, entry, tensors)
    assert {"m.w": (module._parameters, "w")} == {
        name: one[1:] for name, one in found.items()
    } or not has_place
    assert has_place == bool(found)
