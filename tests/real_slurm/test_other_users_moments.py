"""Bob exchanges directories above alice's runs at odd moments, again and again, or may do so by an ACL."""

from __future__ import annotations

import grp
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run, installed_for_users
from tests.real_slurm.shared_place import GROUP, Project, group, project, wait_failed

__all__ = ["group", "installed_for_users"]
pytestmark = pytest.mark.usefixtures("group", "installed_for_users")

ANSWER_S = 60  # a command takes a second or two
FORGED = "FORGED-BY-BOB"
FAIL = """
import os, sys, time
from hpc_elastic.multiprocessing.errors import record
started, go = sys.argv[1:]
with open(started + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(started + ".new", started)
while not os.path.exists(go):
    time.sleep(0.01)
@record
def main():
    raise ValueError("bad")
main()
"""
PLANT = """
import os, pickle, sys
root, victim, mark, forged, pid = sys.argv[1:]
os.umask(0)
for name in ("nodes", "members", "checkpoints", "steps", "submissions", "journal/000000", "logs/agents"):
    os.makedirs(f"{root}/{name}")
def write(name, data, mode=0o777):
    with open(f"{root}/{name}", "wb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
        file.write(data)
class Call:
    def __reduce__(self):
        return os.system, (f"id > {mark}.$(id -un)",)
for name in ("nodes/epilog", "job.sbatch", "batch.sh"):
    write(name, f"#!/bin/sh\\nid > {mark}.$(id -un)\\n".encode())
for name in ("call.pickle", "function.pickle"):
    write(name, pickle.dumps(Call()))
for name in ("run.json", "job.json", "site.json", "submissions/000000.json"):
    write(name, f'{{"format": 1, "run_id": "run", "name": "{forged}", "token": "{forged}"}}'.encode())
for number in range(1, 40):
    write(f"journal/000000/{number:08}", f'{{"kind": "{forged}", "reason": "{forged}"}}'.encode())
write(f"members/{forged}.1+0-0-0+running+1+1+9", b"")
os.mkfifo(f"{root}/drain")
for node in range(1, 5):
    os.mkfifo(f"{root}/logs/agents/node{node}.log")
os.makedirs(f"{root}/logs/attempt_1/0")
for name in ("error.json", f"error.json.{pid}.tmp", "error.json.tmp"):
    os.symlink(victim, f"{root}/logs/attempt_1/0/{name}")
for attempt in range(2, 6):
    os.makedirs(f"{root}/logs/attempt_{attempt}/0")
    for name in ("stdout.log", "stderr.log"):
        os.mkfifo(f"{root}/logs/attempt_{attempt}/0/{name}")
    write(f"logs/attempt_{attempt}/0/error.json", f'{{"message": "{forged}"}}'.encode())
"""
EXCHANGE = """
import ctypes, os, sys, time
call = ctypes.CDLL(None, use_errno=True).renameat2
names, count = [os.fsencode(name) for name in sys.argv[1:3]], 0
print("begun", flush=True)
while not os.path.exists(sys.argv[3]):
    assert call(-100, names[0], -100, names[1], 2) == 0, os.strerror(ctypes.get_errno())  # 2: exchange
    count += 1
    time.sleep(0.003)
if count % 2:
    call(-100, names[0], -100, names[1], 2)
print(count)
"""


class Moments(Project):
    """The shared directory, and things of alice's that are not in it."""

    @property
    def own(self) -> Path:
        """A directory of alice's alone."""
        return self.path.with_name(f"own-{self.path.name}")

    @property
    def victim(self) -> Path:
        """A file of alice's that is no business of any run's."""
        return self.own / "victim"

    def prepare(self) -> None:
        """Make them."""
        script = 'mkdir -m 755 "$1"; echo precious > "$1/victim"; cat > "$1/fail.py"'
        done = self.cluster.run(USER, ["sh", "-ec", script, "sh", str(self.own)])
        assert done.returncode == 0, done.stderr
        (self.own / "fail.py").write_text(FAIL)

    def plant_all(self, run: Path, pid: str = "1") -> None:
        """Have bob make a directory that looks like a run's."""
        words = (PLANT, str(run), str(self.victim), str(self.mark), FORGED, pid)
        done = self.cluster.run("bob", [PYTHON, "-I", "-c", *words], cwd=self.path)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def exchanging(self, one: Path, other: Path) -> Iterator[None]:
        """Have bob exchange two directories all the time."""
        stop = self.path / "stop"
        stop.unlink(missing_ok=True)
        user = ("setpriv", "--reuid", "bob", "--regid", "bob", "--init-groups", "--")
        argv = [*user, PYTHON, "-I", "-c", EXCHANGE, str(one), str(other), str(stop)]
        bob = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert bob.stdout is not None
        try:
            assert "begun\n" == bob.stdout.readline()
            yield
        finally:
            stop.touch()
            assert int(bob.communicate(timeout=30)[0]) > 1


