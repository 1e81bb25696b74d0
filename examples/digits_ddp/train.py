"""Train a small network on handwritten digits with DistributedDataParallel, surviving any kill.

On CPUs the final weights are the same to the last bit whether or not the run was interrupted,
as long as it goes on with the same number of ranks.
"""

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

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
options = parser.parse_args()
run_dir = worker.run_dir()  # None without an agent: then no run could resume, and nothing is saved

SEED, BATCH, TEST_IMAGES = 20, 64, 297  # the batch is that of all ranks
gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
if gpu:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
device = torch.device("cuda" if gpu else "cpu")
dist.init_process_group("nccl" if gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(SEED)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(mode=True)

digits = load_digits()
images = torch.tensor(digits.data / 16.0, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def save(step: int) -> None:
    """Write the checkpoint of a step (rank 0) and tell hpc_elastic that it is on disk."""
    if rank == 0 and run_dir:
        path = Path(run_dir) / f"saved/step-{step}.pt"
        path.parent.mkdir(exist_ok=True)
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        with worker.atomic_write(path) as file:
            torch.save(state, file)
        worker.checkpoint_saved(step, path)


start, saved = 0, worker.latest_checkpoint()
if saved is not None:
    state = torch.load(saved.path, map_location=device)
    start = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
print(f"rank {rank}: starting at step {start}", flush=True)

ddp = DistributedDataParallel(model)
for _ in range(2):  # DDP arranges its buckets after the first step it sees, which changes the last bits
    ddp(images[:1]).sum().backward()

for step in range(start, options.steps):
    order = torch.Generator().manual_seed(SEED * 1_000_003 + step)  # what is next depends on the step alone
    batch = torch.randperm(len(images) - TEST_IMAGES, generator=order)[:BATCH][rank::ranks]
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
    optimizer.step()
    time.sleep(options.step_time)
    done = step + 1
    worker.tick(done)
    if worker.should_stop():
        save(done)
        print(f"rank {rank}: stopped at step {done}", flush=True)
        break
    if done % options.save_every == 0:
        save(done)
else:
    if rank == 0:
        with torch.no_grad():
            right = model(images[-TEST_IMAGES:]).argmax(dim=1) == labels[-TEST_IMAGES:]
        weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
        result = {"accuracy": right.double().mean().item(), "weights": hashlib.sha256(weights).hexdigest()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps({"steps": options.steps, **result}).encode())
        print(f"accuracy {result['accuracy']:.4f}, weights {result['weights'][:16]}", flush=True)
dist.destroy_process_group()
