"""A run with twenty secrets: none is in a text of ours, in a page to be sent around, or in a command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.report.explain.job_files import job_without_secrets, script_without_secrets
from hpc_elastic.slurm.job.script import render
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit.request import read_template
from tests.report.secrets_planted import PLANTED
from tests.slurm.test_script import NAMES
from tests.store.surroundings import REPOSITORY

PASSPHRASE, SETTING, HOOK = "of the variable", "the value of a plain setting", "of-the-message"
WORD = "a-word-of-the-command"  # each process of the run has it in its command line, as it has no other
ALL = [*(secret.value for secret in PLANTED), PASSPHRASE]
TRAIN = """
import glob, os, sys
with open("command_lines", "wb") as file:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            file.write(open(path, "rb").read() + b"\\n")
        except OSError:
            pass
print(os.environ["PLANTED"])
raise RuntimeError(os.environ["PLANTED"] + " and " + os.environ["MY_PASSPHRASE"])
"""
JOB = """
command = ["train.py", "--name", "{name}", "--api-key", "{word}"]
name = "t"
nodes = 1
workers_per_node = 1
max_restarts = 0
notify_command = "cat /proc/[0-9]*/cmdline >command_lines_at_the_end; : curl https://example.org/{hook}"
allow_local_run_dir = true
redirects = "3"  # the worker prints secrets of its own accord: its files alone have them
run_dir = "run"

[env]
MY_PASSPHRASE = "{passphrase}"
PLAIN_SETTING = "{setting}"
PLANTED = {planted}
"""


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """Return the directory in which a run has failed with all of them in its message."""
    (tmp_path / "train.py").write_text(TRAIN)
    planted = json.dumps(" | ".join(secret.text for secret in PLANTED))
    job = JOB.format(name="x", word=WORD, hook=HOOK, passphrase=PASSPHRASE, setting=SETTING, planted=planted)
    (tmp_path / "job.toml").write_text(job)
    told = hpc_elastic(tmp_path, "submit", "--local", "1", "job.toml", code=1)
    (tmp_path / "told").write_text(told)
    return tmp_path


def hpc_elastic(place: Path, *words: str, code: int = 0) -> str:
    """Run a command to its end and return all that it has said."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-m", "hpc_elastic", *words]
    done = subprocess.run(
        argv, cwd=place, env=environ, capture_output=True, text=True, check=False, timeout=170
    )
    assert code == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


def answers(place: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts of commands about the run."""
    for command in ("explain", "status", "timeline", "report", "checkpoints"):
        for flags in ([], ["--json"]):
            yield " ".join([command, *flags]), hpc_elastic(place, command, "run", *flags)
    for flags in ([], ["--json"]):
        yield f"all runs {flags}", hpc_elastic(place, "status", ".", *flags)
        yield f"nodes {flags}", hpc_elastic(place, "nodes", *flags)


def texts_of_ours(place: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts about the run, of commands and in files; beside them is the job itself."""
    yield from answers(place)
    for name in ("run.html", "run.md", "run.txt", "run.json"):
        hpc_elastic(place, "report", "run", "-o", name)
        yield name, (place / name).read_text()
    yield "what submit has told", (place / "told").read_text()
    for path in [*(place / "run" / "logs" / "agents").glob("*.log"), *(place / "run").glob("slurm-*.out")]:
        yield path.name, path.read_text()
    for name in ("command_lines", "command_lines_at_the_end"):
        yield name, (place / name).read_bytes().decode(errors="replace").replace("\0", " ")
    for path in (place / "run" / "journal").rglob("*"):
        if path.is_file():
            yield f"record {path.name}", path.read_bytes().decode(errors="replace")


@pytest.mark.slow
def test_no_text_of_ours_has_one(failed: Path) -> None:
    """The reason of the failure is told all the same."""
    texts = dict(texts_of_ours(failed))
    found = {(name, value) for name, text in texts.items() for value in ALL if value in text}
    found |= {
        (name, WORD) for name, text in texts.items() if WORD in text and not name.startswith("command_")
    }
    assert set() == found
    assert "RuntimeError: " in texts["explain"]
    assert re.search(r"RuntimeError.*\*\*\*", texts["report --json"])
    assert any(name.startswith("slurm-") for name in texts)
    assert "hpc_elastic" in texts["command_lines_at_the_end"]


@pytest.mark.slow
def test_a_page_has_no_value_of_a_variable(failed: Path) -> None:
    """Nor the command of messages; names of variables, and the settings of the run, are in it."""
    hpc_elastic(failed, "report", "run", "-o", "run.html")
    page = (failed / "run.html").read_text()
    assert (0, 0) == (page.count(SETTING), page.count(HOOK))
    assert "export PLAIN_SETTING=***" in page
    assert "&quot;PLAIN_SETTING&quot;: &quot;***&quot;" in page
    assert "&quot;workers_per_node&quot;: 1" in page
    assert SETTING in (failed / "run" / "job.sbatch").read_text()


def test_a_script_is_shown_without_values(tmp_path: Path) -> None:
    """Those with line ends and quotes, too, those of a script that was edited, and the words behind flags."""
    env = {"A": "of-two\nlines-of", "B": "it's-b", "PLAIN": "4", "C": "$HOME/x"}
    spec = JobSpec(
        command=["train.py", "--api-key", "abc def", "--hub-token", "xyz"],
        env=env,
        worker_env={"MINE": "of-workers"},
        setup=["export HF_TOKEN=of-a-line", "module load x"],
        notify_command="curl it's-b",
    )
    stored = spec.stored
    text = render(spec, NAMES, read_template())
    shown = script_without_secrets(text, stored)
    assert "of-workers" not in job_without_secrets(json.dumps({"spec": stored}))
    for value in ("of-workers", "of-two", "lines-of", "s-b", "abc def", "xyz", "curl", "$HOME/x"):
        assert value not in shown, value
    for name in env:
        assert f"export {name}=***\n" in shown
    assert "export HF_TOKEN=***" in shown
    assert "module load x" in shown
    by_hand = text.replace("export PLAIN=4", "export PLAIN=5 # mine")
    assert "5 # mine" not in script_without_secrets(by_hand, stored)
    assert ("", "") == (script_without_secrets("", {}), job_without_secrets(""))
    assert "(damaged)" == job_without_secrets("{")
    assert [1] == json.loads(job_without_secrets("[1]"))


def test_a_job_file_that_is_nested_without_end_is_damaged() -> None:
    """However deep: neither reading nor showing it ends in a traceback."""
    shown = {}
    for depth in (2, 200, 330, 480, 900, 970, 990, 100_000):
        text = f'{{"spec": {{"env": {"[" * depth}{"]" * depth}}}, "more": {"[" * depth}{"]" * depth}}}'
        shown[depth] = job_without_secrets(text)
    assert shown[2].startswith("{")
    assert "(damaged)" == shown[100_000]
    assert all(text == "(damaged)" or json.loads(text) for text in shown.values())
