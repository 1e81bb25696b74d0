"""The state of an optimizer by the names of its parameters: read as it is, refused, or filled as saved."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.optimizer_state import (  # noqa: E402
    OptimizerState,
    has_own_state_dict,
    steps_by_closure,
)
from hpc_elastic.frameworks.torch.trees import Filling, RefusedStateError  # noqa: E402

pytestmark = pytest.mark.torch
F32, F64 = torch.float32, torch.float64


class Parts:
    """A network of two layers and an optimizer in two groups, one of which has a parameter more.

    Args:
        kind: of the optimizer.
        device: of the network.
    """

    def __init__(self, kind: Any = torch.optim.Adam, device: str = "cpu") -> None:
        layers = {name: torch.nn.Linear(2, size, device=device) for name, size in (("a", 2), ("a[0]", 1))}
        self.net = torch.nn.ModuleDict(layers)
        groups: list[dict[str, Any]] = [
            {"params": [*self.net["a"].parameters()], "lr": 0.5},
            {"params": [*self.net["a[0]"].parameters()], "lr": 0.25},
        ]
        self.optimizer = kind(groups, lr=0.1)
        names = {id(one): name for name, one in self.net.named_parameters()}
        self.state = OptimizerState(torch, "o", self.optimizer, names)

    def step(self) -> Parts:
        """Make a step."""
        self.net["a[0]"](self.net["a"](torch.ones(1, 2))).sum().backward()
        self.optimizer.step()
        return self

    def forms(self) -> dict[str, Any]:
        """Return size and dtype of each value of the state, as a checkpoint has them."""
        return {
            leaf.name: (leaf.value.size(), leaf.value.dtype) if isinstance(leaf.value, torch.Tensor) else None
            for leaf in self.state.leaves()
        }


def test_values_have_the_names_of_their_parameters() -> None:
    """Also of parameters whose names look like places in a list; without a step there are none."""
    parts = Parts()
    assert [] == [*parts.state.leaves()]
    names = {leaf.name for leaf in parts.step().state.leaves()}
    owners = ("a.weight", "a.bias", "a[0].weight", "a[0].bias")
    assert {
        f"o.state.{owner}.{key}" for owner in owners for key in ("step", "exp_avg", "exp_avg_sq")
    } == names


def test_what_was_not_made_yet_has_no_values() -> None:
    """An empty dict of a parameter, as by a look of the program."""
    parts = Parts()
    parts.optimizer.state[parts.net["a"].weight] = {}
    assert [] == [*parts.state.leaves()]
    parts.optimizer.state[parts.net["a"].bias] = {"x": {}}
    assert ["o.state.a.bias.x"] == [leaf.name for leaf in parts.state.leaves()]


@pytest.mark.parametrize(("most", "count"), [(None, 12), (4, 12), (2, 6), (1, 3), (100, 12)])
def test_a_part_of_the_parameters_may_be_enough(most: int | None, count: int) -> None:
    """Spread evenly: the first one is among them."""
    names = [leaf.name for leaf in Parts().step().state.leaves(most)]
    assert count == len(names)
    assert names[0].startswith("o.state.a.weight.")


def test_a_value_of_no_parameter_has_a_name_that_leads_to_it() -> None:
    """One of a tensor that the module does not have is refused."""
    parts, other = Parts(), Parts()
    parts.optimizer.state["count"] = {"n": torch.zeros(1), "of": 3}
    names = {leaf.name for leaf in parts.state.leaves()}
    assert {"o.state.{'count'}.n", "o.state.{'count'}.of"} == names
    template = other.state.template({"o.state.{'count'}.n": ((1,), F32), "o.state.{'count'}.of": None})
    assert ((1,), None) == (tuple(template["o.state.{'count'}.n"].shape), template["o.state.{'count'}.of"])
    other.state.set({"o.state.{'count'}.n": torch.ones(1)}, other.state.groups(), Filling())
    assert [1.0] == other.optimizer.state["count"]["n"].tolist()
    parts.optimizer.state[torch.zeros(1)] = {"n": 1}
    with pytest.raises(RefusedStateError, match="'o' has a state of a tensor that is no parameter of its"):
        list(parts.state.leaves())


class Cut(torch.nn.Parameter):  # type: ignore[misc]
    """Says that it is cut into parts, as a sharded tensor."""

    placements: tuple[str, ...]


def cut(size: int, *placements: str) -> Any:
    """Return a tensor that is cut so."""
    made = Cut(torch.zeros(size), requires_grad=False)
    made.placements = placements
    return made


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (cut(4, "rows"), True),
        (cut(4, "columns"), False),
        (cut(2, "rows"), False),
        (torch.zeros(4), True),
        (3, True),
    ],
)
def test_a_tensor_that_is_cut_in_another_way_than_its_parameter_is_refused(value: Any, *, fits: bool) -> None:
    """The next start would not know how; what is whole passes."""
    parameter = cut(4, "rows")
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["x"] = value
    state = OptimizerState(torch, "o", optimizer, {id(parameter): "w"})
    if fits:
        assert ["o.state.w.x"] == [leaf.name for leaf in state.leaves()]
        return
    with pytest.raises(RefusedStateError, match=r"o.state.w.x is cut into other parts than its parameter"):
        list(state.leaves())


def test_groups_name_their_parameters() -> None:
    """And have all their other values; the optimizer's own groups stay."""
    parts = Parts()
    first, second = parts.state.groups()
    assert [["a.weight", "a.bias"], ["a[0].weight", "a[0].bias"]] == [first["params"], second["params"]]
    assert (0.5, 0.25) == (first["lr"], second["lr"])
    assert parts.optimizer.param_groups[0]["params"][0] is parts.net["a"].weight


