"""The same line for torchrun and `hpc-elastic run`: what workers see, what is printed, how it ends."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import run as ours
from tests.cli.lines import Ended, Line, Torchrun
from tests.cli.test_run_flags import SPELLED, SWITCHES

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("default")]

SAME = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
)
ONE = ("--nproc-per-node=2", "--rdzv-id=7", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
PREFIX = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}${local_rank}]:"}
OMP = {"OMP_NUM_THREADS": "2"}  # torchrun sets 1, we what is left of the CPUs
PRINT = "print('out', os.environ['RANK'], flush=True); print('err', file=sys.stderr, flush=True)\n"
FLAKY = "sys.exit(0 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 4)\n"


def env_of(ended: Ended, names: tuple[str, ...] = SAME) -> dict[str, list[str | None]]:
    """Return what is to be the same."""
    return {name: ended.env(name) for name in names}


def pair(tmp_path: Path, *words: str, script: str = "", **env: str) -> tuple[Ended, Ended]:
    """Run a line with both."""
    ended = []
    for kind in (Line, Torchrun):
        home = tmp_path / kind.__name__
        home.mkdir()
        ended.append(kind(home, script).run(*words, env={**OMP, **env}))
    return ended[0], ended[1]


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ((*ONE, "--role=trainer", "--max-restarts=3", "w.py", "--lr", "1", "--", "x"), FLAKY),
        ((*ONE, "--no-python", "sh", "-c", "exec $PYTHON w.py $0 $1", "${local_rank}", "b"), ""),
        (("--standalone", "--nproc_per_node=2", "-m", "w", "a"), ""),
    ],
    ids=["restart", "program", "module"],
)
def test_workers_see_the_same(tmp_path: Path, words: tuple[str, ...], script: str) -> None:
    """Environment and arguments."""
    import sys  # noqa: PLC0415 - for the interpreter alone

    mine, theirs = pair(tmp_path, *words, script=script, PYTHON=sys.executable)
    assert (0, 0) == (mine.code, theirs.code), mine.err + theirs.err
    names = tuple(name for name in SAME if "--standalone" not in words or name != "TORCHELASTIC_RUN_ID")
    assert env_of(theirs, names) == env_of(mine, names)
    assert [worker["args"] for worker in theirs.workers] == [worker["args"] for worker in mine.workers]
    assert [worker["name"] for worker in theirs.workers] == [worker["name"] for worker in mine.workers]


def test_two_nodes_with_a_fixed_master(tmp_path: Path) -> None:
    """The line of the handbook: ranks, address and port."""
    found: list[Any] = []
    for kind in (Line, Torchrun):
        with socket.create_server(("", 0)) as probe:
            port = probe.getsockname()[1]
        home = tmp_path / kind.__name__
        home.mkdir()
        line = kind(home)
        words = ("--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}")
        agents = [line.start(*words, f"--node-rank={rank}", "w.py", env=OMP) for rank in (1, 0)]
        ended = [line.end(agent) for agent in agents]
        assert [0, 0] == [each.code for each in ended], ended[0].err
        assert [str(port)] * 4 == ended[0].env("MASTER_PORT")
        names = tuple(name for name in SAME if name != "TORCHELASTIC_RUN_ID")  # theirs is "none"
        found.append(env_of(ended[0], (*names, "MASTER_ADDR")))
    assert found[0] == found[1]


def test_console_and_files_are_the_same(tmp_path: Path) -> None:
    """With torchrun's prefix; the directories of a run and an attempt have other names."""
    words = ("-t", "0:3,1:1", "-r", "1:2", "--log-dir=logs", "--duplicate-stdout-filters=out 1", "w.py")
    mine, theirs = pair(tmp_path, *ONE, *words, script=PRINT, **PREFIX)
    assert sorted(theirs.out.splitlines()) == sorted(mine.out.splitlines())
    files = []
    for kind, attempt in (("Line", "attempt_1"), ("Torchrun", "attempt_0")):
        (place,) = (tmp_path / kind / "logs").glob(f"7_*/{attempt}")
        texts = {
            str(path.relative_to(place)): path.read_text()
            for path in place.rglob("*.log")
            if path.stat().st_size
        }
        files.append(texts)
    assert files[0] == files[1]
    assert [line for line in theirs.err.splitlines() if line.endswith("err")] == [
        line for line in mine.err.splitlines() if line.endswith("err")
    ]


def test_both_refuse(tmp_path: Path) -> None:
    """Where torchrun ends with 1 and a traceback, we end with 2."""
    mine, theirs = pair(tmp_path, *ONE, "--local-ranks-filter=a", "w.py")
    assert (2, 1) == (mine.code, theirs.code)
    assert ("Traceback" in theirs.err, "Traceback" in mine.err) == (True, False)


def test_the_parsers_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag, by itself and as a variable, and all defaults."""
    import torch.distributed.run as theirs  # noqa: PLC0415 - the extra `torch`

    def values(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
        parser: Any = theirs.get_args_parser()
        parsed = dict(vars(parser.parse_args([*words, "a.py", "-x"])))
        own = vars(ours.parse_args([*words, "a.py", "-x"]))
        return parsed, {name: own[name] for name in parsed}

    known = theirs.get_args_parser()._option_string_actions
    lines = [(flag, text) for flag, text, _ in SPELLED if flag in known] + [(flag,) for flag in SWITCHES]
    for words in [(), *lines]:
        expected, found = values(*words)
        assert expected == found, words
    for words in lines:
        if words[0] in ("--logs-specs", "--numa-binding"):
            continue  # there torchrun reads no variable
        name = f"PET_{words[0].lstrip('-').replace('-', '_').upper()}"
        with monkeypatch.context() as context:
            context.setenv(name, words[1] if len(words) > 1 else "1")
            expected, found = values()
            assert expected == found, name
