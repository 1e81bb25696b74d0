"""The use that a run has made of its nodes, from the lines of its agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hpc_elastic.account.facts import WorkFact


class RunUse(NamedTuple):
    """The use of the nodes whose agents write lines, over all rounds; None: not known.

    Args:
        nodes: the nodes, sorted.
        cpu_s: CPU time of the rounds [s].
        of_cpu_s: the CPUs that Slurm had allocated, times the length of the rounds [s].
        peak: the most memory on a node, cached files included [bytes].
        peak_node: that node.
        limit: of memory there [bytes].
    """

    nodes: tuple[str, ...]
    cpu_s: float | None = None
    of_cpu_s: float | None = None
    peak: int | None = None
    peak_node: str = ""
    limit: int | None = None

    @property
    def cpu_share(self) -> float | None:
        """The share of the allocated CPUs that was used."""
        return self.cpu_s / self.of_cpu_s if self.cpu_s is not None and self.of_cpu_s else None


def use_of(facts: Iterable[WorkFact]) -> RunUse | None:
    """Return the use of a run; None if no line tells of it."""
    first: dict[tuple[int, str], WorkFact] = {}
    last: dict[tuple[int, str], WorkFact] = {}
    for fact in sorted(facts, key=lambda one: one.mono):
        key = fact.round, fact.agent
        first.setdefault(key, fact)
        if fact.use is not None:
            last[key] = fact
    found = [(fact, fact.use, fact.mono - first[key].mono) for key, fact in last.items() if fact.use]
    if not found:
        return None
    cpus = [(use.cpu_s, use.cpus, seconds) for _, use, seconds in found if use.cpu_s is not None]
    allocated = [count * seconds for _, count, seconds in cpus if count]
    peaks = [(use.peak, _node_of(fact), use.limit) for fact, use, _ in found if use.peak is not None]
    peak, node, limit = max(peaks, key=lambda one: one[0]) if peaks else (None, "", None)
    return RunUse(
        tuple(sorted({_node_of(fact) for fact, _, _ in found})),
        sum(one[0] for one in cpus) if cpus else None,
        sum(allocated) if cpus and len(allocated) == len(cpus) else None,
        peak,
        node,
        limit,
    )


def _node_of(fact: WorkFact) -> str:
    return fact.agent.rpartition(".")[0] or fact.agent
