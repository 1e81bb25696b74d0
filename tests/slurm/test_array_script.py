"""The job script of array mode, and what is refused before it is queued."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client.answers import ListedNode
from hpc_elastic.slurm.job.script import RunNames, batch_log_pattern, render
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit.request import read_template
from hpc_elastic.slurm.submit.validate import check_size
from tests.slurm.array_stand_in import ArraySlurm
from tests.slurm.test_script import GOLDEN, SPECS

ROOT = "/shared/runs/train-1"
NAMES = RunNames(
    "train-1",
    ROOT,
    "/shared/code",
    "/opt/env/bin/python",
    batch_log_pattern(f"{ROOT}/slurm-%j.out", "array"),
    "/opt/env/hpc_elastic/sbatch_templates/batch.sh",
)
ARRAYS = {
    "array": {**SPECS["elastic"], "mode": "array", "spares": 1},
    "array-everything": {**SPECS["everything"], "mode": "array"},
}


def script(name: str) -> str:
    """Return the script of a spec."""
    return render(JobSpec(**ARRAYS[name]), NAMES, read_template("array"))


@pytest.mark.parametrize("name", ARRAYS)
def test_the_script_is_as_recorded(name: str, request: pytest.FixtureRequest) -> None:
    """A change of the script is seen in a diff; record it with ``pytest tests/slurm --record``."""
    text, golden = script(name), GOLDEN / f"{name}.sbatch"
    if request.config.getoption("--record", default=False):
        golden.write_text(text)
    assert golden.read_text() == text
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


@pytest.mark.parametrize("mode", ["step", "array"])
@pytest.mark.parametrize(("most", "word"), [(0, "no-requeue"), (1, "requeue"), (None, "requeue")])
def test_slurm_is_told_whether_it_may_start_the_job_again(mode: str, most: int | None, word: str) -> None:
    """A run without requeues has one start, whatever happens to its nodes."""
    spec = JobSpec(command="true", mode=mode, max_requeues=most)
    assert f"#SBATCH --{word} --open-mode=append" in render(spec, NAMES, read_template(mode))


def test_each_task_is_a_job_of_one_node() -> None:
    """With as many tasks as nodes at most and spares; a lost node must end its task."""
    text = script("array")
    assert "#SBATCH --nodes=1\n" in text
    assert "#SBATCH --array=0-4\n" in text
    assert "--nnodes=2:4 " in text
    assert f"#SBATCH --output={ROOT}/slurm-%A_%a.out\n" in text
    assert [] == [line for line in text.splitlines() if line.startswith("#SBATCH") and "--no-kill" in line]


@pytest.mark.parametrize(
    ("fields", "where", "message"),
    [
        ({"mode": "step", "spares": 1}, "spares", "spares = 1 is for array mode"),
        ({"dependency": "singleton"}, "dependency", "one task at a time"),
        ({"nodelist": "n[1-2]"}, "nodelist", "each task would have to get all 2 nodes"),
        ({"chain": 3}, "chain", "for one job of all nodes"),
        ({"sbatch": {"contiguous": True}}, "sbatch.contiguous", "each task is a job of one node"),
        ({"sbatch": {"array": "0-3"}}, "sbatch.array", "an array that the run sizes itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_means_nothing_for_tasks_is_refused(fields: dict[str, Any], where: str, message: str) -> None:
    """One error that names the field and what to do."""
    with pytest.raises(InputError, match=message) as caught:
        JobSpec(**{"command": "true", "mode": "array", **fields})
    assert where == caught.value.where


def test_what_means_something_for_one_node_is_taken() -> None:
    """One node in a list is a choice, and another job can be waited for."""
    spec = JobSpec(command="true", mode="array", nodelist="n1", dependency="afterok:7", nodes="1:2")
    assert 2 == spec.tasks


def test_an_array_that_the_cluster_does_not_allow_is_refused() -> None:
    """Where the cluster does not tell nobody is refused."""
    spec, slurm = JobSpec(command="true", mode="array", nodes="2:9", spares=1), ArraySlurm()
    check_size(spec, slurm)
    slurm.most = 9
    with pytest.raises(InputError, match="an array of 10 tasks, and this cluster allows 9"):
        check_size(spec, slurm)
    check_size(spec.replaced(mode="step"), slurm)
    slurm.is_silent = True
    check_size(spec, slurm)


class PartitionSlurm(ArraySlurm):
    """Has a partition of 5 nodes, and no other."""

    def nodes(self, partitions: str | None) -> list[ListedNode]:
        """Return its nodes."""
        self._answer()
        return (
            [ListedNode(f"n{number}", "idle") for number in range(5)] if partitions in (None, "low") else []
        )


def test_an_array_that_the_partition_cannot_hold_at_once_is_refused() -> None:
    """Slurm takes such an array; its tasks would wait for each other on idle nodes."""
    slurm = PartitionSlurm()
    spec = JobSpec(command="true", mode="array", nodes="6:9", exclusive=True, partition="low")
    with pytest.raises(InputError, match="6 whole nodes at once, and partition low has 5"):
        check_size(spec, slurm)
    for fits in ({"nodes": "5:9"}, {"exclusive": False}, {"partition": "no-such"}, {"mode": "step"}):
        check_size(spec.replaced(**fits), slurm)
    slurm.is_silent = True
    check_size(spec, slurm)
