"""The examples of the repository, on the GPU."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from pathlib import Path

from gpu_check_lib.devices import Facts
from gpu_check_lib.run import SCRIPTS, CheckError, Run

NEEDS = {
    "digits_ddp": "sklearn",
    "any_port": "torch",
    "fsdp_shards": "torch",
    "accelerate_loop": "accelerate",
    "huggingface_trainer": "transformers",
    "lightning_fabric": "lightning",
    "lightning_trainer": "lightning",
}
LIMIT_S = 100.0


def examples(place: Path) -> Facts:
    """All that are installed for train at the same time, each with one worker, and end with a result."""
    facts: Facts = {name: f"{need} is not installed" for name, need in NEEDS.items()}
    failed = []
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(_start(place / name, name))
            for name, need in NEEDS.items()
            if importlib.util.find_spec(need)
        }
        for name, run in runs.items():
            code = run.end(LIMIT_S)
            result = run.run_dir / "result.json"
            facts[name] = result.read_text().strip()[:120] if result.exists() else f"exit code {code}"
            if code or not result.exists():
                failed.append(name)
                facts[name] = f"exit code {code}: {run.output()[-1200:]}"
    if failed:
        raise CheckError(f"{', '.join(failed)}: {facts}")
    return facts


def _start(place: Path, name: str) -> Run:
    script = SCRIPTS.parent / "examples" / name / "train.py"
    words = [str(script), "--steps", "40", "--save-every", "20"]
    return Run(place, ["--nproc-per-node", "1"], words, {"HF_HUB_OFFLINE": "1"})
