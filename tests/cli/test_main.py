"""The command line's routing and help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic import __version__
from hpc_elastic.cli.commands import COMMANDS
from hpc_elastic.cli.main import main

HEAVY = {"argcomplete"}


@pytest.mark.parametrize("command", ["run", "finish"])
def test_the_commands_of_the_nodes_import_nothing_heavy(command: str) -> None:
    """A thousand nodes call them at once."""
    code = (
        "import sys\nfrom hpc_elastic.cli.main import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED ")[2].split())
    assert not HEAVY & loaded


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", "x"],
        ["timeline", "x"],
        ["logs", "-n", "5", "x"],
        ["stop", "x"],
        ["cancel", "x"],
    ],
    ids=" ".join,
)
def test_a_plain_command_imports_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    """The commands that people type again and again load no other command, and no help."""
    code = (
        f"import sys\nfrom hpc_elastic.cli.main import main\nmain({words!r})\nprint('LOADED', *sys.modules)\n"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = set(done.stdout.rpartition("LOADED ")[2].split())
    others = {f"hpc_elastic.cli.commands.{home.module}" for home in COMMANDS.values()}
    mine = f"hpc_elastic.cli.commands.{COMMANDS[words[0]].module}"
    unasked = {"hpc_elastic.cli.help_page", "hpc_elastic.cli.usage", "psutil", "filelock", "logging"}
    assert {mine} == loaded & (others | HEAVY | unasked | {"dataclasses", "inspect"})


def test_help_groups_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Every panel is there, and the worker command in the usage line."""
    assert 0 == main(["submit", "--help-all"])
    shown = capsys.readouterr().out
    for words in (
        "[-- COMMAND...]",
        "The program",
        "Where it runs (Slurm)",
        "Time to save",
        "Failures and hangs",
        "--gpus-per-node",
    ):
        assert words in shown


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the package."""
    assert 0 == main(["version"])
    assert __version__ == capsys.readouterr().out.strip()


@pytest.mark.parametrize("words", [["--version"], ["--version", "status"]], ids=" ".join)
def test_version_is_an_option_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As of any program."""
    assert 0 == main(words)
    assert __version__ == capsys.readouterr().out.strip()


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2 and no error, and with the commands of the nodes."""
    assert 2 == main([])
    shown = capsys.readouterr()
    assert "" == shown.err
    assert "Run one agent" in shown.out
    assert "Decide whether the job is requeued" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope.py"], "training_script: the script nope.py does not exist\n  fix: check the path"),
        (["."], "training_script: . is a directory\n  fix: name the script in it"),
        (["--no-python", "no-such-program"], "training_script: the program no-such-program is not on PATH"),
        (["--no-python", "go"], "training_script: the program go is not on PATH\n  fix: write ./go"),
        (
            ["--max-retarts=3", "x.py"],
            "unrecognized arguments: --max-retarts=3\n  fix: did you mean --max-restarts",
        ),
    ],
    ids=repr,
)
def test_run_refuses_what_cannot_work_before_a_worker_starts(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One block on stderr, exit code 2, and no run directory."""
    monkeypatch.chdir(tmp_path)
    Path("go").write_text("#!/bin/sh\ntrue\n")
    code: object
    try:
        code = main(["run", *words])
    except SystemExit as stop:
        code = stop.code
    assert 2 == code
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert [tmp_path / "go"] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale", "x", "--nodes", "1:2"], "--nodes: '1:2' is not a whole number\n  fix: write a number"),
        (["scale", "x", "-N", "2.5"], "--nodes: '2.5' is not a whole number\n  fix: write a number"),
        (["submit", "--local", "two"], "--local: 'two' is not a whole number\n  fix: write a number"),
        (["logs", "x", "--rank", "x"], "--rank: 'x' is not a whole number\n  fix: write a number"),
        (["doctor", "--nodes", "1"], "--nodes: '1' is less than 2\n  fix: write 2 or more"),
        (
            ["doctor", "--nodes"],
            "--nodes: expected one argument\n  fix: write --nodes N; see hpc-elastic doctor --help\n",
        ),
        (
            ["submit", "--resume"],
            "--resume: expected one argument\n  fix: write --resume RUN_DIR; see hpc-elastic submit --help",
        ),
    ],
    ids=repr,
)
def test_a_wrong_number_is_named_with_its_option(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value stands in the error, and the way on is that of the command."""
    assert 2 == main(words)
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_run_without_a_script_asks_for_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Its arguments can be left out."""
    with pytest.raises(SystemExit):
        main(["run"])
    assert "required: training_script\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["sumbit"], ["submit", "--nodes"]], ids=repr)
def test_a_usage_error_is_one_block(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a way on."""
    assert 2 == main(words)
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert "\n  fix: " in shown
    assert "see hpc-elastic" in shown
