"""`hpc-elastic run --preload`: modules are imported once, and workers are forked."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.cli.run.flags import parser
from hpc_elastic.errors import InputError
from hpc_elastic.processes.linux import all_processes
from hpc_elastic.slurm.job.job_file import JobFile, build_spec
from hpc_elastic.slurm.job.script import agent_flags
from hpc_elastic.testing.waiting import wait_until
from tests.cli.lines import Line

COUNTED = "import os\nwith open('imports', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
SLOW = "import time\nopen('begun', 'w').close()\ntime.sleep(1000)\n"
FAILS_ONCE = """
import sys
HAD = "filelock" in sys.modules
import counted, filelock
rounds = os.environ["TORCHELASTIC_RESTART_COUNT"]
if rounds == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
print(f"round {rounds} {HAD}\\n", end="", flush=True)  # in one piece: two workers write at once
if rounds == "0":
    __import__("time").sleep(1000)
"""


def _line(home: Path, script: str, **modules: str) -> Line:
    for name, text in modules.items():
        (home / f"{name}.py").write_text(text)
    return Line(home, script)


@pytest.mark.slow
def test_modules_are_imported_once_for_all_workers_of_all_rounds(tmp_path: Path) -> None:
    """Two workers, and two more after a crash, which have what the first two imported."""
    line = _line(tmp_path, FAILS_ONCE, counted=COUNTED)
    words = ("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--preload=auto,counted,json")
    ended = line.run(*words, "w.py", "arg")
    assert 0 == ended.code, ended.err
    assert 2 == len((tmp_path / "imports").read_text().splitlines())  # anew with what was learned
    assert ["arg"] == ended.workers[0]["args"]
    assert ["0", "1"] == ended.env("RANK")
    assert "preloaded counted, json (" in ended.err
    assert "preloaded counted, json, filelock (" in ended.err
    assert 2 == ended.out.count("round 1 True")
    assert 1 == len(list((tmp_path).rglob("preload.json")))


def test_a_command_that_is_no_python_is_started_as_always(tmp_path: Path) -> None:
    """The agent's log says that nothing is preloaded."""
    ended = Line(tmp_path).run("--standalone", "--preload=json", "--no-python", "true")
    assert 0 == ended.code
    assert "nothing is preloaded: true is not started as python SCRIPT" in ended.err


def test_imports_that_last_do_not_delay_a_drain(tmp_path: Path) -> None:
    """The agent that waits for them acts on SIGTERM."""
    line = _line(tmp_path, "\n__import__('time').sleep(1000)", slow=SLOW)
    agent = line.start("--standalone", "--preload=slow", "w.py")
    wait_until((tmp_path / "begun").exists, "the import has begun", timeout_s=120)
    agent.send_signal(signal.SIGTERM)
    ended = line.end(agent)
    assert 128 + signal.SIGTERM == ended.code
    assert [] == _left(tmp_path)


def test_nothing_is_left_of_an_agent_that_is_killed(tmp_path: Path) -> None:
    """Neither the process that imports, nor a forked worker."""
    line = _line(tmp_path, "\n__import__('time').sleep(1000)")
    agent = line.start("--standalone", "--nproc-per-node=2", "--preload=json", "w.py")
    wait_until(lambda: len(line.workers()) == 2, "the workers run", timeout_s=120)
    agent.kill()
    agent.communicate()
    wait_until(lambda: _left(tmp_path) == [], "all have ended")


def _left(home: Path) -> list[str]:
    """Return the living processes that work in a directory."""
    found = []
    for stat in all_processes():
        try:
            if not stat.is_dead and os.readlink(f"/proc/{stat.pid}/cwd") == str(home):
                found.append(f"{stat.pid} {stat.name}")
        except OSError:
            continue
    return found


def preload_of(*words: str) -> tuple[str, ...]:
    """Return the modules that a line names."""
    found: tuple[str, ...] = parser().parse_args([*words, "x.py"]).preload
    return found


def test_names_may_be_joined_by_commas_or_blanks() -> None:
    """A flag may be repeated."""
    assert ("torch", "a.b") == preload_of("--preload", "torch, a.b torch")
    assert () == preload_of()
    assert ("torch", "a.b") == preload_of("--preload", "torch", "--preload=a.b")


def test_a_variable_names_modules_unless_a_flag_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error names the variable that a wrong name comes from."""
    monkeypatch.setenv("PET_PRELOAD", "a/b")
    assert ("torch",) == preload_of("--preload=torch")
    assert () == preload_of("--preload=")
    with pytest.raises(SystemExit):
        preload_of()
    assert "--preload: 'a/b' is no name of a module (from PET_PRELOAD)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["my-pkg", "a..b", "train.py/", ".torch", "1a", "a b/c", "train.py"])
def test_what_is_no_name_of_a_module_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started, or queued; all doors say so in the same words."""
    with pytest.raises(SystemExit):
        preload_of("--preload", name)
    said = capsys.readouterr().err
    assert "error: --preload: " in said
    assert "is no name of a module\n  fix: write torch,mypackage" in said
    with pytest.raises(InputError, match="is no name of a module") as caught:
        build_spec(JobFile(), {"command": ["x.py"], "preload": [name]})
    assert ("--preload", "write torch,mypackage") == (caught.value.where, caught.value.fix)


def test_a_job_hands_the_modules_to_its_agents() -> None:
    """As one word, whether --preload was repeated or names several."""
    assert "--preload=auto,a.b" in agent_flags(
        build_spec(JobFile(), {"command": "x.py", "preload": "auto a.b"})
    )
    for preload in (["torch", "a.b", "c"], ["torch,a.b", "c"], "torch, a.b c"):
        spec = build_spec(JobFile(), {"command": ["x.py"], "preload": preload})
        assert "--preload=torch,a.b,c" in agent_flags(spec)


def test_doctor_tells_which_modules_can_be_preloaded_and_what_is_gained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that cannot be shared is a warning with its reason, also where only a worker shows it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "0")  # as in a worker's shell
    (tmp_path / "reads.py").write_text("import os\nrank = os.environ.get('RANK')\n")
    assert 0 == main(["doctor", "--preload", "json,reads,no_such_module"])
    shown = capsys.readouterr().out.splitlines()
    assert "no_such_module cannot be imported: ModuleNotFoundError" in shown[0]
    assert shown[0].startswith("warning")
    assert shown[1].endswith(
        f"fix: correct the name, or install it for {sys.executable}; your own are searched in {tmp_path}"
    )
    assert "reads reads RANK (in reads), which each worker has for itself" in shown[2]
    assert shown[3].endswith("fix: leave it out: workers import it themselves")
    assert any("preloaded json (" in line for line in shown)
    assert "a forked one has them in" in shown[-1]


def test_doctor_tells_that_nothing_can_be_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then there is nothing to be gained, and no names are an error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "socket.py").write_text("")
    assert 0 == main(["doctor", "--preload", "no_such_module"])
    assert "a forked one" not in capsys.readouterr().out
    assert 2 == main(["doctor", "--preload", "auto"])
    assert 2 == main(["doctor", "--preload", ","])
