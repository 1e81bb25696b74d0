"""Launch as one node of a run and print what came of it as JSON.

Usage: play_node.py RUN_DIR NODE NODES FUNCTION [ARGUMENT ...]; MORE in the environment has further
fields of the configuration as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.launcher import elastic_launch
from hpc_elastic.multiprocessing import SignalException
from hpc_elastic.multiprocessing.errors import ChildFailedError, record
from tests.launcher import jobs


def came_of_it(run_dir: str, node: str, nodes: str, function: str, *args: str) -> dict[str, Any]:
    """Launch and return what came of it."""
    more = json.loads(os.environ.get("MORE", "{}"))
    configs = {**jobs.QUICK, "node": node, **more.pop("rdzv_configs", {})}
    given = jobs.config(run_dir, 2, nodes, rdzv_configs=configs, **more)
    words = [int(arg) if arg.isdigit() else arg for arg in args]
    try:
        return {"values": record(elastic_launch(given, getattr(jobs, function)).__call__)(*words)}
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return {
            "failed": [rank, failure.exitcode, failure.text],
            "failures": sorted(error.failures),
            "text": str(error),
            "at": SystemClock().wall(),
        }
    except SignalException as error:
        return {"signal": error.sigval.name, "text": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever comes is told
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    print(json.dumps(came_of_it(*sys.argv[1:])))  # noqa: T201 - that is what it is for
