"""Makes the pictures of the docs from real commands: ``python -m tests.docs.pictures``; needs Chromium.

``docs/images/terminal.svg`` is the recording of a run on this machine of which a worker crashes. Each line
appears when it came. ``docs/images/report.png`` is the report of a run on eight nodes, in a browser.
``docs/images/watch.svg`` is the screen of ``watch`` while a run on four nodes goes on, one of which is slow.
``docs/images/journey.svg`` shows which bucket of the account the time between two records or lines is in.
Names of pictures as arguments make these alone.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

from hpc_elastic.account.facts import Doing, WorkFact
from hpc_elastic.account.in_order import SubmitTime
from hpc_elastic.account.spans import Bucket, History, Span, series_of
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, encode_mark, encode_name
from hpc_elastic.record.journal import (
    AfterDrain,
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
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.report.explain.axis import COLOURS
from tests.browser.chromium import chromium
from tests.cli.recorded_runs import BEGAN, run_in, write, write_facts

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


_SLOW = """
import os, time
from hpc_elastic import worker
rank, saved = int(os.environ["RANK"]), worker.latest_checkpoint()
for step in range(saved.step + 1 if saved else 1, 2001):
    time.sleep(0.09 if rank // 2 == 2 else 0.05)
    worker.tick(step, total=2000)
    if step == 90 and rank == 5 and not saved:
        raise ValueError("loss is nan")
    if step % 40 == 0 and rank == 0:
        worker.checkpoint_saved(step)
        print(f"step {step}: loss {4 / step ** 0.5:.3f}", flush=True)
"""
WATCHED = "hpc-elastic watch demo --rank 0"
SCREEN = (80, 24)  # columns and lines of the terminal
_STEADY_S, _MOST_S = 25.0, 90.0  # of watching before the picture is taken, and at most
_MOVED = re.compile(r"\x1b\[(\d+);1H(?:\x1b\[(\d*)m)?(?:\x1b\[(1)m)?([^\x1b]*)")
_COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "": "#d0d7de", "1": "#d0d7de"}
Rows = dict[int, tuple[str, str]]  # by line: colour and text


def watched(directory: Path) -> Rows:
    """Return the screen of ``watch`` on a terminal, while a run on four nodes goes on."""
    (directory / "train.py").write_text(_SLOW)
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm"}
    queued = "submit --local 4 --workers-per-node 2 --nodes 4 --name demo -- train.py"
    run = ["hpc-elastic", *queued.split()]
    with subprocess.Popen(run, cwd=directory, env=environ, stdout=-3, stderr=-3) as running:
        while not list(directory.glob("hpc_elastic_runs/*/logs/attempt_2")):
            assert running.poll() is None
            time.sleep(0.2)
        leader, follower = pty.openpty()
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", SCREEN[1], SCREEN[0], 0, 0))
        with subprocess.Popen(
            WATCHED.split(), cwd=directory, env=environ, stdin=follower, stdout=follower, stderr=-3
        ) as shown:
            rows = _seen(leader)
            shown.terminate()
        running.terminate()
    return rows


def _seen(leader: int) -> Rows:
    """Return the lines of a terminal, when a node has been called slow or the time is up."""
    rows: Rows = {}
    began, rest = time.monotonic(), ""
    while (spent := time.monotonic() - began) < _MOST_S:
        if spent > _STEADY_S and any(", slow" in text for _, text in rows.values()):
            break
        if not select.select([leader], [], [], 1.0)[0]:
            continue
        rest += os.read(leader, 65536).decode()
        whole, mark, rest = rest.rpartition("\x1b[K")
        for line, colour, _, text in _MOVED.findall(whole + mark):
            rows[int(line)] = (_COLOURS[colour], text)
    return rows


def screen(rows: Rows, title: str) -> str:
    """Return lines of a terminal as SVG."""
    width, height = int(SCREEN[0] * CHARACTER) + 24, LINE * (max(rows) + 2)
    texts = [
        f'<text x="12" y="{LINE * (line + 1)}" fill="{colour}">{escape(text)}</text>'
        for line, (colour, text) in sorted(rows.items())
        if text
    ]
    style = "text{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<rect width="100%" height="100%" rx="6" fill="#161b22"/>{"".join(texts)}</svg>\n'
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
        (26000.0, DrainRequested(Cause.PREEMPTION, "node1", AfterDrain.LEAVE, "")),
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
    write_facts(paths, *facts, total=20000)
    for number, at, step in ((1, 8950, 4000), (2, 15800, 7000), (3, 26040, 11800), (4, 45980, 20000)):
        mark = Path(paths.checkpoints, encode_name(MarkName(step, number, 0, 1)))
        mark.write_bytes(encode_mark(MarkName(step, number, 0, 1), None, 64))
        os.utime(mark, (BEGAN + at, BEGAN + at))


def report(directory: Path) -> bytes:
    """Return the picture of a report in a browser."""
    paths = run_in(directory, "llm-20261118-120000-a1b2", "llm", "71002")
    run_on_eight_nodes(paths)
    page = directory / "run.html"
    command = [sys.executable, "-m", "hpc_elastic", "report", paths.root, "-o", str(page)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    page.write_text(page.read_text().replace(str(directory), HOME))
    with chromium(directory) as browser:
        browser.open(page, 1280, 1000, "light")
        return browser.picture()


def story() -> tuple[History, dict[float, str]]:
    """Return a run of two starts, and the events by which its buckets begin and end, by their times [s]."""
    first, second = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
    members = (Member("node1.1", "node1", 8), Member("node2.1", "node2", 8))
    entries: list[tuple[float, Entry]] = [
        (60.0, EpochStarted(first, "7", ("node1", "node2"))),
        (66.0, RoundFormed(1, first, members, "node1", 29400, None)),
        (200.0, RoundEnded(1, Cause.CRASH, ("node2",), None, 50)),
        (206.0, RoundFormed(2, first, members, "node1", 29400, MarkedCheckpoint(50, None))),
        (400.0, DrainRequested(Cause.PREEMPTION, "node1", AfterDrain.LEAVE, "")),
        (420.0, Drained(first, Cause.PREEMPTION, 200, "")),
        (421.0, Requeued(first, Cause.PREEMPTION)),
        (500.0, EpochStarted(second, "7", ("node1", "node2"))),
        (506.0, RoundFormed(3, second, members, "node1", 29400, MarkedCheckpoint(200, None))),
        (700.0, RunEnded(Decision.DONE, 0, "all workers succeeded", None)),
    ]
    records = [Record(place, at, "node1", entry) for place, (at, entry) in enumerate(entries, start=1)]
    facts: list[WorkFact] = []
    spans = ((1, 2, 66.0, 198.0, 0, 100), (2, 4, 206.0, 396.0, 50, 200), (3, 9, 506.0, 690.0, 200, 320))
    for number, known, begin, end, low, high in spans:

        def line(doing: Doing, at: float, step: int | None = None, save_s: float = 0.0) -> WorkFact:
            return WorkFact(number, doing, at, at, "node1.1", known, step, save_s)  # noqa: B023 - called here

        facts += [line(Doing.STARTED, begin + 2), line(Doing.IMPORTED, begin + 8)]
        facts += [line(Doing.STEP, begin + 20, low + 1), line(Doing.STEP, begin + 60, low + 50)]
        facts += [line(Doing.STEP, begin + 80, low + 60, 10.0), line(Doing.STEP, end, high, 10.0)]
        gone = line(Doing.GONE, {1: 203.0, 2: 418.0, 3: 698.0}[number], None, 10.0)
        facts.append(gone._replace(known=known + 1))
    happened = {0.0: "submission"}
    happened |= {record.at: _STORY[type(record.entry)] for record in records}
    for fact in facts:
        happened.setdefault(fact.at, "" if fact.doing is Doing.STEP else _STORY_LINES[fact.doing])
    return History(records, facts, (SubmitTime(0, 0.0),)), happened


_STORY: dict[type, str] = {
    EpochStarted: "the agents of a start speak",
    RoundFormed: "a round is formed",
    RoundEnded: "the round is over: a worker has failed",
    DrainRequested: "Slurm wants the nodes back",
    Drained: "all ranks have saved and stopped",
    Requeued: "the job is requeued",
    RunEnded: "the run is done",
}
_STORY_LINES = {
    Doing.STARTED: "the workers run",
    Doing.IMPORTED: "a rank has imported hpc_elastic.worker",
    Doing.GONE: "no worker is left",
}
_JOURNEY_ROW, _JOURNEY_BOX, _JOURNEY_WIDTH = 26, 170, 620  # [px]


def journey() -> str:
    """Return the buckets of a run in their order as SVG, each between the events that begin and end it."""
    history, happened = story()
    merged: list[Span] = []
    for span in series_of(history).spans:
        if not merged or merged[-1].bucket is not span.bucket:
            merged.append(span)
    parts = []
    for place, span in enumerate(merged):
        y = place * _JOURNEY_ROW
        event = happened.get(span.begin) or _STORY_STEPS.get(span.bucket, "a step is done")
        parts.append(f'<text x="0" y="{y + 16}" text-anchor="start">{escape(event)}</text>')
        box = f'x="320" y="{y + 4}" width="{_JOURNEY_BOX}" height="{_JOURNEY_ROW}"'
        parts.append(f'<rect {box} fill="{COLOURS[span.bucket]}" stroke="#fff"/>')
        parts.append(f'<text class="b" x="330" y="{y + 21}">{escape(span.bucket.value)}</text>')
    height = len(merged) * _JOURNEY_ROW + 30
    end = f'<text x="0" y="{height - 14}">{escape(_STORY[RunEnded])}</text>'
    style = "text{font:13px system-ui,sans-serif;fill:#1c1e21}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 0 {_JOURNEY_WIDTH} {height}" '
        f'width="{_JOURNEY_WIDTH}"><title>The buckets of a run, and the events between them</title>'
        f"<style>{style}</style>"
        f'<rect x="-10" width="100%" height="100%" fill="#fff"/>{"".join(parts)}{end}</svg>\n'
    )


_STORY_STEPS = {
    Bucket.TRAINING: "a step that is new is done",
    Bucket.SAVING: "the loop waits for a save",
    Bucket.NOTICING: "the last step is done",
    Bucket.DRAINING: "the last step is done",
    Bucket.ENDING: "the last step is done",
    Bucket.AGAIN: "a step of before is done again",
}


def _made_in(make: Callable[[Path], str | bytes], name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        made = make(Path(place))
    (IMAGES / name).write_bytes(made.encode() if isinstance(made, str) else made)


PICTURES: dict[str, Callable[[Path], str | bytes]] = {
    "terminal.svg": lambda place: terminal(recorded(place)),
    "report.png": report,
    "journey.svg": lambda _place: journey(),
    "watch.svg": lambda place: screen(watched(place), "A run on four nodes, one of which is slow"),
}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or PICTURES:
        _made_in(PICTURES[wanted], wanted)
