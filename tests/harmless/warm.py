"""A process that has loaded PyTorch once, and from which each run is forked."""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 150.0
_LIBRARIES = (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint._state_dict_stager",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "hpc_elastic.frameworks.torch",
    "hpc_elastic.launcher",
    "hpc_elastic.agent",
)
_OWN = ("HPC_ELASTIC", "TORCHELASTIC_", "SLURM_")


class Asked(NamedTuple):
    """A run that is asked for.

    Attributes:
        program: its name.
        row: the name of the way to run it.
        place: a directory that does not exist yet.
        mutant: the name of a guard that it runs without; empty: none.
    """

    program: str
    row: str
    place: str
    mutant: str = ""


def prepare() -> None:
    """Be a process to fork from."""
    for name in list(os.environ):
        if name.startswith(_OWN):
            del os.environ[name]
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name in _LIBRARIES:
        importlib.import_module(name)
    from tests.harmless import programs  # noqa: PLC0415 - loads PyTorch

    programs.load()
    import torch  # noqa: PLC0415 - it is loaded

    torch.set_num_threads(1)


def start(asked: Asked) -> int:
    """Fork a run; return the number of its process, which leads a group."""
    from tests.harmless.programs import find  # noqa: PLC0415 - loads PyTorch

    for name in find(asked.program).libraries:
        importlib.import_module(name)
    Path(asked.place).mkdir(parents=True)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        from tests.harmless import processes  # noqa: PLC0415 - loads PyTorch
        from tests.harmless.mutants import MUTANTS  # noqa: PLC0415 - as above

        mutant = MUTANTS[asked.mutant].apply if asked.mutant else None
        processes.run(asked.program, asked.row, Path(asked.place), mutant)
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(every: Sequence[Asked], jobs: int, ended: Callable[[Asked], Any]) -> None:
    """Run many, some of them at once.

    Args:
        every: them.
        jobs: at most so many at once.
        ended: called after each.
    """
    waiting = list(reversed(every))
    running: dict[int, tuple[int, Asked, float]] = {}  # by descriptor: process, run, when it is killed
    while waiting or running:
        while waiting and len(running) < jobs:
            asked = waiting.pop()
            pid = start(asked)
            running[os.pidfd_open(pid)] = pid, asked, time.monotonic() + LIMIT_S
        ready, _, _ = select.select(list(running), [], [], 1.0)
        late = [one for one, (_, _, until) in running.items() if time.monotonic() > until]
        for one in {*ready, *late}:
            pid, asked, _ = running.pop(one)
            if one not in ready:
                os.killpg(pid, 9)
            os.waitpid(pid, 0)
            os.close(one)
            ended(asked)


class Warm:
    """A warm process beside this one, which needs no PyTorch."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "tests.harmless.warm"]
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(argv, cwd=REPOSITORY, env=environ, **pipes)

    def run(self, every: Sequence[Asked]) -> None:
        """Run some one after the other, and wait for the last end."""
        self._answer(every)

    def programs(self) -> dict[str, list[Any]]:
        """Return kind, title, number of ranks and `is_copied` of all programs."""
        found: dict[str, list[Any]] = self._answer([])
        return found

    def _answer(self, every: Sequence[Asked]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(every) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()


def _requests() -> Iterator[list[Asked]]:
    for line in sys.stdin:
        yield [Asked(*one) for one in json.loads(line)]


def main() -> None:
    """Be the process."""
    prepare()
    from tests.harmless.programs import PROGRAMS  # noqa: PLC0415 - loads PyTorch

    programs = {name: (one.kind, one.title, one.ranks, one.is_copied) for name, one in PROGRAMS.items()}
    for every in _requests():
        run_all(every, 1, lambda _: None)
        print(json.dumps(programs), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
