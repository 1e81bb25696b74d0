"""A working directory in which another user has planted modules: none of them runs as the owner of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.isolated.planted import PLANTED
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

OTHER = "bob"
PLANT = """
import os, sys
place, told, names = sys.argv[1], sys.argv[2], sys.argv[3:]
text = f'import os, time; open({told!r} + "/" + str(os.getuid()) + "." + __name__, "w"); os._exit(3)'
for name in names:
    with open(f"{place}/{name}.py", "w") as file:
        file.write(text)
os.mkdir(f"{place}/hpc_elastic")
with open(f"{place}/hpc_elastic/__init__.py", "w") as file:
    file.write(text)
with open(f"{place}/more.pth", "w") as file:
    file.write(f"import os; open({told!r} + '/pth', 'w')")
"""
TRAIN = """
import json, os, sys
with open(f"{sys.argv[1]}/told.{os.environ['RANK']}", "w") as file:
    json.dump([sys.path, sorted(name for name in os.environ if name.startswith("PYTHON"))], file)
"""
LOOP = """
import time
from hpc_elastic import worker
step = 0
while not worker.should_stop():
    time.sleep(0.1)
    step += 1
    worker.tick(step)
"""
SUBMIT = """
import sys
import hpc_elastic

def path():
    return [place for place in sys.path]

run = hpc_elastic.submit(
    path, nodes=2, gpus_per_node=1, cpus_per_node=2, time="10m", partition="low", run_dir=sys.argv[1],
    allow_local_run_dir=True,
)
print("job", run.job_id)
"""
JOB = ("--nodes", "2", "--gpus-per-node", "1", "--cpus-per-task", "2", "--time", "10m", "--partition", "low")


class Shared:
    """A directory that everybody may write to, in which another user was first."""

    def __init__(
        self, cluster: Cluster, name: str, names: tuple[str, ...] = PLANTED, *, plants: bool = True
    ) -> None:
        self.cluster = cluster
        self.place, self.told, self.own = (
            cluster.shared / f"{name}-{part}" for part in ("cwd", "told", "own")
        )
        for directory in (self.place, self.told):
            directory.mkdir()
            directory.chmod(0o1777)
        done = cluster.run(USER, ["mkdir", str(self.own)])
        assert done.returncode == 0, done.stderr
        (self.own / "train.py").write_text(TRAIN)
        (self.own / "submit.py").write_text(SUBMIT)
        if plants:
            self.plant(names)

    def plant(self, names: tuple[str, ...] = PLANTED) -> None:
        """Have the other user put modules there."""
        words = [PYTHON, "-I", "-c", PLANT, str(self.place), str(self.told), *names]
        done = self.cluster.run(OTHER, words)
        assert done.returncode == 0, done.stderr

    def started(self, *argv: str, **environ: str) -> Run:
        """Run a program there that submits the run."""
        done = self.cluster.run(USER, argv, cwd=self.place, env=environ)
        found = re.search(r"job (\d+)", done.stdout)
        assert found is not None, done.stdout + done.stderr
        return Run(self.cluster, self.own / "run", found[1])

    def submitted(self, flags: tuple[str, ...], worker: tuple[str, ...], **environ: str) -> Run:
        """Submit a program from there."""
        where = ("--run-dir", str(self.own / "run"), "--allow-local-run-dir")
        command = str(Path(PYTHON).parent / "hpc-elastic")
        return self.started(command, "submit", *where, *JOB, *flags, "--", *worker, **environ)

    @property
    def executed(self) -> list[str]:
        """What of the other user's has run."""
        return sorted(path.name for path in self.told.iterdir())

    def told_by(self, rank: int) -> list[list[str]]:
        """Return search path and variables of a worker."""
        found: list[list[str]] = json.loads((self.own / f"told.{rank}").read_text())
        return found


def test_nothing_of_another_users_runs(cluster: Cluster) -> None:
    """Agents, srun and finish work, and a worker's script searches its own directory first."""
    shared = Shared(cluster, "planted")
    run = shared.submitted((), (PYTHON, str(shared.own / "train.py"), str(shared.own)))
    assert "done" == run.wait_ending().ending.decision.value  # type: ignore[union-attr]
    run.wait_gone()
    assert ([], "COMPLETED") == (shared.executed, run.job()["JobState"])
    path, variables = shared.told_by(1)
    assert (str(shared.own), ["PYTHONUNBUFFERED"]) == (path[0], variables)
    assert str(shared.place) not in path


