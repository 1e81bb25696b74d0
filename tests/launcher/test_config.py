"""What a launch is configured with."""

from __future__ import annotations

import dataclasses
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.launcher import LaunchConfig
from hpc_elastic.launcher.api import _get_addr_and_port, _get_entrypoint_name
from hpc_elastic.launcher.shared_run import signal_meanings
from hpc_elastic.multiprocessing import DefaultLogsSpecs
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from tests.launcher.jobs import rank_plus


def test_the_timeout_of_the_rendezvous_has_two_names() -> None:
    """The older one wins."""
    assert {"timeout": 900} == LaunchConfig(1, 1, 1).rdzv_configs
    assert {"timeout": 5} == LaunchConfig(1, 1, 1, rdzv_configs={"timeout": 5}).rdzv_configs
    assert {"timeout": 7} == LaunchConfig(1, 1, 1, rdzv_configs={"timeout": 5}, rdzv_timeout=7).rdzv_configs


def test_logs_have_a_default() -> None:
    """So that callers need not ask whether there are any."""
    assert isinstance(LaunchConfig(1, 1, 1).logs_specs, DefaultLogsSpecs)


@pytest.mark.parametrize(
    ("given", "environ", "expected"), [(None, None, 30), (None, "7", 7), (3, "7", 3), (0, None, 0)]
)
def test_the_shutdown_timeout_comes_from_the_nearest(
    monkeypatch: pytest.MonkeyPatch, given: int | None, environ: str | None, expected: int
) -> None:
    """The argument, the environment, 30 s."""
    if environ is not None:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", environ)
    assert expected == LaunchConfig(1, 1, 1, shutdown_timeout=given).shutdown_timeout


@pytest.mark.parametrize(
    ("given", "environ", "expected"), [(None, None, 300.0), (None, "7.5", 7.5), (3, "7", 3.0), (0, None, 0.0)]
)
def test_the_exit_barrier_timeout_comes_from_the_nearest(
    monkeypatch: pytest.MonkeyPatch, given: float | None, environ: str | None, expected: float
) -> None:
    """The argument, the environment, 300 s."""
    if environ is not None:
        monkeypatch.setenv("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", environ)
    assert expected == LaunchConfig(1, 1, 1, exit_barrier_timeout=given).exit_barrier_timeout


@pytest.mark.parametrize(
    ("given", "environ", "text"),
    [
        (-1, None, "exit_barrier_timeout must be non-negative, got -1$"),
        (None, "-2", "exit_barrier_timeout must be non-negative, got -2.0 from TORCH_ELASTIC_EXIT_BARRIER"),
        (None, "soon", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT must be a number of seconds, got 'soon'"),
        ("1 s", None, "LaunchConfig.exit_barrier_timeout: it is '1 s'"),
    ],
)
def test_a_senseless_exit_barrier_timeout_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: Any, environ: str | None, text: str
) -> None:
    """Wherever it comes from."""
    if environ is not None:
        monkeypatch.setenv("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", environ)
    with pytest.raises((ValueError, InputError), match=text):
        LaunchConfig(1, 1, 1, exit_barrier_timeout=given)


@pytest.mark.parametrize(
    ("given", "environ", "text"),
    [
        (-1, None, "shutdown_timeout must be non-negative, got -1$"),
        (None, "-2", "shutdown_timeout must be non-negative, got -2 from TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        (None, "soon", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be a number of seconds, got 'soon'"),
    ],
)
def test_a_senseless_shutdown_timeout_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: int | None, environ: str | None, text: str
) -> None:
    """Wherever it comes from."""
    if environ is not None:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", environ)
    with pytest.raises(ValueError, match=text):
        LaunchConfig(1, 1, 1, shutdown_timeout=given)


@pytest.mark.parametrize(
    ("entrypoint", "args", "name"),
    [
        (rank_plus, [], "rank_plus"),
        (sys.executable, [], ""),
        (sys.executable, ["-u", "train.py", "--lr=1"], "train.py"),
        (sys.executable, ["", 5], ""),
        ("bin/train.sh", ["x"], "bin/train.sh"),
        (None, [], ""),
    ],
)
def test_what_is_run_has_a_name(entrypoint: Any, args: list[Any], name: str) -> None:
    """Of the interpreter it is the script."""
    assert name == _get_entrypoint_name(entrypoint, args)