@pytest.fixture
def place(cluster: Cluster) -> Moments:
    """Return a directory that alice and bob share, with things of alice's beside it."""
    found = Moments(*project(cluster, USER, 0o2775))
    found.prepare()
    return found


def untouched(place: Moments) -> bool:
    """Tell whether nothing of bob's has run as alice, and no other file of hers was changed."""
    return ("precious\n", []) == (place.victim.read_text(), place.pwned)


def test_a_worker_that_fails_just_then_writes_over_no_file_of_alices(place: Moments) -> None:
    """Its error file, whose name bob knows from its process id, is written through no link of his."""
    started, go = place.own / "started", place.path / "go"
    worker = (PYTHON, str(place.own / "fail.py"), str(started), str(go))
    flags = ("--nodes", "1", "--time", "5", "--run-dir", f"{RUNS_FOLDER}/run")
    done = place.submit(*flags, "--", *worker)
    found = re.search(r"job (\d+)\n", done.stdout)
    assert found is not None, done.stderr
    run = Run(place.cluster, place.path / RUNS_FOLDER / "run", found[1])
    place.cluster.wait_for(started.exists, 60, "the worker")
    place.plant_all(place.path / "fake" / "run", started.read_text())
    held = os.open(run.directory, os.O_PATH)
    try:
        place.bob(f"mv {RUNS_FOLDER} moved; mv fake {RUNS_FOLDER}; touch {go}")
        wait_failed(run)
        log = Path(f"/proc/self/fd/{held}/slurm-{run.job_id}.out").read_text()
    finally:
        os.close(held)
    assert untouched(place)
    assert "the job is not requeued: run directory" in log, log
    assert FORGED not in log


@pytest.mark.timeout(900)
def test_directories_that_are_exchanged_all_the_time_mislead_no_command(place: Moments) -> None:
    """Each one ends soon, says nothing of bob's, and the run is as it was when he has had enough."""
    run = place.run("-o", "hold", "--run-dir", f"{RUNS_FOLDER}/run", "--name", "mine")
    place.plant_all(place.path / "fake" / "run")
    commands = (
        *(("status",), ("status", "mine"), ("timeline", str(run.directory)), ("logs", str(run.directory))),
        *(("finish", "--run-dir", str(run.directory)), ("scale", str(run.directory), "--nodes", "1")),
        *(("drill", str(run.directory), "--crash", "--yes"), ("doctor", str(run.directory.parent))),
    )
    said = {}
    with place.exchanging(place.path / RUNS_FOLDER, place.path / "fake"):
        for words in commands * 3:
            argv = [PYTHON, "-m", "hpc_elastic", *words]
            done = place.cluster.run(USER, argv, cwd=place.path, timeout=ANSWER_S)
            said[words] = done.stdout + done.stderr
            assert untouched(place), words
    odd = {words: text for words, text in said.items() if FORGED in text or "Traceback" in text}
    assert {} == odd
    assert f"job         {run.job_id}: PENDING" in run.command("status", str(run.directory)).stdout
    run.command("cancel", str(run.directory))
    ending = run.state().ending
    assert ending is not None
    assert Decision.CANCELLED is ending.decision


