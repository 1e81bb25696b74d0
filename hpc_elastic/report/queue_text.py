"""Why a job waits in Slurm's queue, in words, how long its starts take, and the help for its owner. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hpc_elastic.clock import clock_text, date_text
from hpc_elastic.meet.member_names import MemberName, Phase, natural
from hpc_elastic.record.journal import EpochStarted, Record, RoundEnded
from hpc_elastic.record.state import RunState
from hpc_elastic.report.timeline import names_text, span_text
from hpc_elastic.settings.table import in_force
from hpc_elastic.text import are_text, count_text

GIVEN_BACK = "the job is given back to Slurm"
FAILS = "the run fails"  # an array that has too few tasks left

_ENDED = (Phase.STOPPED, Phase.SUCCEEDED, Phase.LEFT, Phase.ABSENT)
_HELD = "held; to let it go on: scontrol release {job}"
_REASONS = (
    ("JobHeldUser", _HELD),
    ("JobHeldAdmin", "held by an administrator: ask why"),
    ("job_requeued_in_held_state", _HELD),
    ("JobHoldMaxRequeue", f"requeued more often than this cluster allows; {_HELD}"),
    (
        "launch_failure_limit_exceeded_requeued_held",
        f"Slurm has requeued it by itself as often as this cluster allows (MaxBatchRequeue); {_HELD}",
    ),
    ("launch_failed_requeued_held", f"its nodes could not start it; {_HELD}"),
    ("DependencyNeverSatisfied", "waits for a job that has not ended as it should: it will never start"),
    ("Dependency", "waits for other jobs to end{dependency}"),
    ("Priority", "waits for its turn: other jobs come first"),
    ("Resources", "waits for nodes to become free"),
    ("PartitionNodeLimit", "asks for more nodes than its partition has or allows: it may never start"),
    ("PartitionTimeLimit", "asks for more time than its partition allows: it will not start"),
    ("PartitionDown", "waits: its partition is closed"),
    ("PartitionInactive", "waits: its partition is closed"),
    ("ReqNodeNotAvail", "waits for nodes that are down, drained or reserved{nodes}"),
    ("Reservation", "waits for its reservation"),
    ("Licenses", "waits for licenses"),
    ("QOS", "waits: a limit of its QOS is reached ({reason})"),
    ("Assoc", "waits: a limit of its account is reached ({reason})"),
)
"""First word of Slurm's reason: what to say."""


def queue_text(fields: Mapping[str, str]) -> str:
    """Return why a job waits; empty if Slurm gives no reason.

    Args:
        fields: of ``scontrol show job``.
    """
    reason = fields.get("Reason", "None")
    if reason in ("", "None", "(null)"):
        return ""
    if reason == "BeginTime":
        return _begin_text(fields)
    for word, text in _REASONS:
        if reason.startswith(word):
            nodes = re.search(r"UnavailableNodes:([^\s,)]+(?:\[[^\]]*\])?)", reason)
            wanted = fields.get("ReqNodeList", "")
            which = nodes[1] if nodes else wanted if wanted not in ("", "(null)") else ""
            dependency = fields.get("Dependency", "")
            return text.format(
                job=fields.get("JobId", "JOB"),
                dependency=f" ({dependency})" if dependency not in ("", "(null)") else "",
                nodes=f": {which}" if which else "",
                reason=reason,
            )
    return f"waits (Slurm's reason: {reason})"


def _begin_text(fields: Mapping[str, str]) -> str:
    """Tell until when Slurm makes a job wait; a requeued one does for two minutes by default."""
    at = fields.get("EligibleTime") or fields.get("StartTime") or ""
    until = f" until {at.replace('T', ' ')}" if at not in ("", "Unknown", "N/A") else " a while"
    job, restarts = fields.get("JobId", "JOB"), fields.get("Restarts", "")
    why = {"0": ", as it was submitted (--begin)", "": ""}.get(restarts, ", as after every requeue")
    is_task, is_one = "_" in job, "," not in job
    who = ("task " if is_one else "tasks ") + job.replace(",", ", ") if is_task else "it"
    earlier = f"to start {'it' if is_one else 'them'} earlier: scontrol update jobid={job} StartTime=now+3"
    return f"Slurm lets {who} wait{until}{why}; {earlier}"


def what_helps(fields: Mapping[str, str], run: str) -> str:
    """Return the fix for a job that will not start as it is; empty if waiting helps.

    Args:
        fields: of ``scontrol show job``.
        run: its directory, as a shell takes it.
    """
    reason, job = fields.get("Reason", ""), fields.get("JobId", "JOB")
    anew = f"hpc-elastic cancel {run} and submit it anew"
    if reason.startswith("PartitionTimeLimit"):
        partition = fields.get("Partition", "")
        most = f"the MaxTime that scontrol show partition {partition} tells".replace("  ", " ")
        return f"scontrol update JobId={job} TimeLimit=TIME, with {most}; or {anew} with a shorter --time"
    if reason.startswith("PartitionNodeLimit"):
        return f"{anew} with fewer --nodes or another --partition, unless its nodes come back by themselves"
    if reason.startswith("DependencyNeverSatisfied"):
        return (
            f"scontrol update JobId={job} Dependency= to start it all the same; or hpc-elastic cancel {run}"
        )
    return ""


