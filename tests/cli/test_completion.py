"""The words that bash, zsh and fish offer behind ``hpc-elastic``, and the help of a command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.help_page import FIRST
from hpc_elastic.cli.main import main
from hpc_elastic.cli.parser import completion_script
from hpc_elastic.cli.run.flags import parser
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.settings.table import JOB
from tests.cli.recorded_runs import paths

__all__ = ["paths"]


def offered(shell: str, line: str, cwd: Path) -> list[str]:
    """Return the words that a shell gets for the last one of a line."""
    answer = cwd / "answer"
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": shell,
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    argv = [sys.executable, "-c", "from hpc_elastic.cli.main import main; main([])"]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environ, timeout=150, cwd=cwd, check=False
    )
    assert "" == done.stderr
    said = answer.read_text()
    answer.unlink()
    return [word for word in said.split("\v") if word]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_runs_are_offered(paths: RunPaths, tmp_path: Path, shell: str) -> None:
    """Those below the folder of runs, by the begin of their name."""
    folder = tmp_path / "hpc_elastic_runs"
    folder.mkdir(mode=0o700)
    os.rename(paths.root, folder / "toy-1")
    found = " ".join(offered(shell, "hpc-elastic status to", tmp_path))
    assert "toy-1" in found
    if shell == "bash":
        assert "toy-1" not in " ".join(offered(shell, "hpc-elastic status x", tmp_path))


def test_the_steps_of_the_run_that_is_resumed_are_offered(paths: RunPaths, tmp_path: Path) -> None:
    """Those of whole checkpoints; none without a run, and none of one that is not there."""
    for step, shards in ((40, 1), (45, 1), (50, 2)):
        write_mark(paths, MarkName(step, 1, 0, shards), None, world_size=1)
    line = "hpc-elastic submit --resume {} --from-step "
    assert {"40", "45"} == set(offered("bash", line.format(paths.root), tmp_path))
    assert [] == offered("bash", line.format("elsewhere"), tmp_path)
    assert [] == offered("bash", "hpc-elastic submit --from-step ", tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hpc-elastic rep", ["report"]),
        ("hpc-elastic submit --mode a", ["array"]),
        ("hpc-elastic report x --format h", ["html"]),
        (
            "hpc-elastic lint --explain HE20",
            ["HE201", "HE202", "HE203", "HE204", "HE205", "HE206", "HE207", "HE208", "HE209"],
        ),
        ("hpc-elastic watch --ra", ["--rank"]),
        ("hpc-elastic run --standal", ["--standalone"]),
        ("hpc-elastic run --max-r", ["--max-restarts"]),
        ("hpc-elastic run --nn", ["--nnodes"]),
        ("hpc-elastic finish --run", ["--run-dir"]),
        ("hpc-elastic submit trai", []),
        ("hpc-elastic submit -- --mo", []),
    ],
)
def test_commands_options_and_fixed_values_are_offered(
    tmp_path: Path, words: str, expected: list[str]
) -> None:
    """Where nothing is offered, bash completes names of files."""
    assert expected == offered("bash", words, tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_run_prints_the_completion_of_a_shell(shell: str) -> None:
    """By torchrun's flag, and no worker is started."""
    argv = [sys.executable, "-m", "hpc_elastic", "run", "--print-completion", shell]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=True)
    assert ("", f"{completion_script(shell)}\n") == (done.stderr, done.stdout)
    assert "hpc-elastic" in done.stdout
    assert "_ARGCOMPLETE" in done.stdout


def test_a_shell_without_completion_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names those that have it."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--print-completion", "tcsh"])
    assert 2 == ended.value.code
    assert "--print-completion: 'tcsh' is none of bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize("line", ["hpc-elastic submit trai", "hpc-elastic submit -- trai"])
def test_other_shells_get_the_names_of_files(tmp_path: Path, shell: str, line: str) -> None:
    """They look for none where a program answers."""
    (tmp_path / "train.toml").touch()
    assert ["train.toml"] == [word.rstrip(":") for word in offered(shell, line, tmp_path)]


def test_bash_completes_with_the_lines_that_are_installed(tmp_path: Path) -> None:
    """They are read once, however often they are installed."""
    program = tmp_path / "hpc-elastic"
    program.write_text(f"#!{sys.executable}\nfrom hpc_elastic.cli.main import main\nmain()\n")
    program.chmod(0o755)
    (tmp_path / ".bashrc").write_text("# mine")
    text = """
hpc-elastic --install-completion && hpc-elastic --install-completion && . ~/.bashrc
COMP_LINE="hpc-elastic wat" COMP_POINT=15 COMP_WORDBREAKS=" "
_python_argcomplete hpc-elastic
echo "offered: ${COMPREPLY[*]}"
complete -p hpc-elastic
"""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    argv = ["bash", "--norc", "-c", text]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=150, check=False)
    assert ("", 0) == (done.stderr, done.returncode)
    assert 2 == done.stdout.count(f"completion of bash is in {tmp_path}/.bash_completions/hpc-elastic.sh")
    assert "offered: watch" in done.stdout
    line = "source ~/.bash_completions/hpc-elastic.sh"
    assert ["# mine", line] == (tmp_path / ".bashrc").read_text().split("\n")[:-1]


@pytest.mark.parametrize("command", ["submit", "status", "watch", "logs", "lint", "drill"])
def test_help_of_a_command_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """`help X` is `X --help`."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = []
    for words in (["help", command], [command, "--help"]):
        assert 0 == main(words)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert f"hpc-elastic {command}" in shown[0]
    assert max(map(len, shown[0].splitlines())) <= 80


def test_the_help_of_a_job_names_ten_options_and_all_others_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each name is whole at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    entry = re.compile(r"^  (?:-\w, )?(--[a-z0-9-]+)", re.MULTILINE)
    assert 0 == main(["submit", "--help"])
    short = set(entry.findall(capsys.readouterr().out))
    assert 0 == main(["submit", "--help-all"])
    whole = set(entry.findall(capsys.readouterr().out))
    flags = {row.flag for name, row in JOB.items() if name != "command"}
    assert flags <= whole
    assert {JOB[name].flag for name in FIRST} == flags & short
