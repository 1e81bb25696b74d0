"""The first command of a new user, on a machine that has no more than Python and a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_parts import require_root_and_namespaces

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from devcluster_lib import boxes
from devcluster_lib.suites import BARE_SUITE

ROOT = Path(__file__).parents[1]
OF_PROCPS = re.compile("free|kill|p(?:grep|idof|idwait|kill|map|s)|top|uptime|watch")
PLACES = ("/usr/local/bin", "/usr/bin", "/bin")


def bare_path(directory: Path) -> str:
    """Return a PATH with this machine's programs but those of procps, which Debian's smallest image lacks."""
    directory.mkdir()
    for place in filter(os.path.isdir, PLACES):
        for name in os.listdir(place):
            link = directory / name
            if not OF_PROCPS.fullmatch(name) and not link.is_symlink():
                link.symlink_to(os.path.join(place, name))
    return str(directory)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quickstart_needs_no_procps(tmp_path: Path) -> None:
    """A worker and a node are found and killed, and the run ends with its result."""
    path = bare_path(tmp_path / "bin")
    done = subprocess.run(
        [str(ROOT / "scripts" / "quickstart"), "--plain"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 of a worker on local2 (pid " in done.stdout
    assert "(pid )" not in done.stdout
    assert "the run is done" in done.stdout + done.stderr or "result: {" in done.stdout
    assert "command not found" not in done.stderr


@pytest.fixture
def bare_box() -> Iterator[boxes.Box]:
    """Open a root tree of Debian's smallest variant with Python and git, in namespaces of its own."""
    require_root_and_namespaces("bare machine", ("mount", "pid", "net"))
    box = boxes.Box(BARE_SUITE)
    yield box
    boxes.close_box(box)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_bare_root_tree_is_enough(bare_box: boxes.Box) -> None:
    """Each script brings what it needs; nothing is called that the tree does not have."""
    tests = ("tests/processes/test_guard.py", "tests/launcher/test_signals.py", "-m", "not (slow or torch)")
    for words, script, last in (  # one after the other: the repository has one such box
        (("scripts/quickstart", "--plain"), 'cd /tmp && exec "$0/$@"', "all of it is in "),
        (("scripts/test", *tests), 'cd "$0" && exec "$@"', " passed"),
    ):
        argv = boxes.entering(bare_box, ("sh", "-c", script, str(ROOT), *words), network=True)
        done = subprocess.run(
            argv, env=boxes.environment(os.environ), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert last in done.stdout.splitlines()[-1], done.stdout
        assert "not found" not in done.stderr
