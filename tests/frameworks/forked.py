"""Ranks of one training that nothing disturbs: forked from a process that has loaded the libraries once.

Each rank would need seconds of processor time for them, and agents have no part in what is to come out.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 250.0


@contextmanager
def training(
    place: Path, ranks: int, library: str, script: Path, *words: str, python: str = sys.executable
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run a script, which ends with the context if not before.

    Args:
        place: where it runs; made here.
        ranks: how many there are of it.
        library: what it imports that takes long; several with commas between.
        script: what each rank runs.
        words: its arguments.
        python: the interpreter.

    Returns:
        A function that waits for the end of all ranks and returns what result.json holds.
    """
    place.mkdir()
    own = ("HPC_ELASTIC", "TORCHELASTIC_", "SLURM_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    environ["OMP_NUM_THREADS"] = "1"
    argv = [python, __file__, str(ranks), library, str(script), *words]
    process = subprocess.Popen(argv, cwd=place, env=environ, start_new_session=True)

    def result() -> dict[str, Any]:
        assert 0 == process.wait(LIMIT_S), "ranks have failed"
        found: dict[str, Any] = json.loads((place / "result.json").read_text())
        return found

    try:
        yield result
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def main() -> int:
    """Be the process."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    ranks, library, *sys.argv = int(sys.argv[1]), *sys.argv[2:]
    sys.path.pop(0)  # this directory
    for name in library.split(","):
        importlib.import_module(name)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    children = [_fork(rank, ranks, port) for rank in range(ranks)]
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def _fork(rank: int, ranks: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    names |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in names.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "forked"})
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
