"""What others have put beside one's runs: named, never opened, and never taken for one's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.cli.main import main
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, Entry, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission

NOBODY = 65534
EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "4711", ("n1",))
DONE = RunEnded(Decision.DONE, 0, "", None)
EVIL = "zz;touch pwned \x1b]0;OWNED\x07\u202e\n"
EVIL_SHOWN = r"zz;touch pwned \x1b]0;OWNED\x07\u202e\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
pytestmark = pytest.mark.timeout(120)  # nothing here waits


def make(name: str, job_name: str, job_id: str, *entries: Entry) -> RunPaths:
    """Make a submitted run below ./hpc_elastic_runs."""
    paths = RunPaths(os.path.join("hpc_elastic_runs", name))
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": name, "name": job_name, "user": "me"}))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": job_name}}))
    Path(paths.script).write_text("#!/bin/bash\n")
    submissions.record(paths, Submission(0, "token", job_id, "2026-11-21 10:00:00"))
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    return paths


def give_away(path: str | Path) -> None:
    """Have another user own a directory with all that is in it."""
    for place, directories, files in os.walk(path):
        for name in (place, *(os.path.join(place, each) for each in (*directories, *files))):
            os.lchown(name, NOBODY, NOBODY)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of its own, where there is no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-slurm"))


@needs_root
def test_runs_of_others_are_listed_by_name_only(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever is in them; their names act on no terminal and on no shell."""
    make("mine-1", "mine", "4711", STARTED)
    for name, job in (("theirs-1", "mine"), (EVIL, "evil")):
        theirs = make(name, job, "4711", STARTED)
        os.unlink(theirs.identity)
        os.mkfifo(theirs.identity)
        give_away(theirs.root)
    assert 0 == app.run(["status"])
    lines = capfd.readouterr().out.splitlines()
    assert ["mine-1", "theirs-1", EVIL_SHOWN] == [line.split("  ")[0] for line in lines[:3]]
    assert ["belongs to user nobody"] * 2 == [line.rpartition("  ")[2].strip() for line in lines[1:3]]
    assert "next: hpc-elastic status mine-1  (asks Slurm, too)" == lines[3]
    assert 4 == len(lines)


def test_the_advice_can_be_pasted_whatever_a_run_is_called(capfd: pytest.CaptureFixture[str]) -> None:
    """Also in the usual folder."""
    make("zz;touch pwned", "mine", "4711", STARTED)
    assert 0 == app.run(["status"])
    assert "next: hpc-elastic status 'zz;touch pwned'  (asks" in capfd.readouterr().out
    assert 2 == app.run(["status", "zz;touch pwmed"])
    assert "fix: perhaps 'hpc_elastic_runs/zz;touch pwned'" in capfd.readouterr().err


@needs_root
def test_many_runs_of_others_do_not_hide_ones_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Ten of them are named."""
    make("mine-1", "mine", "4711", STARTED)
    for number in range(13):
        place = Path(f"hpc_elastic_runs/theirs-{number}")
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
    assert 0 == app.run(["status"])
    lines = capfd.readouterr().out.splitlines()
    assert 10 == sum("belongs to user nobody" in line for line in lines)
    assert "and 3 more of other users" in lines


@needs_root
def test_nothing_is_looked_at_through_a_link_of_somebody_else(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither below the usual folder nor where the user names it; the usual folder may be one itself."""
    make("mine-1", "mine", "4711", STARTED)
    os.rename(make("mine-2", "mine", "4712", STARTED).root, "elsewhere")
    for link in ("hpc_elastic_runs/decoy-2", "decoy"):
        os.symlink(os.path.abspath("elsewhere"), link)
        os.lchown(link, NOBODY, NOBODY)
    assert 0 == app.run(["status"])
    assert "decoy" not in capfd.readouterr().out
    assert 2 == app.run(["status", "./decoy"])
    assert "RUN: ./decoy is a link of user nobody's, which is not followed" in capfd.readouterr().err
    os.rename("hpc_elastic_runs", "real")
    os.symlink("real", "hpc_elastic_runs")
    os.lchown("hpc_elastic_runs", NOBODY, NOBODY)
    for words in (["status"], ["stop", "mine-1"]):
        assert 2 == app.run(words)
        assert "RUN: hpc_elastic_runs is a link of user nobody's" in capfd.readouterr().err
    os.lchown("hpc_elastic_runs", os.geteuid(), -1)
    assert 0 == app.run(["status", "mine-1"])


