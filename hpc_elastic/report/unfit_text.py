"""Nodes that stay out of a run because they are unfit, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.record.journal import Cause
from hpc_elastic.record.member_names import natural
from hpc_elastic.record.state import RunState
from hpc_elastic.text import count_text

_MOST_NAMES = 4
_MOST_WORDS = 80  # of a reason; the node's own line has all of it


def is_for_unfit(cause: Cause, state: RunState) -> bool:
    """Tell whether what counts as the loss of a node is that nodes are unfit."""
    return cause is Cause.NODE_LOSS and state.only_unfit


def unfit_text(unfit: Mapping[str, str]) -> str:
    """Return ``1 node unfit: node3 (disk full)``.

    Args:
        unfit: the nodes, and why; at least one.
    """
    names = sorted(unfit, key=natural)
    told = ", ".join(f"{name} ({_short(unfit[name])})" for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{count_text(len(names), 'node')} unfit: {told}{more}"


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]} ..."
