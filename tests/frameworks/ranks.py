"""Groups of ranks with a real process group (gloo), forked from one process that has loaded PyTorch once.

A function of checkpoint_ranks.py or owner_ranks.py runs on each rank; what it returns, or the error that ends
it, comes back as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpc_elastic.ids import Env

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 100.0


class Result(NamedTuple):
    """The end of one rank."""

    code: int  # of its process: negative, the signal
    value: Any  # what the function has returned; the text of its error
    printed: str


class Group:
    """The ranks of one call.

    Args:
        server: process that they are forked from.
        place: a directory of the call.
        pids: by rank.
    """

    def __init__(self, server: subprocess.Popen[str], place: Path, pids: Sequence[int]) -> None:
        self._server = server
        self._place = place
        self._codes: list[int] = []
        self.pids = pids

    def results(self) -> list[Result]:
        """Wait for the end of all ranks and return them."""
        self._codes = self._codes or _answer(self._server)
        return [self._result(rank, code) for rank, code in enumerate(self._codes)]

    def end(self) -> None:
        """End all ranks of a test that has not waited for them."""
        if not self._codes:
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)
            self.results()

    def _result(self, rank: int, code: int) -> Result:
        path = self._place / f"{rank}.json"
        value = json.loads(path.read_text()) if path.exists() else None
        return Result(code, value, (self._place / f"{rank}.log").read_text())

    def values(self) -> list[Any]:
        """Wait for the end of all ranks, none of which may fail, and return what they have returned."""
        results = self.results()
        assert [0] * len(results) == [result.code for result in results], results
        return [result.value for result in results]


class RankServer:
    """The process that ranks are forked from, one group at a time.

    Args:
        place: a directory for what ranks write.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._calls = 0
        self._group: Group | None = None
        own = ("HPC_ELASTIC", "TORCHELASTIC_", "SLURM_")
        environ = {name: text for name, text in os.environ.items() if not name.startswith(own)}
        environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(REPOSITORY)}
        argv = [sys.executable, "-m", "tests.frameworks.ranks"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(argv, cwd=REPOSITORY, env=environ, **pipes)

    def start(
        self, world: int, function: str, *words: Any, environ: Sequence[Mapping[str, str]] = ()
    ) -> Group:
        """Start a function on a number of ranks.

        Args:
            world: how many.
            function: its name.
            words: its arguments; a Path comes as text.
            environ: variables of single ranks; the last one is for all after it.
        """
        if self._group is not None:
            self._group.end()
        self._calls += 1
        place = self._place / f"call{self._calls}"
        place.mkdir()
        own = [dict(environ[min(rank, len(environ) - 1)]) if environ else {} for rank in range(world)]
        for run in {of[Env.RUN_DIR] for of in own if Env.RUN_DIR in of}:
            os.makedirs(run, mode=0o700, exist_ok=True)  # as its agents have done before they start workers
        asked = {"place": str(place), "function": function, "words": words, "environ": own}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked, default=str) + "\n")
        self._process.stdin.flush()
        self._group = Group(self._process, place, _answer(self._process))
        return self._group

    def run(
        self, world: int, function: str, *words: Any, environ: Sequence[Mapping[str, str]] = ()
    ) -> list[Any]:
        """Run a function on a number of ranks, none of which may fail; return its values."""
        return self.start(world, function, *words, environ=environ).values()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()


def _answer(server: subprocess.Popen[str]) -> Any:
    assert server.stdout is not None
    return json.loads(server.stdout.readline())


def _serve() -> None:
    from tests.frameworks import checkpoint_ranks, owner_ranks  # noqa: PLC0415 - the tests do not load PyTorch

    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["function"]
        function = getattr(checkpoint_ranks, name, None) or getattr(owner_ranks, name)
        children = [_fork(function, rank, asked) for rank in range(len(asked["environ"]))]
        print(json.dumps(children), flush=True)  # noqa: T201 - the answer
        for child in children:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # their numbers are not given to others yet
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)  # noqa: T201 - the answer


def _fork(function: Any, rank: int, asked: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    place, code = Path(asked["place"]), 1
    log = os.open(place / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        code = _be_rank(function, rank, asked)
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _be_rank(function: Any, rank: int, asked: dict[str, Any]) -> int:
    """Run the function on one rank, and return the code of its process."""
    import torch.distributed as dist  # noqa: PLC0415 - it is loaded

    place, world = Path(asked["place"]), len(asked["environ"])
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world), **asked["environ"][rank]})
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=world)
    code = 0
    try:
        value = function(*asked["words"])
    except Exception as error:  # noqa: BLE001 - the test looks at it
        traceback.print_exc()
        value, code = f"{type(error).__name__}: {error}", 1
    (place / f"{rank}.json").write_text(json.dumps(value))
    if code == 0 and dist.is_initialized():
        dist.destroy_process_group()
    return code


if __name__ == "__main__":
    _serve()
