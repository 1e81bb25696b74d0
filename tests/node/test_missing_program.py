"""Which program was not found, as the output of a worker tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.node.workers.local_group import missing_module_text, missing_program_text

PATH = "/usr/bin:/bin"


@pytest.mark.parametrize(
    "words",
    [
        ("/bin/sh", "-c", "no-such-program --x"),
        ("bash", "-c", "no-such-program --x"),
        ("bash", "-c", "exec no-such-program --x"),
        ("env", "no-such-program", "--x"),
    ],
)
def test_the_programs_of_a_node_tell_which_program_they_looked_for(words: tuple[str, ...]) -> None:
    """The text names it and the PATH in which it was looked for."""
    done = subprocess.run(words, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    told = missing_program_text(done.returncode, f"loading\n{done.stderr}", words[0], PATH)
    assert f"command not found: no-such-program, looked for in PATH {PATH}" == told


@pytest.mark.parametrize(
    "line",
    [
        'FATAL:   "no-such-program": executable file not found in $PATH',
        'exec: "no-such-program": executable file not found in $PATH: unknown',
    ],
)
def test_a_container_has_a_path_of_its_own(line: str) -> None:
    """That of the node says nothing about it."""
    told = "command not found: no-such-program in the image that apptainer runs"
    assert [told] * 2 == [missing_program_text(code, line, "/opt/apptainer", PATH) for code in (127, 255)]


def test_charliecloud_tells_it_with_an_exit_code_of_its_own() -> None:
    """Only its last line counts then: a program in the image may have printed such a line before."""
    line = "ch-run[7]: error: can't execve(2): python3: No such file or directory (ch_core.c:410 2)"
    told = "command not found: python3 in the image that ch-run runs"
    assert told == missing_program_text(1, line, "ch-run", PATH)
    assert "" == missing_program_text(1, f"{line}\nValueError: 3", "ch-run", PATH)


SAID = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'"


def test_a_module_that_a_python_lacks_is_told_with_both_pythons(tmp_path: Path) -> None:
    """That of the worker, that of the agent, and the one that a shell would have started."""
    for place in ("ours", "theirs", "first"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "python3").symlink_to(sys.executable)
    ours, theirs, first = (str(tmp_path / place / "python3") for place in ("ours", "theirs", "first"))
    path = str(tmp_path / "first")
    told = f"ModuleNotFoundError: No module named 'torch'; its Python is {theirs}, the agent's is {ours}"
    assert f"{told}, the first on PATH is {first}" == missing_module_text(SAID, ours, theirs, path)
    found = missing_module_text(SAID, ours, "python3", path)
    assert found.endswith(f"its Python is {first}, the agent's is {ours}")
    assert missing_module_text(SAID, ours, "/usr/bin/ch-run", path).endswith("the image which ch-run runs")


@pytest.mark.parametrize(
    ("text", "program"),
    [(SAID, "bash"), (f"{SAID}\nand more", "python3"), ("ValueError: 3", "python3"), ("", "python3")],
)
def test_no_python_is_named_without_need(text: str, program: str) -> None:
    """Only for a worker that is a Python, and ended with that error."""
    assert "" == missing_module_text(text, sys.executable, program, PATH)


@pytest.mark.parametrize(
    ("code", "tail"),
    [(1, "sh: 1: x: not found"), (127, "file not there"), (127, ""), (126, "sh: 1: x: not found")],
)
def test_nothing_is_guessed(code: int, tail: str) -> None:
    """Another exit code, or output without such a line, names no program."""
    assert "" == missing_program_text(code, tail, "sh", PATH)
