"""The training of the measure `ettr`: the digits, with more parameters if wanted; it notes what it does."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

FIRST_SAVE_S = 1.0
BUCKET = 1_000_000  # numbers in one further tensor: 4 MB, and as much in the optimizer
MB = 1_000_000


class Notes:
    """The file in which this process notes when it did what.

    Args:
        folder: of the files of all processes.
    """

    def __init__(self, folder: Path) -> None:
        node = os.environ.get("SLURMD_NODENAME", "here")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"{node}+{os.getpid()}+{time.monotonic_ns()}", flags)
        self.rank = int(os.environ.get("RANK", "0"))
        self.add("began", at=_started_s())

    def add(self, what: str, step: int = 0, at: float | None = None) -> None:
        """Note that something is done."""
        at = time.monotonic() if at is None else at
        os.write(self._file, f"{at:.4f} {what} {self.rank} {step}\n".encode())


class FileCheckpoints:
    """Checkpoints as scripts for torchrun have them: rank 0 saves a file in turns, and when told to stop.

    They know how often a fault comes, and save at the interval that is best for it.

    Args:
        folder: of the file.
        fault_every_s: time from one fault to the next [s].
        requeues: whether rank 0 asks Slurm to requeue the job after a stop.
    """

    def __init__(self, folder: Path, fault_every_s: float, *, requeues: bool) -> None:
        self._torch, self._dist = (
            importlib.import_module("torch"),
            importlib.import_module("torch.distributed"),
        )
        self._path = folder / "checkpoint.pt"
        self._fault_every_s = fault_every_s
        self._requeues = requeues
        self._every_s, self._saved_s = FIRST_SAVE_S, time.monotonic()
        self._is_told = False
        self.stopped = False
        signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, *_: object) -> None:
        self._is_told = True

    def load(self, state: dict[str, Any]) -> int:
        """Load the file, if there is one; return the steps that are done."""
        if not self._path.exists():
            return 0
        found = self._torch.load(self._path)
        for name, one in state.items():
            one.load_state_dict(found[name])
        return int(found["step"])

    def steps(self, total: int, state: dict[str, Any], done: int) -> Iterator[int]:
        """Yield the steps that are left; save in between."""
        for step in range(done, total):
            yield step
            told = self._torch.tensor([float(self._is_told)])
            self._dist.all_reduce(told)
            self.stopped = bool(told.item())
            if self._dist.get_rank() == 0 and (self.stopped or self._is_due()):
                self._save(step + 1, state)
            if self.stopped:
                self._stop()
                return

    def _is_due(self) -> bool:
        return time.monotonic() - self._saved_s >= self._every_s

    def _save(self, step: int, state: dict[str, Any]) -> None:
        began_s = time.monotonic()
        content = {"step": step, **{name: one.state_dict() for name, one in state.items()}}
        self._torch.save(content, f"{self._path}.part")
        os.replace(f"{self._path}.part", self._path)
        self._saved_s = time.monotonic()
        self._every_s = max(FIRST_SAVE_S, math.sqrt(2 * (self._saved_s - began_s) * self._fault_every_s))

    def _stop(self) -> None:
        if self._dist.get_rank() == 0 and self._requeues:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)


class OurCheckpoints:
    """Those of hpc_elastic, as they are by default."""

    def __init__(self) -> None:
        self._kept = importlib.import_module("hpc_elastic.frameworks.torch").Checkpoints()

    def load(self, state: dict[str, Any]) -> int:
        """Load the newest state; return the steps that are done."""
        return int(self._kept.load(state))

    def steps(self, total: int, state: dict[str, Any], done: int) -> Iterator[int]:
        """Yield the steps that are left; save in between."""
        for step in range(done, total):
            yield step
            if self._kept.done(step + 1, state):
                return


def main(argv: list[str] | None = None) -> None:
    """Train for ever, or until told to stop."""
    options = _options(argv)
    notes = Notes(options.notes)
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    load_digits = importlib.import_module("sklearn.datasets").load_digits
    parallel = importlib.import_module("torch.nn.parallel")
    notes.add("imported")
    beat = _heartbeat()
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.hang))
    notes.rank, ranks = dist.get_rank(), dist.get_world_size()
    notes.add("met")
    torch.manual_seed(20)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    model = _model(torch, options.state_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ddp = parallel.DistributedDataParallel(model)
    state = {"model": ddp, "optimizer": optimizer}
    checkpoints = _checkpoints(options)
    done = checkpoints.load(state)
    notes.add("loaded", done)
    for step in checkpoints.steps(1 << 40, state, done):
        batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[
            notes.rank : 64 : ranks
        ]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
        optimizer.step()
        beat()
        notes.add("step", step + 1)
        time.sleep(options.step_s)


def _checkpoints(options: argparse.Namespace) -> OurCheckpoints | FileCheckpoints:
    if options.checkpoints == "ours":
        return OurCheckpoints()
    return FileCheckpoints(options.saves, options.fault_every, requeues=options.checkpoints == "requeue")


def _model(torch: Any, state_mb: int) -> Any:
    """Return the model; the state of it and its optimizer has at least so many MB."""

    class Digits(torch.nn.Module):  # type: ignore[misc]  # torch's classes are unknown here
        """Two layers, and further parameters, each of which shifts the first layer's input a little."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
            )
            more = math.ceil(state_mb * MB / (8 * BUCKET))
            self.more = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(BUCKET)) for _ in range(more))

        def forward(self, images: Any) -> Any:
            """Return the logits."""
            shift = sum(one.mean() for one in self.more) if len(self.more) else 0.0
            return self.layers(images + shift)

    return Digits()


def _heartbeat() -> Any:
    """Return what tells ft_launcher after each step that this rank is alive; below others it does nothing."""
    if not any(name.startswith("FT_RANK_MONITOR_IPC_SOCKET") for name in os.environ):
        return int
    client = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
    client.init_workload_monitoring()
    return client.send_heartbeat


def _started_s() -> float:
    """Return when this process was started (monotonic) [s]."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--saves", type=Path, required=True)
    parser.add_argument("--checkpoints", choices=["ours", "requeue", "file"], required=True)
    parser.add_argument("--state-mb", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--fault-every", type=float, default=60.0)
    parser.add_argument("--hang", type=float, default=15.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
