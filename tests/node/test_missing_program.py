"""Which program was not found, as the output of a worker tells."""

from __future__ import annotations

import subprocess

import pytest

from hpc_elastic.node.workers.local_group import missing_program_text

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
    assert "command not found: no-such-program" == missing_program_text(127, line, "apptainer", PATH)


@pytest.mark.parametrize(
    ("code", "tail"),
    [(1, "sh: 1: x: not found"), (127, "file not there"), (127, ""), (126, "sh: 1: x: not found")],
)
def test_nothing_is_guessed(code: int, tail: str) -> None:
    """Another exit code, or output without such a line, names no program."""
    assert "" == missing_program_text(code, tail, "sh", PATH)
