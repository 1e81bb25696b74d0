"""What a box of another Slurm is made from, and how a command line asks for one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from devcluster_lib import boxes, cgroups, state_file, suites
from devcluster_lib.addresses import first_slot
from devcluster_lib.cli import slurm_asked_for
from devcluster_lib.errors import DevClusterError
from devcluster_lib.processes import ProcessId

from hpc_elastic.slurm.client import parse
from tests.real_parts import require_root_and_namespaces
from tests.real_slurm import versions_page
from tests.real_slurm.facts import VERSIONS

SCRIPTS = Path(__file__).parents[2] / "scripts"
DEB822 = """
Types: deb
# http://snapshot.debian.org/archive/debian/20250520T000000Z
URIs: http://mirror.example.org/debian/
Suites: bookworm

Types: deb
URIs: http://mirror.example.org/debian-security
"""
UBUNTU = (
    "deb http://archive.ubuntu.com/ubuntu noble main\ndeb http://example.org/tools/debian-tools stable main\n"
)


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        (DEB822, "http://mirror.example.org/debian"),
        (
            "deb [signed-by=/k.gpg] https://deb.example.org/debian trixie main",
            "https://deb.example.org/debian",
        ),
        (UBUNTU, suites.DEBIAN),
        ("", suites.DEBIAN),
    ],
    ids=["deb822", "one line", "Ubuntu", "none"],
)
def test_the_machines_own_mirror_is_used(sources: str, mirror: str) -> None:
    """That of Debian itself, not of its security updates or of others; else where everybody finds it."""
    assert mirror == suites.mirror_in(sources)


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["start", "--nodes", "4"], (None, ["start", "--nodes", "4"])),
        (["--slurm", "24.11", "start", "--gpus", "2"], ("24.11", ["start", "--gpus", "2"])),
        (["--slurm=24.11", "run", "sinfo", "--slurm", "x"], ("24.11", ["run", "sinfo", "--slurm", "x"])),
        (["--slurm"], ("", [])),
    ],
)
def test_the_slurm_is_asked_for_ahead_of_the_command(
    argv: list[str], asked: tuple[str | None, list[str]]
) -> None:
    """What follows the command is its own."""
    assert asked == slurm_asked_for(argv)


def test_an_unknown_version_is_refused_by_name() -> None:
    """With those that there are."""
    with pytest.raises(DevClusterError, match=r"--slurm must be one of 20\.11, .*, not '23\.02'"):
        boxes.of("23.02")


def test_each_version_has_its_facts_and_is_tested() -> None:
    """A column of `facts`, a suite, and a place in `scripts/test --slurm all`."""
    assert VERSIONS == tuple(suites.SUITES) == tuple(map(parse.release_text, parse.TESTED))
    assert f"versions=({' '.join(VERSIONS)})" in (SCRIPTS / "test").read_text()


def test_the_page_about_versions_has_the_facts() -> None:
    """`python -m tests.real_slurm.versions_page` puts them there."""
    page = versions_page.PAGE.read_text(encoding="utf-8")
    assert page == versions_page.with_table(page, "facts", versions_page.facts_table())


def test_results_are_put_into_the_page() -> None:
    """One row per version and tracker, the oldest first."""
    one = {"slurm": "24.11.5", "python": "3.13.5", "tracker": "cgroup2", "passed": 45, "failed": 0}
    many = [
        {**one, "core": True, "date": "2026-11-24"},
        {**one, "slurm": "22.05.8", "core": False, "date": "d"},
    ]
    table = versions_page.results_table(versions_page.read(json.dumps(many)))
    rows = table.splitlines()[2:]
    assert "| 22.05.8 | 3.13.5 | cgroup2 | all but those with torch | 45 | 0 | d |" == rows[0]
    assert "| 24.11.5 | 3.13.5 | cgroup2 | core | 45 | 0 | 2026-11-24 |" == rows[1]
    page = "a\n<!-- results: begin -->\nold\n<!-- results: end -->\nb\n"
    assert f"a\n<!-- results: begin -->\n{table}<!-- results: end -->\nb\n" == versions_page.with_table(
        page, "results", table
    )
    with pytest.raises(ValueError, match="no place <!-- facts: begin -->"):
        versions_page.with_table(page, "facts", table)


def test_programs_in_a_box_get_what_tests_and_pip_are_told() -> None:
    """And nothing else of this machine's environment."""
    asked = {
        "PATH": "/mine",
        "DEVCLUSTER_DELAYS": "1:2",
        "CI": "true",
        "PIP_INDEX_URL": "x",
        "LD_PRELOAD": "y",
        "CITY": "z",
    }
    given = boxes.environment(asked)
    assert {"DEVCLUSTER_DELAYS": "1:2", "CI": "true", "PIP_INDEX_URL": "x"}.items() <= given.items()
    assert not {"LD_PRELOAD", "CITY"} & given.keys()
    assert "/mine" not in given["PATH"]


