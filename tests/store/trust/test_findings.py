"""What `doctor` says of those who can put another directory in the place of a run's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.store.check.findings import Level, trust_findings


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to a group")
@pytest.mark.parametrize(
    ("mode", "level", "said"),
    [
        (0o755, Level.OK, "only you and root can put another directory"),
        (0o2775, Level.WARNING, "members of group gid 54321 can rename {place}/run: they can end the run"),
        (0o777, Level.PROBLEM, "submit refuses it: everybody can write to {place} (owner root, mode 777)"),
    ],
)
def test_who_else_can_get_at_runs_is_told(tmp_path: Path, mode: int, level: Level, said: str) -> None:
    """And what is safe in a place that is shared with others."""
    os.chown(tmp_path, 0, 54321)
    tmp_path.chmod(mode)
    (finding,) = trust_findings(str(tmp_path))
    assert level is finding.level
    assert finding.value.startswith(said.format(place=tmp_path))
    assert (level is Level.WARNING) == ("they cannot run code as you in it, nor read it" in finding.value)
    assert (level is Level.OK) == (not finding.fix)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize(("uid", "level"), [(54321, Level.PROBLEM), (0, Level.OK)])
def test_the_folder_that_submit_uses_there_is_judged(tmp_path: Path, uid: int, level: Level) -> None:
    """Another user may have made it first in a directory that is safe by its sticky bit."""
    tmp_path.chmod(0o1777)
    runs = tmp_path / "hpc_elastic_runs"
    runs.mkdir(0o755)
    os.chown(runs, uid, uid)
    (finding,) = trust_findings(str(tmp_path))
    assert level is finding.level
    refusal = f"submit refuses it: {runs} (owner uid 54321, mode 755) belongs to another user"
    assert (level is Level.PROBLEM) == finding.value.startswith(refusal)
