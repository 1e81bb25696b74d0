"""Functions and commands launched on one node."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError, RendezvousClosedError
from hpc_elastic.launcher import elastic_launch, launch_agent
from hpc_elastic.multiprocessing import DefaultLogsSpecs, Std
from hpc_elastic.multiprocessing.errors import ChildFailedError
from hpc_elastic.node.workers.local_group import EntrypointError
from tests.launcher.jobs import (
    config,
    cpus,
    fail_first,
    fail_on,
    had,
    handlers,
    rank_plus,
    same,
    shout,
    variables,
)


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_values_come_back_by_rank(tmp_path: Path, start_method: str) -> None:
    """Each worker's return value is at its global rank."""
    values = elastic_launch(config(tmp_path / "run", 3, start_method=start_method), rank_plus)(10)
    assert {0: 10, 1: 11, 2: 12} == values


def test_functions_have_modules_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the path of this process, in copies of one process; arguments and values come as otherwise."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "beside.py").write_text("open('imports', 'a').write('x')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    settings = config(tmp_path / "run", 3, preload=("colorsys", "beside", "auto"))
    assert {rank: [True, True] for rank in range(3)} == elastic_launch(settings, had)("colorsys", "beside")
    assert "x" == (tmp_path / "imports").read_text()
    large = [number * "x" for number in (1, 100_000)]
    assert {0: (large, None)} == elastic_launch(config(tmp_path / "run2", 1, preload=["json"]), same)(
        large, None
    )
    with pytest.raises(ChildFailedError, match="no luck"):
        elastic_launch(config(tmp_path / "run3", preload=["json"]), fail_on)(1, "no luck")


def test_functions_that_are_forked_are_started_as_always(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They are copies of another process already; the log says so."""
    settings = config(tmp_path / "run", 1, preload=("colorsys",), start_method="fork")
    assert {0: 5} == elastic_launch(settings, rank_plus)(5)
    assert "nothing is preloaded: functions are started by fork, and not by spawn" in capfd.readouterr().err


def test_a_command_returns_nothing(tmp_path: Path) -> None:
    """A command's ranks are there, with None."""
    values = elastic_launch(config(tmp_path / "run"), sys.executable)("-c", "print()")
    assert {0: None, 1: None} == values


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    """Only texts have the local rank put in."""
    given = (1, None, {"a": [2]}, "gpu${local_rank}", "${other}")
    values = launch_agent(config(tmp_path / "run", 1), same, list(given))
    assert {0: (1, None, {"a": [2]}, "gpu0", "${other}")} == values


def test_a_bound_function_is_launched(tmp_path: Path) -> None:
    """What has no name of its own but can be called is fine, too."""
    assert {0: 3} == elastic_launch(config(tmp_path / "run", 1), functools.partial(rank_plus, 3))()


def test_what_has_no_name_needs_fork(tmp_path: Path) -> None:
    """A closure runs with fork; with spawn the error names it, and what to do."""
    number = 7
    assert {0: 7} == elastic_launch(config(tmp_path / "forked", 1, start_method="fork"), lambda: number)()
    with pytest.raises(EntrypointError, match=r"(?s)<lambda>.*handed to a new process.*use .*'fork'"):
        elastic_launch(config(tmp_path / "spawned", 1), lambda: number)()


def test_a_failure_tells_where_and_why(tmp_path: Path) -> None:
    """The error has the failures by global rank, and the traceback in its text."""
    with pytest.raises(
        ChildFailedError, match=r"(?s)fail_on FAILED.*rank +: 1 .*ValueError: no luck"
    ) as caught:
        elastic_launch(config(tmp_path / "run"), fail_on)(1, "no luck")
    rank, failure = caught.value.get_first_failure()
    assert (1, 1, 1) == (rank, failure.local_rank, failure.exitcode)
    assert [1] == list(caught.value.failures)
    assert "fail_on" in failure.traceback
    assert Path(failure.error_file).is_file()


def test_a_failure_is_forgiven_as_often_as_allowed(tmp_path: Path) -> None:
    """The workers are started again, and those values count."""
    values = elastic_launch(config(tmp_path / "run", max_restarts=1), fail_first)(0)
    assert {0: ("0", "2", "1"), 1: ("1", "2", "1")} == values


def test_a_missing_program_is_told(tmp_path: Path) -> None:
    """It is no worker's failure."""
    with pytest.raises(FileNotFoundError, match="no_such_program"):
        elastic_launch(config(tmp_path / "run"), "no_such_program")()


@pytest.mark.parametrize(
    ("what", "text"),
    [({"nproc_per_node": 0}, "nproc_per_node"), ({"max_restarts": -1}, "max_restarts")],
)
def test_senseless_numbers_are_refused(tmp_path: Path, what: dict[str, Any], text: str) -> None:
    """The error names the field."""
    wrong = config(tmp_path / "run")
    for name, value in what.items():
        setattr(wrong, name, value)
    with pytest.raises(InputError, match=text):
        elastic_launch(wrong, rank_plus)(1)


def test_nothing_to_run_is_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(InputError, match="nothing to run"):
        elastic_launch(config(tmp_path / "run"), None)()
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_ended_is_closed(tmp_path: Path) -> None:
    """A second launch in the same directory is told so."""
    elastic_launch(config(tmp_path / "run", 1), rank_plus)(1)
    with pytest.raises(RendezvousClosedError, match=r"(?s)is done.*take another rdzv_endpoint"):
        elastic_launch(config(tmp_path / "run", 1), rank_plus)(1)


@pytest.mark.parametrize("backend", ["shared_fs", "c10d", "etcd", "etcd-v2"])
def test_one_node_needs_no_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """The same run id may be used again: a finished run stands in nobody's way."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert {0: 1} == elastic_launch(config("", 1, rdzv_backend=backend), rank_plus)(1)
    assert {"toy", "toy+2"} == set(os.listdir("hpc_elastic_runs"))


def test_a_run_id_is_made_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and can be read from the configuration."""
    given = config(tmp_path / "run", 1, run_id="")
    values = elastic_launch(given, variables)("TORCHELASTIC_RUN_ID")
    assert given.run_id.isdigit()
    assert {0: {"TORCHELASTIC_RUN_ID": given.run_id}} == values
    assert f"generated a random run_id: {given.run_id}" in caplog.text


def test_logs_are_where_they_are_wanted(tmp_path: Path) -> None:
    """Chosen lines of teed streams are in common files, too, and lines are marked as asked for."""
    given = config(
        tmp_path / "run",
        logs_specs=DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.ALL),
        duplicate_stdout_filters=["loud"],
        duplicate_stderr_filters=["loud"],
    )
    elastic_launch(given, shout)()
    attempt = tmp_path / "logs" / "toy" / "attempt_1"
    assert "loud: all is well\nquiet\n" == (attempt / "1" / "stdout.log").read_text()
    assert 2 == (attempt / "filtered_stdout.log").read_text().count("loud: all is well\n")
    assert "quiet" not in (attempt / "filtered_stderr.log").read_text()


