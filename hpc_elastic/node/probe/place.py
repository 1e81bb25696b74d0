"""The node and its agent, as far as the probe has to know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hpc_elastic.clock import Clock
from hpc_elastic.node.loop import EventLoop


class ProbedNode(NamedTuple):
    """The node, as far as its probe has to know it."""

    node: str
    run_dir: str
    listed: str  # directory below it that is small and always there
    scratch: str  # private node-local directory
    workers: int
    environ: Mapping[str, str]
    below_slurm: bool
    gpus: int | None  # that Slurm has promised this node; None if it says nothing
    is_first: bool  # tells what all nodes find


class ProbingAgent(NamedTuple):
    """The agent around the probe."""

    loop: EventLoop
    clock: Clock
    say: Callable[[str], None]
    beat: Callable[[], object]  # shows that the agent lives; called while a program runs
