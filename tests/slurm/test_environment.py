"""What Slurm says in the environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client.environment import SlurmEnv

STEP = {
    "SLURM_JOB_ID": "1000",
    "SLURM_JOB_NAME": "train",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_STEP_NODELIST": "node[2-4]",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "node3",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_CPUS_ON_NODE": "8",
}


def test_a_task_of_a_step_is_read() -> None:
    """The step's nodes win over the job's, which may have shrunk."""
    env = SlurmEnv.from_environ(STEP)
    assert env == SlurmEnv(
        job_ref="1000",
        job_id="1000",
        link=0,
        restart_count=0,
        in_step=True,
        node_name="node3",
        node_index=1,
        node_names=("node2", "node3", "node4"),
        gpus_on_node=2,
        has_gpus_untold=False,
        end_time_s=None,
    )


def test_outside_a_job_there_is_nothing() -> None:
    """A machine without Slurm is no error."""
    assert SlurmEnv.from_environ({"PATH": "/bin"}) is None


def test_an_array_task_is_never_named_by_the_id_of_the_array() -> None:
    """The last task's job id is the array's id: a requeue of it would requeue all tasks."""
    env = SlurmEnv.from_environ({**STEP, "SLURM_ARRAY_JOB_ID": "1000", "SLURM_ARRAY_TASK_ID": "3"})
    assert env is not None
    assert "1000_3" == env.job_ref


def test_the_batch_script_sees_the_nodes_of_the_job() -> None:
    """Outside a step the job's node list counts, and the restart count is read."""
    batch = {key: value for key, value in STEP.items() if "STEP" not in key}
    env = SlurmEnv.from_environ({**batch, "SLURM_RESTART_COUNT": "2", "SLURM_JOB_END_TIME": "1700000000"})
    assert env is not None
    assert (False, 4, 2, 1700000000) == (env.in_step, len(env.node_names), env.restart_count, env.end_time_s)


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ({"SLURM_GPUS_ON_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "", "SLURM_STEP_GPUS": "0,1,5"}, 3),
        ({"SLURM_GPUS_ON_NODE": "", "SLURM_JOB_GPUS": "7"}, None),  # the batch host's
        ({"SLURM_GPUS_ON_NODE": "", "SLURM_JOB_GPUS": "7", "SLURM_JOB_NUM_NODES": "1"}, 1),
        ({"SLURM_GPUS_ON_NODE": "", "SLURM_JOB_GPUS": "7,8", "SLURM_STEP_ID": ""}, 2),
        ({"SLURM_GPUS_ON_NODE": ""}, None),
    ],
)
def test_gpus_are_counted_whatever_slurm_sets(given: dict[str, str], gpus: int | None) -> None:
    """The count may carry a type, or only a list of devices is there, which may be another node's."""
    env = SlurmEnv.from_environ({**STEP, **given})
    assert env is not None
    assert gpus == env.gpus_on_node
    assert (gpus is None and "SLURM_JOB_GPUS" in given) == env.has_gpus_untold


def test_a_damaged_variable_is_named() -> None:
    """A count that is no number is an error with the variable's name."""
    with pytest.raises(InputError, match="SLURM_RESTART_COUNT='x'"):
        SlurmEnv.from_environ({**STEP, "SLURM_RESTART_COUNT": "x"})


def test_reading_the_environment_imports_nothing_heavy() -> None:
    """A thousand agents import this at once."""
    code = "import sys; import hpc_elastic.slurm.client.environment; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"subprocess", "filelock", "psutil"} & set(loaded)
