"""Lightning's Trainer, preempted and requeued without losing a step: two lines are hpc_elastic's."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import lightning as L
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hpc_elastic import worker
from hpc_elastic.frameworks.lightning import ElasticCallback, trainer_shape


class ResumableLoader(DataLoader):
    """Goes on in the middle of an epoch; so does torchdata's StatefulDataLoader, also with workers."""

    done = 0  # batches of this epoch that were handed out

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        """Yield the batches of the epoch that are left."""
        skip, self.done = self.done % len(self), 0  # the epoch before may be complete
        for batch in super().__iter__():
            self.done += 1
            if self.done > skip:
                yield batch

    def state_dict(self) -> dict[str, int]:
        """Lightning puts this into each checkpoint."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Lightning gives it back before the first epoch."""
        self.done = state["done"]


class Model(L.LightningModule):
    """A line."""

    def __init__(self, step_time: float) -> None:
        super().__init__()
        self.layer, self.step_time = torch.nn.Linear(1, 1), step_time

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        time.sleep(self.step_time)
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
    options = parser.parse_args()
    L.seed_everything(20, verbose=False)
    x = torch.rand(512, 1, generator=torch.Generator().manual_seed(20))
    model, data = Model(options.step_time), TensorDataset(x, 2 * x - 1)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    parts = DistributedSampler(data, world, rank)
    loader = ResumableLoader(data, batch_size=8, sampler=parts, num_workers=2, persistent_workers=True)
    elastic = ElasticCallback(save_every=options.save_every)  # 1. saves and stops
    trainer = L.Trainer(
        **trainer_shape(),  # as many nodes and devices as there are
        max_steps=options.steps,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        callbacks=[elastic],
        use_distributed_sampler=False,  # the sampler above is one
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    found = getattr(trainer.strategy, "cluster_environment", None)  # a strategy of one device has none
    print(type(found).__name__, flush=True)
    trainer.fit(model, loader, ckpt_path=elastic.newest(trainer))  # 2. goes on where it stopped
    if trainer.is_global_zero and not elastic.stopped:
        weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
        result = {"steps": trainer.global_step, "weights": hashlib.sha256(weights).hexdigest()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())


if __name__ == "__main__":
    main()
