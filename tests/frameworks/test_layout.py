"""The tensors of a training, by the way in which they change, and the proof that they have not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.memory.layout import Layout, UnfitStateError, Whole  # noqa: E402
from hpc_elastic.frameworks.torch.memory.proof import SAMPLED, Proof, TensorCopies  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import load_torch  # noqa: E402
from hpc_elastic.frameworks.torch.trees import Entry  # noqa: E402

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


def stepped(module: Any, outer: Any = None) -> dict[str, Any]:
    """Return the state of a module after a step of an optimizer; `outer` has the module in it."""
    optimizer = torch.optim.SGD(module.layer.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": outer or module, "optimizer": optimizer, "seen": torch.zeros(3)}


def laid_out(state: dict[str, Any]) -> tuple[Layout, Whole]:
    """Return the layout of a state, and the notes of the end of a step."""
    layout = Layout(load_torch(), state)
    return layout, noted(layout)


def noted(layout: Layout) -> Whole:
    """Return the notes of the end of a step."""
    whole = layout.note(1)
    assert whole is not None
    return whole


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
    layout, before = laid_out(stepped(module, torch.nn.Sequential(wrapped)))
    module.mean = module.mean + 1
    module.large = module.large + 2
    module.frozen.weight.data = torch.full((1, 2), 3.0)
    after = noted(layout)
    found = kept(layout, after)
    assert (1.0, 0.0, 2.0) == (found["0.mean"], found["0.other"], found["0.large"])
    assert 3.0 == found["frozen.weight"]
    assert (0.0, 0.0) == (kept(layout, before)["0.large"], kept(layout, before)["0.mean"])
    assert "" == layout.changed(after, is_left=False)


@pytest.mark.parametrize("name", ["mean", "large", "layer.weight"])
def test_tensors_that_get_other_memory_in_a_step_are_kept_with_their_new_content(name: str) -> None:
    """A program may put it below a tensor through .data, as for quantized weights."""
    state = stepped(Statistics())
    layout, _ = laid_out(state)
    tensor = {**dict(state["model"].named_parameters()), **dict(state["model"].named_buffers())}[name]
    tensor.data = torch.full_like(tensor, 4.0)
    whole = noted(layout)
    assert "" == layout.changed(whole, is_left=False)
    assert 4.0 == layout.content(whole)[0][f"model.{name}"].flatten()[0].item()


def _weight(state: dict[str, Any]) -> Any:
    return state["model"].layer.weight


def _in_place(state: dict[str, Any]) -> str:
    with torch.no_grad():
        _weight(state).add_(1.0)
    return "model.layer.weight was changed, and"


def _through_data(state: dict[str, Any]) -> str:
    _weight(state).data.add_(1.0)
    return "model.layer.weight was changed through .data, and"


def _with_other_memory(state: dict[str, Any]) -> str:
    _weight(state).data = _weight(state).data.clone()
    return "model.layer.weight has got other memory, and"


def _transposed(state: dict[str, Any]) -> str:
    _weight(state).data = _weight(state).data.t()
    return "model.layer.weight was given another form through .data, and"


def _of_an_optimizer(state: dict[str, Any]) -> str:
    state["optimizer"].state[_weight(state)]["momentum_buffer"].zero_()
    return "optimizer.state.layer.weight.momentum_buffer was changed, and"


def _of_an_optimizer_through_data(state: dict[str, Any]) -> str:
    state["optimizer"].state[_weight(state)]["momentum_buffer"].data.add_(1)
    return "optimizer.state.layer.weight.momentum_buffer was changed through .data, and"


def _of_a_large_buffer(state: dict[str, Any]) -> str:
    state["model"].large[7] = 1.0
    return "model.large was changed, and"


def _of_a_place_in_a_large_buffer_through_data(state: dict[str, Any]) -> str:
    state["model"].large.data[LARGE // 5] = 1.0  # far from all elements of the sample
    return "model.large was changed through .data, and"


def _another_parameter(state: dict[str, Any]) -> str:
    state["model"].layer.weight = torch.nn.Parameter(torch.ones(1, 2))
    return "model.layer.weight was replaced by another tensor"


CHANGES = [
    *(
        _in_place,
        _transposed,
        _through_data,
        _with_other_memory,
        _of_an_optimizer,
        _of_an_optimizer_through_data,
    ),
    *(_of_a_large_buffer, _of_a_place_in_a_large_buffer_through_data, _another_parameter),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_was_changed_since_its_step_is_not_shown_to_be_whole(
    change: Callable[[dict[str, Any]], str],
) -> None:
    """Averaged weights in an evaluation, a step by hand, optimizers without hooks; the tensor is named."""
    state = stepped(Statistics())
    layout, whole = laid_out(state)
    assert "" == layout.changed(whole, is_left=False)
    words = change(state)
    assert layout.changed(whole, is_left=False).startswith(words)


def test_a_state_that_was_put_back_exactly_is_whole_unless_that_was_counted() -> None:
    """As averaged weights are taken away after an evaluation."""
    state = stepped(Statistics())
    layout, whole = laid_out(state)
    before = _weight(state).detach().clone()
    _weight(state).data.fill_(0)
    assert layout.changed(whole, is_left=False)
    _weight(state).data.copy_(before)
    assert "" == layout.changed(whole, is_left=False)


def test_a_gpu_that_is_behind_its_program_is_judged_by_its_content() -> None:
    """The program has counted the changes of the next step already, which was looked at before."""
    state = stepped(Statistics())
    layout, whole = laid_out(state)
    before = _weight(state).detach().clone()
    with torch.no_grad():
        _weight(state).add_(1.0)
    assert layout.changed(whole, is_left=True).startswith("model.layer.weight was changed through .data")
    with torch.no_grad():
        _weight(state).copy_(before)
    assert "" == layout.changed(whole, is_left=True)
    assert layout.counted(whole).startswith("model.layer.weight was changed")


def test_small_buffers_may_change_before_the_next_step() -> None:
    """As counters of batch norms do; what is kept is what they were."""
    state = stepped(Statistics())
    layout, whole = laid_out(state)
    state["model"].mean.add_(5)
    state["seen"].data.add_(5)
    assert "" == layout.changed(whole, is_left=False)
    tensors, _ = layout.content(whole)
    assert [0.0, 0.0] == tensors["model.mean"].tolist()
    assert [0.0, 0.0, 0.0] == tensors["seen"].tolist()


def test_values_of_optimizers_that_are_no_tensors_are_those_of_the_step() -> None:
    """A count of steps that an optimizer of somebody's own has; also a list that it goes on with."""
    state = stepped(Statistics())
    own = state["optimizer"].state[_weight(state)]
    own["count"] = 7
    layout, whole = laid_out(state)
    own["count"] += 1
    assert 7 == layout.content(whole)[0]["optimizer.state.layer.weight.count"]
    assert 8 == layout.content(noted(layout))[0]["optimizer.state.layer.weight.count"]


