"""Programs in workers that are copies of a process which has loaded PyTorch: one agent for many of them.

As a script it is the worker, which runs each program that it is given in a child.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MODULES = "torch,torch._dynamo,hpc_elastic.frameworks.torch"
LIMIT_S = 900.0


def run_preloaded(names: Sequence[str], place: Path) -> str:
    """Run programs of one rank without `Checkpoints`; each tells its end in a directory of its name.

    Returns:
        What the agent and the workers have printed.
    """
    place.mkdir(parents=True)
    own = ("HPC_ELASTIC", "TORCHELASTIC_", "SLURM_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-m", "hpc_elastic", "run", "--standalone", "--preload", MODULES]
    argv += ["--run-dir", str(place / "run"), __file__, str(place), *names]
    found = subprocess.run(
        argv, cwd=REPOSITORY, env=environ, timeout=LIMIT_S, check=False, text=True, capture_output=True
    )
    return found.stdout + found.stderr


def main() -> None:
    """Be the worker."""
    from tests.harmless import processes, programs  # noqa: PLC0415 - loads PyTorch

    programs.load()
    for name in list(os.environ):
        if name.startswith("HPC_ELASTIC"):  # the programs have no part in the run
            del os.environ[name]
    folder, *names = sys.argv[1:]
    for name in names:
        place = Path(folder) / name
        place.mkdir()
        for library in programs.find(name).libraries:
            importlib.import_module(library)  # some draw random numbers in it
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        try:
            processes.be_rank(name, (), saves=False, folder=str(place))
        except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(0)


if __name__ == "__main__":
    main()
