"""Make the same launches with one package, torch's or ours, and print what came of them as JSON.

Usage: same_launches.py PACKAGE DIRECTORY, the package being torch.distributed or hpc_elastic.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)

FAIL_ON_1 = "import os, sys, time; {} if os.environ['RANK'] == '1' else time.sleep(100)"


def add(first: int, second: int) -> int:
    """Return a sum and the rank."""
    return first + second + int(os.environ["RANK"])


def variables(*args: Any) -> tuple[Any, ...]:
    """Return what a worker is given."""
    return {name: os.environ[name] for name in VARIABLES}, args


def boom(text: str) -> None:
    """Raise on rank 1; rank 0 waits until it is ended."""
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    threading.Event().wait()


def late(place: str) -> str:
    """Fail as long as there are restarts."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != os.environ["TORCHELASTIC_MAX_RESTARTS"]:
        sys.exit(3)
    return place


def main(package: str, directory: str) -> dict[str, Any]:
    """Make all launches."""
    launcher = import_module(f"{package}.launcher.api")
    inner = package if package == "hpc_elastic" else f"{package}.elastic"
    errors = import_module(f"{inner}.multiprocessing.errors")
    runs = iter(range(100))

    def launch(what: Any, *args: Any, **more: Any) -> Any:
        given = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "max_restarts": 0} | more
        config = launcher.LaunchConfig(1, 1, 2, run_id=f"run{next(runs)}", start_method="fork", **given)
        try:
            return launcher.elastic_launch(config, what)(*args)
        except errors.ChildFailedError as error:
            rank, first = error.get_first_failure()
            message = first.message["message"] if isinstance(first.message, dict) else None
            return {"failed": [rank, first.local_rank, first.exitcode, message], "of": error.name}
        except BaseException as error:  # noqa: BLE001 - whatever comes is what is compared
            kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            return {"error": kind.__name__, "text": str(error) if kind is ValueError else ""}

    launches: dict[str, Callable[[], Any]] = {
        "function": lambda: launch(add, 1, 2),
        "nothing": lambda: launch(print, "word"),
        "variables": lambda: launch(variables, 1, "gpu${local_rank}", None, role="toy", max_restarts=2),
        "command": lambda: launch(sys.executable, "-c", "import sys; sys.exit(0)"),
        "failing command": lambda: launch(sys.executable, "-c", FAIL_ON_1.format("sys.exit(7)"), "x.py"),
        "killed command": lambda: launch(sys.executable, "-c", FAIL_ON_1.format("os.kill(os.getpid(), 9)")),
        "raising": lambda: launch(boom, "no luck"),
        "in the end": lambda: launch(late, "here", max_restarts=2),
        "never": lambda: launch(sys.executable, "-c", FAIL_ON_1.format("sys.exit(5)"), max_restarts=1),
        "no program": lambda: launch(f"{directory}/none"),
        "static without endpoint": lambda: launch(add, 1, 2, rdzv_backend="static", rdzv_endpoint=""),
        "static without port": lambda: launch(add, 1, 2, rdzv_backend="static", rdzv_endpoint="host"),
        "static without rank": lambda: launch(add, 1, 2, rdzv_backend="static", rdzv_endpoint="host:1"),
        "static": lambda: launch(
            add, 1, 2, rdzv_backend="static", rdzv_endpoint="localhost:0", rdzv_configs={"rank": 0}
        ),
        "no such backend": lambda: launch(add, 1, 2, rdzv_backend="pigeon"),
    }
    return {name: make() for name, make in launches.items()}


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    found = main(*sys.argv[1:])
    Path(sys.argv[2], "found.json").write_text(json.dumps(found, sort_keys=True, indent=1))
