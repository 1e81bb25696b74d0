"""What all nodes have written down, put together: no hang, or who it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hpc_elastic.ids import ExitCode
from hpc_elastic.multiprocessing.errors.summary import FailureRecord
from hpc_elastic.node.hangs.groups import RankLook, odd_ones, ranks_text, vote_text
from hpc_elastic.node.hangs.look import is_stopped, read_looks

_MUCH = 16 << 20  # bytes between two looks: more than log lines and trackers write in a minute
_MOST_AT_ONCE = 64  # files of nodes that are read before the agent shows again that it lives


class HangVerdict(NamedTuple):
    """What was found."""

    failure: FailureRecord  # of the first of the odd ranks
    nodes: tuple[str, ...]  # where the odd ranks are; all nodes if none is odd
    step: int | None = None  # of the first of the odd ranks


class Case(NamedTuple):
    """Why one node has asked all to look."""

    node: str
    why: str  # in words
    suspects: Collection[int]  # the ranks that made no progress


class Evidence(NamedTuple):
    """What the nodes have written down."""

    directory: str
    looks: tuple[RankLook, ...]
    missing: tuple[str, ...]  # nodes that have not


def gather(directory: str, nodes: Sequence[str], known: dict[str, tuple[RankLook, ...]]) -> Evidence:
    """Return what is there up to now.

    Args:
        directory: of the look.
        nodes: those that are to write.
        known: what was read in earlier turns, by node; gets what is new, not much in one turn.
    """
    try:
        known |= read_looks(directory, [node for node in nodes if node not in known], _MOST_AT_ONCE)
    except OSError:
        pass
    looks = tuple(look for node in nodes for look in known.get(node, ()))
    return Evidence(directory, looks, tuple(node for node in nodes if node not in known))


def stopped(evidence: Evidence) -> tuple[RankLook, ...]:
    """Return the stopped ranks (SIGSTOP), for which the other ranks wait; empty if there are none."""
    return tuple(look for look in evidence.looks if is_stopped(look))


def stopped_text(looks: Sequence[RankLook]) -> str:
    """Return the sentence about stopped ranks."""
    return f"{ranks_text(looks)}: stopped (SIGSTOP): that time does not count"


def has_moved(evidence: Evidence, before: Mapping[int, RankLook], suspects: Collection[int]) -> bool:
    """Tell whether a suspect is somewhere else than at an earlier look, or has moved much data since.

    Who writes one large file or waits for an upload is in the same place for long.
    """
    known = ((look, before.get(look.rank)) for look in evidence.looks if look.rank in suspects)
    pairs = [(look, then) for look, then in known if then is not None]
    return any(look.frames != then.frames or look.moved - then.moved >= _MUCH for look, then in pairs)


def judge(case: Case, evidence: Evidence, wall_s: float) -> HangVerdict:
    """Return who is the odd one out, else who made no progress.

    Args:
        case: why there was a look.
        evidence: what was seen.
        wall_s: wall time of now [s].
    """
    looks = evidence.looks
    vote = odd_ones(looks)
    odd = vote.odd or tuple(look for look in looks if look.rank in case.suspects)
    involved = (look.node for look in vote.odd or looks)
    silent = () if vote.odd else evidence.missing  # who has not spoken may be the odd one as well
    nodes = tuple(dict.fromkeys((*involved, *silent))) or (case.node,)
    first = odd[0] if odd else RankLook(min(case.suspects), case.node)
    who = vote_text(vote, looks) if looks else f"rank {first.rank} ({case.node})"
    unheard = f"; nothing was heard from {', '.join(evidence.missing)}" if evidence.missing else ""
    failure = FailureRecord(
        rank=first.rank,
        local_rank=first.local_rank,
        node=first.node,
        pid=first.pid,
        exitcode=ExitCode.HUNG,
        message=f"{case.why}: {who}{unheard}; stacks of all ranks in {evidence.directory}",
        traceback=first.stack,
        log=first.log,
        timestamp=wall_s,
    )
    return HangVerdict(failure, nodes, first.step)
