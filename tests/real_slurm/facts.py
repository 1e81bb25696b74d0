"""What differs between the versions of Slurm: one row per fact, one column per version.

A test that looks at such a fact asks here what holds for the Slurm that it runs on, so it is red where a
version behaves otherwise than is written here. A version between two columns has the left one's facts.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

VERSIONS = ("20.11", "22.05", "24.11", "26.05")


MIXED = "mixed+not_responding or down+not_responding"
"""It is down once Slurm counts none of its CPUs for the job any more."""


class Fact(NamedTuple):
    """One thing that Slurm does otherwise from some version on."""

    what: str
    holds: tuple[str, ...]  # one word or more per version


FACTS = {
    "end in grace": Fact(
        "the batch script of a preempted job ends by itself within the grace time",
        ("over", "over", "requeued", "requeued"),
    ),
    "end after grace": Fact(
        "a job that has requested its requeue within the grace time ends by itself in its next start",
        ("over", "over", "requeued once more", "over"),
    ),
    "killed script": Fact(
        "Reason of a job whose batch script got SIGKILL",
        ("JobLaunchFailure", "JobLaunchFailure", "RaisedSignal:9(Killed)", "RaisedSignal:9(Killed)"),
    ),
    "set down batch host": Fact(
        "a job of several nodes whose batch host an administrator sets down is put back by",
        ("its agents", "its agents", "its agents", "Slurm"),
    ),
    "lost node": Fact(
        "state of a node that is lost to a job that runs on",
        ("down*", "down+not_responding", MIXED, MIXED),
    ),
    "early requeue": Fact(
        "GPUs of a job that is requeued before the loss of its node is noticed",
        ("kept", "lost", "kept", "kept"),
    ),
    "node range": Fact(
        "nodes that --nodes=1-4 --ntasks-per-node=1 gets where 4 are free", ("4", "1", "4", "4")
    ),
    "too many nodes": Fact(
        "a job that asks for --nodes=5-8 where a partition has 4", ("waits", "waits", "refused", "waits")
    ),
    "shown command": Fact(
        "Command in `scontrol show job`", ("script and arguments", "script and arguments", "script", "script")
    ),
    "tres per task": Fact(
        "SLURM_TRES_PER_TASK of a script submitted with --cpus-per-task=2", ("", "", "cpu=2", "cpu=2")
    ),
    "told of loss": Fact(
        "signal to the tasks of a job that loses a node, before SIGKILL", ("", "TERM", "TERM", "TERM")
    ),
    "own signal": Fact(
        "signal to the tasks where preemption sends the batch script the signal of --signal=B:",
        ("CONT", "", "", ""),
    ),
    "expedited": Fact(
        "--requeue=expedite, where the site allows it",
        ("refused", "refused", "refused", "starts at once after the loss of a node; held after a failure"),
    ),
    "step manager": Fact(
        "--stepmgr",
        ("refused", "refused", *["where PrologFlags=contain, the batch host manages the steps"] * 2),
    ),
    "own auth": Fact("AuthType=auth/slurm", ("absent", "absent", "there", "there")),
    "node gpus": Fact("SLURM_GPUS_ON_NODE of an agent on a node with 2 GPUs", ("", "2", "2", "2")),
    "gpus per task": Fact("GPUs that a task sees with --gpus-per-task=1 and two tasks", ("2", "1", "1", "1")),
    "job times": Fact(
        "SLURM_JOB_START_TIME and SLURM_JOB_END_TIME of a script", ("absent", "absent", "set", "set")
    ),
}


def fact(name: str, version: str) -> str:
    """Return what holds for a version.

    Args:
        name: of the fact.
        version: of Slurm, such as `24.11.5`.
    """
    return FACTS[name].holds[column(version)]


def column(version: str) -> int:
    """Return the column of a version: that of the newest that is not newer; of an older one the first."""
    known = [_number(text) <= _number(version) for text in VERSIONS]
    return max(0, sum(known) - 1)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


class _Cluster(Protocol):
    """What the questions below need."""

    @property
    def version(self) -> str:
        """Its Slurm, such as `24.11.5`."""

    def node_state(self, name: str) -> str:
        """State of a node with its flags."""


class Facts:
    """Questions to a cluster, real or fake, whose answers differ between versions."""

    def fact(self: _Cluster, name: str) -> str:
        """What holds for its Slurm."""
        return fact(name, self.version)

    def is_missed(self: _Cluster, name: str) -> bool:
        """Whether Slurm has noticed that a node is gone; one of a job that runs on need not be down."""
        goes_down = fact("lost node", self.version).startswith("down")
        return bool(re.search("down" if goes_down else "down|not_responding", self.node_state(name)))
