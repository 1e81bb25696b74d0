"""Classes that are data classes in torch do what programs do with data classes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.meet.interface import RendezvousStoreInfo
from hpc_elastic.multiprocessing.errors import ProcessFailure
from hpc_elastic.multiprocessing.logs import LogsDest
from hpc_elastic.multiprocessing.pcontext import RunProcsResult
from hpc_elastic.node.spec import RunResult, SpecError, WorkerSpec, WorkerState
from hpc_elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, RendezvousTimeout

MADE: tuple[tuple[Any, str, Any], ...] = (
    (WorkerSpec(entrypoint="prog"), "local_world_size", 4),
    (RunResult(WorkerState.SUCCEEDED, {0: 1}), "state", WorkerState.FAILED),
    (RunProcsResult({0: 1}), "stdouts", {0: "out"}),
    (LogsDest({0: "out"}), "filtered_stdout", "all"),
    (ProcessFailure(0, 7, -9, "none"), "pid", 8),
    (RendezvousStoreInfo("host", 1), "master_port", 2),
    (
        RendezvousSettings("run", 1, 2, RendezvousTimeout(), timedelta(seconds=1), 3),
        "max_nodes",
        4,
    ),
)


@pytest.mark.parametrize(("made", "name", "value"), MADE, ids=lambda one: type(one).__name__)
def test_torchs_data_classes_are_some_here_too(made: Any, name: str, value: Any) -> None:
    """Their fields, copies with another value, and what they hold as a mapping."""
    is_one: bool = dataclasses.is_dataclass(made)  # not for mypy, which knows that ours are none
    assert is_one
    changed: Any = dataclasses.replace(made, **{name: value})
    assert type(made) is type(changed)
    assert value == getattr(changed, name) != getattr(made, name)
    told = dataclasses.asdict(changed)
    assert [*told] == [field.name for field in dataclasses.fields(made)]
    assert value == told[name]


@pytest.mark.torch
def test_their_fields_are_torchs() -> None:
    """Names, order, which have a default, and which are not given."""
    from torch.distributed.elastic.agent.server import api  # noqa: PLC0415 - only with torch
    from torch.distributed.elastic.multiprocessing import api as processes  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing import errors  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import api as rendezvous  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous  # noqa: PLC0415

    theirs = [
        *(api.WorkerSpec, api.RunResult, processes.RunProcsResult, processes.LogsDest, errors.ProcessFailure),
        *(rendezvous.RendezvousStoreInfo, dynamic_rendezvous.RendezvousSettings),
    ]
    for (made, _, _), their in zip(MADE, theirs, strict=True):
        ours = [(field.name, field.init) for field in dataclasses.fields(made)]
        known = [(field.name, field.init) for field in dataclasses.fields(their)]
        assert known == ours[: len(known)]
        params: list[Any] = [getattr(kind, "__dataclass_params__") for kind in (their, type(made))]  # noqa: B009
        assert params[0].frozen is params[1].frozen


@dataclass
class MySpec(WorkerSpec):
    """A spec with a field more."""

    team: str = "a"


@dataclass
class MyResult(RunProcsResult):
    """A result with a field more."""

    note: str = ""


@dataclass
class MyFailure(ProcessFailure):
    """A failure with a field more."""

    note: str = dataclasses.field(default="", kw_only=True)


@dataclass
class MyPlace(RendezvousStoreInfo):
    """A place with a field more."""

    cluster: str = "c"


@dataclass(frozen=True)
class MySettings(RendezvousSettings):
    """Settings with a field more."""

    queue: str = "q"


def test_those_of_the_rendezvous_can_be_derived_from() -> None:
    """With their fields first; what may change may, what is frozen may not."""
    my_place: Any = MyPlace
    place, same = my_place("host", 1), RendezvousStoreInfo("host", 1)
    assert ("host", 1, "c") == dataclasses.astuple(place)
    assert place != same != RendezvousStoreInfo("host", 2)
    assert RendezvousStoreInfo("host", 1) == same
    same.master_port = 2
    assert "RendezvousStoreInfo(master_addr='host', master_port=2)" == repr(same)
    with pytest.raises(TypeError, match="unhashable"):
        hash(same)
    settings = MySettings("run", 1, 2, RendezvousTimeout(), timedelta(seconds=1), 3, queue="other")
    assert ("run", 3, "other") == (settings.run_id, settings.keep_alive_max_attempt, settings.queue)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_nodes = 3  # type: ignore[misc]


def test_data_classes_can_be_derived_from_them(tmp_path: Path) -> None:
    """With their defaults, their checks, and what they find out by themselves."""
    my_spec: Any = MySpec
    my_failure: Any = MyFailure
    spec = my_spec(role="r", entrypoint="prog", team="b")
    assert ("r", "prog", 3, (), "b") == (spec.role, spec.entrypoint, spec.max_restarts, spec.args, spec.team)
    with pytest.raises(SpecError, match="local_world_size is 0"):
        my_spec(entrypoint="prog", local_world_size=0)
    first, second = MyResult(note="x"), MyResult()
    first.stdouts[0] = "out"
    assert ({}, "x", {}) == (second.stdouts, first.note, first.return_values)
    known, same = (ProcessFailure(0, 7, -9, "none", observed_at=at) for at in (5.0, 5.4))
    assert known == same != ProcessFailure(0, 7, -9, "none", observed_at=6.0)
    failure = my_failure(0, 7, -9, str(tmp_path / "none"), note="n")
    assert ("n", "Signal 9 (SIGKILL) received by PID 7") == (failure.note, failure.message)


def test_an_agent_does_without_that_module() -> None:
    """It costs 5 ms; the fields are made when somebody asks."""
    import subprocess  # noqa: PLC0415 - of this test alone
    import sys  # noqa: PLC0415

    code = "import sys, hpc_elastic.node.spec; print('dataclasses' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
