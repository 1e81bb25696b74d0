"""Train a small network on handwritten digits with DistributedDataParallel, surviving any kill.

On CPUs the final weights are the same to the last bit whether or not the run was interrupted,
as long as it goes on with the same number of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import worker

SEED = 20
BATCH = 64  # over all ranks
TEST_IMAGES = 297


def setup() -> torch.device:
    """Join the process group and make every computation repeatable."""
    gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    return torch.device("cuda" if gpu else "cpu")


def batch_of(step: int, images: int) -> torch.Tensor:
    """Return this rank's part of a step's batch: a pure function of seed, step and rank."""
    order = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    chosen = torch.randperm(images, generator=order)[:BATCH]
    return chosen[dist.get_rank() :: dist.get_world_size()]


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Write the checkpoint of a step (rank 0) and tell hpc_elastic that it is on disk."""
    if dist.get_rank() != 0:
        return
    path = directory / f"step-{step}.pt"
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with worker.atomic_write(path) as file:
        torch.save(state, file)
    worker.checkpoint_saved(step, path)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Load the newest checkpoint, if there is one, and return the step to start at."""
    saved = worker.latest_checkpoint()
    if saved is None:
        return 0
    state = torch.load(saved.path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def settle_buckets(ddp: nn.Module, images: torch.Tensor) -> None:
    """Let DDP arrange its buckets before training.

    It does so after the first step it sees. Without this the first step after a resume would sum
    gradients in another order than the uninterrupted run does, which changes the last bits.
    """
    for _ in range(2):
        ddp(images[:1]).sum().backward()
    ddp.zero_grad()


def crash_once(marker: Path) -> None:
    """Fail, unless this failure has already happened."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    raise RuntimeError("this crash was asked for with --crash-at")


def write_result(out: Path, step: int, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Write the accuracy on unseen images and a digest of the weights (rank 0)."""
    if dist.get_rank() != 0:
        return
    with torch.no_grad():
        accuracy = (model(images).argmax(dim=1) == labels).double().mean().item()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    result = {"steps": step, "accuracy": accuracy, "weights": digest.hexdigest()}
    with worker.atomic_write(out) as file:
        file.write(json.dumps(result).encode())
    print(f"accuracy {accuracy:.4f}, weights {result['weights'][:16]}", flush=True)


def train(options: argparse.Namespace) -> None:
    """Train from the newest checkpoint to the end, or until a stop is requested."""
    device = setup()
    directory = Path(worker.run_dir() or options.out.parent) / "saved"
    directory.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target, device=device)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = load(model, optimizer, device)
    ddp = DistributedDataParallel(model)
    settle_buckets(ddp, images)
    print(f"rank {dist.get_rank()}: starting at step {start}", flush=True)
    for step in range(start, options.steps):
        if step == options.crash_at and options.crash_rank == dist.get_rank():
            crash_once(options.out.with_suffix(".crashed"))
        batch = batch_of(step, len(images) - TEST_IMAGES)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
        optimizer.step()
        time.sleep(options.step_time)
        done = step + 1
        worker.tick(done)
        if worker.should_stop():
            save(done, model, optimizer, directory)
            print(f"rank {dist.get_rank()}: stopped at step {done}", flush=True)
            break
        if done % options.save_every == 0:
            save(done, model, optimizer, directory)
    else:
        test = slice(-TEST_IMAGES, None)
        write_result(options.out, options.steps, model, images[test], labels[test])
    dist.destroy_process_group()


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    out = Path(worker.run_dir() or ".") / "result.json"
    parser.add_argument("--out", type=Path, default=out, help="default: result.json in the run directory")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--crash-at", type=int, default=-1, metavar="STEP", help="fail there, once")
    parser.add_argument("--crash-rank", type=int, default=0, metavar="RANK")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
