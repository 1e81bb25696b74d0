"""``hpc-elastic submit --mode array`` as people use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.slurm.conftest import StandIn

ARRAY = [
    "submit",
    "--mode",
    "array",
    "--exclusive",
    "--time",
    "4h",
    "--allow-local-run-dir",
    "--run-dir",
    "r",
]
WORKER = ["--", "python3", "train.py"]

Capture = pytest.CaptureFixture[str]


def test_an_array_is_queued_by_the_same_command(workdir: Path, slurm_dir: StandIn, capsys: Capture) -> None:
    """One task per node, found again by the id of the array."""
    assert 0 == main([*ARRAY, "--nodes", "2:4", "--spares", "1", *WORKER])
    assert "train is queued as job 1000" in capsys.readouterr().out
    script = (workdir / "r" / "job.sbatch").read_text()
    assert "#SBATCH --nodes=1\n" in script
    assert "#SBATCH --array=0-4\n" in script
    assert 1 == len(slurm_dir.submissions())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mode", "swarm"], "--mode"),
        (["--dependency", "singleton"], "error: --dependency: dependency = 'singleton' in array mode"),
        (["--nodelist", "n[1-2]"], "error: --nodelist: nodelist = 'n[1-2]' in array mode"),
        (["-o", "array=0-3"], "error: -o array: the sbatch option --array cannot be given"),
        (["--spares", "-1"], "--spares"),
        (["--local", "2"], 'error: --local: mode = "array" needs Slurm'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_is_refused_before_anything_is_queued(
    workdir: Path, slurm_dir: StandIn, capsys: Capture, words: list[str], said: str
) -> None:
    """One error that names the option; no directory is left."""
    assert 2 == main([*ARRAY, "--nodes", "2", *words, *WORKER])
    assert said in capsys.readouterr().err
    assert [] == slurm_dir.submissions()
    assert not (workdir / "r").exists()