def test_a_template_has_the_optimizers_tensors_and_new_ones_where_it_has_none() -> None:
    """Of the size and dtype that were saved; what is no tensor has no form."""
    forms = {**Parts().step().forms(), "o.state.a.weight.more": None, "other.state.a.weight.step": None}
    parts = Parts().step()
    found = parts.state.template(forms)
    assert forms.keys() - {"other.state.a.weight.step"} == found.keys()
    assert parts.optimizer.state[parts.net["a"].weight]["exp_avg"] is found["o.state.a.weight.exp_avg"]
    assert found["o.state.a.weight.more"] is None
    new = Parts()
    for name, value in new.state.template(forms).items():
        assert forms[name] is None or forms[name] == (value.size(), value.dtype)
    assert not new.optimizer.state


def test_a_template_leaves_out_parameters_that_are_not_there() -> None:
    """The comparison with the checkpoint tells of them."""
    forms = {"o.state.b.weight.step": ((), F32), "o.state.a.weight.step": ((), F32)}
    assert {"o.state.a.weight.step"} == Parts().state.template(forms).keys()


@pytest.mark.parametrize(
    ("options", "on_gpu"), [({}, False), ({"capturable": True}, True), ({"fused": True}, True)]
)
def test_a_new_tensor_lies_where_pytorch_would_load_it(options: dict[str, Any], *, on_gpu: bool) -> None:
    """On the device of its parameter, but a count of steps on the CPU unless the GPU counts them."""
    parts = Parts(device="meta")
    parts.optimizer.param_groups[0].update(options)
    forms = {
        "o.state.a.weight.step": ((), F32),
        "o.state.a.weight.exp_avg": ((2, 2), F64),
        "o.state.a.weight.row": ((2,), F32),
        "o.state.a.weight.nest.step": ((2,), F32),
    }
    found = {
        name.removeprefix("o.state.a.weight."): value for name, value in parts.state.template(forms).items()
    }
    assert ("meta" if on_gpu else "cpu") == found["step"].device.type
    assert {"meta"} == {found[name].device.type for name in ("exp_avg", "row", "nest.step")}
    assert (F64, False) == (found["exp_avg"].dtype, found["exp_avg"].requires_grad)


@pytest.mark.parametrize(
    ("here", "there", "is_other"),
    [
        ({"step", "m"}, {"step", "m"}, False),
        ({"step"}, {"step", "m"}, False),
        ({"step", "m"}, {"step"}, False),
        ({"step", "m"}, {"step", "v"}, True),
        ({"m"}, {"v"}, True),
        (set(), {"v"}, False),
    ],
)
def test_an_optimizer_of_another_kind_keeps_its_own_names(
    here: set[str], there: set[str], *, is_other: bool
) -> None:
    """It has values that the other has not, and the other way round: the comparison then names both."""
    parts = Parts()
    for key in here:
        parts.optimizer.state[parts.net["a"].weight][key] = torch.zeros(2, 2)
    forms: dict[str, Any] = {f"o.state.a.weight.{key}": ((2, 2), F32) for key in there}
    forms["o.state.a.bias.step"] = ((), F32)
    found = {name.rpartition(".")[2] for name in parts.state.template(forms) if ".weight." in name}
    assert (here if is_other else there) == found


