"""Fills the tables of docs/how-to/adopt.md: ``python -m tests.docs.adopt_page CORPUS``.

CORPUS is a directory with job scripts and an ``index.csv`` that names them: columns repo, path, commit, file.
The texts are other people's, so they are no part of this repository: the index alone tells where they are.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.adopt.launch import find_kind
from hpc_elastic.slurm.adopt.script import NotAdoptedError, adopt

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "adopt.md"
_OURS = ("/ours/bin/python", "-I", "-m", "hpc_elastic")
_BEGIN, _END = "<!-- corpus: begin -->\n", "<!-- corpus: end -->\n"
_DETAILS = (  # of a reason, which are different in each script
    (r"`[^`]*`", "…"),
    (r"lines? \d+(?:, \d+)*", "line N"),
    (r"\(lines? [^)]*\)", "(lines)"),
    (r" ?\([^()]*\)", ""),
    (r"\"?\$\S+|\S+\.py\b\"?", "the program"),
    (r"(?:the words of )?(?:accelerate launch|(?:the )?[^\s,]+) in line N", "the command"),
    (r"^\S+ is started more than once", "it is started more than once"),
    (r"Python \d\.\d+", "a Python"),
    (r"\b\d+\b", "N"),
)
_MOST_REASONS = 5


class Verdict(NamedTuple):
    """What adopt says about a script; an empty reason: it changes it."""

    kind: str
    reason: str


def verdicts(corpus: Path) -> list[Verdict]:
    """Return what adopt says about each script of a corpus."""
    with (corpus / "index.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        text = (corpus / row["file"]).read_text(encoding="utf-8", errors="replace")
        try:
            adopt(text, "job.sbatch", _OURS)
        except NotAdoptedError as error:
            reason = error.message
        except InputError as error:
            reason = error.message
        else:
            reason = ""
        found.append(Verdict(find_kind(text), reason))
    return found


def general(reason: str) -> str:
    """Return a reason without what belongs to one script."""
    for pattern, word in _DETAILS:
        reason = re.sub(pattern, word, reason)
    return " ".join(reason.split())


def tables(found: list[Verdict]) -> str:
    """Return both tables: the numbers for each kind of script, and the reasons."""
    kinds = Counter(one.kind for one in found)
    changed = Counter(one.kind for one in found if not one.reason)
    reasons = Counter(general(one.reason) for one in found if one.reason)
    lines = ["| starts | scripts | changed | stay as they are |", "|---|---|---|---|"]
    for kind, count in kinds.most_common():
        lines.append(f"| {kind} | {count} | {changed[kind]} | {count - changed[kind]} |")
    lines.append(f"| all | {len(found)} | {changed.total()} | {len(found) - changed.total()} |")
    lines += ["", "| reason | scripts |", "|---|---|"]
    shown = reasons.most_common(_MOST_REASONS)
    lines += [f"| {reason} | {count} |" for reason, count in shown]
    rest = reasons.total() - sum(count for _, count in shown)
    lines.append(f"| {len(reasons) - len(shown)} others | {rest} |")
    return "\n".join(lines) + "\n"


def main(corpus: str) -> None:
    """Write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    after = rest.split(_END)[1]
    PAGE.write_text(f"{before}{_BEGIN}\n{tables(verdicts(Path(corpus)))}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
