"""`hpc-elastic init` on a real Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.real_slurm.cluster import Cluster, devcluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.jobs import PYTHON, USER, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def _elastic(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run(USER, [PYTHON, "-m", "hpc_elastic", *words], cwd=folder)


def _folder(cluster: Cluster) -> Path:
    """Return a directory of the user's with a training script."""
    folder = cluster.shared / "first"
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "train.py").touch()
    return folder


def test_slurm_takes_the_job_file_that_it_has_told(cluster: Cluster) -> None:
    """A dry run has sbatch judge it; sinfo knows partitions, nodes and GPUs."""
    folder = _folder(cluster)
    done = _elastic(cluster, folder, "init")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "does not answer" not in done.stderr
    text = (folder / "job.toml").read_text()
    assert "\npartition = " in text
    assert "\ngpus_per_node = " in text
    done = _elastic(cluster, folder, "submit", "--dry-run", "job.toml")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "#SBATCH --partition=" in done.stdout


def test_accounting_tells_the_account(start_cluster: StartCluster) -> None:
    """The default one of several is taken."""
    if devcluster("install", "--accounting", timeout_s=900).returncode != 0:
        pytest.skip("the packages for accounting cannot be installed")
    books = start_cluster(nodes=1, options=("--accounting",))
    for words in (
        ("add", "account", "ml,other"),
        ("add", "user", USER, "Account=other,ml", "DefaultAccount=ml"),
    ):
        books.execute("ctl", "sacctmgr", "--immediate", *words)
    folder = _folder(books)
    done = _elastic(books, folder, "init")
    assert 0 == done.returncode, done.stdout + done.stderr
    text = (folder / "job.toml").read_text()
    assert '\naccount = "ml"\n' in text
    assert "others: " in text
    assert "other" in text
