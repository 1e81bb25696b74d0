"""Makes the pictures of the README from real commands: ``python -m tests.docs.pictures``; needs Chromium.

``docs/images/terminal.svg`` is the recording of a run on this machine of which a worker crashes. Each line
appears when it came. ``docs/images/report.png`` is the report of a run on eight nodes, in a browser.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from html import escape
from pathlib import Path

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    NodeSlow,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    Then,
)
from tests.browser.chromium import chromium
from tests.cli.recorded_runs import run_in, write, write_facts

REPOSITORY = Path(__file__).parents[2]
IMAGES = REPOSITORY / "docs" / "images"
HOME = "/home/you"  # in place of the directory in which the commands run
_TRAIN = "train.py --steps 120 --step-time 0.03 --save-every 20 --crash-at 50 --crash-rank 3"
COMMANDS = (
    "hpc-elastic submit --local 2 --workers-per-node 2 --nodes 2 --name demo -- " + _TRAIN,
    "hpc-elastic status demo",
    "hpc-elastic explain demo",
)
COLUMNS, LINE, CHARACTER = 110, 17, 7.3  # of a terminal; height of a line, width of a character [px]
PAUSE_S = 1.5  # before each command
LEAST_S = 0.03  # between two lines
Shown = list[tuple[float, str, str]]  # when [s], the class, the text


def recorded(directory: Path) -> Shown:
    """Run the commands; return each line with the time at which it came."""
    shutil.copy(REPOSITORY / "examples" / "plain" / "train.py", directory)
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shown: Shown = []
    at = 0.0
    for command in COMMANDS:
        at += PAUSE_S
        shown += [(at, "c", line) for line in _folded(f"$ {command}", " \\")]
        began = time.monotonic()
        with subprocess.Popen(
            command.split(),
            cwd=directory,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as running:
            for line in running.stdout or ():
                at = max(at + LEAST_S, shown[-1][0], at if shown[-1][1] == "c" else 0.0)
                came = time.monotonic() - began
                text = line.rstrip("\n").replace(str(directory), HOME)
                shown += [(max(at, came), "t", part) for part in _folded(text)]
                at = shown[-1][0]
        assert 0 == running.returncode, command
        shown.append((at, "t", ""))
    return shown


def _folded(text: str, end: str = "") -> list[str]:
    """Return a line as a terminal shows it.

    Args:
        text: of the line.
        end: of each part but the last, as a shell needs it.
    """
    indent = "  " if end else ""
    lines = textwrap.wrap(
        text,
        COLUMNS - len(end),
        drop_whitespace=False,
        break_on_hyphens=False,
        subsequent_indent=indent,
    )
    return [f"{line.rstrip()}{end}" for line in lines[:-1]] + lines[-1:] or [""]


def terminal(shown: Shown) -> str:
    """Return the recording as SVG; without animations all lines are there."""
    width, height = int(COLUMNS * CHARACTER) + 24, LINE * (len(shown) + 2)
    rows = [
        f'<text class="{kind}" x="12" y="{LINE * (number + 2)}" style="animation-duration:{at:.2f}s">'
        f"{escape(text)}</text>"
        for number, (at, kind, text) in enumerate(shown)
        if text
    ]
    style = (
        "text{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
        "fill:#d0d7de;"
        "animation:come 1s step-end}.c{fill:#7ee787;font-weight:bold}"
        "@keyframes come{from{opacity:0}to{opacity:1}}@media(prefers-reduced-motion){text{animation:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
        f"<title>A run of which a worker crashes</title><style>{style}</style>"
        f'<rect width="100%" height="100%" rx="6" fill="#161b22"/>{"".join(rows)}</svg>\n'
    )


def run_on_eight_nodes(paths: RunPaths) -> None:
    """Write a run of eight nodes over two starts: a lost node, a slow one, a crash, a preemption."""
    names = tuple(f"node{number}" for number in range(1, 9))
    members = tuple(Member(f"{name}.1", name, 8) for name in names)
    few = tuple(member for member in members if member.node != "node6")
    first, second = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
    failure = {"rank": 17, "node": "node3", "exitcode": 1, "message": "RuntimeError: CUDA error: ECC"}

    def round_of(number: int, epoch: Epoch, crew: tuple[Member, ...], step: int) -> RoundFormed:
        return RoundFormed(
            number, epoch, crew, "node1", 29400, MarkedCheckpoint(step, None) if step else None
        )

    entries: list[tuple[float, Entry]] = [
        (240.0, EpochStarted(first, "71002", names)),
        (250.0, round_of(1, first, members, 0)),
        (9000.0, RoundEnded(1, Cause.NODE_LOSS, ("node6",), None, 4000)),
        (9010.0, round_of(2, first, few, 4000)),
        (12000.0, NodeSlow(2, "node4", 30, 3.1, 2.1)),
        (16000.0, RoundEnded(2, Cause.CRASH, ("node3",), failure, 7000)),
        (16004.0, round_of(3, first, few, 7000)),
        (26000.0, DrainRequested(Cause.PREEMPTION, "node1", Then.LEAVE, "")),
        (26060.0, Drained(first, Cause.PREEMPTION, 11800, "")),
        (26062.0, Requeued(first, Cause.PREEMPTION)),
        (29600.0, EpochStarted(second, "71002", names)),
        (29610.0, round_of(4, second, members, 11800)),
        (46000.0, RunEnded(Decision.DONE, 0, "all workers succeeded", None)),
    ]
    write(paths, *entries)
    spans = ((1, 300, 8990, 2, 0, 4250), (2, 9050, 15990, 4, 4000, 7300), (3, 16030, 26040, 7, 7000, 11800))
    facts = []
    for number, begin, end, known, low, high in (*spans, (4, 29660, 45990, 12, 11800, 20000)):
        for part in range(21):
            share = part / 20
            facts.append(
                (number, begin + share * (end - begin), known, round(low + 1 + share * (high - low - 1)))
            )
    write_facts(paths, *facts)


def report(directory: Path) -> bytes:
    """Return the picture of a report in a browser."""
    paths = run_in(directory, "llm-20261118-120000-a1b2", "llm", "71002")
    run_on_eight_nodes(paths)
    page = directory / "run.html"
    command = [sys.executable, "-m", "hpc_elastic", "report", paths.root, "-o", str(page)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    page.write_text(page.read_text().replace(str(directory), HOME))
    with chromium(directory) as browser:
        browser.open(page, 1000, 1000, "light")
        return browser.picture()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        (IMAGES / "terminal.svg").write_text(terminal(recorded(Path(place))))
    with tempfile.TemporaryDirectory() as place:
        (IMAGES / "report.png").write_bytes(report(Path(place)))