@pytest.mark.timeout(900)
def test_agents_whose_directory_is_exchanged_all_the_time_do_nothing_of_bobs(place: Moments) -> None:
    """Starts of the run end, by themselves; it goes on when its directory is back."""
    run = place.run("--run-dir", f"{RUNS_FOLDER}/run", worker="sleep 1; exit 3")
    place.plant_all(place.path / "fake" / "run")
    run.wait(lambda state: state.running is not None, "workers")
    held = os.open(run.directory, os.O_PATH)
    try:
        with place.exchanging(place.path / RUNS_FOLDER, place.path / "fake"):
            run.wait_gone(120)
        log = Path(f"/proc/self/fd/{held}/slurm-{run.job_id}.out").read_text()
    finally:
        os.close(held)
    assert FORGED not in log
    assert untouched(place)
    assert not any(FORGED in record for record in run.journal().splitlines())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_job_whose_functions_are_exchanged_as_it_starts_runs_none_of_bobs(
    place: Moments, mode: str
) -> None:
    """It begins again and again, reads its own functions or ends; what it starts is the run's."""
    run = place.run("-o", "hold", "--mode", mode, "--run-dir", f"{RUNS_FOLDER}/run", worker="exit 3")
    place.plant_all(place.path / "fake" / "run")
    cluster = place.cluster
    over = ("FAILED", "COMPLETED", "CANCELLED")
    with place.exchanging(place.path / RUNS_FOLDER, place.path / "fake"):
        for _ in range(8):
            cluster.as_root("scontrol", "release", run.job_id)
            cluster.wait_for(
                lambda: cluster.job(run.job_id).get("JobState") in (*over, "RUNNING"), 60, "a start"
            )
            cluster.as_root("scontrol", "requeuehold", run.job_id)
            cluster.wait_for(lambda: "PENDING" == run.job().get("JobState"), 60, "the job to be held")
            assert untouched(place)
    cluster.as_root("scancel", run.job_id)
    run.wait_gone()
    assert untouched(place)


# access control lists


def acl(*entries: tuple[int, int, int]) -> bytes:
    """Return a POSIX ACL of entries: tag, permissions, user or group."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def for_bob(cluster: Cluster) -> bytes:
    """Return an ACL by which bob may do what the owner may."""
    bob = int(cluster.run("bob", ["id", "-u"]).stdout)
    nobody = 0xFFFFFFFF
    return acl((1, 7, nobody), (2, 7, bob), (4, 5, nobody), (16, 7, nobody), (32, 5, nobody))


def test_a_default_acl_gives_bob_nothing_in_a_run(place: Moments) -> None:
    """All that is made there would be open to him, but a run's directory and records are not."""
    os.setxattr(place.path, "system.posix_acl_default", for_bob(place.cluster))
    run = place.run("--run-dir", "mine/run", worker="true", umask="000")
    place.cluster.wait_state(run.job_id, "COMPLETED", 60)
    paths = RunPaths(run.directory)
    for path in (run.directory, Path(paths.journal), Path(paths.identity), Path(paths.script)):
        looked = place.cluster.run("bob", ["sh", "-c", f"ls {path} && cat {path} && touch {path}/x"])
        assert looked.returncode != 0, path
        assert 0 == path.stat().st_mode & 0o077, path


def test_an_acl_by_which_bob_may_rename_is_told_and_used_for_nothing(place: Moments) -> None:
    """Mode bits alone do not show it."""
    place.path.chmod(0o755)
    os.setxattr(place.path, "system.posix_acl_access", for_bob(place.cluster))
    told = place.submit("--dry-run", "--nodes", "1", "--run-dir", "mine/run", "--", "true").stderr
    assert f"user bob can rename {place.path}/mine: they can end the run" in told, told
    shown = place.cluster.run(USER, [PYTHON, "-m", "hpc_elastic", "doctor", str(place.path)]).stdout
    assert re.search("warning +others +user bob can rename", shown), shown
    run = place.run("--run-dir", "mine/run")
    run.wait(lambda state: state.running is not None, "workers")
    place.bob(f"mv mine moved; {place.plant(run.directory)}")
    wait_failed(run)
    assert untouched(place)


def test_an_acl_of_a_group_is_told_by_its_name(place: Moments) -> None:
    """It may be another one than the group of the directory."""
    place.path.chmod(0o755)
    subprocess.run(["chgrp", "root", place.path], check=True)
    gid, nobody = grp.getgrnam(GROUP).gr_gid, 0xFFFFFFFF
    entries = ((1, 7, nobody), (4, 5, nobody), (8, 7, gid), (16, 7, nobody), (32, 5, nobody))
    os.setxattr(place.path, "system.posix_acl_access", acl(*entries))
    told = place.submit("--dry-run", "--nodes", "1", "--run-dir", "mine/run", "--", "true").stderr
    assert f"members of group {GROUP} can rename {place.path}/mine" in told, told
