"""Whether two rounds ended by the same failure. Pure.

The same failure again and again, with no step saved in between, will not go away by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpc_elastic.text import last_words

if TYPE_CHECKING:
    from hpc_elastic.record.journal import RoundEnded

EARLY_S = 10.0  # workers that fail sooner may fail on all nodes: those of the others are ended too soon to
_HEAD = 160  # characters of a message that count
_VARYING = r"0x[0-9a-fA-F]+|\d+"  # ranks, addresses, steps, ports


def signature(ended: RoundEnded) -> str:
    """Return the signature of a failure: its cause, exit code and message; the rank does not count.

    Numbers in the message do not count: they are ranks, addresses or steps. Of a hang whose place is known
    only the place counts, as its message names ranks and nodes.
    """
    failure = ended.failure or {}
    what = failure.get("place") or re.sub(_VARYING, "#", head_of(failure))
    return f"{ended.cause.value} {failure.get('exitcode', 1)} {what}"


def head_of(failure: dict[str, Any]) -> str:
    """Return the first line of a failure's message; without one the last line of the worker's output."""
    message = str(failure.get("message") or "").strip()
    if message:
        return message.splitlines()[0][:_HEAD]
    return last_words(str(failure.get("stderr_tail") or ""))[:_HEAD]


def is_early(ended: RoundEnded) -> bool:
    """Tell whether workers failed so soon after their start, or at an unknown time, that others may as well.

    A program that cannot be started at all fails first on the node that starts it first.
    """
    ran_s = (ended.failure or {}).get("ran_s")
    return not isinstance(ran_s, int | float) or ran_s < EARLY_S


def lone_node(ends: Sequence[RoundEnded]) -> str | None:
    """Return the node that a failure has always hit, None if it hit others too or only once."""
    places = {ended.nodes for ended in ends}
    if len(ends) < 2 or len(places) != 1:  # noqa: PLR2004 - once is no pattern
        return None
    (nodes,) = places
    if len(nodes) != 1:
        return None
    (node,) = nodes
    return node


def repeated_text(ends: Sequence[RoundEnded], nodes: int | None = None) -> str:
    """Return in words how often the same failure came, on which nodes, and the last saved step.

    Args:
        ends: the rounds that ended by it, oldest first; at least one.
        nodes: how many nodes the run is on, if that is known: the only one is not to blame.
    """
    saved = ends[-1].saved
    step = "no checkpoint was marked" if saved is None else f"the last checkpoint is still step {saved}"
    lone = lone_node(ends)
    if lone is not None and nodes == 1:
        where = f"on {lone}, the only node"
    elif lone is not None and any(map(is_early, ends)):
        where = f"always on {lone}, soon after the start: the program, or that node"
    elif lone is not None:
        where = f"always on {lone}: that node may be bad"
    else:
        times = Counter(node for ended in ends for node in ended.nodes)
        where = "on " + ", ".join(f"{node} ({n} times)" if n > 1 else node for node, n in times.items())
    return f"the same failure {len(ends)} times in a row, {where}; {step}"
