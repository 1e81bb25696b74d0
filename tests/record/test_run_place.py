"""Which directory a run gets that nobody has given one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    RunEnded,
)
from hpc_elastic.record.run_directory import (
    directory_name,
    first_open,
    has_ended,
    places,
    prepare_run_dir,
    was_left,
)
from hpc_elastic.record.run_log import open_log

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "", ())
DONE = RunEnded(Decision.DONE, 0, "", None)
FAILED = RunEnded(Decision.FAILED, 1, "", None)
LEAVING = DrainRequested(Cause.INTERRUPT, "n1", AfterDrain.LEAVE, "SIGINT")
LEFT = Drained(EPOCH, Cause.INTERRUPT, None, "")


def a_run(root: Path, *entries: Entry) -> None:
    """Make a run directory with these records."""
    paths = RunPaths(root)
    prepare_run_dir(paths)
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


VANISHING = """
import os, sys
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_directory import prepare_run_dir
root, gone = sys.argv[1], []
def hide(event, args):
    if event == "os.listdir" and args[0] == root and len(gone) < 2:
        gone.append(os.rmdir(root))
sys.addaudithook(hide)
prepare_run_dir(RunPaths(root))
assert [None, None] == gone
"""


def test_a_directory_that_is_absent_again_for_a_moment_is_made(tmp_path: Path) -> None:
    """Gluster hides one for a moment that several clients make at once."""
    root = tmp_path / "run"
    subprocess.run([sys.executable, "-c", VANISHING, str(root)], check=True, timeout=120)
    assert Path(RunPaths(root).agent_logs).is_dir()


def test_a_name_that_is_free_is_taken(tmp_path: Path) -> None:
    """Nothing is made of it yet; a directory without records is as good as none."""
    root = str(tmp_path / "runs" / "x")
    assert root == first_open(root, has_ended)
    assert [] == list(tmp_path.iterdir())
    os.makedirs(root)
    assert root == first_open(root, has_ended)


@pytest.mark.parametrize("entries", [(), (STARTED,)], ids=["empty", "started"])
def test_a_run_that_goes_on_takes_in_who_comes(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    """Also one whose agents were killed: nobody can tell the one from the other here."""
    a_run(tmp_path / "x", *entries)
    root = str(tmp_path / "x")
    assert root == first_open(root, has_ended) == first_open(root, was_left)


@pytest.mark.parametrize("ending", [DONE, FAILED], ids=["done", "failed"])
def test_a_run_that_has_ended_is_passed_by(tmp_path: Path, ending: RunEnded) -> None:
    """All who look come to the same next one, whoever looks first."""
    a_run(tmp_path / "x", STARTED, ending)
    root = str(tmp_path / "x")
    assert f"{root}+2" == first_open(root, has_ended)
    a_run(tmp_path / "x+2", STARTED)
    assert f"{root}+2" == first_open(root, has_ended)
    a_run(tmp_path / "x+2", ending)
    assert f"{root}+3" == first_open(root, has_ended)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_run_of_somebody_else_is_passed_by(tmp_path: Path) -> None:
    """Whoever works in the same directory may use the same name."""
    a_run(tmp_path / "x", STARTED)
    os.chown(tmp_path / "x", 65534, 65534)
    for name, target in (("x+2", "own"), ("x+3", "nowhere")):  # links of theirs lead nowhere either
        (tmp_path / name).symlink_to(target)
        os.lchown(tmp_path / name, 65534, 65534)
    (tmp_path / "own").mkdir()
    assert str(tmp_path / "x+4") == first_open(str(tmp_path / "x"), has_ended)


def test_a_place_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """The error names it, and says whether another try makes sense."""
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="file/x: it cannot be looked at: Not a directory\n  fix: name a "):
        first_open(str(tmp_path / "file" / "x"), has_ended)
    with pytest.raises(StoreError, match="File name too long"):
        first_open(str(tmp_path / ("x" * 300)), has_ended)


@pytest.mark.parametrize("entries", [(LEAVING,), (LEAVING, LEFT)], ids=["leaving", "left"])
def test_a_run_that_was_left(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    """It can go on, if that is what is wanted."""
    a_run(tmp_path / "x", STARTED, *entries)
    root = str(tmp_path / "x")
    assert root == first_open(root, has_ended)
    assert f"{root}+2" == first_open(root, was_left)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("100", "head:29400"), "100_head-29400"),
        (("", "[fe80::1]:29400"), "fe80-1-29400"),
        (("../../etc", ""), "etc-13c1bb1e"),
        (("a b/c", "77"), "a-b-c-4fb6111f_77"),
        (("..", ""), "9608161c"),
        (("", ""), ""),
    ],
    ids=str,
)
def test_what_a_user_has_written_becomes_one_name(words: tuple[str, str], name: str) -> None:
    """It stays where it belongs, and can be typed."""
    assert name == directory_name(*words)


def test_runs_with_different_ids_do_not_meet() -> None:
    """Nor does a second run of one id meet the first of another; every name can be that of a directory."""
    ids = [
        "a/b",
        "a-b",
        "a b",
        "a\rb",
        "a..",
        "a",
        "..",
        "...",
        "/",
        "ä",
        "ö",
        "\udcff",
        "x" * 300,
        "x" * 301,
    ]
    names = [directory_name(run_id, "n1:29400") for run_id in ids]
    assert len(ids) == len({*names})
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) for name in names)
    host = "worker-0.service." + "x" * 60
    assert directory_name("", f"{host}:1") != directory_name("", f"{host}:2")
    second = list(islice(places(directory_name("a", "")), 2))[1]
    assert second not in [directory_name(run_id, "") for run_id in ("a_2", second)]