def test_groups_of_optimizers_have_the_values_of_the_step() -> None:
    """Also where a program has put another group in the place of one."""
    state = stepped(Statistics())
    groups = state["optimizer"].param_groups
    layout, _ = laid_out(state)
    groups[0] = {**groups[0], "lr": torch.tensor(2.0)}
    whole = noted(layout)
    groups[0]["lr"].fill_(3.0)
    (found,) = layout.content(whole)[1]["optimizer"]
    assert (2.0, ["layer.weight", "layer.bias"]) == (found["lr"].item(), found["params"])


def test_of_many_states_of_optimizers_a_sample_is_compared() -> None:
    """Those that are not compared are kept as they are, and none may be another tensor."""
    module = Statistics()
    module.layer = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(5000)])
    optimizer = torch.optim.SGD(module.layer.parameters(), lr=0.1, momentum=0.9)
    for parameter in module.layer:
        parameter.grad = torch.ones(1)
    optimizer.step()
    layout, whole = laid_out({"model": module, "optimizer": optimizer})
    tensors, _ = layout.content(whole)
    assert 5000 == sum(name.startswith("optimizer.") for name in tensors)
    assert "" == layout.changed(whole, is_left=False)
    with torch.no_grad():
        module.layer[1].add_(1.0)
    assert "model.layer.1 was changed" in layout.changed(whole, is_left=False)
    whole = noted(layout)
    optimizer.state[module.layer[1]]["momentum_buffer"] = torch.zeros(1)
    words = "optimizer.state.layer.1.momentum_buffer was replaced by another tensor"
    assert words == layout.changed(whole, is_left=False)


