"""What is read of a training and given back to it, to the last bit; nothing changes because it is read."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.checkpoints import Checkpoints  # noqa: E402
from hpc_elastic.frameworks.torch.pace import FIRST_S  # noqa: E402
from hpc_elastic.frameworks.torch.rank_groups import digests  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import TrainState, load_torch  # noqa: E402

pytestmark = pytest.mark.torch
STEPS = 6


class WithLists(torch.optim.Optimizer):  # type: ignore[misc]
    """Has lists, dicts, numbers and None in its state, as SOAP and PSGD-Kron; some of it is made late."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, _: Any = None) -> None:
        """Make a step in which all of the state counts."""
        for group in self.param_groups:
            for one in filter(lambda one: one.grad is not None, group["params"]):
                state = self.state[one]
                if not state:
                    state |= {"own": 0, "GG": [torch.zeros(size) for size in one.shape], "none": None}
                    state |= {"nest": {1: torch.zeros(()), "a.b": (torch.zeros(()), "text")}, "empty": []}
                state["own"] += 1
                if state["own"] == 3:
                    state["late"] = one.clone()
                for factor in [*state["GG"], state["nest"][1], state["nest"]["a.b"][0]]:
                    factor.mul_(0.9).add_(0.1)
                scale = 1 + sum(factor.sum() for factor in state["GG"]) + state["nest"][1]
                one.sub_(group["lr"] * one.grad * scale + 0.01 * state.get("late", one))


