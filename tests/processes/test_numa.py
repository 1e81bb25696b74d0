"""Binding workers to the CPUs near their GPU, on a machine made of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.processes.numa import AffinityMode, Machine, NumaOptions, cpus_of, numbers
from hpc_elastic.processes.process import ProcessSpec, spawn

Cpus = Callable[..., tuple[int, ...]]


@pytest.fixture
def cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cpus:
    """Give a function that binds on a machine of 2 sockets, 4 nodes, 16 cores with 2 threads, 4 GPUs.

    Node n has the cores 4n to 4n+3, whose second threads are 16 higher. GPUs 0 and 1 are on node
    0, GPU 2 on node 1, GPU 3 on node 3. Two cores share a cache.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(32)))

    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    for node in range(4):
        put(
            f"sys/devices/system/node/node{node}/cpulist",
            f"{4 * node}-{4 * node + 3},{4 * node + 16}-{4 * node + 19}",
        )
    for cpu in range(32):
        core = cpu % 16
        base = f"sys/devices/system/cpu/cpu{cpu}"
        put(f"{base}/topology/thread_siblings_list", f"{core},{core + 16}")
        put(f"{base}/topology/physical_package_id", str(core // 8))
        for index, (kind, level, shared) in enumerate(
            [
                ("Data", 1, f"{core}"),
                ("Instruction", 9, "0-31"),
                ("Unified", 3, f"{core // 2 * 2}-{core // 2 * 2 + 1}"),
            ]
        ):
            put(f"{base}/cache/index{index}/type", kind)
            put(f"{base}/cache/index{index}/level", str(level))
            put(f"{base}/cache/index{index}/shared_cpu_list", shared)
    for gpu, node in enumerate((0, 0, 1, 3)):
        address = f"0000:{gpu + 1:02x}:00.0"
        put(f"proc/driver/nvidia/gpus/{address}/information", f"Model: x\nGPU UUID: \t GPU-{gpu}abc")
        put(f"sys/bus/pci/devices/{address}/numa_node", str(node))

    def bind(rank: int, mode: str, visible: str | None = None, *, fall_back: bool = False) -> tuple[int, ...]:
        env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        options = NumaOptions(AffinityMode(mode), should_fall_back_if_binding_fails=fall_back)
        return cpus_of(rank, options, env, str(tmp_path))

    return bind


def with_threads(*cores: int) -> tuple[int, ...]:
    """Return the CPUs of these cores."""
    return tuple(sorted([*cores, *(core + 16 for core in cores)]))


@pytest.mark.parametrize(
    ("rank", "mode", "cores"),
    [
        (2, "node", (4, 5, 6, 7)),
        (3, "socket", tuple(range(8, 16))),
        (0, "exclusive", (0, 1)),
        (1, "exclusive", (2, 3)),
        (2, "exclusive", (4, 5, 6, 7)),
        (1, "core-complex", (2, 3)),
    ],
)
def test_modes_choose_cpus(cpus: Cpus, rank: int, mode: str, cores: tuple[int, ...]) -> None:
    """Each mode gives the CPUs that it says, both threads of a core."""
    assert cpus(rank, mode) == with_threads(*cores)


def test_visible_gpus_are_counted(cpus: Cpus) -> None:
    """The local rank counts the visible GPUs, by number or by UUID; a single one is everybody's."""
    assert cpus(0, "node", "3,2") == with_threads(12, 13, 14, 15)
    assert cpus(1, "node", "GPU-3abc,GPU-2") == with_threads(4, 5, 6, 7)
    assert cpus(5, "node", "2") == with_threads(4, 5, 6, 7)


def test_rank_without_a_gpu_is_an_error_or_unbound(cpus: Cpus) -> None:
    """Nothing is guessed; with the option the worker starts unbound."""
    with pytest.raises(RuntimeError, match="local rank 4 has no GPU: only 4"):
        cpus(4, "node")
    with pytest.raises(RuntimeError, match="no GPU is visible"):
        cpus(0, "node", "")
    assert cpus(4, "node", fall_back=True) == ()


def test_no_options_bind_nothing(tmp_path: Path) -> None:
    """Without options, or on a machine that tells nothing, nothing is read."""
    assert cpus_of(0, None) == ()
    assert Machine(str(tmp_path)).gpus() == []


def test_lists_of_numbers_are_read() -> None:
    """Ranges and single numbers, as the kernel writes them."""
    assert numbers("0-2,7\n") == {0, 1, 2, 7}
    assert numbers("") == set()


def test_program_runs_on_its_cpus(tmp_path: Path) -> None:
    """A bound program may use the chosen CPUs only."""
    cpu = min(os.sched_getaffinity(0))
    argv = (sys.executable, "-S", "-c", "import os; print(os.sched_getaffinity(0))")
    process = spawn(ProcessSpec(argv, dict(os.environ), stdout=str(tmp_path / "out"), cpus=(cpu,)))
    process.confirm_started(20)
    process.reap()
    assert (tmp_path / "out").read_text() == f"{{{cpu}}}\n"
