"""``submit --local``: what the terminal shows of much output, read slowly, not at all, or into a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_state
from hpc_elastic.testing.waiting import wait_until

pytestmark = pytest.mark.slow  # each is a whole run

TEMPLATES = Path(__file__).parents[2] / "sbatch_templates"
SHELLS = {"LC_ALL", "IFS"}  # which mean something to programs
CODE = 7
WORKER = f"""
import os, sys
text = b"".join(b"%09d %s\\n" % (number, b"x" * 89) for number in range({{lines}}))
while text:
    text = text[os.write(1, text):]
os.write(1, b"last words \\xff")
sys.exit({CODE})
"""


class Run:
    """A run of one node that prints lines of 100 bytes and fails.

    Args:
        home: an empty directory.
        lines: how many.
        output: takes what the command prints.
        before: words in front of the command.
    """

    def __init__(self, home: Path, lines: int, output: int | IO[bytes] | None, *before: str) -> None:
        self.paths = RunPaths(home / "run")
        script = home / "train.py"
        script.write_text(WORKER.format(lines=lines))
        argv = [*before, sys.executable, "-m", "hpc_elastic", "submit", "--allow-local-run-dir", "--local=1"]
        argv += [
            f"--run-dir={self.paths.root}",
            "--max-restarts=0",
            "--tee=3",
            "--",
            sys.executable,
            str(script),
        ]
        self.process = subprocess.Popen(argv, cwd=home, stdout=output, start_new_session=True)

    @property
    def batch_log(self) -> bytes:
        """All that was printed."""
        (path,) = Path(self.paths.root).glob("slurm-local-*.out")
        return path.read_bytes()

    def wait_ended(self) -> None:
        """Return when nothing is printed any more: `finish` has told how to go on."""
        wait_until(lambda: b"to start it again" in self._last_words(), "the end of the run", timeout_s=50)

    def _last_words(self) -> bytes:
        for path in Path(self.paths.root).glob("slurm-local-*.out"):
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 1000))
                return file.read()
        return b""


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Return a list of runs that are ended with the test."""
    made: list[Run] = []
    yield made
    for run in made:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait()
        if run.process.stdout is not None:
            run.process.stdout.close()


def after_announcement(output: bytes) -> bytes:
    """Return what was shown of the run itself."""
    return output[output.index(b"\n", output.index(b"this output: ")) + 1 :]


def test_a_terminal_that_is_not_read_is_told_what_was_left_out(tmp_path: Path, runs: list[Run]) -> None:
    """Each gap has its size, the run's own lines are all there, and so is the end with the failure."""
    runs.append(run := Run(tmp_path, 250_000, subprocess.PIPE))
    run.wait_ended()
    output, _ = run.process.communicate(timeout=150)
    shown = after_announcement(output)
    parts = re.split(
        rb"\.\.\. ([\d,]+) bytes were left out here; they are in \S+/slurm-local-\d+\.out\n", shown
    )
    at, printed = 0, run.batch_log
    for text, size in zip(parts[::2], [*parts[1::2], b"0"], strict=True):
        assert text == printed[at : at + len(text)]
        at += len(text) + int(size.replace(b",", b""))
    assert len(printed) == at
    assert len(parts) > 1
    assert re.findall(rb"\n(\[\d\d:.*)", b"\n" + printed) == re.findall(rb"\n(\[\d\d:.*)", b"\n" + shown)
    for words in (b"[rank 0] last words \xff\n", b"Root Cause", b"exit code %d" % CODE, b"to start it again"):
        assert words in shown
    assert run.process.returncode != 0


def test_a_file_gets_everything(tmp_path: Path, runs: list[Run]) -> None:
    """However fast workers print: a file makes nobody wait."""
    with (tmp_path / "output").open("wb") as file:
        runs.append(run := Run(tmp_path, 250_000, file))
        run.process.wait(50)
    assert run.batch_log == after_announcement((tmp_path / "output").read_bytes())


def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path, runs: list[Run]) -> None:
    """As with ``| head``: the run goes on to its end, and the log has everything."""
    runs.append(run := Run(tmp_path, 20_000, subprocess.PIPE))
    assert run.process.stdout is not None
    run.process.stdout.readline()
    run.process.stdout.close()
    run.process.wait(50)
    ending = read_state(run.paths).ending
    assert ending is not None
    assert ending.exit_code == run.process.returncode
    assert b"Root Cause" in run.batch_log


def test_a_reader_that_pauses_for_ever_can_be_left(tmp_path: Path, runs: list[Run]) -> None:
    """A signal that asks to end does not wait for the reader, whether the run has ended already or not."""
    runs.append(run := Run(tmp_path, 60_000, subprocess.PIPE))
    run.wait_ended()
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.process.wait(50) != 0


def test_without_a_terminal_no_other_file_is_written_to(tmp_path: Path, runs: list[Run]) -> None:
    """Where stdout is closed, its descriptor may belong to a file of the run."""
    runs.append(run := Run(tmp_path, 10, None, "sh", "-c", 'exec "$@" >&-', "sh"))
    run.process.wait(50)
    made = {path for path in Path(run.paths.root).rglob("*") if path.is_file()}
    texts = [path.read_bytes() for path in made - {Path(run.paths.start)}]  # that holds our own code
    assert 2 == sum(b"last words" in text for text in texts)
    assert b"Root Cause" in run.batch_log
    assert run.process.returncode != 0


def test_workers_keep_variables_of_any_name(tmp_path: Path) -> None:
    """Those of our job script and of its functions have other names: bash exports what is assigned to one."""
    templates = "".join(path.read_text() for path in sorted(TEMPLATES.iterdir()))
    ours = re.findall(r"^ *(?:local )?(\w+)\+?=", templates, re.MULTILINE)
    names = sorted({*ours, "nodes", "task", "agent", "worker", "finish", "elastic", "file", "code"} - SHELLS)
    names = [name for name in names if not name.startswith(("_he_", "HPC_ELASTIC_"))]
    (tmp_path / "train.py").write_text("import os\nfor name in NAMES: print(os.environ.get(name))\n")
    script = (tmp_path / "train.py").read_text().replace("NAMES", repr(names))
    (tmp_path / "train.py").write_text(script)
    words = [sys.executable, "-m", "hpc_elastic", "submit", "--allow-local-run-dir", "--local=1"]
    words += [f"--run-dir={tmp_path / 'run'}", "--max-restarts=0", "--setup", "true", "--", "train.py"]
    own = {name: f"its {name}" for name in names}
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [log] = (tmp_path / "run" / "logs" / "attempt_1").glob("0/stdout*")
    assert log.read_text().splitlines() == [f"its {name}" for name in names]
