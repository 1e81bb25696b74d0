"""What sinfo says about nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_elastic.slurm.client.tables import Form
from hpc_elastic.typed_json import whole_number

_FEATURE = re.compile(r"[\w.-]+")


STATES = Form(("nodelist", "statecomplete", "reason"), is_long=True)
OFFERS = Form(("N", "P", "T", "f", "G"))  # name, partition, state, features, what else it has


def draining(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the reasons of the nodes that take no more jobs, by name, from rows of `STATES`."""
    return {name: "" if reason == "none" else reason for name, state, reason in rows if "drain" in state}


def is_down(rows: Iterable[Sequence[str]]) -> bool:
    """Return whether Slurm has given up one of the nodes, from rows of `STATES`."""
    return any("down" in state or "not_responding" in state for _, state, _ in rows)


class LostNodeState(NamedTuple):
    """What Slurm says about a node that a job has lost.

    Attributes:
        words: its state in sinfo's words, such as ``idle`` or ``down+not_responding``.
        reason: for which it is down or drained, empty without.
        up_since: since when it and its slurmd are up [s since the epoch]; None if Slurm does not know.
        in_job: whether the job has it still.
    """

    words: str
    reason: str
    up_since: float | None
    in_job: bool


def taken_away(state: LostNodeState, lost_at: float) -> str | None:
    """Return how Slurm was told to take a node away, None if it was lost by itself.

    The node has answered all the time, and nevertheless Slurm runs nothing of the job there any more: it was
    set down by hand, or given up by the job (``scontrol update NumNodes=``). A node that fails does not
    answer, or has started anew since.

    Args:
        state: what Slurm says.
        lost_at: when its agent was found to be gone [s since the epoch].
    """
    words = state.words.lower()
    is_silent = "not_responding" in words or "unknown" in words or "*" in words
    if is_silent or state.up_since is None or state.up_since >= lost_at:
        return None
    if "down" in words or "power" in words:
        return f"it was set down in Slurm ({state.reason})" if state.reason else "it was set down in Slurm"
    return None if state.in_job else "Slurm took it from the job though it was up"


def states_of(rows: Iterable[Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of each node by name, from rows of `STATES`."""
    return {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}


class ListedNode(NamedTuple):
    """A node as Slurm lists it."""

    name: str
    state: str  # ``idle``, ``down*``, ``drained``, ...
    features: frozenset[str] = frozenset()
    gpus: int = 0

    @property
    def is_up(self) -> bool:
        """Whether jobs can run on it, now or when others have ended."""
        word = self.state.rstrip("*~#!%$@^-+").lower()
        return "*" not in self.state and not word.startswith(("down", "drain", "fail", "unk", "maint"))


def features_of(constraint: str | None) -> frozenset[str] | None:
    """Return the features that a constraint asks for; None if it says more than ``a&b``."""
    text = (constraint or "").replace(",", "&")
    if text in ("", "(null)"):
        return frozenset()
    names = frozenset(name.strip() for name in text.split("&"))
    return names if all(_FEATURE.fullmatch(name) for name in names) else None


def gpus_in(gres: str) -> int:
    """Return the GPUs in what a node offers: ``gpu:a100:4(S:0-1),nvme:1``."""
    total = 0
    for part in _parts(gres):
        words = part.partition("(")[0].split(":")
        if words[0] == "gpu":
            count = whole_number(words[-1])
            total += 1 if count is None else count
    return total


def _parts(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def parse_nodes(rows: Iterable[Sequence[str]]) -> list[tuple[ListedNode, str, bool]]:
    """Return the nodes in rows of sinfo's table `client.nodes.OFFERS`.

    Returns:
        Each node with the name of a partition it is in, and whether that is the default one.
    """
    found = []
    for name, partition, state, features, gres in rows:
        known = frozenset(features.split(",")) - {"(null)"}
        is_default = partition.endswith("*")
        found.append((ListedNode(name, state, known, gpus_in(gres)), partition.rstrip("*"), is_default))
    return found


def in_partitions(listed: Iterable[tuple[ListedNode, str, bool]], partitions: str | None) -> list[ListedNode]:
    """Return the nodes of some partitions, given as ``a,b``; of the default one if none is named."""
    names = set(partitions.split(",")) if partitions else set()
    chosen = (node for node, name, is_default in listed if (name in names if names else is_default))
    return list({node.name: node for node in chosen}.values())
