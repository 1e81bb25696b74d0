"""Bob gets at the directories above alice's runs: he can end them, but runs nothing as alice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_state
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run, installed_for_users
from tests.real_slurm.shared_place import GROUP, Project, group, project, wait_failed

__all__ = ["group", "installed_for_users"]
pytestmark = pytest.mark.usefixtures("group", "installed_for_users")

# before anything is queued


def test_a_folder_that_bob_made_first_is_refused_with_a_fix_that_works(cluster: Cluster) -> None:
    """In a sticky directory for all he has taken the name that runs have by default."""
    place = project(cluster, "root", 0o1777, "root")
    place.bob(f"mkdir {RUNS_FOLDER}; chmod 777 {RUNS_FOLDER}")
    refused = place.submit("--nodes", "1", "--", "true")
    assert f"{place.path}/{RUNS_FOLDER} (owner bob, mode 777) belongs to another user" in refused.stderr
    fix = re.search(r"fix: .*(--run-dir \S+)", refused.stderr)
    assert fix is not None, refused.stderr
    run = place.run(*fix[1].split(), worker="true")
    cluster.wait_state(run.job_id, "COMPLETED", 60)
    assert 0o700 == run.directory.parent.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        ("mkdir -m 777 run/nodes", "run/nodes"),
        ("mkdir -p run/logs/agents; ln -s /home/alice/.profile run/logs/agents/node1.log", "run/logs"),
        ("ln -s /home/alice run/checkpoints", "run/checkpoints"),
        ("mkfifo run/job.json", "run/job.json"),
    ],
    ids=["nodes", "agent's log", "link", "pipe"],
)
def test_what_bob_has_put_into_a_run_directory_is_refused_by_name(
    cluster: Cluster, plant: str, named: str
) -> None:
    """It was open to the group before; an empty one is taken and closed."""
    place = project(cluster, USER, 0o2775)
    for name in ("run", "empty"):
        made = cluster.run(USER, ["sh", "-c", f"umask 002; mkdir {name}"], cwd=place.path)
        assert made.returncode == 0, made.stderr
    place.bob(plant)
    refused = place.submit("--nodes", "1", "--run-dir", "run", "--", "true")
    assert 2 == refused.returncode
    assert f"{place.path}/{named} belongs to user" in refused.stderr, refused.stderr
    taken = place.submit("--dry-run", "--nodes", "1", "--run-dir", "empty", "--", "true")
    assert 0 == taken.returncode, taken.stderr


def test_a_directory_that_everybody_can_write_to_is_refused(cluster: Cluster) -> None:
    """By `submit` and `doctor`, with owner and mode; agents of a user's own step there are let be."""
    place = project(cluster, "root", 0o777, "root")
    refused = place.submit("--nodes", "1", "--run-dir", "run", "--", "true")
    assert f"everybody can write to {place.path} (owner root, mode 777)" in refused.stderr
    shown = cluster.run(USER, [PYTHON, "-m", "hpc_elastic", "doctor", str(place.path)])
    assert "PROBLEM  others" in shown.stdout, shown.stdout


# while the run goes on


def swap(place: Project, run: Run) -> None:
    """Put a directory of bob's in the place of the run's, by way of the folder above it."""
    above = run.directory.parent
    place.bob(f"mv {above} {above}.moved; mkdir {above}; {place.plant(run.directory)}")


def swap_for_a_link(place: Project, run: Run) -> None:
    """Put a link in the place of the folder."""
    above = run.directory.parent
    plant = place.plant(place.path / "x" / run.directory.name)
    place.bob(f"mv {above} {above}.moved; {plant} ln -s x {above}")


def swap_for_a_closed_one(place: Project, run: Run) -> None:
    """Put a directory there that alice cannot look into."""
    above = run.directory.parent
    place.bob(f"mv {above} {above}.moved; mkdir -m 700 {above}")


def swap_the_project(place: Project, run: Run) -> None:
    """Rename what is far above, which the PI owns."""
    above = run.directory.parents[1]
    place.bob(f"mv {above} {above}.moved; mkdir {above}; {place.plant(run.directory)}")


def open_by_the_owner(place: Project, run: Run) -> None:
    """Alice herself opens the directory to everybody."""
    done = place.cluster.run(USER, ["chmod", "a+rwX", str(run.directory)])
    assert done.returncode == 0, done.stderr


def exchange_two_runs(place: Project, run: Run) -> None:
    """Put another run of alice's in its place."""
    other = place.run("-o", "hold", "--run-dir", f"other/{run.directory.name}")
    above = run.directory.parent
    place.bob(f"mv {above} {above}.moved; mv {other.directory.parent} {above}")


