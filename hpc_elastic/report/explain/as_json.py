"""The account and the explanation of a run as JSON, for programs. Pure.

`FORMAT` counts up when a field is removed or changes its meaning; new fields may be added at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hpc_elastic.account.account import Account, pace_of, seconds_of_nodes
from hpc_elastic.account.gpus import by_share
from hpc_elastic.account.spans import Bucket
from hpc_elastic.clock import wall_of
from hpc_elastic.report.explain.facts import Explanation, StopFact
from hpc_elastic.report.explain.words import cause_of, left_at
from hpc_elastic.report.run_facts import SeenRun
from hpc_elastic.report.run_status import RunStatus
from hpc_elastic.report.timeline import Moment
from hpc_elastic.secrets_out import without_secrets
from hpc_elastic.slurm.run_jobs.run_files import RunFiles
from hpc_elastic.slurm.run_jobs.submissions import Submission

FORMAT = 1


def document(kind: str, content: dict[str, Any]) -> str:
    """Return a JSON document with its format and kind, indented, with its last line end; without secrets."""
    return json.dumps(_without_secrets({"format": FORMAT, "kind": kind, **content}), indent=2) + "\n"


def _without_secrets(content: Any) -> Any:
    if isinstance(content, str):
        return without_secrets(content)
    if isinstance(content, dict):
        return {key: _without_secrets(value) for key, value in content.items()}
    return [_without_secrets(each) for each in content] if isinstance(content, list | tuple) else content


def run_json(run: RunFiles, where: RunStatus) -> dict[str, Any]:
    """Return the identity of a run and its state."""
    return {
        "run": run.paths.root,
        "name": run.name,
        "job": run.job_id,
        "phase": where.phase.value,
        "text": where.text,
    }


def account_json(account: Account) -> dict[str, Any]:
    """Return an account: all times in seconds, each share between 0 and 1."""
    pace = pace_of(account.series)
    return {
        "wall_s": _round(account.wall_s),
        "goodput": _share(account.goodput),
        "goodput_on_nodes": _share(account.goodput_on_nodes),
        "lost_steps": account.lost_steps,
        "lost_at_least": account.lost_at_least,
        "use": None if account.use is None else account.use._asdict(),
        "gpus": [
            {"node": node, **gpu._asdict(), "share": _share(gpu.share)}
            for node, gpu in by_share(account.gpus)
        ],
        "step": account.series.progress[-1][1] if account.series.progress else None,
        "total_steps": account.series.total,
        "left_s": None if pace is None else left_at(pace, account),
        "steps_per_s": None if pace is None else pace.per_s,
        "seconds": {bucket.name.lower(): _round(account.seconds.get(bucket, 0.0)) for bucket in _OF_A_RUN},
        "starts": [
            {
                "job": start.facts.job_id,
                "epoch": list(start.facts.epoch),
                "at": _round(start.facts.at),
                "wall_s": _round(start.wall_s),
                "rounds": start.facts.rounds,
                "began_step": start.facts.began,
                "reached_step": start.facts.reached,
                "saved_step": start.facts.saved,
                "goodput": _share(start.goodput),
            }
            for start in account.starts
        ],
        "causes": [
            {
                "cause": None if each.cause is None else each.cause.value,
                "times": each.times,
                "cost_s": _round(each.seconds),
                "lost_steps": each.lost_steps,
                "lost_at_least": each.lost_at_least,
                "mean_work_between_s": _round(each.between_s),
            }
            for each in account.causes
        ],
    }


_OF_A_RUN = tuple(bucket for bucket in Bucket if bucket not in (Bucket.SPARE, Bucket.ELSEWHERE))


def status_json(seen: SeenRun, lines: Iterable[tuple[str, str]]) -> str:
    """Return a status as a document."""
    content = {
        **run_json(seen.run, seen.where),
        "account": account_json(seen.account),
        "facts": [{"label": label, "text": text} for label, text in lines],
        "next": "; ".join(step.text for step in seen.then),
    }
    return document("status", content)


def explanation_json(seen: SeenRun, found: Explanation) -> str:
    """Return an explanation as a document."""
    return document("explain", _explanation(seen, found))


def report_json(seen: SeenRun, found: Explanation) -> str:
    """Return a report as a document: an explanation, with nodes, spans and steps."""
    spans, series = found.account.series.spans, found.account.series
    content = {
        "nodes": {
            node: {bucket.name.lower(): _round(span_s) for bucket, span_s in seconds.items()}
            for node, seconds in seconds_of_nodes(spans).items()
        },
        "spans": [[_round(one.begin), _round(one.seconds), one.bucket.name.lower()] for one in spans],
        "steps": [[_round(at), step] for at, step in series.progress],
    }
    return document("report", {**_explanation(seen, found), **content})


def _explanation(seen: SeenRun, found: Explanation) -> dict[str, Any]:
    return {
        **run_json(seen.run, seen.where),
        "account": account_json(found.account),
        "earlier_stops": found.earlier,
        "stops": [_stop_json(stop) for stop in found.stops],
        "advice": [
            {"advice": one.advice.value, "number": one.number, "node": one.node, "step": one.step}
            for one in found.advice
        ],
        "next": "; ".join(step.text for step in seen.then),
    }


def _stop_json(stop: StopFact) -> dict[str, Any]:
    return {
        "cause": None if stop.last.cause is None else stop.last.cause.value,
        "text": cause_of(stop),
        "times": stop.times,
        "first_at": _round(stop.first.at),
        "last_at": _round(stop.last.at),
        "round": stop.last.round,
        "nodes": list(stop.nodes),
        "failure": stop.last.failure,
        "word": None if stop.last.word is None else stop.last.word._asdict(),
        "signal": stop.last.asker.signal,
        "signal_of_user": stop.last.asker.is_sent,
        "detail": stop.last.detail or stop.last.asker.words,
        "setup": None if stop.last.setup is None else stop.last.setup._asdict(),
        "unfit": dict(stop.last.unfit),
        "taken": dict(stop.last.taken),
        "left": [
            {"node": one.node, "cause": one.cause.value, "detail": one.asker.text}
            for one in stop.last.leavers
        ],
        "drill": stop.last.drill,
        "cost_s": _round(stop.seconds),
        "lost_steps": stop.lost_steps,
        "perhaps_lost_steps": stop.perhaps_lost,
        "lost_at_least": stop.lost_at_least,
        "resumed_step": stop.last.resumed,
        "went_back_behind_step": stop.last.kept,
        "ended_start": stop.last.left,
        "evidence": stop.evidence,
    }


def _round(seconds: float) -> float:
    return round(seconds, 3)


def _share(share: float | None) -> float | None:
    return None if share is None else round(share, 6)


def timeline_json(run: dict[str, Any], submissions: Iterable[Submission], moments: Iterable[Moment]) -> str:
    """Return the events of a run as a document.

    Args:
        run: as `run_json` has it.
        submissions: of the run.
        moments: the events, the oldest first.
    """
    queued = [
        {"submission": one.number, "job": one.job_id, "at": wall_of(one.time.replace(" ", "T"))}
        for one in submissions
    ]
    events = [{"at": one.at, "submission": one.submission, "text": one.text} for one in moments]
    return document("timeline", {**run, "submissions": queued, "events": events})