@needs_root
@pytest.mark.parametrize("word", ["mine", "mine-1", "4711"])
@pytest.mark.parametrize("at", ["beside", "here", "a link here"])
def test_a_decoy_of_another_user_takes_nobodys_place(
    capfd: pytest.CaptureFixture[str], word: str, at: str
) -> None:
    """It is called the same and newer, or lies where the word leads to as a path."""
    mine = make("mine-1", "mine", "4711", STARTED)
    decoy = make("mine-29991231-000000-1", "mine", "4711", STARTED)
    if at == "here":
        os.rename(decoy.root, word)
        decoy = RunPaths(word)
    give_away(decoy.root)
    if at == "a link here":
        os.symlink(mine.root, word)
        os.lchown(word, NOBODY, NOBODY)
    assert 0 == app.run(["status", word])
    assert mine.root in capfd.readouterr().out
    assert 0 == app.run(["stop", word])
    said = capfd.readouterr()
    assert ("here" in at) == (f"{word} belongs to user nobody; this is your run" in said.err)
    assert read_state(mine).drain is not None or read_state(mine).ending is not None
    assert (None, None) == _asked_of(decoy)


def _asked_of(paths: RunPaths) -> tuple[object, object]:
    """Return what was asked of a run that belongs to another user."""
    for place, directories, files in os.walk(paths.root):
        for name in (place, *(os.path.join(place, each) for each in (*directories, *files))):
            os.lchown(name, os.geteuid(), -1)
    state = read_state(paths)
    return state.drain, state.ending


@needs_root
@pytest.mark.parametrize("word", ["theirs", "theirs-20261121-093000-77"])
def test_who_names_a_run_of_somebody_else_is_told_whose_it_is(
    capfd: pytest.CaptureFixture[str], word: str
) -> None:
    """By what its directory is called; what it holds nobody knows."""
    name = "theirs-20261121-093000-77"
    give_away(make(name, "theirs", "4711").root)
    assert 2 == app.run(["status", word])
    said = capfd.readouterr().err
    assert f"RUN: hpc_elastic_runs/{name} belongs to user nobody\n  fix: ask its owner" in said


@pytest.mark.parametrize("command", [["stop"], ["cancel"], ["scale", "--nodes", "1"], ["drill", "--preempt"]])
def test_a_name_of_several_runs_that_go_on_changes_none(
    capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """They are listed, so that one can be named."""
    runs = [make(f"twin-{number}", "twin", f"471{number}", STARTED) for number in (1, 2)]
    make("twin-3", "twin", "4713", STARTED, DONE)
    assert 2 == app.run([command[0], "twin", *command[1:]])
    said = capfd.readouterr().err
    assert "RUN: 2 runs that are called twin have not ended:\n  twin-1  job 4711: " in said
    assert "\n  twin-2  job 4712: " in said
    assert "fix: give the run id or the job id of the one that is meant" in said
    assert [(None, None)] * 2 == [(read_state(run).drain, read_state(run).ending) for run in runs]


def test_the_only_run_of_a_name_that_goes_on_is_meant(capfd: pytest.CaptureFixture[str]) -> None:
    """Though a newer one has ended; that is said."""
    living = make("twin-1", "twin", "4711", STARTED)
    make("twin-2", "twin", "4712", STARTED, DONE)
    assert 0 == app.run(["cancel", "twin"])
    assert "2 runs are called twin; this is the one that has not ended:\n  twin-1" in capfd.readouterr().err
    ending = read_state(living).ending
    assert ending is not None
    assert Decision.CANCELLED is ending.decision


def test_who_only_looks_gets_the_newest(capfd: pytest.CaptureFixture[str]) -> None:
    """And hears that there are others."""
    for number in (1, 2):
        make(f"twin-{number}", "twin", f"471{number}", STARTED)
    assert 0 == app.run(["status", "twin"])
    said = capfd.readouterr()
    assert "2 runs are called twin; this is the newest, twin-2" in said.err
    assert "hpc_elastic_runs/twin-2" in said.out


@pytest.mark.parametrize(
    "words", [["status"], ["status", "x"], ["run", "--nnodes", "1", "--run-dir", "r", "nix.py"]]
)
def test_the_name_of_the_working_directory_forges_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It may be one that somebody else has made."""
    there = tmp_path / f"a{EVIL}next: touch pwned"
    there.mkdir()
    monkeypatch.chdir(there)
    main(words)
    said = "".join(capfd.readouterr())
    assert EVIL_SHOWN in said
    assert [] == [line for line in said.splitlines() if line.startswith("next: touch")]
