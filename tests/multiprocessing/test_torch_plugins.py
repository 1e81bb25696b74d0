"""Log specs that packages offer torchrun, with ours in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = """
import os
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

class Plain(DefaultLogsSpecs):
    pass

class ByWords(DefaultLogsSpecs):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

class OtherOrder(DefaultLogsSpecs):
    def __init__(self, tee=Std.NONE, redirects=Std.NONE, local_ranks_filter=None, log_dir=None):
        assert isinstance(redirects, (Std, dict)) and isinstance(tee, Std), (redirects, tee)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)

class Picky(DefaultLogsSpecs):
    def __init__(self, log_dir=None):
        super().__init__(log_dir)
"""
POINTS = """[torchrun.logs_specs]
plain = torch_plugins:Plain
by-words = torch_plugins:ByWords
other-order = torch_plugins:OtherOrder
picky = torch_plugins:Picky
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which a package with plug-ins is installed."""
    site = tmp_path / "site"
    (site / "torch_plugins-1.0.dist-info").mkdir(parents=True)
    (site / "torch_plugins.py").write_text(PLUGINS)
    (site / "torch_plugins-1.0.dist-info" / "METADATA").write_text("Name: torch-plugins\nVersion: 1.0\n")
    (site / "torch_plugins-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    return {**os.environ, "PYTHONPATH": str(site)}


def run(tmp_path: Path, environ: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a worker that prints a line."""
    argv = [sys.executable, "-m", "hpc_elastic.run", "--standalone", "--nproc-per-node", "2", *flags]
    argv += ["--log-dir", str(tmp_path / "logs"), "--no-python", "/bin/echo", "said"]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, cwd=tmp_path)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["default", "plain", "by-words", "other-order"])
@pytest.mark.parametrize("streams", ["1", "0:1,1:1"])
def test_log_specs_made_for_torchrun_work(
    tmp_path: Path, environ: dict[str, str], name: str, streams: str
) -> None:
    """They are called as torchrun calls them, with its `Std`."""
    done = run(tmp_path, environ, "--logs-specs", name, "--redirects", streams)
    assert 0 == done.returncode, done.stderr
    assert ["said\n"] * 2 == [path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")]


@pytest.mark.torch
def test_log_specs_are_chosen_by_the_environment_too(tmp_path: Path, environ: dict[str, str]) -> None:
    """As every flag."""
    done = run(tmp_path, {**environ, "PET_LOGS_SPECS": "plain"}, "--tee", "1")
    assert 0 == done.returncode, done.stderr
    assert 2 == done.stdout.count("said")


@pytest.mark.torch
def test_log_specs_that_cannot_be_made_are_named(tmp_path: Path, environ: dict[str, str]) -> None:
    """With what they do not take."""
    done = run(tmp_path, environ, "--logs-specs", "picky")
    assert 2 == done.returncode
    assert "the log specs 'picky' cannot be made" in done.stderr
    assert "redirects" in done.stderr
