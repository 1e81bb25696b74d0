"""What workers search for modules is what Python by itself would, however their agent was started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.isolated.argv import own_argv
from tests.isolated.planted import plant

TELL = """
import json, os, sys
told = [sys.path, sorted(set(filter(lambda n: n.startswith("PYTHON"), os.environ))), str(sys.flags)]
print("told " + json.dumps(told))
"""
TELL_FUNCTION = """
import sys
import hpc_elastic

def tell():
    import os, sys
    names = sorted(name for name in os.environ if name.startswith("PYTHON"))
    return [sys.path, names, str(sys.flags)]

if __name__ == "__main__":
    run = hpc_elastic.submit(tell, local=1, run_dir=sys.argv[1])
    import json
    print("told " + json.dumps(run.result(50)))
"""
ENVIRON = {"PYTHONPATH": "/nowhere:relative:", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
AGENTS = {
    "job script": own_argv(sys.executable),
    "by hand": (sys.executable, "-m", "hpc_elastic"),
    "console script": (os.path.join(os.path.dirname(sys.executable), "hpc-elastic"),),
}
FLAGS = ("--standalone", "--run-dir", "run", "--nproc-per-node", "1")


def told(*argv: str, cwd: Path, **environ: str) -> list[object]:
    """Return what a worker has told, or a program like it."""
    done = subprocess.run(
        argv, cwd=cwd, env={**os.environ, **ENVIRON, **environ}, capture_output=True, text=True, check=False
    )
    lines = [line.partition("told ")[2] for line in done.stdout.splitlines() if "told [" in line]
    assert 1 == len(lines), (done.stdout, done.stderr)
    found: list[object] = json.loads(lines[0])
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a script in a folder, and a module."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.py").write_text(TELL)
    (tmp_path / "training.py").write_text(TELL)
    return tmp_path


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
@pytest.mark.parametrize("worker", [("folder/train.py",), ("-m", "training")], ids=" ".join)
def test_a_program_is_started_by_a_plain_python(
    project: Path, agent: tuple[str, ...], worker: tuple[str, ...]
) -> None:
    """Its own directory or the working directory is first, and no flag of the agent's reaches it."""
    plain = told(sys.executable, "-u", *worker, cwd=project)
    assert plain == told(*agent, "run", *FLAGS, *worker, cwd=project)


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_script_in_a_function_searches_what_it_would_by_itself(
    project: Path, agent: tuple[str, ...], method: str
) -> None:
    """``--run-path`` runs it as if it had been started."""
    plain = told(sys.executable, "folder/train.py", cwd=project)
    flags = ("--run-path", "--start-method", method)
    assert plain == told(*agent, "run", *FLAGS, *flags, "folder/train.py", cwd=project)


@pytest.mark.slow
def test_a_function_searches_what_a_module_would(project: Path) -> None:
    """The working directory is first, and what PYTHON* variables say holds."""
    (project / "folder" / "submit.py").write_text(TELL_FUNCTION)
    plain = told(sys.executable, "-u", "-m", "training", cwd=project)
    found = told(sys.executable, "folder/submit.py", "run", cwd=project)
    path, *rest = found
    assert plain[1:] == rest
    assert isinstance(path, list)
    assert plain[0] == [
        place for place in path if place != str(project / "folder")
    ]  # modules of the caller's


@pytest.mark.slow
def test_a_function_in_a_shared_directory_is_called(project: Path) -> None:
    """What lies there takes no part in how it is called; it may itself import it."""
    shared = plant(project / "shared")
    (project / "folder" / "submit.py").write_text(TELL_FUNCTION)
    del_path = ("env", "-u", "PYTHONPATH")
    assert told(*del_path, sys.executable, "../folder/submit.py", "../run", cwd=shared)


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_a_users_own_modules_do_not_break_an_agent(project: Path, agent: tuple[str, ...]) -> None:
    """Also where it was typed by hand, apart from what Python itself imports before it runs anything."""
    for name in ("signal", "json", "select", "subprocess", "tempfile", "psutil", "random", "argparse"):
        (project / f"{name}.py").write_text("raise SystemExit('a module of the same name')\n")
    (project / "folder" / "train.py").write_text("print('told [1]')")
    for number, path in enumerate((ENVIRON["PYTHONPATH"], str(project), "/nowhere")):
        begin = agent if path != "/nowhere" else (sys.executable, "-m", "hpc_elastic.run")
        words = ("run",)[: len(agent) if begin is agent else 0]
        flags = (*FLAGS[:1], "--run-dir", f"run{number}", *FLAGS[3:])
        assert [1] == told(*begin, *words, *flags, "folder/train.py", cwd=project, PYTHONPATH=path)


def test_a_run_on_this_machine_takes_no_module_from_its_directory(project: Path) -> None:
    """`submit --local` starts bash, srun's stand-in, agents and finish there."""
    shared = plant(project / "shared")
    worker = ("env", "-u", "PYTHONPATH", sys.executable, "-u", str(project / "folder" / "train.py"))
    words = ("submit", "--local", "1", "--tee", "3", "--run-dir", str(project / "run"), "--", *worker)
    assert told("env", "PYTHONPATH=.", *own_argv(sys.executable), *words, cwd=shared)
