"""The worker of the measure `first-start`: it imports PyTorch and ends."""

import os
import time

import torch  # noqa: F401 - this is what takes time

name = f"{time.monotonic():.6f}+{os.environ['RANK']}+{os.environ['WORLD_SIZE']}+{os.getpid()}"
open(os.path.join(os.environ["BENCH_STAMPS"], name), "x", encoding="ascii").close()
