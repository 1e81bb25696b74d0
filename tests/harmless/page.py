"""Writes docs/how-to/checkpoints-zoo.md from the recorded outcomes: ``python -m tests.harmless.page``."""

from __future__ import annotations

from pathlib import Path

from tests.harmless.outcomes import Recorded, known_failures, recorded
from tests.harmless.table import HARMLESS, ROWS
from tests.harmless.verdict import EQUAL, NONE, OLDER, REFUSED

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "checkpoints-zoo.md"
SIGNS = {EQUAL: "=", OLDER: "<", REFUSED: "refused", NONE: "-"}
_HEAD = """# Programs that were tried

A training comes to the same result with hpc_elastic and without, and it goes on from no state that is not that of its step.
{count} small programs of different kinds show it.
Each runs without hpc_elastic first.
Then it runs in each of the ways below, and its last parameters, buffers and optimizer states are compared with those of the first run, bit by bit.
The data of a step is a function of its number, so a program that goes on from an older state comes to the same end.

| column | how the program runs |
|---|---|
| agent | below an agent, without `Checkpoints` |
| preload | the same, in a worker with [preloaded modules](preload.md) |
| files | without an agent, with [`Checkpoints(directory)`](checkpoints.md) |
| agent, `Checkpoints` | below an agent, with both files and states in memory |
| forward, backward | the same; an exception after the forward pass, or after the backward pass |
| in the step | an exception in the middle of an optimizer's step, when some parameters have changed |
| after the step | an exception between the optimizer's step and the end of the loop's body |
| evaluation | an exception in an evaluation after the optimizer's step; programs that swap weights have swapped them |
| evaluation before the step | the same at the beginning of the loop's body |
| killed in a save | SIGKILL when a checkpoint is written and does not count yet |
| failed save | the file system has no space during a save |
| load | an exception in the load that follows a fault |
| first step after it | an exception in the first step after a fault |
| killed | SIGKILL after the backward pass |

| sign | outcome |
|---|---|
| = | the same bits; after the fault the program went on from its newest complete step |
| < | the same bits; the program went on from an older state, and the log says why; a killed process says nothing |
| refused | an error before the first step names the object that cannot be saved |
| - | the program has no place for this fault |

✗: the last bits are others, by a limit that [checkpoints](checkpoints.md#when-a-worker-or-a-node-fails) tells.
A fault of a program with several ranks happens on the last one.
`python -m tests.harmless --record` runs all and makes this page; `python -m tests.harmless gan --row step` runs one program in one way.
"""


def page() -> str:
    """Return the page."""
    found = recorded()
    kinds = list(dict.fromkeys(one.kind for one in found.values()))
    parts = [_HEAD.format(count=len(found))]
    for kind in kinds:
        programs = {name: one for name, one in found.items() if one.kind == kind}
        parts.append(f"\n## {kind[0].upper()}{kind[1:]}\n\n{_table(programs)}")
    return "".join(parts)


def _table(programs: dict[str, Recorded]) -> str:
    rows = [name for name in ROWS if name != "bare"]
    head = f"| program | | {' | '.join(ROWS[name].title for name in rows)} |\n"
    lines = [head, f"|---|---|{'---|' * len(rows)}\n"]
    for name, one in programs.items():
        ranks = f"; {one.ranks} ranks" if one.ranks > 1 else ""
        signs = " | ".join(_sign(name, one, row) for row in rows)
        lines.append(f"| `{name}` | {one.title}{ranks} | {signs} |\n")
    return "".join(lines)


def _sign(name: str, one: Recorded, row: str) -> str:
    if f"{name}/all" in known_failures() and row not in HARMLESS and row != "preload":
        return "✗"
    if one.rows.get("all") == REFUSED and row not in one.rows:
        return SIGNS[REFUSED]
    return SIGNS[one.rows.get(row, NONE)]


if __name__ == "__main__":
    PAGE.write_text(page())
