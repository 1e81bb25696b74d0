"""What an agent is told to run, and the small things it works with."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from hpc_elastic.agent import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.errors import InputError
from hpc_elastic.multiprocessing import ProcessFailure


def train() -> None:
    """Do nothing."""


def test_role_is_optional() -> None:
    """Documents give no role; a spec without one has torchrun's."""
    spec = WorkerSpec(local_world_size=2, entrypoint=train)
    assert ("default_role", 3, 0.1, "null", False) == (
        *(spec.role, spec.max_restarts, spec.monitor_interval),
        *(spec.event_log_handler, spec.virtual_local_rank),
    )


def test_positional_order_is_torchs() -> None:
    """All fields can be given in torch's order."""
    filters = (["out"], ["err"])
    spec = WorkerSpec(
        *("trainer", 2, None, None, "prog", ("a",), 1, 0.5, 29_500, "host", "addr", "console", None),
        *filters,
        True,
    )
    assert ("trainer", 2, "prog", ("a",), 1, 0.5) == (
        *(spec.role, spec.local_world_size, spec.entrypoint),
        *(spec.args, spec.max_restarts, spec.monitor_interval),
    )
    assert (29_500, "host", "addr", "console") == (
        *(spec.master_port, spec.master_addr),
        *(spec.local_addr, spec.event_log_handler),
    )
    assert (*filters, True) == (
        *(spec.duplicate_stdout_filters, spec.duplicate_stderr_filters),
        spec.virtual_local_rank,
    )


def test_fn_is_the_older_name() -> None:
    """`fn` becomes the entrypoint, with a warning that points here."""
    with pytest.warns(DeprecationWarning, match="use WorkerSpec.entrypoint") as caught:
        spec = WorkerSpec(fn=train)
    assert train is spec.entrypoint
    assert __file__ == caught[0].filename


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"local_world_size": 0}, "local_world_size is 0, it must be at least 1"),
        ({"monitor_interval": 0.0}, "monitor_interval is 0.0, it must be positive"),
        ({"max_restarts": -1}, "max_restarts is -1, it must be at least 0"),
        ({"local_world_size": "2"}, "local_world_size is '2', it must be at least 1"),
        ({"args": "ok"}, "args is 'ok', it must be a tuple"),
        ({"rdzv_handler": "c10d"}, "rdzv_handler is 'c10d', it must be a RendezvousHandler"),
        ({"entrypoint": 5}, "entrypoint is 5, it must be a command or a function"),
        ({"entrypoint": None}, "no entrypoint"),
        ({"entrypoint": ""}, "no entrypoint"),
    ],
)
@pytest.mark.parametrize("kind", [InputError, AssertionError])
def test_bad_values_are_told(change: dict[str, object], words: str, kind: type[Exception]) -> None:
    """The error has a text, and is also what programs written for torch expect."""
    with pytest.raises(kind, match=words):
        WorkerSpec(**{"entrypoint": train, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(("entrypoint", "name"), [("/usr/bin/prog", "prog"), (train, "train"), (len, "len")])
def test_name_of_the_entrypoint(entrypoint: object, name: str) -> None:
    """A program goes by its file name, a function by its own."""
    assert name == WorkerSpec(entrypoint=entrypoint).get_entrypoint_name()  # type: ignore[arg-type]


def test_specs_compare_and_show_their_values() -> None:
    """Two specs of the same values are equal; what they hold can be read; they can be pickled."""
    spec = WorkerSpec(role="r", entrypoint="prog")
    assert WorkerSpec(role="r", entrypoint="prog") == spec
    assert WorkerSpec(role="q", entrypoint="prog") != spec
    assert "role='r'" in repr(spec)
    assert spec == pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own


def test_torchs_data_classes_are_some_here_too() -> None:
    """What programs do with data classes works, though these are none."""
    spec = WorkerSpec(role="r", entrypoint="prog", max_restarts=7)
    changed = dataclasses.replace(spec, local_world_size=4)
    assert (4, 7, "r") == (changed.local_world_size, changed.max_restarts, changed.role)
    assert [*vars(spec)] == [field.name for field in dataclasses.fields(spec)]
    result = RunResult(WorkerState.SUCCEEDED, {0: "value"})
    assert {"state": WorkerState.SUCCEEDED, "return_values": {0: "value"}, "failures": {}} == (
        dataclasses.asdict(result)
    )


def test_group_before_the_rendezvous() -> None:
    """Workers have local ranks and nothing else."""
    group = WorkerGroup(WorkerSpec(local_world_size=2, entrypoint=train))
    assert [0, 1] == [worker.local_rank for worker in group.workers]
    unknown = "local_rank=1,global_rank=-1,role_rank=-1,world_size=-1,role_world_size=-1"
    assert unknown == str(group.workers[1])
    assert {None} == {worker.id for worker in group.workers}
    assert (WorkerState.INIT, None, None) == (group.state, group.group_rank, group.store)


def test_workers_have_no_other_fields() -> None:
    """A misspelt field is an error."""
    with pytest.raises(AttributeError):
        Worker(0).globalrank = 1  # type: ignore[attr-defined]


def test_results() -> None:
    """Maps default to empty ones of their own; what is wedged has failed, too."""
    one, other = RunResult(state=WorkerState.SUCCEEDED), RunResult(WorkerState.SUCCEEDED)
    assert one == other
    assert one.failures is not other.failures
    failed = RunResult(WorkerState.FAILED, failures={3: ProcessFailure(1, 9, 7, "")})
    assert "exitcode=7" in repr(failed)
    states = {state for state in WorkerState if RunResult(state).is_failed()}
    assert {WorkerState.FAILED, WorkerState.UNHEALTHY} == states


def test_running_states() -> None:
    """Workers run, well or not, in two states."""
    running = {state for state in WorkerState if WorkerState.is_running(state)}
    assert {WorkerState.HEALTHY, WorkerState.UNHEALTHY} == running
