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
from hpc_elastic.frameworks.torch import Checkpoints

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
options = parser.parse_args()

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
ddp = DistributedDataParallel(model)
for _ in range(2):  # DDP arranges its buckets after the first step it sees, which changes the last bits
    ddp(images[:1]).sum().backward()

checkpoints = Checkpoints(every=options.save_every)
for step in checkpoints.steps(options.steps, {"model": ddp, "optimizer": optimizer}):
    order = torch.Generator().manual_seed(SEED * 1_000_003 + step)  # what is next depends on the step alone
    batch = torch.randperm(len(images) - TEST_IMAGES, generator=order)[:BATCH][rank::ranks]
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
    optimizer.step()
    time.sleep(options.step_time)

if rank == 0 and not checkpoints.stopped:
    with torch.no_grad():
        right = model(images[-TEST_IMAGES:]).argmax(dim=1) == labels[-TEST_IMAGES:]
    weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
    result = {"accuracy": right.double().mean().item(), "weights": hashlib.sha256(weights).hexdigest()}
    with worker.atomic_write(options.out) as file:
        file.write(json.dumps({"steps": options.steps, **result}).encode())
    print(f"accuracy {result['accuracy']:.4f}, weights {result['weights'][:16]}", flush=True)
dist.destroy_process_group()
