"""The samples of GPUs that an agent takes with nvidia-smi, which is a program of the test here."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpc_elastic.account.gpus import (
    MOST_GPUS,
    GpuSample,
    NodeGpus,
    encode_gpus,
    noted,
)
from hpc_elastic.account.read import gpu_file, read_gpu_file, read_gpus
from hpc_elastic.clock import SystemClock
from hpc_elastic.node.listeners.gpu_sampler import GpuSampler, SampledNode
from hpc_elastic.paths import RunPaths
from hpc_elastic.report.explain.words import gpus_now_text, gpus_text
from tests.node.agents import wait_for

GIB = 1 << 30
TWO = "echo a warning; echo '0, GPU-a, 90, 1024, 81920'; echo '1, GPU-b, 30, [N/A], [N/A]'"


class Sampled:
    """A sampler with its program, its file and its words."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root / "run")
        os.mkdir(self.paths.root, 0o700)
        self.said: list[str] = []
        self.environ = {"PATH": f"{root}:/usr/bin:/bin"}
        self._root = root

    def program(self, body: str) -> None:
        """Install a program."""
        file = self._root / "nvidia-smi"
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    def sampler(self, answer_s: float = 30.0) -> GpuSampler:
        """Return a new sampler that takes the next sample at every look."""
        path = gpu_file(self.paths, "n1")
        place = SampledNode("n1", path, str(self._root), self.environ, SystemClock(), self.said.append)
        return GpuSampler(0.001, place, answer_s)


@pytest.fixture
def sampled(tmp_path: Path) -> Sampled:
    """Return a sampler to be made."""
    return Sampled(tmp_path)


def after(sampler: GpuSampler) -> Sequence[GpuSample]:
    """Return the samples of the next answer; none if there is none."""
    found: Sequence[GpuSample] = ()
    sampler.look(time.monotonic())
    assert sampler.pids

    def is_over() -> bool:
        nonlocal found
        found = sampler.look(time.monotonic()) if sampler.pids else found
        return not sampler.pids

    wait_for(is_over, "the end of the program")
    return found


def test_samples_are_summed_up_in_one_small_file(sampled: Sampled) -> None:
    """The next agent of the node goes on with it; a value that the driver does not tell is not known."""
    sampled.program(TWO)
    assert [("0", 90, GIB, 80 * GIB), ("1", 30, None, None)] == [
        (one.number, *one[2:]) for one in after(sampled.sampler())
    ]
    sampled.program("echo '0, GPU-a, 50, 512, 81920'")
    after(sampled.sampler())
    (node,) = read_gpus(sampled.paths)
    second, first = node.gpus
    assert ("GPU-a", 2, 140, 50, GIB // 2, GIB, 80 * GIB) == first[1:]
    assert ("GPU-b", 1, 30, 30, None, None, None) == second[1:]
    assert [] == sampled.said
    words = "busy 57 % (least: GPU 1 of n1, 30 %), memory up to 1G of 80G; 2 GPUs on n1"
    assert words == gpus_text((node,))
    assert "30-50 % 512M" == gpus_now_text(node)
    assert 0o600 == os.stat(gpu_file(sampled.paths, "n1")).st_mode & 0o777


def test_only_the_gpus_of_the_job_are_sampled(sampled: Sampled) -> None:
    """CUDA_VISIBLE_DEVICES names them."""
    sampled.program(TWO)
    sampled.environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert ["GPU-b"] == [one.uuid for one in after(sampled.sampler())]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo no driver >&2; exit 9", "nvidia-smi failed with exit code 9: no driver"),
        ("echo '0, GPU-a'; head -c 100000 /dev/urandom", "nvidia-smi lists no GPU"),
    ],
)
def test_gpus_of_a_broken_driver_are_left_alone(sampled: Sampled, body: str, words: str) -> None:
    """It is told once, and after three failures the program is not started any more."""
    sampled.program(body)
    sampler = sampled.sampler()
    for _ in range(3):
        assert not after(sampler)
    sampler.look(time.monotonic())
    assert not sampler.pids
    last = f"no sample of the GPUs: {words}; the GPUs are not sampled any more"
    assert [f"no sample of the GPUs: {words}", last] == sampled.said
    assert () == read_gpus(sampled.paths)


def test_a_program_that_hangs_is_killed(sampled: Sampled) -> None:
    """The agent goes on meanwhile, and asks again later; the end of the agent kills it, too."""
    sampled.program("exec sleep 600")
    sampler = sampled.sampler(0.0)
    assert not after(sampler)
    assert ["no sample of the GPUs: nvidia-smi did not answer within 0 s"] == sampled.said
    sampled.program(TWO)
    assert 2 == len(after(sampled.sampler()))
    sampled.program("exec sleep 600")
    sampler = sampled.sampler()
    sampler.look(time.monotonic())
    (pid,) = sampler.pids
    sampler.close()
    wait_for(lambda: not Path(f"/proc/{pid}/cwd").exists(), "the end of the program")


def test_a_node_without_the_program_says_so_once(sampled: Sampled) -> None:
    """Nothing is started there."""
    sampled.environ["PATH"] = "/no/such/place"
    sampler = sampled.sampler()
    assert () == sampler.look(0.0)
    assert ["the GPUs are not sampled: there is no nvidia-smi on this node"] == sampled.said
    sampler.close()


def test_a_file_stays_small_and_a_damaged_one_begins_anew(tmp_path: Path) -> None:
    """A job that gets other GPUs with each start keeps the newest."""
    node = NodeGpus("n1", 0.0)
    for start in range(2 * MOST_GPUS):
        node = noted(node, [GpuSample("0", f"GPU-{start}", 100, GIB, 80 * GIB)], float(start))
    assert MOST_GPUS == len(node.gpus)
    assert f"GPU-{2 * MOST_GPUS - 1}" == node.gpus[-1].uuid
    assert len(encode_gpus(node)) < 16_000
    path = tmp_path / "n1.json"
    for data in (b"", b"{", b'{"node": 3}', encode_gpus(node._replace(format=9)), b'{"node":"n","at":-1}'):
        path.write_bytes(data)
        path.chmod(0o600)
        assert read_gpu_file(str(path)) is None
