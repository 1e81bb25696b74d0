"""The table at the end, and the same as plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaos_lib.one_run import Verdict
from chaos_lib.recovery import Effect


def table(verdicts: Sequence[Verdict]) -> str:
    """Return what each kind of fault did, as a Markdown table."""
    by_kind: dict[str, list[Effect]] = {}
    for verdict in verdicts:
        for effect in verdict.effects:
            by_kind.setdefault(effect.strike.fault, []).append(effect)
    lines = [
        "| fault | struck | disturbed | noticed at the latest after | running again at the latest after |",
        "|---|---|---|---|---|",
    ]
    for kind, effects in sorted(by_kind.items()):
        disturbed = [effect for effect in effects if effect.noticed_s is not None]
        noticed = max((effect.noticed_s or 0.0 for effect in disturbed), default=None)
        running = max((e.running_s for e in disturbed if e.running_s is not None), default=None)
        lines.append(
            f"| {kind} | {len(effects)} | {len(disturbed)} | {_seconds(noticed)} | {_seconds(running)} |"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def total(verdicts: Sequence[Verdict], seed: int, took_s: float) -> str:
    """Return the sum of all runs in one line."""
    sums = {
        key: sum(verdict.counts.get(key, 0) for verdict in verdicts)
        for key in ("rounds", "restarts", "requeues", "relaunches", "by_hand", "nodes")
    }
    faults = sum(len(verdict.effects) for verdict in verdicts)
    # whoever ended otherwise without good reason is among the broken
    done = sum(verdict.decision == "done" for verdict in verdicts)
    broken = sum(bool(verdict.broken) for verdict in verdicts)
    return (
        f"{faults} faults in {took_s / 60:.0f} minutes (seed {seed}), {len(verdicts)} runs: {done} done, "
        f"{len(verdicts) - done} failed for good as their faults explain, {sums['rounds']} rounds, "
        f"{sums['restarts']} restarts in place, {sums['requeues']} requeues, {sums['relaunches']} relaunches "
        f"of srun, {sums['by_hand']} resumed by hand, "
        f"{sums['nodes']} nodes resumed that Slurm had drained. Runs that broke a promise: {broken}."
    )


def to_json(verdicts: Sequence[Verdict], seed: int, took_s: float) -> dict[str, Any]:
    """Return everything as plain data."""
    runs = [
        {
            **verdict._asdict(),
            "shape": verdict.shape._asdict(),
            "effects": [
                {**effect.strike._asdict(), "noticed_s": effect.noticed_s, "running_s": effect.running_s}
                for effect in verdict.effects
            ],
        }
        for verdict in verdicts
    ]
    return {"format": 1, "seed": seed, "took_s": took_s, "runs": runs}
