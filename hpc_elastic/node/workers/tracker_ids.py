"""Names under which experiment trackers know a run again after each start. Pure."""

from __future__ import annotations

import hashlib
import re

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME = 40  # characters of the run id that are kept for people


def tracker_env(run_id: str, run_dir: str) -> dict[str, str]:
    """Return the variables that have trackers go on with one experiment over all starts of a run.

    The run directory tells runs apart that were given the same id.

    Args:
        run_id: the run's id.
        run_dir: absolute path of its directory.
    """
    key = hashlib.sha256(f"{run_id}\0{run_dir}".encode(errors="surrogateescape")).hexdigest()[:32]
    name = _UNSAFE.sub("-", run_id)[:_NAME].strip("-.") or "run"
    return {
        "WANDB_RUN_ID": f"{name}-{key[:8]}",
        "WANDB_RESUME": "allow",
        "COMET_EXPERIMENT_KEY": key,  # alphanumeric, 32 to 50 characters
        "NEPTUNE_CUSTOM_RUN_ID": key,  # at most 36 characters
        "TENSORBOARD_LOGGING_DIR": f"{run_dir}/tensorboard",  # else one folder per start
    }
