"""Parameters of submitit's executors as users of them write them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.auto import auto
from submitit.local.debug import DebugExecutor
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.submitit import HpcElasticExecutor
from hpc_elastic.submitit.parameters import OF_OTHERS


def spec_of(folder: Path, **parameters: Any) -> JobSpec:
    """Return what an executor with these parameters would run."""
    made = submitit.AutoExecutor(folder, cluster="hpcelastic")
    made.update_parameters(**parameters)
    inner = made._executor
    assert isinstance(inner, HpcElasticExecutor)
    return inner._spec(inner.parameters, "f")


@pytest.mark.parametrize(
    ("parameters", "option", "value"),
    [
        ({"gpus_per_node": 0}, "gpus-per-node", 0),
        ({"hpcelastic_num_gpus": 2}, "gpus-per-node", 2),
        ({"hpcelastic_exclusive": True}, "exclusive", True),
        ({"hpcelastic_exclusive": "user"}, "exclusive", "user"),
        ({"hpcelastic_wckey": ""}, "wckey", None),
        ({"hpcelastic_wckey": "mine"}, "wckey", "mine"),
        ({"mem_gb": 0.25}, "mem", "256M"),
        ({"hpcelastic_mem": "10GB"}, "mem", "10GB"),
        ({"hpcelastic_time": 30}, "time", "00:30:00"),
        ({"hpcelastic_time": 1.5}, "time", "00:01:30"),
        ({"hpcelastic_timeout_min": 1.5}, "time", "00:01:30"),
        ({"hpcelastic_job_name": "jn"}, "job-name", "jn"),
        ({"hpcelastic_use_srun": True, "stderr_to_stdout": False}, "nodes", "1"),
        ({"hpcelastic_additional_parameters": {"mail-user": "me"}}, "mail-user", "me"),
    ],
)
def test_what_slurms_executor_takes(
    tmp_path: Path, parameters: dict[str, Any], option: str, value: Any
) -> None:
    """It means the same here; nothing is asked for that nobody has asked for, such as a wckey."""
    assert value == dict(spec_of(tmp_path, **parameters).header_options()).get(option)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"mem_gb": -1}, "mem_gb = -1 is no size"),
        ({"hpcelastic_local": 2}, "to the constructor"),
        ({"hpcelastic_use_srun": False}, "always started by srun"),
        ({"hpcelastic_stderr_to_stdout": "yes"}, "stderr_to_stdout = 'yes' is no truth"),
        ({"hpcelastic_additional_parameters": "x"}, "is no dict"),
        ({"hpcelastic_env": 1}, "env = 1 is not a table"),
        ({"hpcelastic_array_parallelism": 0}, "array_parallelism = 0 is no number of calls"),
        ({"hpcelastic_array_parallelism": "4"}, "array_parallelism = '4' is no number of calls"),
        ({"hpcelastic_array_parallelism": 4, "hpcelastic_mode": "array"}, "is an array itself"),
        ({"hpcelastic_array_parallelism": 4, "hpcelastic_chain": 3}, "hpcelastic_chain=3"),
    ],
)
def test_what_has_no_meaning_is_refused_at_once(
    tmp_path: Path, parameters: dict[str, Any], words: str
) -> None:
    """The message names the parameter and the fix."""
    with pytest.raises(InputError, match=words):
        spec_of(tmp_path, **parameters)


def test_setup_and_environment(tmp_path: Path) -> None:
    """Lines of a shell and variables come as they are, beside those by which submitit knows its jobs."""
    spec = spec_of(tmp_path, hpcelastic_setup=["module load x", "echo 1"], hpcelastic_env={"A": "1"})
    assert ("module load x", "echo 1") == spec.setup
    assert {"A": "1", "SUBMITIT_EXECUTOR": "hpcelastic", "SUBMITIT_FOLDER": str(tmp_path)} == spec.env


def test_on_this_machine(tmp_path: Path) -> None:
    """The number of nodes that are played here is one that the run can have."""
    for local in (0, -1, "2", True):
        with pytest.raises(InputError, match="hpcelastic_local"):
            submitit.AutoExecutor(tmp_path, cluster="hpcelastic", hpcelastic_local=local)
    made = submitit.AutoExecutor(tmp_path, cluster="hpcelastic", hpcelastic_local=2)
    with pytest.raises(InputError, match="nodes = 4, and hpcelastic_local = 2"):
        made.update_parameters(nodes=4)
    with pytest.raises(InputError, match="all of them start at once"):
        made.update_parameters(hpcelastic_array_parallelism=4)
    made.update_parameters(nodes=4, hpcelastic_min_nodes=1)


def test_parameters_of_others_stay_theirs(tmp_path: Path) -> None:
    """A user of Slurm's executor writes ``partition="gpu"`` in the old way, and this plug-in is installed."""
    others = (SlurmExecutor, LocalExecutor, DebugExecutor)
    assert {name for executor in others for name in executor._valid_parameters()} <= OF_OTHERS
    old = submitit.AutoExecutor(tmp_path, cluster="hpcelastic")._deprecated_args
    assert ("slurm_partition", "slurm_qos") == (old["partition"], old["qos"])
    assert "hpcelastic_max_restarts" == old["max_restarts"]
    words = {"partition": "gpu"}
    with pytest.warns(UserWarning, match="slurm_partition"):
        auto._convert_deprecated_args(words, old)
    assert {"slurm_partition": "gpu"} == words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "gpu" == spec_of(tmp_path, hpcelastic_partition="gpu").partition
    with pytest.raises(NameError, match=r"noodles.*max_restarts.*and those of submitit's Slurm executor"):
        spec_of(tmp_path, hpcelastic_noodles=1)


