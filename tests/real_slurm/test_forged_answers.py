"""Runs with texts that look like Slurm's words, in the job and on its nodes: they go on like any other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from hpc_elastic.record.journal import Decision, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, Run, elastic, installed_for_users, plain, submit

__all__ = ["installed_for_users"]
pytestmark = pytest.mark.usefixtures("installed_for_users")

ONE = ("--nodes", "1", "--time", "10m", "--partition", "low")
FORGED = "JobState=CANCELLED Reason=None Restarts=0"
SUBMITTED = {  # name of a run -> flags of submit
    "plain": ("--name", "plain"),
    "name": ("--name", "x JobState=CANCELLED"),
    "newline": ("--name", "newline"),
    "comment": ("--name", "scaling NumNodes=0", "--comment", f"mine {FORGED}"),
}
UPDATED = {  # name of a run -> what its owner changes afterwards, which submit refuses
    "newline": f"name=x\nJobId=1 {FORGED} UserId=alice(1001)",
    "comment": f"comment=mine\n1|{FORGED}\n|CANCELLED",
}


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[None]:
    """Have an administrator give reasons, comments and features to nodes that hold words of Slurm's."""
    hostile = "x State=DOWN+NOT_RESPONDING Reason=NodeDown\nNodeName=node1 State=IDLE"
    for node in cluster.node_names:
        words = (f"comment={hostile}", f"extra={hostile}", "availablefeatures=a", "activefeatures=a")
        cluster.as_root("scontrol", "update", f"nodename={node}", *words)
    cluster.as_root("scontrol", "update", "nodename=node4", "state=drain", f"reason={hostile}")
    yield
    for node in cluster.node_names:
        words = ("comment=", "extra=", "availablefeatures=", "activefeatures=")
        cluster.as_root("scontrol", "update", f"nodename={node}", *words)
    cluster.as_root("scontrol", "update", "nodename=node4", "state=resume")


def started(run: Run) -> Run:
    """Wait until the workers run."""
    run.wait(lambda state: state.running is not None, "the workers to run", 120)
    return run


@pytest.mark.timeout(600)
def test_runs_whose_job_looks_cancelled_go_on(cluster: Cluster, admin: None) -> None:
    """After the end of their step all start their agents again, whatever the job is called."""
    worker = plain(cluster, "--step-time", "0.5")
    runs = {name: submit(cluster, (*ONE, *flags), worker) for name, flags in SUBMITTED.items()}
    place = cluster.shared / "work JobState=COMPLETED"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    runs["directory"] = submit(cluster, (*ONE, "-o", f"chdir={place}"), worker)
    for name, change in UPDATED.items():
        assert (
            0 == cluster.run("alice", ["scontrol", "update", f"jobid={runs[name].job_id}", change]).returncode
        )
    for run in runs.values():
        assert "RUNNING" in started(run).command("status", str(run.directory)).stdout
    for run in runs.values():
        cluster.run("alice", ["scancel", f"{run.job_id}.0"])
    for name, run in runs.items():
        run.wait(
            lambda state: state.epoch.relaunch == 1 and state.running is not None, f"{name} to go on", 120
        )
        assert 2 == len(run.entries(RoundFormed)), name
        assert run.state().ending is None, name
    for name, run in runs.items():
        run.command("cancel", str(run.directory))
        ending = run.wait_ending(120).ending
        assert ending is not None, name
        assert Decision.CANCELLED is ending.decision, name


SUBMIT = (PYTHON, "-m", "hpc_elastic", "submit", "--allow-local-run-dir", *ONE)
REFUSED = {"newline": "a\nb", "return": "a\rJobState=CANCELLED\r", "escape": "a\x1b[2Jb", "delete": "a\x7fb"}
TAKEN = {
    "C1": "a\x9b2Jb",
    "line end": "a\u2028JobState=CANCELLED",
    "turned": "a\u202eb",
    "no text": "a\udcffb",
}
ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\udc80-\udcff]")
"""What acts on a terminal, or is no text."""
CHANGED = (  # by the owner, while the job waits
    "name=x\x1b]0;OWNED\x07\x1b[2J JobState=FAILED",
    "comment=mine\rJobState=CANCELLED\r\x0b\x0c",
    "name=x\x1e\x1f|\t%j\x01JobState=CANCELLED",
    "mailuser=a\nJobState=CANCELLED Reason=None",
    "stdout=/tmp/x\nJobState=CANCELLED",
    "account=x\nJobState=CANCELLED",
)


def shown(cluster: Cluster, run: Run) -> str:
    """Return what alice sees of a run; nothing of it acts on her terminal."""
    done = [elastic(cluster, command, str(run.directory)) for command in ("status", "timeline")]
    assert [0, 0] == [each.returncode for each in done], done
    text = "".join(each.stdout + each.stderr for each in done)
    assert [] == ACTING.findall(text)
    return text