class Around(torch.optim.Optimizer):  # type: ignore[misc]
    """Is around another optimizer, as Lookahead, and gives the state of both in its own way."""

    def __init__(self, parameters: Any) -> None:
        self.inner = torch.optim.Adam(parameters, lr=0.01)
        self.steps = 0
        super().__init__(self.inner.param_groups, {})

    def step(self, _: Any = None) -> None:
        """Make a step of the inner one, every second time twice."""
        self.steps += 1
        for _ in range(1 + self.steps % 2):
            self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        """Return both."""
        return {"inner": self.inner.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take both."""
        self.inner.load_state_dict(state["inner"])
        self.steps = state["steps"]


NAMES = ("Adam", "AdamW", "Adadelta", "Adagrad", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop")
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(getattr(torch.optim, name), lr=0.01) for name in (*NAMES, "Rprop", "SGD")},
    "decayed": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.1),
    "centered": lambda parameters: torch.optim.RMSprop(parameters, centered=True, momentum=0.9),
    "tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), amsgrad=True),
    "Muon": lambda parameters: torch.optim.Muon([one for one in parameters if one.dim() == 2], lr=0.01),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
    "with lists": WithLists,
    "around": Around,
}


class Training:
    """Two networks with an optimizer each, of which the second may step late, as in a GAN."""

    def __init__(self, optimizer: str, first: int = 0) -> None:
        torch.manual_seed(3)
        make = OPTIMIZERS[optimizer]
        self.a, self.b = (torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)) for _ in "ab")
        self.optimizers = [make(list(one.parameters())) for one in (self.a, self.b)]
        self.first = first
        self.hooked = 0
        for one in self.optimizers:
            one.register_step_post_hook(self._count)
        one, other = self.optimizers
        self.state = {"nets": {"a": self.a, "b": self.b}, "one": one, "other": other}

    def _count(self, *_: Any) -> None:
        self.hooked += 1

    def step(self, number: int) -> None:
        """Make a step; the second optimizer has none before a certain number."""
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
        for net, optimizer in zip((self.a, self.b), self.optimizers, strict=True):
            if net is self.b and number < self.first:
                continue
            _steps(net, optimizer, x)

    def seen(self) -> list[Any]:
        """Return all numbers, and the values of the optimizers."""
        parameters = [one.detach().clone() for net in (self.a, self.b) for one in net.parameters()]
        states = [_plain([*one.state.values()]) for one in self.optimizers]
        return [[one.tolist() for one in parameters], states, self.hooked, torch.get_rng_state().tolist()]


def _save(directory: Path, step: int, state: Any) -> None:
    """Save once; the object is gone then, as a program has one of a name."""
    checkpoints = Checkpoints(directory)
    checkpoints.save(step, state)
    checkpoints.wait()


def _steps(net: Any, optimizer: Any, x: Any) -> None:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
    optimizer.zero_grad()


def _plain(value: Any) -> Any:
    """Return a value with the content of its tensors, and what they are."""
    if isinstance(value, torch.Tensor):
        return [value.tolist(), str(value.dtype), value.stride()]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if one is not None or key != "late"}
    return [type(value).__name__, *map(_plain, value)] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_that_is_saved_computes_what_it_would_alone(tmp_path: Path, optimizer: str) -> None:
    """Also while an optimizer has made no step yet: it gets none, no state, and no number is drawn."""
    alone, saved = Training(optimizer, first=4), Training(optimizer, first=4)
    for number in range(STEPS):
        alone.step(number)
    expected = alone.seen()
    torch.manual_seed(3)
    Training(optimizer)  # draws the same numbers again
    checkpoints = Checkpoints(tmp_path, every=1)
    for number in checkpoints.steps(STEPS, saved.state):
        saved.step(number)
        assert optimizer == "Adagrad" or number >= 4 or not saved.optimizers[1].state
    assert expected == saved.seen()


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_that_goes_on_ends_as_one_that_was_left_alone(
    tmp_path: Path, optimizer: str, first: int
) -> None:
    """Its optimizers have the state that they had, or none, when they make the next step."""
    alone, before, again = (Training(optimizer, first) for _ in range(3))
    for number in range(STEPS):
        alone.step(number)
    for number in range(4):
        before.step(number)
    _save(tmp_path, 4, before.state)
    assert 4 == Checkpoints(tmp_path).load(again.state)
    assert before.seen()[:2] == again.seen()[:2]
    assert 0 == again.hooked
    for number in range(4, STEPS):
        again.step(number)
    assert alone.seen()[:2] == again.seen()[:2]


@pytest.mark.slow  # loads the compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_names_are_those_of_the_innermost_module() -> None:
    """Wrappers inside a module have none; a parameter of two modules has its first."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: PLC0415

    inner = torch.nn.Linear(2, 2)
    net = torch.nn.Sequential(
        torch.compile(checkpoint_wrapper(inner)), checkpoint_wrapper(torch.compile(inner))
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inner(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved, own = TrainState(load_torch(), {"net": net, "o": optimizer}).parts()
    names = {"net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias"}
    states = {"o.state.0.weight.momentum_buffer", "o.state.0.bias.momentum_buffer"}
    assert names | states == saved.keys()
    assert [["0.weight", "0.bias"]] == [group["params"] for group in own["o"]]


def adam(net: Any, *groups: Any) -> dict[str, Any]:
    """Return a network and an optimizer of its layers in groups."""
    kinds = [{"params": [one for at in group for one in net[at].parameters()]} for group in groups]
    return {"net": net, "o": torch.optim.Adam(kinds, lr=0.01)}


def layers() -> Any:
    """Return a network of three layers."""
    return torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda net: adam(net, [0, 1, 2]), r"1 \(\[0.weight, 0.bias, 1.weight, ...\]\) here, 2 \(\[0.weight"),
        (lambda net: adam(net, [0], [1], [2]), r"3 \(\[0.weight, 0.bias\], .*\) here, 2 \(\[0.weight"),
        (
            lambda net: adam(net, [0, 1]),
            r"1 \(.*\) here, 2 \(\[0.weight, .*, ...\], \[2.weight",
        ),
        (
            lambda net: {**adam(net, [0, 1], [2]), "o": torch.optim.SGD(_groups(net), lr=0.1)},
            r"is of another kind than in .*: its groups have dampening, .* here, amsgrad, betas, .* in it",
        ),
    ],
    ids=["one of two", "three of two", "one fewer", "another kind"],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_groups_that_do_not_fit_are_refused(
    tmp_path: Path, make: Callable[[Any], dict[str, Any]], words: str, steps: int
) -> None:
    """All parameters would get the values of one group; another optimizer would fail at its first step."""
    saved = adam(layers(), [0, 1], [2])
    for _ in range(steps):
        _steps(saved["net"], saved["o"], torch.ones(1, 2))
    _save(tmp_path, 1, saved)
    other = make(layers())
    before = [one.tolist() for one in other["net"].parameters()]
    with pytest.raises(InputError, match="." if steps else words):
        Checkpoints(tmp_path).load(other)
    assert before == [one.tolist() for one in other["net"].parameters()]
    assert not other["o"].state


def _groups(net: Any) -> Any:
    return [{"params": [*net[0].parameters(), *net[1].parameters()]}, {"params": net[2].parameters()}]


def test_groups_have_the_values_that_they_had_whatever_their_order(tmp_path: Path) -> None:
    """A group is known by its parameters, with state or without."""
    one, other = (
        {
            "net": net,
            "o": torch.optim.SGD([{"params": net[at].parameters(), "lr": rates[at]} for at in order]),
        }
        for net, order in ((layers(), (0, 1, 2)), (layers(), (2, 0, 1)))
        for rates in ((0.1, 0.2, 0.3) if order[0] == 0 else (7.0, 8.0, 9.0),)
    )
    _save(tmp_path, 1, one)
    groups = other["o"].param_groups
    Checkpoints(tmp_path).load(other)
    assert [0.3, 0.1, 0.2] == [group["lr"] for group in groups]


def test_what_is_loaded_lies_in_the_objects_of_the_program(tmp_path: Path) -> None:
    """A program has other names for its dicts, lists, sets, queues and arrays."""
    numpy = pytest.importorskip("numpy")

    def made(at: int) -> dict[str, Any]:
        return {
            "counts": {"seen": at, "by": {"epoch": [at, {"of": at}]}, **({"gone": 1} if at == 0 else {})},
            "losses": [float(at)] * (at + 1),
            "known": {at},
            "last": deque([at], maxlen=3),
            "array": numpy.full(3, at),
            "with tensors": {"t": torch.full((2,), at), "n": {"deep": [at]}},
            "tensors": [torch.full((2,), at), at],
            "number": at,
        }

    _save(tmp_path, 1, made(2))
    state = made(0)
    names = {key: value for key, value in state.items() if key != "number"}
    inner = state["counts"]["by"], state["counts"]["by"]["epoch"], state["counts"]["by"]["epoch"][1]
    deep = state["with tensors"]["n"], state["with tensors"]["n"]["deep"], state["tensors"][0]
    Checkpoints(tmp_path).load(state)
    assert str(made(2)) == str(state)
    assert all(value is state[key] for key, value in names.items())
    assert ({"epoch": [2, {"of": 2}]}, [2, {"of": 2}], {"of": 2}) == inner
    assert ({"deep": [2]}, [2], [2, 2]) == (*deep[:2], deep[2].tolist())


def _aliased() -> dict[str, Any]:
    net, row = layers(), [0]
    groups = [{"params": [*layer.parameters()]} for layer in net]
    optimizer = torch.optim.Adam(groups, lr=torch.tensor(0.5), foreach=False)
    return {"net": net, "optimizer": optimizer, "rows": [row, row], "more": {"row": row}}


@pytest.mark.parametrize("differ", [False, True])
def test_an_object_at_several_places_gets_no_value_of_another_place(tmp_path: Path, differ: bool) -> None:
    """As a learning rate of all groups: what differs is loaded so, else it stays one."""
    state = _aliased()
    first, second, *_ = state["optimizer"].param_groups
    if differ:
        second["lr"] = torch.tensor(0.25)
        state["rows"][1] = [1]
        state["more"]["row"] = [2]
    checkpoints = Checkpoints(tmp_path, every=None)
    checkpoints.load(state)
    checkpoints.save(1, state)
    checkpoints.wait()
    del checkpoints
    other = _aliased()
    assert 1 == Checkpoints(tmp_path, every=None).load(other)
    loaded, more, *_ = other["optimizer"].param_groups
    assert [first["lr"], second["lr"]] == [loaded["lr"], more["lr"]]
    assert [state["rows"], state["more"]] == [other["rows"], other["more"]]
    assert (not differ) == (loaded["lr"] is more["lr"])
    assert (not differ) == (other["rows"][0] is other["more"]["row"])


def test_views_are_saved_as_they_are_seen(tmp_path: Path) -> None:
    """The memory of a conjugate or negative view has other values."""
    numbers = torch.complex(torch.arange(3.0), torch.ones(3))
    views: list[Callable[[Any], Any]] = [
        lambda one: one.conj(),
        lambda one: one.conj().imag,
        lambda one: one[::2],
        lambda one: one.real.expand(1, 3).t(),
    ]
    for number, view in enumerate(views):
        module, again = torch.nn.Module(), torch.nn.Module()
        module.register_buffer("view", view(numbers.clone()))
        again.register_buffer("view", view(torch.zeros(3, dtype=torch.complex64)))
        _save(tmp_path / str(number), 1, {"m": module})
        Checkpoints(tmp_path / str(number)).load({"m": again})
        assert module.view.tolist() == again.view.tolist()


def test_states_are_alike_if_all_bits_are() -> None:
    """Arrays have a form, too, and a number that is none is itself."""
    numpy = pytest.importorskip("numpy")
    alike = TrainState(load_torch(), {"a": 1})._alike
    nan, big = float("nan"), 10**20
    for same in (
        nan,
        {"a": [nan]},
        torch.tensor([nan]),
        numpy.array([nan]),
        numpy.array([big, None]),
        {1, 2},
    ):
        assert alike(same, copy.deepcopy(same)), same
    for one, other in (
        (numpy.zeros((2, 3)), numpy.zeros((3, 2))),
        (numpy.zeros(2, "i8"), numpy.zeros(2, "f8")),
        (torch.zeros(2, 1), torch.zeros(1, 2)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (numpy.array([1, None]), numpy.array([2, None])),
        (1, True),
    ):
        assert not alike(one, other), (one, other)


def test_values_that_only_lie_in_another_order_differ() -> None:
    """As which samples a rank has seen: as many as the other ranks, but others."""
    seen, other = torch.zeros(2, 5000, dtype=torch.int64)
    seen[3000] = other[4000] = 1
    found = [digests(load_torch(), {"seen": one, "last": one[4999:].byte()}) for one in (seen, other)]
    assert found[0]["seen"] != found[1]["seen"]
    assert found[0]["last"] == found[1]["last"]


def test_what_comes_later_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A state that was in order may get a value of a kind that is not saved."""
    training = Training("SGD")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.load(training.state)
    for late in ({"a": torch.eye(2).to_sparse()}, {"a}": 1}):
        training.optimizers[0].state[next(training.a.parameters())] = late
        with pytest.raises(
            InputError, match=r"one.state.0.weight.* (is of the layout sparse|has the key 'a}')"
        ):
            checkpoints.save(1, training.state)
    training.optimizers[0].state = {torch.zeros(1): {"a": 1}}
    with pytest.raises(InputError, match="'one' has a state of a tensor that is no parameter of its module"):
        checkpoints.save(1, training.state)
    checkpoints.wait()
    assert not list(tmp_path.iterdir())


def test_the_interval_of_saves_is_known_where_it_is_a_time(tmp_path: Path) -> None:
    """It follows from the cost of saves; steps that are counted have none."""
    assert FIRST_S == Checkpoints(tmp_path / "a").every_s
    assert [None, None] == [Checkpoints(tmp_path / str(every), every=every).every_s for every in (5, None)]


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize("value", [lambda: 0, {"inner": [_generator()]}])
def test_a_value_that_no_save_takes_is_refused_before_the_first_step(value: Any) -> None:
    """By its name; a state without such values passes, also one of modules alone."""
    net = torch.nn.Linear(1, 1)
    TrainState(load_torch(), {"net": net}).check()
    TrainState(load_torch(), {"net": net, "n": [1, {"a": torch.zeros(1)}]}).check()
    state = TrainState(load_torch(), {"net": net, "n": 1, "odd": value})
    with pytest.raises(InputError, match="pickle cannot save a value of this rank: 'odd': "):
        state.check()


def test_a_start_knows_what_the_last_save_has_cost(tmp_path: Path) -> None:
    """The first interval is not that of a run whose cost nobody knows."""
    _save(tmp_path, 3, {"n": 1})
    again = Checkpoints(tmp_path)
    assert FIRST_S == again.every_s
    assert 3 == again.load({"n": 0})
    assert FIRST_S != again.every_s
