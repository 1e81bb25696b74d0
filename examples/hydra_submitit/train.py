"""Hydra's submitit launcher, with a run that is preempted and goes on: the last line is hpc_elastic's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import hydra
from omegaconf import DictConfig

from hpc_elastic import worker
from hpc_elastic.submitit import ElasticTask


def train(config: DictConfig) -> float:
    """Train in one worker: minimize (x - 3)^2, and return how far it is from the minimum."""
    saved = worker.latest_checkpoint()
    step, x = 0, 0.0
    if saved:
        step, x = saved.step, float.fromhex(Path(saved.path).read_text())
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: start at step {step}", flush=True)
    while step < config.steps:
        time.sleep(config.step_time)
        x -= config.lr * 2 * (x - 3)
        step += 1
        worker.tick(step)
        stop = worker.should_stop()
        if (stop or step % config.save_every == 0) and os.environ["RANK"] == "0":
            path = os.path.join(worker.run_dir(), f"x-{step}")
            with worker.atomic_write(path) as file:
                file.write(x.hex().encode())
            worker.checkpoint_saved(step, path)
        if stop:
            break
    return abs(x - 3)


@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config: DictConfig) -> float:
    """Be the agent of this node; `train` runs in its workers."""
    return ElasticTask(train)(config)  # instead of train(config)


if __name__ == "__main__":
    main()