def _two(first: int, second: int) -> int:
    return first + second


def _submit_with_one(made: submitit.AutoExecutor) -> object:
    return made.submit(_two, 1)


def _map_with_one(made: submitit.AutoExecutor) -> object:
    return made.map_array(_two, [1, 2])


@pytest.mark.parametrize("submit", [_submit_with_one, _map_with_one])
def test_a_call_that_cannot_work_is_refused(
    tmp_path: Path, submit: Callable[[submitit.AutoExecutor], object]
) -> None:
    """On the login node, before anything is queued or made."""
    made = submitit.AutoExecutor(tmp_path / "log", cluster="hpcelastic")
    with pytest.raises(InputError, match="missing a required argument: 'second'"):
        submit(made)
    assert not (tmp_path / "log").exists()


def test_folders_and_directories_that_cannot_be(tmp_path: Path) -> None:
    """One directory for several runs, and a folder whose name would end a line of a script."""
    made = submitit.AutoExecutor(tmp_path / "log", cluster="hpcelastic", hpcelastic_local=1)
    made.update_parameters(hpcelastic_run_dir=str(tmp_path / "one"))
    with pytest.raises(InputError, match="is one directory, and there are 2 calls"):
        made.map_array(_two, [1, 2], [3, 4])
    made = submitit.AutoExecutor(tmp_path / "a\nb", cluster="hpcelastic", hpcelastic_local=1)
    with pytest.raises(InputError, match="control characters"):
        made.submit(_two, 1, 2)
    made = submitit.AutoExecutor(tmp_path / "%A" / "%a", cluster="hpcelastic", hpcelastic_local=1)
    with pytest.raises(InputError, match="this is not a job array"):
        made.submit(_two, 1, 2)
    assert [] == list(tmp_path.iterdir())


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for this executor by name is told what is missing, and how to do without."""
    monkeypatch.setenv("PATH", str(tmp_path))
    made = submitit.AutoExecutor(tmp_path / "log", cluster="hpcelastic")
    with pytest.raises(InputError, match=r"(?s)'sbatch' is not on PATH.*hpcelastic_local=1"):
        made.submit(_two, 1, 2)
    assert "local" == submitit.AutoExecutor(tmp_path).cluster
    assert not (tmp_path / "log").exists()
