"""One run of a program, in a process that is forked for it: alone or below an agent."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpc_elastic.errors import InputError
from tests.harmless.programs import Program, find
from tests.harmless.table import Fault, Row, row_of
from tests.harmless.trial import SAVE_EVERY, Trial, train

MOST_RESTARTS = 20


def run(name: str, row_name: str, place: Path, mutant: Callable[[], None] | None = None) -> None:
    """Be the process of one run; what it tells goes to files in `place`."""
    found, row = find(name), row_of(row_name)
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(place)
    if mutant is not None:
        mutant()
    if row.has_agent:
        _below_agent(found, row, place)
    else:
        _alone(found, row, place)


def _below_agent(found: Program, row: Row, place: Path) -> None:
    from hpc_elastic.launcher import LaunchConfig, elastic_launch  # noqa: PLC0415 - after the fork

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=found.ranks,
        run_id="zoo",
        rdzv_backend="shared_fs",
        rdzv_endpoint=str(place / "runs"),
        max_restarts=MOST_RESTARTS if row.faults else 0,
        start_method="fork",
    )
    elastic_launch(config, be_rank)(found.name, row.faults, row.saves, str(place))


def _alone(found: Program, row: Row, place: Path) -> None:
    names = {"WORLD_SIZE": str(found.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(names)
    children = [_rank(found, row, place, rank) for rank in range(found.ranks)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"ranks have ended with {codes}")


def _rank(found: Program, row: Row, place: Path, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
    code = 1
    try:
        be_rank(found.name, row.faults, row.saves, str(place))
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def be_rank(name: str, faults: Sequence[Fault], saves: bool, folder: str) -> None:
    """Be one rank of a program."""
    place = Path(folder)
    join(place)

    def checkpoints() -> Any:
        from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - a bare program knows nothing

        if "HPC_ELASTIC_RUN_DIR" in os.environ:
            return Checkpoints(every=SAVE_EVERY)
        return Checkpoints(place / "saved", every=SAVE_EVERY)

    run_trial(find(name), Trial(place, tuple(Fault(*one) for one in faults), checkpoints if saves else None))


def run_trial(found: Program, trial: Trial) -> None:
    """Run a program in a rank that has joined the others."""
    import torch.distributed as dist  # noqa: PLC0415 - it is loaded

    try:
        if found.run is not None:
            found.run(trial)
        else:
            assert found.make is not None
            train(trial, found.make)
    except InputError as error:
        trial.tell(refused=str(error))
        raise
    if dist.is_initialized():
        dist.destroy_process_group()


def join(place: Path) -> None:
    """Meet the other ranks."""
    import torch.distributed as dist  # noqa: PLC0415 - it is loaded

    if "HPC_ELASTIC_RUN_DIR" in os.environ:
        dist.init_process_group("gloo")
        return
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=ranks)