def test_variables_of_the_submit_shell_do_not_lead_there_either(cluster: Cluster) -> None:
    """The worker has them all the same."""
    shared = Shared(cluster, "variables")
    clean = ("env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", PYTHON)
    worker = ("/bin/sh", "-c", f'echo "$PYTHONPATH" > {shared.own}/kept; exec "$@"', "sh", *clean)
    run = shared.started(
        *(PYTHON, "-I", "-m", "hpc_elastic", "submit", "--run-dir", str(shared.own / "run")),
        *("--allow-local-run-dir", *JOB, "--", *worker, str(shared.own / "train.py"), str(shared.own)),
        PYTHONPATH=f".:{shared.place}",
        PYTHONHOME=str(shared.place),
        PYTHONSTARTUP=str(shared.place / "json.py"),
        PYTHONUSERBASE=str(shared.place),
    )
    assert "done" == run.wait_ending().ending.decision.value  # type: ignore[union-attr]
    assert ([], f".:{shared.place}\n") == (shared.executed, (shared.own / "kept").read_text())


def test_a_function_is_called_without_anything_of_another_users(cluster: Cluster) -> None:
    """It searches the working directory itself, as a module that Python starts there does."""
    shared = Shared(cluster, "function")
    run = shared.started(PYTHON, str(shared.own / "submit.py"), str(shared.own / "run"))
    assert "done" == run.wait_ending().ending.decision.value  # type: ignore[union-attr]
    code = f"import hpc_elastic; print(hpc_elastic.Run({str(run.directory)!r}).results()[1][0])"
    done = cluster.run(USER, [PYTHON, "-c", code])
    assert ([], f"{shared.place}\n") == (shared.executed, done.stdout)


def test_commands_beside_a_run_take_nothing_from_there(cluster: Cluster) -> None:
    """What drill and doctor start on the nodes, and the agents of a run that comes back."""
    shared = Shared(cluster, "beside")
    (shared.own / "loop.py").write_text(LOOP)
    run = shared.submitted((), (PYTHON, str(shared.own / "loop.py")))
    run.wait(lambda state: state.running is not None, "the workers to run")
    command = str(Path(PYTHON).parent / "hpc-elastic")
    struck = cluster.run(
        USER,
        [command, "drill", str(run.directory), "--crash", "--rank", "1", "--yes"],
        cwd=shared.place,
        timeout=120,
    )
    assert struck.returncode == 0, struck.stdout + struck.stderr
    looked = cluster.run(
        USER,
        [command, "doctor", "--nodes", "2", str(shared.own), "--", "-p", "low", "--overcommit"],
        cwd=shared.place,
        timeout=120,
    )
    assert "asking Slurm for 2 nodes" in looked.stdout, looked.stderr
    cluster.run(USER, [command, "cancel", str(run.directory)], cwd=shared.place)
    assert [] == shared.executed, looked.stdout


def test_what_is_planted_while_tasks_of_an_array_run_takes_no_part(cluster: Cluster) -> None:
    """In the rounds that follow, and in what the tasks do at their end."""
    shared = Shared(cluster, "later", plants=False)
    (shared.own / "loop.py").write_text(LOOP)
    run = shared.submitted(("--mode", "array"), (PYTHON, str(shared.own / "loop.py")))
    run.wait(lambda state: state.running is not None and len(state.running.members) == 2, "both nodes", 120)
    shared.plant()
    command = str(Path(PYTHON).parent / "hpc-elastic")
    struck = cluster.run(
        USER,
        [command, "drill", str(run.directory), "--crash", "--rank", "1", "--yes"],
        cwd=shared.place,
        timeout=120,
    )
    assert struck.returncode == 0, struck.stdout + struck.stderr
    stopped = cluster.run(USER, [command, "stop", str(run.directory)], cwd=shared.place)
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped" == run.wait_ending().ending.decision.value  # type: ignore[union-attr]
    assert [] == shared.executed


def test_a_run_on_this_machine_takes_nothing_from_there(cluster: Cluster) -> None:
    """Nor does what starts its agents in the place of Slurm."""
    shared = Shared(cluster, "here")
    command = str(Path(PYTHON).parent / "hpc-elastic")
    worker = (PYTHON, str(shared.own / "train.py"), str(shared.own))
    where = ("--run-dir", str(shared.own / "run"), "--local", "2", "--workers-per-node", "1")
    done = cluster.run(USER, [command, "submit", *where, "--", *worker], cwd=shared.place, timeout=120)
    assert (0, []) == (done.returncode, shared.executed), done.stderr
    assert str(shared.own) == shared.told_by(1)[0][0]


def test_a_clone_and_modules_of_the_users_own_change_nothing(cluster: Cluster) -> None:
    """The installed package runs, whatever the working directory has of the same name."""
    shared = Shared(cluster, "clone", ("signal", "json", "random"))
    (shared.place / "hpc_elastic" / "__init__.py").write_text("raise SystemExit('a clone')")
    run = shared.submitted((), (PYTHON, str(shared.own / "train.py"), str(shared.own)))
    assert "done" == run.wait_ending().ending.decision.value  # type: ignore[union-attr]
    assert [] == shared.executed
