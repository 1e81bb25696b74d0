"""The last signs of workers that tell no steps, as their agents tell them in file names."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.node.hangs.activity_rules import NodeActivity, parse_activity
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import RoundFormed
from hpc_elastic.report.timeline import span_text
from hpc_elastic.store.files import list_names

_LONG_S = 300  # a rank with no sign for so long is named


def activity_texts(paths: RunPaths, running: RoundFormed, now_s: float, *, has_limit: bool) -> list[str]:
    """Return the ages of the newest output, CPU time and GPU use, and the rank that is silent for longest.

    Args:
        paths: the run.
        running: the round that runs.
        now_s: wall time [s since the epoch].
        has_limit: whether a limit of silence is set.

    Returns:
        Sentences; none for workers that tell their steps.
    """
    try:
        found = filter(None, map(parse_activity, list_names(paths.activity)))
    except OSError:
        return []
    nodes = {member.node for member in running.members}
    told = [
        one.older(max(0, int(now_s - one.at)))
        for one in found
        if one.round == running.number and one.node in nodes
    ]
    if not told:
        return []
    quiet = max(told, key=lambda one: one.silence_s)
    return [
        _newest_text(told),
        *([_quiet_text(quiet, has_limit=has_limit)] if quiet.silence_s >= _LONG_S else []),
    ]


def _newest_text(told: Sequence[NodeActivity]) -> str:
    outputs = [one.newest_output_s for one in told if one.newest_output_s is not None]
    gpus = [one.gpu_s for one in told if one.gpu_s is not None]
    output = f"{span_text(min(outputs))} ago" if outputs else "not seen, as it goes to no log"
    gpu = f"{span_text(min(gpus))} ago" if gpus else "not sampled (--sample-gpus)"
    cpu = span_text(min(one.newest_cpu_s for one in told))
    return f"the workers tell no steps; last output {output}, CPU time {cpu} ago, GPU use {gpu}"


def _quiet_text(one: NodeActivity, *, has_limit: bool) -> str:
    signs = [("output", one.output_s), ("CPU time", one.cpu_s), ("GPU use on its node", one.gpu_s)]
    ages = ", ".join(f"no {sign} for {span_text(age)}" for sign, age in signs if age is not None)
    more = "" if has_limit else "; --silence-timeout takes a silence of that length for a hang"
    return f"rank {one.rank} on {one.node}: {ages}{more}"
