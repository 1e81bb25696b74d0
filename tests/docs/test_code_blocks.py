"""The code in the documentation runs, and prints what stands below it; commands and files are valid."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.multiprocessing.logs import PLUGIN_GROUPS as LOGS_GROUPS
from hpc_elastic.rendezvous.registry import PLUGIN_GROUPS as HANDLER_GROUPS
from tests.docs.commands import slips
from tests.docs.pages import Block, all_blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

# What a page takes for granted in a block marked `python worker`: the reader's own training code.
TRAINING_CODE = """
steps, path = 3, "checkpoint"
train = lambda step: None
save = lambda path: open(path, "w").close()
"""
KINDS: dict[str, set[tuple[str, ...]]] = {
    "": {()},  # commands to type, or what they print
    "bash": {()},
    "console": {(), ("slow",)},
    "python": {
        *(("runnable",), ("runnable", "slow"), ("runnable", "torch")),
        *(("worker",), ("script",), ("signature",)),  # a script is for a session of the same page
        ("fragment",),  # of a script that needs more than the page shows
    },
    "mermaid": {()},  # drawn by the forge
    "text": {()},
    "toml": {(), ("pyproject",), ("settings",)},
}
_OUTPUT_FLAGS = doctest.ELLIPSIS

ALL = all_blocks()


def _with(language: str, mark: str = "", without: str = "-") -> list[Any]:
    """Return the blocks of a kind as parameters; those that take long, or torch, are marked."""
    return [
        pytest.param(block, id=block.place, marks=[getattr(pytest.mark, name) for name in _marks(block)])
        for block in ALL
        if block.language == language and (not mark or mark in block.marks) and without not in block.marks
    ]


def _marks(block: Block) -> list[str]:
    return [name for name in ("slow", "torch") if name in block.marks]


def _check_output(block: Block, printed: str) -> None:
    if block.output is None:
        return
    same = doctest.OutputChecker().check_output(block.output, printed, _OUTPUT_FLAGS)
    assert same, f"{block.place}: shown\n{block.output}\nprinted\n{printed}"


def _run(argv: list[str], cwd: Path, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, "PYTHONWARNINGS": "error", **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_every_block_is_of_a_known_kind() -> None:
    """A block with a slip in its fence is not passed over in silence."""
    unknown = [block.place for block in ALL if block.marks not in KINDS.get(block.language, set())]
    assert [] == unknown


@pytest.mark.parametrize("block", _with("python", "runnable"))
def test_code_runs_as_shown(block: Block, tmp_path: Path) -> None:
    """A reader who copies the block into a file gets what the page promises."""
    (tmp_path / "block.py").write_text(block.code, encoding="utf-8")
    _check_output(block, _run([sys.executable, "-W", "error", "block.py"], tmp_path))


@pytest.mark.parametrize("block", _with("python", "worker"))
def test_code_runs_in_workers(block: Block, tmp_path: Path) -> None:
    """What is to run in a worker does so, on two ranks."""
    (tmp_path / "block.py").write_text(TRAINING_CODE + block.code, encoding="utf-8")
    agent = [sys.executable, "-m", "hpc_elastic.run", "--nproc-per-node", "2", "--run-dir", "run"]
    _run([*agent, "block.py"], tmp_path)


@pytest.mark.parametrize("block", _with("python", "fragment"))
def test_fragments_import_what_there_is(block: Block) -> None:
    """A fragment is Python, and every name that it imports from this package exists."""
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hpc_elastic"):
            module = importlib.import_module(node.module)
            assert [] == [name.name for name in node.names if not hasattr(module, name.name)]


@pytest.mark.parametrize("block", _with("python", "signature"))
def test_signatures_are_no_code(block: Block) -> None:
    """A block of signatures has nothing else, so that the test of the reference sees all of it."""
    parts = re.split(r"^(?=[A-Za-z_])", block.code.strip(), flags=re.MULTILINE)
    for part in filter(None, parts):
        compile(f"def _({part.strip().partition('(')[2]}: ...", block.place, "exec")


@pytest.mark.parametrize("block", _with("console"))
def test_sessions_go_as_shown(block: Block, tmp_path: Path) -> None:
    """Commands after ``$`` print what stands below them; files they need are in blocks of the same page."""
    for other in ALL:
        named = re.match(r"# (\w+\.py)\b", other.code)
        if other.page == block.page and other.language == "python" and named:
            (tmp_path / named[1]).write_text(other.code, encoding="utf-8")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE):
        printed = _run(["bash", "-c", command], tmp_path, {"PATH": path})
        _check_output(block._replace(output=shown), printed)


@pytest.mark.parametrize("block", _with("python", "script"))
def test_scripts_are_run_in_a_session(block: Block) -> None:
    """A script that cannot run by itself is run by what is typed on the same page."""
    name = block.code.split()[1]
    assert any(name in other.code for other in ALL if (other.page, other.language) == (block.page, "console"))


@pytest.mark.parametrize("block", _with("toml", "pyproject"))
def test_entry_points_are_those_that_are_looked_for(block: Block) -> None:
    """A part of a pyproject.toml names a group of entry points that the package knows."""
    groups = tomllib.loads(block.code)["project"]["entry-points"]
    assert set(groups) <= {*LOGS_GROUPS, *HANDLER_GROUPS}


@pytest.mark.parametrize("block", _with("toml", "settings"))
def test_settings_files_are_valid(block: Block, tmp_path: Path) -> None:
    """Each of their profiles, too."""
    (tmp_path / "hpc-elastic.toml").write_text(block.code, encoding="utf-8")
    assert "\naccount " in _run([sys.executable, "-m", "hpc_elastic", "config"], tmp_path)


@pytest.mark.parametrize(
    "block", [one for one in _with("toml", without="pyproject") if "settings" not in one.values[0].marks]
)
def test_job_files_are_valid(block: Block, tmp_path: Path) -> None:
    """A job script can be made of every job file."""
    (tmp_path / "job.toml").write_text(block.code, encoding="utf-8")
    (tmp_path / "train.py").touch()
    _run([sys.executable, "-m", "hpc_elastic", "render", "job.toml"], tmp_path)


@pytest.mark.parametrize("block", [*_with("bash"), *_with("")])
def test_commands_are_valid(block: Block) -> None:
    """The shell can read scripts, and hpc-elastic knows every command and option that is shown."""
    if block.language == "bash":
        subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
    assert [] == slips(block.code), block.place


def test_a_launch_on_two_nodes(tmp_path: Path) -> None:
    """The script for several nodes, started once per node as srun does, makes one run of them."""
    [block] = [block for block in ALL if block.code.startswith("# launch_nodes.py")]
    (tmp_path / "launch_nodes.py").write_text(block.code, encoding="utf-8")
    step = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
    started = [
        subprocess.Popen(
            [sys.executable, "launch_nodes.py"],
            cwd=tmp_path,
            env={**os.environ, **step, "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": node},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in ("n1", "n2")
    ]
    told = [process.communicate(timeout=150) for process in started]
    assert ["0 node 0 of 2\n", "1 node 1 of 2\n"] == [out for out, _ in told], told
