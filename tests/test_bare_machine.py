"""The first command of a new user, on a machine that has no more than Python and a shell."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

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
