"""A worker of a run whose work is a function: ``python -m hpc_elastic.runs.call``."""

from __future__ import annotations

import os
import sys

from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.errors import record
from hpc_elastic.paths import RunPaths
from hpc_elastic.runs import function


@record
def main() -> None:
    """Call the function of the run, and keep what it returns."""
    place = os.environ.get(Env.RUN_DIR)
    if not place:
        sys.exit("error: this is a worker of a run; start it with hpc_elastic.submit(function, ...)")
    paths = RunPaths(place)
    function.save(paths, int(os.environ.get("RANK", "0")), function.call(paths))


if __name__ == "__main__":
    main()
