"""Hugging Face's Trainer, preempted and requeued without losing a step: two lines are hpc_elastic's."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hpc_elastic import worker
from hpc_elastic.frameworks.transformers import ElasticTrainerCallback, output_dir


class Line(Dataset):
    """Points of a line, each a pure function of its number."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return x and y."""
        x = torch.rand(1, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": 2 * x - 1}


class Model(torch.nn.Module):
    """A line; any PreTrainedModel goes as well."""

    def __init__(self, step_time: float) -> None:
        super().__init__()
        self.layer, self.step_time = torch.nn.Linear(1, 1), step_time

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        time.sleep(self.step_time)
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
    options = parser.parse_args()
    torch.manual_seed(20)
    model = Model(options.step_time)
    arguments = TrainingArguments(
        output_dir=output_dir(),  # in the run directory
        max_steps=options.steps,
        save_steps=options.save_every,
        save_total_limit=2,
        per_device_train_batch_size=8,
        learning_rate=0.05,
        use_cpu=not torch.cuda.is_available(),
        dataloader_num_workers=2,
        report_to="none",
        disable_tqdm=True,
        seed=20,
    )
    elastic = ElasticTrainerCallback()  # 1. saves and stops
    trainer = Trainer(model, arguments, train_dataset=Line(), callbacks=[elastic])
    trainer.train(resume_from_checkpoint=elastic.newest(trainer))  # 2. goes on where it stopped
    if trainer.is_world_process_zero() and not elastic.stopped:
        weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
        result = {"steps": trainer.state.global_step, "weights": hashlib.sha256(weights).hexdigest()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())
    del trainer
    gc.collect()  # gloo: the wrapped model has to be gone before its process group, or the end may hang
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