def static(endpoint: str) -> RendezvousParameters:
    """Return the parameters of a static rendezvous."""
    return RendezvousParameters("static", endpoint, "toy", 1, 1)


def test_static_runs_have_a_fixed_master() -> None:
    """Others have none."""
    assert ("host", 1234) == _get_addr_and_port(static(" host:1234 "))
    assert (None, None) == _get_addr_and_port(RendezvousParameters("c10d", "host:1234", "toy", 1, 1))


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        (" ", "Endpoint is missing in endpoint. Try to add --master-addr and --master-port"),
        ("host", "port is missing in endpoint: host. Try to specify --master-port"),
    ],
)
def test_a_static_run_needs_host_and_port(endpoint: str, text: str) -> None:
    """The error names the flags that give them."""
    with pytest.raises(ValueError, match=text):
        _get_addr_and_port(static(endpoint))


def test_signals_have_meanings(caplog: pytest.LogCaptureFixture) -> None:
    """Names that mean no signal, or none that can be caught, are told and left out."""
    meanings = signal_meanings("SIGTERM, SIGINT,SIGUSR2,SIGNONE,SIGKILL,")
    assert ((signal.SIGTERM,), (signal.SIGUSR2,), (signal.SIGINT,)) == tuple(meanings)
    assert 2 == len(caplog.records)
    assert "SIGNONE" in caplog.text
    assert "SIGKILL" in caplog.text


@pytest.mark.torch
def test_fields_and_defaults_are_those_of_torch() -> None:
    """In torch's order; one that torch 2.14 has added and one of ours stand behind them."""
    from torch.distributed.launcher.api import LaunchConfig as Theirs  # noqa: PLC0415

    def shape(config: Any) -> list[tuple[str, Any]]:
        fields = [(item.name, getattr(config, item.name)) for item in dataclasses.fields(config)]
        return [(name, value if name != "logs_specs" else type(value).__name__) for name, value in fields]

    theirs, ours = shape(Theirs(1, 2, 3)), shape(LaunchConfig(1, 2, 3))
    assert theirs == ours[: len(theirs)]
    assert {("exit_barrier_timeout", 300.0), ("preload", ())} >= set(ours[len(theirs) :])


def test_logs_that_are_chosen_later_count(tmp_path: Path) -> None:
    """The configuration is a plain object."""
    config = LaunchConfig(1, 1, 1)
    assert config.wanted_logs is None
    config.logs_specs = DefaultLogsSpecs(str(tmp_path))
    assert config.logs_specs is config.wanted_logs


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("nproc_per_node", "2", "a whole number"),
        ("max_restarts", 1.5, "a whole number"),
        ("monitor_interval", "x", "seconds"),
        ("shutdown_timeout", "x", "seconds"),
        ("rdzv_endpoint", 29500, "a text"),
        ("rdzv_configs", ["timeout"], "a mapping of options"),
        ("logs_specs", "logs", "a LogsSpecs"),
        ("preload", "torch", "names of modules in a list"),
        ("preload", [""], "names of modules in a list"),
        ("preload", ["train.py"], "names of modules in a list"),
    ],
)
def test_a_value_of_another_kind_is_refused(field: str, value: object, wanted: str) -> None:
    """The field is named, before anything is started."""
    fields: dict[str, Any] = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, field: value}
    with pytest.raises(InputError) as caught:
        LaunchConfig(**fields)
    assert (f"LaunchConfig.{field}", f"give {wanted}") == (caught.value.where, caught.value.fix)


def test_a_run_id_may_be_a_number() -> None:
    """Job ids are numbers."""
    assert "5" == LaunchConfig(1, 1, 1, run_id=5).run_id  # type: ignore[arg-type]


def test_a_path_may_be_the_endpoint(tmp_path: Path) -> None:
    """Where the nodes meet is a directory; without a run id one is made up later."""
    config = LaunchConfig(1, 1, 1, rdzv_endpoint=tmp_path, run_id=None)  # type: ignore[arg-type]
    assert (str(tmp_path), "") == (config.rdzv_endpoint, config.run_id)
