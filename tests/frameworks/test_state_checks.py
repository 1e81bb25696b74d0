"""Objects that cannot be saved and loaded are refused, with a word for why; others pass."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic import worker  # noqa: E402
from hpc_elastic.errors import UnfitFileError  # noqa: E402
from hpc_elastic.frameworks.torch.optimizer_state import (  # noqa: E402
    check_module,
    check_optimizer,
    check_tensors,
    check_value,
    ending_the_run,
    given_state,
)
from hpc_elastic.frameworks.torch.trees import Entry, RefusedStateError  # noqa: E402

pytestmark = pytest.mark.torch


def entry(value: Any) -> Entry:
    """Return an object of a state, by the name of x."""
    return Entry("x", {"x": value}, "x")


class FullyShardedDataParallel(torch.nn.Module):  # type: ignore[misc]
    """Has the name of PyTorch's."""


@pytest.mark.parametrize("value", [[1, "a"], (torch.ones(1),), [], int, dict, type("Plain", (), {})])
def test_lists_and_classes_without_a_state_are_values(value: Any) -> None:
    """Tensors in a list, too: pickle saves them."""
    check_value(entry(value))


@pytest.mark.parametrize(
    ("value", "words", "fix"),
    [
        (torch.nn.Linear, "'x' is the class Linear, which has no state", "give the object that the training"),
        (
            [1, torch.nn.Linear(1, 1)],
            "'x' is a list with modules or other objects that have a state",
            "'x': {\"first\"",
        ),
        ((torch.nn.Linear(1, 1),), "'x' is a tuple with modules", "give each one a name"),
    ],
)
def test_what_would_lose_a_state_is_refused(value: Any, words: str, fix: str) -> None:
    """A class, or a list of objects, of which pickle would load copies."""
    with pytest.raises(RefusedStateError, match=words) as refused:
        check_value(entry(value))
    assert fix in refused.value.fix


def test_the_older_way_to_cut_modules_is_refused_wherever_it_is() -> None:
    """The whole module, or one inside; others pass."""
    check_module(entry(torch.nn.Sequential(torch.nn.Linear(1, 1))))
    for module in (FullyShardedDataParallel(), torch.nn.Sequential(FullyShardedDataParallel())):
        with pytest.raises(RefusedStateError, match="'x' has a FullyShardedDataParallel in it"):
            check_module(entry(module))


class Around(torch.optim.SGD):  # type: ignore[misc]
    """Is around another optimizer."""

    def __init__(self, inner: Any, *, shares: bool = False) -> None:
        super().__init__([torch.zeros(1, requires_grad=True)], lr=0.1)
        self.inner = inner
        if shares:
            self.state = inner.state


class GivesBoth(Around):
    """Gives the state of both in its own way."""

    def state_dict(self) -> Any:
        """Return both."""
        return {}


def sgd() -> Any:
    """Return an optimizer."""
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def test_an_optimizer_around_one_whose_state_nobody_gives_is_refused() -> None:
    """It passes if the other one is in the state, if both have one state, or if it gives both itself."""
    inner = sgd()
    check_optimizer(torch, entry(sgd()), [])
    check_optimizer(torch, entry(Around(inner)), [inner])
    check_optimizer(torch, entry(Around(inner, shares=True)), [])
    check_optimizer(torch, entry(GivesBoth(inner)), [])
    with pytest.raises(RefusedStateError, match="'x' is around another one, inner, whose state") as refused:
        check_optimizer(torch, entry(Around(inner)), [sgd()])
    assert 'give both: {"x": optimizer, "inner": optimizer.inner}' == refused.value.fix


def test_a_state_that_is_not_given_is_refused_with_the_reason() -> None:
    """As by ZeroRedundancyOptimizer before its parts are together; the cause stays."""
    check = type("Zero", (), {"state_dict": lambda _: {"a": 1}})
    assert {"a": 1} == given_state(entry(check()))

    def fails(_: Any) -> Any:
        raise RuntimeError("call consolidate_state_dict first")

    with pytest.raises(
        RefusedStateError, match="Zero does not give the state of 'x': call consolidate"
    ) as refused:
        given_state(entry(type("Zero", (), {"state_dict": fails})()))
    assert isinstance(refused.value.__cause__, RuntimeError)


PLAIN = [
    torch.zeros(2, 3),
    torch.zeros(0),
    torch.zeros(3, 2).t(),
    torch.zeros(6)[::2],
    torch.zeros(()),
    torch.zeros(1).expand(1),
    [torch.zeros(1), (torch.zeros(1), "text")],
    "text",
    None,
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_tensors_pass(value: Any) -> None:
    """Views, too, and what is no tensor."""
    check_tensors(torch, {"a": value})


UNFIT = {
    "of the layout sparse_coo": lambda: torch.eye(2).to_sparse(),
    "of the layout sparse_csr": lambda: torch.eye(2).to_sparse_csr(),
    "of the layout nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
    "on the device meta: it has no content": lambda: torch.zeros(2, device="meta"),
    "expanded: several of its elements are one": lambda: torch.zeros(1).expand(3),
    "lazy: it has no size before the first batch": lambda: torch.nn.LazyLinear(2).weight,
}


@pytest.mark.parametrize("words", UNFIT)
@pytest.mark.parametrize("where", ["alone", "in a list"])
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_are_refused(words: str, where: str) -> None:
    """The name and the kind are told, also of one deep in a list."""
    tensor = UNFIT[words]()
    value = tensor if where == "alone" else ["text", (torch.zeros(1), [tensor])]
    with pytest.raises(RefusedStateError, match=f": b is {words}, and cannot be saved and loaded"):
        check_tensors(torch, {"a": torch.zeros(1), "b": value})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RefusedStateError("x is odd", where="here", fix="change it"), "x is odd"),
        (UnfitFileError("/x", "it is odd", errno=1, fix="change it"), "/x: it is odd"),
        (ValueError("odd"), ""),
    ],
)
@pytest.mark.parametrize("has_agent", [True, False])
def test_a_refusal_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str, *, has_agent: bool
) -> None:
    """Each restart would meet it again; another error may go away. Without an agent there is no run."""
    reasons: list[str] = []
    monkeypatch.setattr(worker, "attached", lambda: has_agent)
    monkeypatch.setattr(worker, "give_up", reasons.append)
    with pytest.raises(type(error)), ending_the_run():
        raise error
    assert bool(words and has_agent) == bool(reasons)
    assert all(reason.startswith(words) for reason in reasons)