def test_steps_that_a_program_counts_ahead_of_a_gpu_are_those_of_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of Adam are on the CPU; also of more states than are compared."""
    gpu = torch.device("meta")  # stands in for one
    monkeypatch.setattr(Layout, "_device_of", lambda *_: gpu)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    module = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1, device=gpu)) for _ in range(2100)])
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for parameter in module:
        moments = {name: torch.ones(1, device=gpu) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    layout, whole = laid_out({"model": module, "optimizer": optimizer})
    for state in optimizer.state.values():
        state["step"] += 1
    tensors, _ = layout.content(whole)
    steps = [value.item() for name, value in tensors.items() if name.endswith(".step")]
    assert [1.0] * 2100 == steps


def test_a_module_that_gets_other_tensors_needs_another_layout() -> None:
    """One more, one of another size, or one less; or a module that takes the place of another."""
    for change in (
        lambda module: module.register_buffer("more", torch.zeros(1)),
        lambda module: setattr(module, "mean", torch.zeros(3)),
        lambda module: setattr(module, "mean", torch.zeros(2, dtype=torch.float64)),
        lambda module: setattr(module, "mean", None),
        lambda module: setattr(module, "later", torch.zeros(1)),
        lambda module: module.add_module("more", torch.nn.Linear(1, 1)),
        lambda module: setattr(module, "frozen", copy.deepcopy(module.frozen)),
        lambda module: setattr(module, "frozen", None),
    ):
        module = Statistics()
        state = stepped(module)
        layout, _ = laid_out(state)
        assert layout.follows(state)
        change(module)
        assert not (layout.follows(state) and layout.note(2) is not None)


def test_objects_that_take_the_place_of_others_need_another_layout() -> None:
    """A module, an optimizer, its groups or its state; a value or tensor may be another one."""
    state = {**stepped(Statistics()), "more": {"epoch": 0, "best": torch.zeros(1)}}
    layout, _ = laid_out(state)
    state["more"]["epoch"] = 1
    state["more"]["best"] = torch.ones(1)
    assert layout.follows(state)
    assert 1.0 == kept(layout, noted(layout))["more.best"]
    assert 1 == layout.rest()["more.epoch"]
    more = torch.nn.Parameter(torch.ones(1))
    changes: list[Callable[[Any], Any]] = [
        lambda state: state["optimizer"].add_param_group({"params": [more]}),
        lambda state: state["optimizer"].param_groups[0]["params"].pop(),
        lambda state: state["optimizer"].load_state_dict(state["optimizer"].state_dict()),
        lambda state: state["optimizer"].state[_weight(state)].update(more=torch.zeros(1)),
        lambda state: state["optimizer"].state.clear(),
        lambda state: state.update(model=Statistics()),
        lambda state: state.update(late=torch.zeros(1)),
        lambda state: state["more"].update(epoch=torch.zeros(1)),
        lambda state: state["more"].update(epoch=torch.nn.Linear(1, 1)),
    ]
    for change in changes:
        state = {**stepped(Statistics()), "more": {"epoch": 0, "best": torch.zeros(1)}}
        layout, _ = laid_out(state)
        assert layout.follows(state)
        change(state)
        assert not layout.follows(state)


@pytest.mark.parametrize(
    "change",
    [
        lambda modules: modules.__setitem__(-1, torch.nn.Identity()),
        lambda modules: modules[-1].register_buffer("more", torch.zeros(1)),
    ],
    ids=["a module in the place of another", "a buffer"],
)
def test_of_very_many_modules_others_are_looked_at_after_each_step(change: Callable[[Any], Any]) -> None:
    """Until a change has been seen, no state is shown to be whole."""
    module = Statistics()
    module.layer.more = torch.nn.ModuleList([torch.nn.Identity() for _ in range(5000)])
    state = stepped(module)
    layout, whole = laid_out(state)
    assert "" == layout.changed(whole, is_left=False)
    change(module.layer.more)
    seen = []
    while layout.follows(state):
        seen.append(layout.changed(noted(layout), is_left=False))
    assert len(seen) in range(1, 4)
    assert {"a module or an optimizer has got or lost modules or tensors"} == {*seen}


def test_a_new_dict_with_the_same_objects_needs_no_other_layout() -> None:
    """As programs make one for each call; its tensors and values count."""
    state = {**stepped(Statistics()), "epoch": 1, "more": {"deep": {"best": torch.zeros(1)}}}
    layout, _ = laid_out(state)
    again = {**state, "epoch": 2, "seen": torch.ones(3), "more": {"deep": {"best": torch.full((1,), 4.0)}}}
    assert layout.follows(again)
    found = kept(layout, noted(layout))
    assert (1.0, 4.0) == (found["seen"], found["deep.best"])
    assert {"epoch": 2} == layout.rest()
    again["more"]["deep"] = {"best": torch.full((1,), 5.0)}
    assert layout.follows(again)
    assert 5.0 == kept(layout, noted(layout))["deep.best"]
    assert not layout.follows({**again, "model": Statistics()})
    assert not layout.follows({name: one for name, one in again.items() if name != "epoch"})


def test_a_state_that_is_not_in_tensors_of_modules_is_not_kept() -> None:
    """Nothing shows how it changes."""
    for kind, name in ((WithExtraState, "_extra_state"), (Quantized, "made")):
        with pytest.raises(UnfitStateError, match=rf"^model\.{name} is no parameter or buffer"):
            Layout(load_torch(), stepped(kind()))


def test_a_tensor_that_is_not_its_memory_alone_is_not_kept() -> None:
    """Sparse ones, and those around other tensors."""
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (4,), check_invariants=True)
    with pytest.raises(UnfitStateError, match=r"^sparse is a Tensor, and no plain tensor"):
        Layout(load_torch(), {**stepped(Statistics()), "sparse": sparse})


def test_parameters_that_are_not_finite_are_no_state() -> None:
    """A training cannot go on from it; other tensors may have such values, as masks do."""
    state = stepped(Statistics())
    layout, whole = laid_out(state)
    tensors, _ = layout.content(whole)
    layout.check({**tensors, "model.mean": torch.tensor([torch.inf])})
    with pytest.raises(UnfitStateError, match=r"^model\.layer\.bias is not finite"):
        layout.check({**tensors, "model.layer.bias": torch.tensor([torch.nan])})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(64),
        torch.zeros(1000),
        torch.zeros(4, 4).t(),
        torch.zeros(9, 9)[:, ::3],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(()),
        torch.zeros(3, dtype=torch.complex64).conj(),
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(5).to(torch.float8_e4m3fn),
        torch.full((3,), torch.nan),
    ],
    ids=str,
)
def test_a_sample_has_the_ends_of_a_tensor_of_any_form(tensor: Any) -> None:
    """A change of its first or last element through .data is seen, and no other tensor is blamed."""
    other = torch.zeros(100)
    for place in (0, -1):
        proof = Proof(torch, ["other", "tensor"], [other, tensor])
        fingerprint = proof.note()
        assert "" == proof.differing(fingerprint)
        index = tuple([place] * tensor.dim())
        before = tensor.data[index].clone()
        tensor.data[index] = torch.ones((), dtype=torch.float32).to(tensor.dtype)
        assert proof.differing(fingerprint).startswith("tensor was changed through .data")
        assert "" == proof.counted(fingerprint)
        tensor.data[index] = before
        assert "" == proof.differing(fingerprint)


def test_a_sample_is_spread_over_all_tensors() -> None:
    """A change of all of them is seen, and that of the first or the last one; tensors may be empty."""
    tensors = [torch.zeros(3) for _ in range(3 * SAMPLED)]
    proof = Proof(torch, [f"t{number}" for number in range(len(tensors))], tensors)
    fingerprint = proof.note()
    assert 3 * 4 * SAMPLED == len(fingerprint.sample)
    for number in (0, -1):
        tensors[number].data.add_(1)
        assert proof.differing(fingerprint).startswith(f"t{number % len(tensors)} was changed")
        tensors[number].data.sub_(1)
    tensors[1].data = torch.zeros(3)
    assert not proof.is_stale
    assert proof.counted(fingerprint).startswith("t1 has got other memory")
    tensors[0].data = torch.zeros(3)
    assert proof.is_stale
    empty = Proof(torch, ["none"], [torch.zeros(0)])
    assert "" == empty.differing(empty.note())


def _exchange(data: Any) -> None:
    data[70:80], data[200:210] = data[200:210].clone(), data[70:80].clone()


def _move(data: Any) -> None:
    data[70] += 1
    data[200] -= 1


def _negate(data: Any) -> None:
    data[71:202:130] *= -1


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (torch.int64, _exchange),
        (torch.int64, _move),
        (torch.float64, _negate),
        (torch.float32, _negate),
        (torch.float32, _exchange),
        (torch.bfloat16, _negate),
        (torch.uint8, _exchange),
        (torch.uint8, _move),
    ],
)
@pytest.mark.parametrize("begin", [0, 1])
def test_a_checksum_sees_a_change_of_a_few_elements_that_are_in_no_sample(
    kind: Any, change: Callable[[Any], None], begin: int
) -> None:
    """Also one by which the sum of all stays the same, in memory that does not begin or end with a word."""
    drawn = torch.Generator().manual_seed(7)
    tensor = torch.randint(1, 100, (1_100_003,), generator=drawn).to(kind)[begin:]
    state = torch.get_rng_state()
    sampled, proof = Proof(torch, ["bank"], [tensor]), Proof(torch, ["bank"], [tensor], [0])
    before = sampled.note(), proof.note()
    assert torch.equal(state, torch.get_rng_state())
    content = tensor.clone()
    change(tensor.data)
    assert "" == sampled.differing(before[0])
    assert proof.differing(before[1]).startswith("bank was changed through .data")
    tensor.data.copy_(content)
    assert "" == proof.differing(before[1])


def test_a_snapshot_has_tensors_of_any_form() -> None:
    """As they were."""
    tensors = [
        torch.arange(3, dtype=torch.int16), torch.arange(6.0).view(2, 3).t(), torch.tensor(2.0),
        torch.zeros(0, 2), torch.tensor([True]), torch.tensor([1 + 2j]).conj(),
        torch.arange(3, dtype=torch.int16),
    ]  # fmt: skip
    snapshot = TensorCopies(torch, tensors)
    before = [one.clone() for one in tensors]
    taken = snapshot.take()
    for one in tensors:
        one.data.zero_()
    for found, one in zip(snapshot.tensors(taken), before, strict=True):
        assert torch.equal(found, one)
        assert found.dtype == one.dtype
    again = snapshot.tensors(snapshot.take())
    assert [0.0, 0.0] == [float(again[number].abs().sum()) for number in (1, 5)]
    square = torch.arange(4.0).view(2, 2)
    snapshot_of_square = TensorCopies(torch, [square])
    square.data = square.data.t()
    assert [[0.0, 2.0], [1.0, 3.0]] == snapshot_of_square.tensors(snapshot_of_square.take())[0].tolist()
    tensors[0].data = torch.ones(3, dtype=torch.int16)
    assert [1, 1, 1] == snapshot.tensors(snapshot.take())[0].tolist()
    for form in (torch.ones(4, dtype=torch.int16), torch.ones(3, dtype=torch.int8)):
        tensors[0].data = form
        with pytest.raises(RuntimeError):
            snapshot.take()


def test_a_snapshot_has_tensors_of_several_devices() -> None:
    """As of a state on a GPU, with small tensors beside it."""
    tensors = [torch.ones(2), torch.zeros(3, device="meta"), torch.full((1,), 2.0)]
    snapshot = TensorCopies(torch, tensors)
    first, other, last = snapshot.tensors(snapshot.take())
    assert ([1.0, 1.0], [2.0]) == (first.tolist(), last.tolist())
    assert ("meta", (3,)) == (other.device.type, tuple(other.shape))


@pytest.mark.parametrize(("limit", "is_seen"), [(1, True), (2, True), (0, False)])
def test_buffers_are_summed_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, *, is_seen: bool
) -> None:
    """Parameters, which a step changes as a whole, take nothing of it; beyond it a sample is compared."""
    monkeypatch.setattr("hpc_elastic.frameworks.torch.memory.layout._SUMMED", limit * 4 * LARGE)
    module = Statistics()
    module.many = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    module.register_parameter("more", torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False))
    layout, whole = laid_out(stepped(module))
    module.large.data[LARGE // 5] = 1.0  # far from all elements of the sample
    assert is_seen == layout.changed(whole, is_left=False).startswith("model.large was changed through .data")


class OnDevice(torch.Tensor):  # type: ignore[misc]
    """A tensor that says that it is on some device, where there is none of that kind."""

    kind: str

    @property
    def device(self) -> Any:
        """Return the device."""
        return torch.device(self.kind)

    @property
    def is_cpu(self) -> bool:
        """Tell whether it is the CPU."""
        return self.kind == "cpu"


def device_of(*kinds: str) -> Any:
    """Return the GPU of a state whose tensors are on these devices."""
    tensors = {f"w{number}": torch.zeros(1).as_subclass(OnDevice) for number in range(len(kinds))}
    for one, kind in zip(tensors.values(), kinds, strict=True):
        one.kind = kind
    layout = object.__new__(Layout)
    layout._torch = torch
    return layout._device_of([*(Entry(name, tensors, name) for name in tensors), Entry("n", {"n": 3}, "n")])


def test_a_state_is_on_one_gpu_or_on_none() -> None:
    """Small tensors may be on the CPU beside it; of a state on others no rank could keep all."""
    assert None is device_of("cpu", "cpu")
    assert None is device_of()
    assert torch.device("cuda:1") == device_of("cpu", "cuda:1", "cuda:1")
    with pytest.raises(UnfitStateError, match="w2 is on cuda:1, and others are on cuda:0"):
        device_of("cuda:0", "cpu", "cuda:1")
    with pytest.raises(UnfitStateError, match="w1 is on meta: a state there is not rescued"):
        device_of("cpu", "meta")


def test_on_a_cpu_a_mark_is_passed_as_soon_as_it_is_made() -> None:
    """Nothing is behind the program there."""
    layout, _ = laid_out(stepped(Statistics()))
    mark = layout.mark()
    mark.synchronize()
    assert mark.query()
