"""Whole runs whose workers have another Python than their agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.ids import Env
from hpc_elastic.isolated import lookup
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.run_log import read_state
from hpc_elastic.testing.fake_slurm import FakeSlurm
from hpc_elastic.testing.waiting import wait_until
from tests.slurm.python_environments import make_python

pytestmark = pytest.mark.slow

TRAIN = f"""
import os, sys
import only_here
import hpc_elastic.worker
hpc_elastic.worker.tick(1)
hpc_elastic.worker.checkpoint_saved(1)
print("ran", sys.prefix, os.environ["MINE"], "{Env.OF_WORKERS}MINE" in os.environ, os.getcwd(), flush=True)
"""
RUNTIME = """#!{python}
# Takes the documented words of `apptainer exec` and `enroot start`; what an image has is in a directory.
import os, sys
name, action, *words = os.path.basename(sys.argv[0]), *sys.argv[1:]
assert (name, action) in (("apptainer", "exec"), ("enroot", "start")), sys.argv
valued = ("--bind", "--pwd") if name == "apptainer" else ("--mount", "--env")
given = []
while words[0].startswith("--"):
    option = words.pop(0)
    given.append((option, words.pop(0) if option in valued else ""))
image, *command = words
mounts = [value.split(":")[0] for option, value in given if option in ("--bind", "--mount")]
for needed in (os.environ["HPC_ELASTIC_RUN_DIR"], {package!r}):
    assert any(os.path.commonpath((needed, mount)) == mount for mount in mounts), (needed, mounts)
environ = {{**os.environ, "PATH": "{image}/bin:/usr/bin:/bin"}}
if name == "enroot":  # which passes no variable on that is not named
    names = [value for option, value in given if option == "--env"]
    environ = {{key: environ[key] for key in (*names, "PATH") if key in environ}}
os.chdir(dict(given).get("--pwd", "/"))
os.execvpe(command[0], command, environ)
"""


def hpc_elastic(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory."""
    argv = [sys.executable, "-m", "hpc_elastic", *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=170)


def test_the_workers_of_a_virtual_environment_use_the_packages_of_both(tmp_path: Path) -> None:
    """Those that are installed there and `hpc_elastic.worker`; their own variables reach no agent."""
    place = make_python(tmp_path / "venv", "only_here")
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ("--local=1", "--run-dir=run", "--venv=venv", "--worker-env=MINE=yes")
    done = hpc_elastic(tmp_path, "submit", *flags, "--", "train.py")
    assert f"ran {place} yes False {tmp_path}" in done.stdout, done.stdout + done.stderr
    assert 0 == done.returncode


def test_a_package_that_is_missing_is_told_with_both_pythons(tmp_path: Path) -> None:
    """It is none that `submit` looks for, so the worker finds out."""
    place = make_python(tmp_path / "venv")
    (tmp_path / "train.py").write_text("import only_here\n")
    flags = ("--local=1", "--run-dir=run", "--venv=venv", "--max-restarts=0")
    done = hpc_elastic(tmp_path, "submit", *flags, "--", "train.py")
    assert 1 == done.returncode, done.stdout + done.stderr
    told = f"its Python is {place}/bin/python3, the agent's is {sys.executable}"
    assert f"ModuleNotFoundError: No module named 'only_here'; {told}" in done.stdout


@pytest.mark.fake_slurm(grace=120, kill_wait=120, speed=120)
@pytest.mark.parametrize(("runtime", "image"), [("apptainer", "torch.sif"), ("enroot", "torch.sqsh")])
def test_the_workers_of_an_image_run_with_its_python(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, image: str
) -> None:
    """On two nodes, by a stand-in that takes the documented words of the runtime and no others."""
    place = make_python(tmp_path / "image", "only_here")
    program = tmp_path / "bin" / runtime
    program.parent.mkdir()
    text = RUNTIME.format(python=sys.executable, image=place, package=lookup.home())
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / image).touch()
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ("--nodes=2", "--time=10m", "--cpus-per-node=1", "--run-dir=run", "--allow-local-run-dir")
    more = ("--container", image, "--worker-env", "MINE=yes")
    done = hpc_elastic(tmp_path, "submit", *flags, *more, "--", "train.py")
    assert 0 == done.returncode, done.stderr
    paths = RunPaths(tmp_path / "run")
    wait_until(lambda: read_state(paths).ending is not None, "the end of the run", timeout_s=120)
    ending = read_state(paths).ending
    assert (Decision.DONE, None) == (ending and ending.decision, ending and ending.failure)
    logs = sorted(Path(paths.attempt_logs(1)).glob("*/stdout.log"))
    assert [f"ran {place} yes False {tmp_path}\n"] * 2 == [log.read_text() for log in logs]
