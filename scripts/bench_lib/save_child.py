"""Saves one state in several ways, in turns, and prints for how long each has blocked the loop."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from hpc_elastic.frameworks.torch import Checkpoints

PIECE = 4_000_000  # numbers in one tensor: 16 MB
Way = Callable[[int], Callable[[], object]]  # saves, and returns what waits until all is written


def ways(place: Path, size_mb: int) -> dict[str, Way]:
    """Return the ways to save, each of which blocks the loop until it returns."""
    tensors = [torch.nn.Parameter(torch.rand(PIECE)) for _ in range(max(1, size_mb // 16))]
    model = torch.nn.ParameterList(tensors)
    kept = [torch.empty_like(tensor) for tensor in tensors]
    checkpoints = Checkpoints(place / "ours", every=None, keep=1)
    options = StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=False,
    )
    stager = DefaultStager(options)

    def copy(_: int) -> Callable[[], object]:
        with torch.no_grad():
            for buffer, tensor in zip(kept, tensors, strict=True):
                buffer.copy_(tensor)
        return int

    def ours(step: int) -> Callable[[], object]:
        checkpoints.save(step, {"model": model})
        return checkpoints.wait

    def plain(_: int) -> Callable[[], object]:
        torch.save(model.state_dict(), place / "state.pt")
        return int

    def torchs(step: int) -> Callable[[], object]:
        future: Any = async_save(model.state_dict(), checkpoint_id=place / f"async-{step}")
        written: Callable[[], object] = future.result
        return written

    def torchs_kept(step: int) -> Callable[[], object]:
        where = place / f"async-kept-{step}"
        future: Any = async_save(model.state_dict(), checkpoint_id=where, async_stager=stager)
        written: Callable[[], object] = future.result
        return written

    return {
        "memory copy": copy,
        "hpc_elastic": ours,
        "async_save, kept buffers": torchs_kept,
        "async_save": torchs,
        "torch.save": plain,
    }


def main(place: str, size_mb: int, repetitions: int) -> None:
    """Take turns, once more than wanted: the first time buffers are made."""
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=0, world_size=1)
    saves = ways(Path(place), size_mb)
    found: dict[str, list[float]] = {name: [] for name in saves}
    for turn in range(repetitions + 1):
        for name, save in saves.items():
            began = time.perf_counter()
            wait = save(turn + 1)
            found[name].append(time.perf_counter() - began)
            wait()
    print(json.dumps({name: samples[1:] for name, samples in found.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
