"""The screen of ``hpc-elastic watch``: lines that fit a terminal, the noteworthy ones first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.timeline import span_text
from hpc_elastic.text import count_text, visible, wrapped

_LEAST_NODES, _MOST_LOG, _LEAST_LOG, _LEAST_EVENTS = 3, 8, 3, 5  # lines
_MOST_EVENTS = 5
_MOST_FOLDED = 4  # lines of one text
_MANY = 8  # nodes: those without a finding share a line rather than take the room of events
_TITLE = 2  # lines: the title of a part, and the empty one above it
_BETWEEN = 2 + _TITLE  # lines: the last one, the empty one above the table, and the title of the events
_BAR = 10  # columns
_SEEN_S = 10.0  # less is not worth a word: agents beat every second by default


class WatchedNode(NamedTuple):
    """A node on the screen."""

    node: str
    first_rank: int | None  # in the newest round; None: it has no workers there
    state: str
    steps: tuple[int | None, ...] = ()  # of its ranks; empty: they report none
    per_s: float | None = None  # steps per second; None: not known yet
    silent_s: float = 0.0  # since its name last changed, by the clock of the screen [s]
    is_slow: bool = False  # it is behind the others most of the time
    is_well: bool = True  # it works as intended
    gpus: str = ""  # the newest use of its GPUs; empty: they are not sampled

    @property
    def step(self) -> int | None:
        """The step of its slowest rank; None if none is known, or a rank has done none."""
        told = [step for step in self.steps if step is not None]
        return min(told) if len(told) == len(self.steps) and told else None

    @property
    def is_noteworthy(self) -> bool:
        """Whether it belongs above the others."""
        return self.is_slow or not self.is_well or self.silent_s >= _SEEN_S


class ScreenFacts(NamedTuple):
    """All that the screen shows of a run."""

    headline: str
    colour: str  # of the headline
    summary: tuple[str, ...]
    nodes: tuple[WatchedNode, ...]
    events: tuple[str, ...]  # the newest last
    log_title: str = ""  # empty: no log is shown
    log: tuple[str, ...] = ()


class ScreenLine(NamedTuple):
    """A line of the screen; it has no control characters and no more columns than the terminal."""

    text: str
    colour: str | None = None
    bold: bool = False


def screen_lines(facts: ScreenFacts, width: int, height: int) -> list[ScreenLine]:
    """Return the lines of the screen, no more than fit."""
    head = [ScreenLine(text, facts.colour, bold=True) for text in _folded(facts.headline, width)]
    head += [ScreenLine(text) for one in facts.summary for text in _folded(one, width)]
    noteworthy = sum(row.is_noteworthy for row in facts.nodes)
    table = 1 + min(len(facts.nodes), max(_MANY, min(noteworthy + 1, height // 2)))
    room = height - len(head) - table - _BETWEEN
    log = facts.log[-_MOST_LOG:] if facts.log_title else ()
    if log:  # its oldest lines give way to the events
        room -= _TITLE
        log = log[-max(_LEAST_LOG, min(len(log), room - _LEAST_EVENTS)) :]
        room -= len(log)
    tail = _section("events", _events(facts.events, width - 2, room))
    tail += _section(facts.log_title, log) if log else []
    tail += [ScreenLine("Ctrl-C ends this screen; the run goes on")]
    room = max(height - len(head) - len(tail) - 2, _LEAST_NODES)
    lines = [*head, ScreenLine(""), *_node_lines(facts.nodes, room, width), *tail]
    return [cut(line, width) for line in lines[:height]]


def _events(events: Sequence[str], width: int, room: int) -> list[str]:
    """Return the newest events, each in as many lines as it needs; the oldest give way where room is short.

    Args:
        events: the newest last.
        width: columns.
        room: lines; the newest event has its own in any case.
    """
    shown: list[str] = []
    for event in reversed(events[-_MOST_EVENTS:]):
        lines = _folded(event, width)
        if shown and len(shown) + len(lines) > room:
            break
        shown = [*lines, *shown]
    return shown


def bar_text(share: float) -> str:
    """Return a share as a bar for a terminal: ``[###-------] 30 %``."""
    share = min(max(share, 0.0), 1.0)
    done = int(_BAR * share)
    return f"[{'#' * done}{'-' * (_BAR - done)}] {100 * share:.0f} %"


def _folded(text: str, width: int) -> list[str]:
    """Return a text as lines that fit, where it has words to break at; the last one may be longer."""
    lines = wrapped(visible(text), "", "  ", max(width, 1))
    return [*lines[: _MOST_FOLDED - 1], " ".join(lines[_MOST_FOLDED - 1 :])][: len(lines)]


def _section(title: str, texts: Sequence[str]) -> list[ScreenLine]:
    return (
        [ScreenLine(""), ScreenLine(f"{title}:"), *(ScreenLine(f"  {text}") for text in texts)]
        if texts
        else []
    )


def cut(line: ScreenLine, width: int) -> ScreenLine:
    """Return a line without control characters, and with no more columns than the terminal has."""
    text = visible(line.text)
    return line._replace(text=text if len(text) <= width else f"{text[: max(width - 1, 0)]}~")


_HEAD = ("node", "ranks", "state", "step", "ahead", "rate", "GPUs")
_SPARED = tuple(map(_HEAD.index, ("ahead", "GPUs", "ranks", "rate")))  # by a narrow terminal, in order


def _node_lines(nodes: Sequence[WatchedNode], room: int, width: int) -> list[ScreenLine]:
    """Return the table of nodes; those without a finding share a line where the room is too small.

    Args:
        nodes: all of them.
        room: for the table [lines].
        width: of the terminal [columns]; a narrow one has fewer columns of the table.
    """
    if not nodes:
        return []
    noteworthy = [row for row in nodes if row.is_noteworthy]
    others = [row for row in nodes if not row.is_noteworthy]
    if len(nodes) > room:
        others = others[: max(room - 1 - len(noteworthy), 0)]
        noteworthy = noteworthy[: room - 1]
    shown = [*noteworthy, *others] if len(nodes) > room else list(nodes)
    cells = [_cells(row) for row in shown]
    widths = [max(map(len, column)) for column in zip(_HEAD, *cells, strict=True)]
    unsampled = () if any(row.gpus for row in shown) else (_HEAD.index("GPUs"),)
    fewer = (unsampled + _SPARED[:number] for number in range(len(_SPARED)))
    spared = set(next((one for one in fewer if _total(widths, one) <= width), _SPARED))
    lines = [ScreenLine(_joined(_HEAD, widths, spared))]
    lines += [
        ScreenLine(_joined(row, widths, spared), _colour(node), bold=node.is_slow)
        for row, node in zip(cells, shown, strict=True)
    ]
    rest = nodes_text([row for row in nodes if row not in shown])
    return [*lines, ScreenLine(rest)] if rest else lines


def _colour(row: WatchedNode) -> str | None:
    if not row.is_well or row.silent_s >= _SEEN_S:
        return "red"
    return "yellow" if row.is_slow else None


def _total(widths: Sequence[int], spared: Sequence[int]) -> int:
    """Return the columns of a line of the table without some of its parts."""
    return sum(width + 2 for place, width in enumerate(widths) if place not in spared) - 2


def _joined(cells: Sequence[str], widths: Sequence[int], spared: set[int]) -> str:
    shown = [cell.ljust(widths[place]) for place, cell in enumerate(cells) if place not in spared]
    return "  ".join(shown).rstrip()


def _cells(row: WatchedNode) -> tuple[str, ...]:
    ranks = ""
    if row.first_rank is not None and row.steps:
        last = row.first_rank + len(row.steps) - 1
        ranks = str(last) if last == row.first_rank else f"{row.first_rank}-{last}"
    state = f"silent for {span_text(row.silent_s)}" if row.silent_s >= _SEEN_S else row.state
    state = f"{state}, slow" if row.is_slow else state
    least = min((step for step in row.steps if step is not None), default=0)
    ahead = "".join("_" if step is None else str(step - least) for step in row.steps)
    rate = "" if row.per_s is None else f"{row.per_s:.3g}/s"
    return row.node, ranks, state, "" if row.step is None else str(row.step), ahead, rate, row.gpus


def nodes_text(rows: Sequence[WatchedNode]) -> str:
    """Return rows that are not shown as one line; empty without any."""
    if not rows:
        return ""
    steps = [row.step for row in rows if row.step is not None]
    span = f", step {min(steps)} to {max(steps)}" if steps else ""
    states = ", ".join(dict.fromkeys(row.state for row in rows))
    return f"and {count_text(len(rows), 'node')} more: {states}{span}"


class Pacer:
    """The steps of the nodes over the last minute: the rate of each, and which one is behind.

    A node is slow if it, alone or with few others, is behind in most looks. The names of two nodes show their
    steps at different moments, so a node is behind only by more steps than are done between two heartbeats.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[float, dict[str, int]]] = []

    def note(self, now: float, steps: dict[str, int]) -> None:
        """Take the steps of one look.

        Args:
            now: monotonic time [s].
            steps: of the nodes that report any.
        """
        if self._seen and _has_gone_back(self._seen[-1][1], steps):  # a new round
            self._seen.clear()
        self._seen = [one for one in self._seen if one[0] > now - _WINDOW_S]
        self._seen.append((now, steps))

    def rate(self, node: str) -> float | None:
        """Return the steps per second of a node over the last minute; None if it is not known."""
        told = [(at, steps[node]) for at, steps in self._seen if node in steps]
        if len(told) < _FEW or told[-1][0] == told[0][0]:
            return None
        return (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])

    def slow(self) -> frozenset[str]:
        """Return the nodes that are behind the others in most looks, by more than heartbeats explain."""
        if len(self._seen) < _FEW:
            return frozenset()
        first, newest = self._seen[0], self._seen[-1]
        ahead = max(newest[1].values(), default=0) - max(first[1].values(), default=0)
        beat_steps = _BEATS_S * max(ahead, 0) / (newest[0] - first[0])
        times = Counter(node for _, steps in self._seen for node in _behind(steps, beat_steps))
        return frozenset(node for node, number in times.items() if number > _MOST * len(self._seen))


_WINDOW_S, _FEW, _MOST, _PART = 60.0, 5, 0.7, 0.25
_BEATS_S = 2.0  # the names of two nodes are of moments that far apart, at most


def _has_gone_back(before: dict[str, int], steps: dict[str, int]) -> bool:
    return any(step < before.get(node, step) for node, step in steps.items())


def _behind(steps: dict[str, int], beat_steps: float) -> list[str]:
    """Return the few nodes that are behind the first one; empty if they are many."""
    first = max(steps.values(), default=0)
    last = [node for node, step in steps.items() if first - step > beat_steps]
    return last if len(last) <= max(1, _PART * len(steps)) else []