Take = Callable[[Project, Run], None]
RUNNING: dict[str, tuple[Take, str]] = {
    "swapped": (swap, "it belongs to user bob, not to you"),
    "link": (swap_for_a_link, "it belongs to user bob, not to you"),
    "closed": (swap_for_a_closed_one, "belongs to user bob"),
    "far above": (swap_the_project, "it belongs to user bob, not to you"),
    "opened": (open_by_the_owner, "others can write to it (mode 777)"),
    "another run": (exchange_two_runs, "it holds the run "),
}


@pytest.mark.parametrize("case", RUNNING)
def test_a_run_whose_directory_is_taken_ends_with_a_clear_line(cluster: Cluster, case: str) -> None:
    """In the batch log and in the run's own records, wherever they are now; nobody waits."""
    take, words = RUNNING[case]
    place = project(cluster, "bob" if case == "far above" else USER, 0o2775)
    flags = ("--run-dir", "mine/runs/run") if case == "far above" else ("--run-dir", f"{RUNS_FOLDER}/run")
    run = place.run(*flags)
    assert 0o700 == run.directory.parent.stat().st_mode & 0o777
    opened = run.directory
    run.wait(lambda state: state.running is not None, "workers")
    held = os.open(opened, os.O_PATH)
    try:
        take(place, run)
        wait_failed(run)
        own = Path(f"/proc/self/fd/{held}")
        log = (own / f"slurm-{run.job_id}.out").read_text()
        assert words in log, log
        assert "the job is not requeued: run directory" in log
        assert "does not answer" not in log
        ending = read_state(RunPaths(str(own))).ending
        assert ending is not None
        assert words in ending.reason
    finally:
        os.close(held)
    assert [] == place.pwned


@pytest.mark.parametrize("take", [swap, swap_for_a_link, exchange_two_runs])
def test_a_job_starts_nothing_in_a_directory_that_was_taken_while_it_waited(
    cluster: Cluster, take: Take
) -> None:
    """Slurm appends its output to a file of bob's choice: the one line in it is always the same."""
    place = project(cluster, USER, 0o2775)
    run = place.run("-o", "hold", "--run-dir", f"{RUNS_FOLDER}/run", worker=f"touch {place.path}/began")
    take(place, run)
    cluster.as_root("scontrol", "release", run.job_id)
    wait_failed(run)
    assert "76:0" == run.job()["ExitCode"]
    (said,) = run.log().splitlines()
    assert said.startswith(f"hpc_elastic: another directory is in the place of {run.directory}")
    assert not (place.path / "began").exists()
    assert [] == place.pwned


def test_a_requeued_job_does_not_go_on_in_a_directory_that_was_taken_meanwhile(cluster: Cluster) -> None:
    """The run's own directory is as it was, and goes on when it is put back."""
    place = project(cluster, USER, 0o2775)
    run = place.run("--run-dir", f"{RUNS_FOLDER}/run")
    run.wait(lambda state: state.running is not None, "workers")
    cluster.as_root("scontrol", "requeuehold", run.job_id)
    cluster.wait_for(lambda: "PENDING" == run.job().get("JobState"), 60, "the job to be held")
    swap(place, run)
    cluster.as_root("scontrol", "release", run.job_id)
    wait_failed(run)
    assert [] == place.pwned
    above = run.directory.parent
    place.bob(f"mv {above} {above}.bobs; mv {above}.moved {above}")
    again = cluster.run(USER, [PYTHON, "-m", "hpc_elastic", "submit", "--resume", str(run.directory)])
    assert again.returncode == 0, again.stderr


def test_a_shared_project_is_usable_and_told_what_is_safe(cluster: Cluster) -> None:
    """One line at submission, and a warning of `doctor`."""
    place = project(cluster, "root", 0o2775)
    run = place.run("--run-dir", "mine/run", worker="true")
    cluster.wait_state(run.job_id, "COMPLETED", 60)
    warned = place.submit("--dry-run", "--nodes", "1", "--run-dir", "mine/run2", "--", "true").stderr
    (line,) = [each for each in warned.splitlines() if "in a shared place" in each]
    assert f"members of group {GROUP} can rename {place.path}/mine: they can end the run" in line
    shown = cluster.run(USER, [PYTHON, "-m", "hpc_elastic", "doctor", str(place.path)]).stdout
    assert re.search(f"warning +others +members of group {GROUP} can rename", shown), shown