@pytest.mark.parametrize("kind", REFUSED)
def test_a_control_character_is_refused_before_anything_is_queued(cluster: Cluster, kind: str) -> None:
    """In the working directory, the run directory, the name and the comment; the error names it."""
    odd = REFUSED[kind]
    place = cluster.shared / f"cwd-{odd}"
    assert 0 == cluster.run("alice", ["mkdir", str(place)]).returncode
    new = ("--run-dir", str(cluster.shared / f"new-{kind}"))
    asked = {
        "--workdir": new,
        "--run-dir": ("--run-dir", str(cluster.shared / f"run-{odd}")),
        "--name": (*new, "--name", odd),
        "--comment": (*new, "--comment", odd),
    }
    for option, words in asked.items():
        cwd = place if option == "--workdir" else cluster.shared
        done = cluster.run("alice", [*SUBMIT, *words, "--", "true"], cwd=cwd)
        assert 2 == done.returncode, done.stdout
        assert done.stderr.startswith(f"error: {option}: "), done.stderr
        assert "control character" in done.stderr
        assert repr(odd)[1:-1] in done.stderr
        assert [] == ACTING.findall(done.stderr)
    assert "" == cluster.as_root("squeue", "--noheader", "--user=alice")


@pytest.mark.parametrize("kind", TAKEN)
def test_characters_that_slurm_takes_mislead_nobody(cluster: Cluster, kind: str) -> None:
    """A run whose directories, name and comment have them works, and they are shown as escapes."""
    odd = TAKEN[kind]
    place, directory = cluster.shared / f"cwd-{odd}", cluster.shared / f"taken-{odd}"
    assert 0 == cluster.run("alice", ["mkdir", str(place)]).returncode
    words = ("--run-dir", str(directory), "--name", odd, "--comment", odd, "--cpus-per-task", "1")
    argv = [
        PYTHON,
        "-m",
        "hpc_elastic",
        "submit",
        "--allow-local-run-dir",
        *ONE,
        *words,
        "--",
        "sleep",
        "300",
    ]
    done = cluster.run("alice", argv, cwd=place)
    found = re.search(r"job (\d+)", done.stdout)
    assert found is not None, done.stderr
    assert [] == ACTING.findall(done.stdout + done.stderr)
    run = started(Run(cluster, directory, found[1]))
    text = shown(cluster, run)
    assert "RUNNING" in text
    assert ascii(odd)[1:-1].replace("\\udc", "\\x") in text
    run.command("cancel", str(directory))
    ending = run.wait_ending(60).ending
    assert ending is not None
    assert Decision.CANCELLED is ending.decision


def test_control_characters_that_an_owner_writes_later_mislead_nobody(cluster: Cluster) -> None:
    """Slurm takes them from scontrol; the job is waiting, running and cancelled as it is."""
    runs = {change: submit(cluster, (*ONE, "-o", "hold"), ["sleep", "300"]) for change in CHANGED}
    for change, run in runs.items():
        update = ["scontrol", "update", f"jobid={run.job_id}", change]
        assert 0 == cluster.run("alice", update).returncode, change
        assert f"job         {run.job_id}: PENDING" in shown(cluster, run)
        assert 0 == cluster.run("alice", ["scontrol", "release", run.job_id]).returncode
    for run in runs.values():
        assert f"job         {run.job_id}: RUNNING" in shown(cluster, started(run))
        run.command("cancel", str(run.directory))
    for change, run in runs.items():
        ending = run.wait_ending(60).ending
        assert ending is not None, change
        assert Decision.CANCELLED is ending.decision, change


def test_jobs_of_bobs_with_the_mark_of_a_run_are_not_taken_for_its_own(cluster: Cluster) -> None:
    """Everybody can read the mark, by which a job is found whose submission was cut short."""
    run = submit(cluster, (*ONE, "--name", "marked", "-o", "hold"), plain(cluster))
    mark = cluster.run("bob", ["squeue", "--noheader", f"--jobs={run.job_id}", "--format=%k"]).stdout.strip()
    forged = ("--hold", f"--comment={mark}", "--job-name=marked")
    decoys = [cluster.submit("bob", *forged, *more, wrap="true") for more in ((), ("--array=0-3",))]
    record = run.directory / "submissions" / "000000.json"
    record.unlink()
    again = elastic(cluster, "submit", "--resume", str(run.directory))
    assert f"marked was already queued as job {run.job_id}\n" in again.stdout, again.stderr
    run.command("cancel", str(run.directory))
    cluster.wait_for(lambda: "CANCELLED" == run.job().get("JobState"), 60, "alice's job to be cancelled")
    assert ["PENDING", "PENDING"] == [cluster.job(job_id).get("JobState") for job_id in decoys]