def test_teed_lines_reach_what_stands_for_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a notebook; role and local rank stand before each line unless a template says otherwise."""
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.OUT)
    elastic_launch(config(tmp_path / "one", 1, role="toy", logs_specs=specs), shout)()
    assert "[toy0]:quiet\n" in capsys.readouterr().out
    more = config(tmp_path / "two", 1, logs_specs=specs, log_line_prefix_template="<${rank} ${role_name}> ")
    elastic_launch(more, shout)()
    assert "<0 default_role> quiet\n" in capsys.readouterr().out


def test_each_worker_may_see_its_own_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is local rank 0 with it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    names = ("LOCAL_RANK", "RANK", "CUDA_VISIBLE_DEVICES")
    values = elastic_launch(config(tmp_path / "run", virtual_local_rank=True), variables)(*names)
    assert [("0", "0", "4"), ("0", "1", "6")] == [tuple(values[rank].values()) for rank in (0, 1)]


def test_workers_that_cannot_be_bound_are_not_started(tmp_path: Path) -> None:
    """Unless that may be passed over."""
    from hpc_elastic.processes.numa import AffinityMode, NumaOptions  # noqa: PLC0415

    strict = NumaOptions(AffinityMode.NODE)
    with pytest.raises((RuntimeError, InputError), match="no GPU is visible"):
        elastic_launch(config(tmp_path / "one", 1, numa_options=strict), cpus)()
    lax = strict._replace(should_fall_back_if_binding_fails=True)
    values = elastic_launch(config(tmp_path / "two", 1, numa_options=lax), cpus)()
    assert {0: cpus()} == values


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_workers_can_be_ended(tmp_path: Path, start_method: str) -> None:
    """None has the launcher's handlers for signals."""
    values = elastic_launch(config(tmp_path / "run", 1, start_method=start_method), handlers)()
    assert {0: [True] * 4} == values