def saved_groups() -> list[dict[str, Any]]:
    """Return the groups as they are saved."""
    return Parts().state.groups()


def test_groups_are_matched_by_their_parameters() -> None:
    """In the order of the optimizer's, whatever the order of groups and of parameters in them."""
    first, second = saved_groups()
    second["params"].reverse()
    assert [first, second] == Parts().state.matched([second, first], "there")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda groups: groups[:1], r"other groups of parameters than in there: 2 \(.*\) here, 1 \(\[a.w"),
        (lambda groups: [*groups, {**groups[0], "params": ["c"]}], r"2 \(.* here, 3 \(.*\[c\]\) in it"),
        (
            lambda groups: [groups[0], groups[0]],
            r"2 \(\[a.weight, a.bias\], \[a\[0\].weight, a\[0\].bias\]\)",
        ),
        (lambda groups: [groups[0], {**groups[1], "params": ["a[0].bias"]}], r"in it"),
        (lambda _: {}, r"here, 0 \(\) in it"),
        (
            lambda groups: [{**one, "momentum": 1} for one in _without(groups, "betas")],
            r"is of another kind than in there: its groups have betas here, momentum in it",
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused(change: Any, words: str) -> None:
    """With those here and those in the checkpoint."""
    with pytest.raises(RefusedStateError, match=words):
        Parts().state.matched(change(saved_groups()), "there")


def _without(groups: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if key != name} for one in groups]


def test_values_that_one_side_alone_has_are_no_other_kind() -> None:
    """A version of PyTorch may have added one, or a schedule."""
    more = [{**one, "initial_lr": 1} for one in saved_groups()]
    assert more == Parts().state.matched(more, "there")
    less = _without(saved_groups(), "amsgrad")
    assert less == Parts().state.matched(less, "there")


def test_a_state_takes_the_place_of_the_one_that_is_there() -> None:
    """What was not saved is gone; groups keep their parameters and have the saved values."""
    saved, own = Parts().step().step(), Parts().step()
    groups = saved.state.groups()
    groups[0]["lr"] = 7.0
    values = {leaf.name: leaf.value.clone() for leaf in saved.state.leaves() if ".a.bias." not in leaf.name}
    moments = own.optimizer.state[own.net["a"].weight]["exp_avg"]
    own.optimizer.state["gone"] = {"x": 1}
    own.state.set(values, groups, Filling())
    assert values.keys() == {leaf.name for leaf in own.state.leaves()}
    assert all(torch.equal(leaf.value, values[leaf.name]) for leaf in own.state.leaves())
    assert moments is own.optimizer.state[own.net["a"].weight]["exp_avg"]
    assert [7.0, 0.25] == [group["lr"] for group in own.optimizer.param_groups]
    assert own.optimizer.param_groups[0]["params"][0] is own.net["a"].weight


def test_who_gives_a_state_in_a_way_of_its_own() -> None:
    """By a method, or by a hook."""
    base = torch.optim.Optimizer
    assert not has_own_state_dict(base, Parts().optimizer)
    own = type("Own", (torch.optim.SGD,), {"state_dict": lambda _: {}})
    assert has_own_state_dict(base, Parts(own).optimizer)
    for register in ("register_state_dict_pre_hook", "register_state_dict_post_hook"):
        hooked = Parts().optimizer
        getattr(hooked, register)(lambda *_: None)
        assert has_own_state_dict(base, hooked)


def test_who_steps_by_a_closure() -> None:
    """Where it must be given; where it may be, the step is the program's."""
    assert steps_by_closure(torch.optim.LBFGS([torch.zeros(1, requires_grad=True)]))
    assert not steps_by_closure(Parts().optimizer)
    without = type("Without", (torch.optim.SGD,), {"step": lambda _: None})
    assert not steps_by_closure(Parts(without).optimizer)
