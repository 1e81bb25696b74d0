"""The table of what became of the mutants. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mutate_lib.judge import Fate, Verdict


def render(verdicts: Sequence[Verdict]) -> str:
    """Return a table in Markdown: a line for each module, their sum, and each survivor."""
    modules = list(dict.fromkeys(verdict.mutant.module for verdict in verdicts))
    rows = {module: [one for one in verdicts if one.mutant.module == module] for module in modules}
    lines = ["| module | mutants | killed | survived | equivalent |", "|---|---|---|---|---|"]
    lines += [_row(f"`{module}`", mine) for module, mine in rows.items()]
    lines.append(_row("all", verdicts))
    survivors = _of(verdicts, Fate.SURVIVED)
    if survivors:
        lines += ["", "Survivors:", "", *(f"- `` {verdict.mutant.text()} ``" for verdict in survivors)]
    return "\n".join(lines)


def total(verdicts: Sequence[Verdict]) -> str:
    """Return the sum in one sentence."""
    counts = {fate: len(_of(verdicts, fate)) for fate in Fate}
    alive = counts[Fate.SURVIVED] + counts[Fate.EQUIVALENT]
    share = 100 * alive / max(1, len(verdicts))
    return (
        f"{len(verdicts)} mutants: {counts[Fate.KILLED]} killed, {counts[Fate.SURVIVED]} survived, "
        f"{counts[Fate.EQUIVALENT]} equivalent; {share:.1f} % are not noticed."
    )


def _row(name: str, verdicts: Sequence[Verdict]) -> str:
    cells = [name, str(len(verdicts)), *(str(len(_of(verdicts, fate))) for fate in Fate)]
    return f"| {' | '.join(cells)} |"


def _of(verdicts: Sequence[Verdict], fate: Fate) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.fate is fate]
