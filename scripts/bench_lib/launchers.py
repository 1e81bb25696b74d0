"""The command lines that are compared, and how much work a measure of them may be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("stamp_worker.py")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work a measure may be.

    Attributes:
        repetitions: how often a start is repeated.
        long_repetitions: how often a measure is repeated that takes long.
        idle_s: how long an idle agent is watched [s].
    """

    repetitions: int
    long_repetitions: int
    idle_s: float


Samples = dict[str, list[float]]
"""The values of a measure, by the names of its figures."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a group of agents is meant to be.

    Attributes:
        agents: how many agents are started, each standing for a node.
        workers: workers per agent.
        nnodes: how many nodes the launcher is told, N or MIN:MAX; as many as agents if empty.
        max_restarts: how many failures of workers are forgiven.
        in_job: agents see the environment of a Slurm job that has as many nodes as there are agents.
    """

    agents: int
    workers: int
    nnodes: str = ""
    max_restarts: int = 100
    in_job: bool = False

    @property
    def nodes_text(self) -> str:
        """What the launcher is told."""
        return self.nnodes or str(self.agents)


@dataclass(frozen=True, slots=True)
class Place:
    """What a launcher needs to find its peers.

    Attributes:
        port: a free TCP port.
        run_dir: a directory that does not exist yet.
    """

    port: int
    run_dir: Path


@dataclass(frozen=True, slots=True)
class Launcher:
    """One way to start agents.

    Attributes:
        name: heading of its column.
        argv: makes the command line of an agent from shape, place and the agent's number.
        imports: statement that imports what an agent imports before it can join the others.
    """

    name: str
    argv: Callable[[Shape, Place, int], list[str]]
    imports: str


def _torchrun(shape: Shape, place: Place, _index: int) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", shape.nodes_text, "--nproc-per-node", str(shape.workers)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{place.port}", "--rdzv-id", "bench"),
        *("--max-restarts", str(shape.max_restarts), str(WORKER)),
    ]


def _hpc_elastic(shape: Shape, place: Place, _index: int) -> list[str]:
    return [
        *(sys.executable, "-m", "hpc_elastic", "run", "--run-dir", str(place.run_dir)),
        *("--nnodes", shape.nodes_text, "--nproc-per-node", str(shape.workers)),
        *("--max-restarts", str(shape.max_restarts), str(WORKER)),
    ]


TORCHRUN = Launcher(
    "torchrun",
    _torchrun,
    "import torch.distributed.run, torch.distributed.launcher.api,"
    " torch.distributed.elastic.agent.server.local_elastic_agent,"
    " torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
)
HPC_ELASTIC = Launcher("hpc_elastic", _hpc_elastic, "import hpc_elastic.cli.run.command")