def test_boxes_take_other_addresses_than_the_machine() -> None:
    """They share its cgroups, which are named after a cluster's address."""
    slots = {first_slot(Path("/tmp/devcluster"), box) for box in ("", "24.11-a", "24.11-b")}
    assert 3 == len(slots)


@pytest.mark.parametrize(
    ("mounts", "place", "own", "hybrid"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", Path("/sys/fs/cgroup"), "0::/user.slice", False),
        (
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
            Path("/sys/fs/cgroup/unified"),
            "1:cpu:/\n0::/",
            True,
        ),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0", None, "1:cpu:/", True),
    ],
    ids=["v2", "hybrid", "v1"],
)
def test_which_cgroups_a_machine_has(mounts: str, place: Path | None, own: str, *, hybrid: bool) -> None:
    """Slurm's plugin for version 2 refuses machines that have version 1 as well."""
    assert (place, hybrid) == (cgroups.v2_mount(mounts), cgroups.is_hybrid(own))


PROGRAM_OF_A_BOX = """
import os, subprocess, sys
root, repository = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
os.mkdir(root + "/usr")
os.makedirs(root + repository)
subprocess.run(["mount", "--bind", repository, root + repository], check=True)
os.chroot(root)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_box_whose_repository_was_made_anew_is_told_from_one_that_fits(tmp_path: Path) -> None:
    """Its mount shows the directory that was deleted, also where another has the same name now."""
    require_root_and_namespaces("a box", ("mount",))
    repository, root = tmp_path / "repository", tmp_path / "root"
    repository.mkdir()
    root.mkdir()
    box = boxes.Box(suites.SUITES["24.11"], repository)
    words = ("unshare", "--mount", sys.executable, "-c", PROGRAM_OF_A_BOX, str(root), str(repository))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        init = ProcessId.of(int(program.stdout.readline()))  # type: ignore[union-attr] # it is a pipe
        assert init is not None
        assert box.sees_the_repository(init)
        shutil.rmtree(repository)
        assert not box.sees_the_repository(init)
        repository.mkdir()
        assert not box.sees_the_repository(init)
        program.communicate()


def test_boxes_of_repositories_that_are_gone_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their processes; those of others stay, and so does what another version has written."""
    monkeypatch.setattr(boxes, "FOLDERS", tmp_path)
    with subprocess.Popen(["sleep", "600"]) as left, subprocess.Popen(["sleep", "600"]) as kept:
        for name, process, repository in (
            ("gone", left, tmp_path / "gone repository"),
            ("here", kept, tmp_path),
        ):
            (tmp_path / name).mkdir()
            init = ProcessId.of(process.pid)
            assert init is not None
            state = {"init": {"pid": init.pid, "started": init.started}, "repository": str(repository)}
            state_file.write(tmp_path / name / "box.json", boxes.FORMAT, state)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "box.json").write_text('{"format": "another"}')
        boxes._close_abandoned()
        assert ["here", "other"] == sorted(path.name for path in tmp_path.iterdir())
        assert (-9, None) == (left.wait(60), kept.poll())
        kept.kill()
