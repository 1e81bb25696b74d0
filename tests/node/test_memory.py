"""What the kernel tells of memory, in both versions of control groups, and of whom it kills."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.node.workers.process_facts import killed_words
from hpc_elastic.processes.control_group import Memory, control_group, parse_kills, parse_limit
from hpc_elastic.record.journal import Cause, RoundEnded
from hpc_elastic.text import bytes_text
from tests.node.agents import QUICK, MakeAgents
from tests.real_parts import memory_group

NONE_LEFT = "out of memory (the node had none left)"
MEANWHILE = "meanwhile the kernel has killed"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


@pytest.mark.parametrize(
    ("groups", "mounts", "expected"),
    [
        ("0::/slurm/job_7/step_0\n", V2_MOUNTS, ("/sys/fs/cgroup", "/slurm/job_7/step_0", True)),
        (
            "4:memory:/slurm/uid_1/job_7\n1:cpu:/\n0::/\n",
            V1_MOUNTS,
            ("/sys/fs/cgroup/memory", "/slurm/uid_1/job_7", False),
        ),
        ("0::/\n", V2_MOUNTS, ("/sys/fs/cgroup", "", True)),
        (
            "0::/slurm/job_7/step_0\n",
            V2_MOUNTS.replace("0:26 /", "0:26 /slurm/job_7"),
            ("/sys/fs/cgroup", "/step_0", True),
        ),
        ("", V2_MOUNTS, None),
        ("0::/x\n", "", None),
    ],
    ids=["v2", "v1", "v2-root", "v2-in-a-container", "nothing", "not-mounted"],
)
def test_where_the_control_group_is(groups: str, mounts: str, expected: tuple[str, str, bool] | None) -> None:
    """Below the mount of its hierarchy, without what a container hides of it."""
    assert expected == control_group(groups, mounts)


def test_counts_and_limits() -> None:
    """Both versions count the processes that were killed; both have a word for no limit."""
    assert 3 == parse_kills("low 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert 2 == parse_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert parse_kills("") is None
    assert parse_kills("oom_kill_disable 0\nunder_oom 0\n") is None
    assert 8 << 30 == parse_limit(f"{8 << 30}\n")
    assert parse_limit("max\n") is None
    assert parse_limit("9223372036854771712\n") is None
    assert parse_limit("") is None


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1023, "1023B"), (8 << 30, "8G"), (3 << 29, "1.5G"), (5000 << 40, "5000T")]
)
def test_sizes_as_slurm_writes_them(size: int, text: str) -> None:
    """With one decimal where that is needed."""
    assert text == bytes_text(size)


@pytest.mark.parametrize(
    ("now", "exitcode", "words"),
    [
        (Memory(1, 8 << 30), -9, "killed by the kernel: out of memory (limit 8G)"),
        (Memory(1, None), 137, "killed by the kernel: out of memory (the node had none left)"),
        (Memory(1, 8 << 30), 1, f"{MEANWHILE} 1 process on this node: out of memory (limit 8G)"),
        (Memory(3, None), -15, f"{MEANWHILE} 3 processes on this node: {NONE_LEFT}"),
        (Memory(0, 8 << 30), -9, ""),
        (None, -9, ""),
    ],
)  # fmt: skip
def test_only_what_the_kernel_has_counted_is_said(now: Memory | None, exitcode: int, words: str) -> None:
    """SIGKILL alone tells nothing: Slurm and users send it, too."""
    assert words == killed_words(Memory(0, 8 << 30), now, exitcode)
    assert "" == killed_words(None, now, exitcode)
    assert "" == killed_words(now, now, exitcode)


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group in which one worker is too many; removed afterwards."""
    with memory_group("hpc_elastic_test", 256 << 20) as group:
        yield group


@pytest.mark.slow
def test_a_worker_that_the_kernel_kills_is_told_as_such(make: MakeAgents, little_memory: Path) -> None:
    """Its agent tells the reason and the limit, on the console and in the journal."""
    agents = make("if os.environ['RANK'] == '1': x = bytearray(1 << 30)\nimport time; time.sleep(600)\n")
    agent = [sys.executable, "-m", "hpc_elastic", "run", "--run-dir", agents.paths.root]
    flags = ["--nproc-per-node", "2", "--max-restarts", "0", *QUICK, str(agents._script)]
    enter = f'echo $$ > {little_memory}/cgroup.procs && exec "$@"'
    agents._run(0, ["sh", "-c", enter, "sh", *agent, *flags], None)
    output = agents.output(0)
    assert 128 + 9 == agents.code(0)
    (ended,) = agents.entries(RoundEnded)
    assert Cause.CRASH is ended.cause
    assert "killed by the kernel: out of memory (limit 256M)" == ended.failure["message"]
    assert "rank 1" in output
    assert "killed by the kernel: out of memory (limit 256M)" in output