def missing_text(expected: Sequence[str], present: Collection[str]) -> str:
    """Return which nodes have not come yet; empty if none is missing or the expected ones are not known.

    Args:
        expected: names of the nodes of this start, in order.
        present: names of the nodes whose agents are there.
    """
    absent = tuple(name for name in expected if name not in present)
    return f"{names_text(absent)} ({len(absent)} of {len(expected)} nodes)" if absent else ""


def lost_text(state: RunState) -> str:
    """Return which lost nodes a run needs back to go on as it is; empty if it needs none."""
    low = state.sizes.partition(":")[0]
    lost = tuple(node for node in state.expected if node in state.lost and node not in state.unfit)
    left = len(state.expected) - len(state.lost.intersection(state.expected))
    if not lost or not low.isdecimal() or left >= int(low):
        return ""
    need = f"{left} of {len(state.expected)} nodes left, {low} are needed"
    return f"{names_text(lost)} (lost; {need}), for some seconds: it may come back"


def ended_text(state: RunState, names: Iterable[MemberName]) -> str:
    """Return for whose workers the nodes of a round wait whose own have ended; empty if for none."""
    running = state.running
    if running is None:
        return ""
    ended = {name.node_id for name in names if name.phase in _ENDED and name.round == running.number}
    done = tuple(member.node for member in running.members if member.node_id in ended)
    working = tuple(member.node for member in running.members if member.node_id not in ended)
    if not done or not working:
        return ""
    return f"the workers of {names_text(working)}; those of {names_text(done)} have ended"


def more_text(nodes: str, present: Collection[str]) -> str:
    """Return how many more nodes an array waits for that has enough for a round; empty if for none.

    Args:
        nodes: of the job spec, MIN or MIN:MAX.
        present: names of the nodes whose agents are there.
    """
    high = nodes.rpartition(":")[2]
    missing = int(high) - len(present) if high.isdecimal() and present else 0
    if missing <= 0:
        return ""
    here = names_text(tuple(sorted(present, key=natural)))
    return f"{count_text(missing, 'more node')} ({len(present)} of {high} here: {here})"


def is_short_of_tasks(nodes: str, present: Collection[str], tasks: int | None) -> bool:
    """Tell whether an array waits for nodes and has too few tasks left in Slurm to get them.

    Args:
        nodes: of the job spec, MIN or MIN:MAX.
        present: names of the nodes whose agents are there.
        tasks: how many tasks Slurm still has of it; None if that is not known.
    """
    low = nodes.partition(":")[0]
    return low.isdecimal() and len(present) < int(low) and tasks is not None and tasks < int(low)


def too_few_text(nodes: str, present: Collection[str], tasks: int | None = None, run: str = "RUN") -> str:
    """Return how many nodes an array has to get before it can go on; empty if it has enough.

    Args:
        nodes: of the job spec, MIN or MIN:MAX.
        present: names of the nodes whose agents are there.
        tasks: how many tasks Slurm still has of it; None if that is not known.
        run: its directory, as a shell takes it.
    """
    low = nodes.partition(":")[0]
    missing = int(low) - len(present) if low.isdecimal() else 0
    if missing <= 0:
        return ""
    here = f"here: {names_text(tuple(sorted(present)))}" if present else "none is here"
    text = f"{count_text(missing, 'more node')} ({low} are needed; {here})"
    if tasks is None or not is_short_of_tasks(nodes, present, tasks):
        return text
    left = are_text(tasks, "task")
    return f"{text}, but only {left} left in Slurm: hpc-elastic scale {run} --nodes {low} queues more"


def wait_times_text(
    records: Iterable[Record], spec: Mapping[str, Any], now_s: float, here: int, then: str = GIVEN_BACK
) -> str:
    """Return since when the nodes of a run wait for others, until when, and the event then.

    Args:
        records: of the run.
        spec: the job spec as it was stored; empty if the time that they wait is not known.
        now_s: wall time [s since the epoch].
        here: how many nodes are there.
        then: the consequence if too few have come by then.
    """
    began = [record.at for record in records if isinstance(record.entry, EpochStarted | RoundEnded)]
    if not began:
        return ""
    text = f", since {date_text(began[-1])} ({span_text(now_s - began[-1])})"
    if not spec:
        return f"{text}; the log of the first node tells until when"
    low = str(in_force(spec, "nodes")).partition(":")[0]
    if low.isdecimal() and here >= int(low):
        last_call_s = in_force(spec, "last_call_timeout")
        return f"{text}; {last_call_s:g} s after enough have come the round begins without the others"
    timeout = in_force(spec, "join_timeout")
    return f"{text}, until {clock_text(began[-1] + timeout)} (join_timeout = {timeout:g} s); then {then}"
