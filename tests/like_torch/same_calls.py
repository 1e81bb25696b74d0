"""The same calls to torch's elastic packages and to ours; prints what came of each, as JSON.

Run as ``python -m tests.like_torch.same_calls PACKAGE``, with ``torch.distributed.elastic`` or
``hpc_elastic``. What differs from run to run (pids, times, hosts) is replaced by its kind.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from tests.like_torch import events_calls, metrics_calls, timer_calls, utils_calls

MODULES = {"timer": timer_calls, "metrics": metrics_calls, "events": events_calls, "utils": utils_calls}


def calls() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Return the functions that make calls, by name, each with the name of the package it calls."""
    return {
        f"{package}-{name.removeprefix('call_')}": (package, function)
        for package, module in MODULES.items()
        for name, function in vars(module).items()
        if name.startswith("call_")
    }


def main(parent: str) -> None:
    """Make all calls and print what came of them."""
    outcomes = {
        name: function(importlib.import_module(f"{parent}.{package}"))
        for name, (package, function) in calls().items()
    }
    sys.stdout.write(json.dumps(outcomes, default=repr))


if __name__ == "__main__":
    main(sys.argv[1])
