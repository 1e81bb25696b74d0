"""The drawings of a report: the account of time, and nodes, steps and rate on one time axis. Pure.

A drawing stretches with the page: its places are thousandths of its width. Texts stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape as escape_html
from math import inf

from hpc_elastic.account.account import Account, seconds_of_nodes
from hpc_elastic.account.spans import Bucket, Crew, Span
from hpc_elastic.account.stops import Stop
from hpc_elastic.clock import ahead_s, date_text, short_text, zone_text
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.explain.facts import fact_of
from hpc_elastic.report.explain.tables import by_size
from hpc_elastic.report.explain.words import cause_of, cost_text, rate_text, share_text
from hpc_elastic.report.timeline import names_text, span_text
from hpc_elastic.text import count_text, visible_lines

_WIDE = 1000  # of a drawing, in units of its own
_ROW, _STEPS, _RATE = 18, 150, 70  # heights [px]
_MOST_ROWS = 48  # of nodes
_MOST_PIECES = 5000  # of all rows of nodes together
_FINEST = _WIDE * 2  # pieces of a row at most
_MOST_POINTS = 1500  # of the line of steps, or twice as many where it has stairs
_BARS = 250  # of the rate
_NEAR = 4  # marks of stops that are nearer than this are one
_MOST_TOLD = 5  # stops in the text of a mark
_WITH_NUMBER = 0.09  # the least share of the bar that has room for its number
_MOST_LINES = 60  # of stops over all lanes: more of them hide the lanes
_EDGE = 45  # nearer to the edge a time on the axis has no room
COLOURS = {  # of Okabe and Ito, which colour-blind people distinguish; a text stands beside each
    Bucket.TRAINING: "#009e73",
    Bucket.WORKING: "#66c2a5",
    Bucket.AGAIN: "#e69f00",
    Bucket.LOST: "#882255",
    Bucket.SAVING: "#0072b2",
    Bucket.NOTICING: "#f0e442",
    Bucket.STOPPING: "#b8a200",
    Bucket.MEETING: "#aa4499",
    Bucket.STARTING: "#cc79a7",
    Bucket.IMPORTING: "#ddb0cc",
    Bucket.LOADING: "#eed6e4",
    Bucket.DRAINING: "#56b4e9",
    Bucket.ENDING: "#a6d8f5",
    Bucket.QUEUED: "#9aa0a6",
    Bucket.HELD: "#5f6368",
    Bucket.DOWN: "#d55e00",
    Bucket.SPARE: "#c3ccd1",
    Bucket.ELSEWHERE: "#e4e7e9",
}


def escape(text: str) -> str:
    """Return foreign text that can stand in a page: no markup, and no character that acts."""
    return escape_html(visible_lines(text))


class Save(NamedTuple):
    """A checkpoint that is there."""

    at: float  # [s since the epoch]
    step: int


class Axis(NamedTuple):
    """The time from the begin of a run to its end, or to now [s since the epoch]."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        """Return the place of a time, in thousandths of the width."""
        return _WIDE * (at - self.begin) / max(self.end - self.begin, 1e-9)


def drawings(account: Account, saves: Sequence[Save]) -> Iterator[str]:
    """Yield the parts of the page that are drawn; none of a run without time."""
    spans = account.series.spans
    if not account.wall_s:
        return
    axis = Axis(spans[0].begin, max(span.begin + span.seconds for span in spans))
    yield "<section><h2>Account of time</h2>"
    yield _bar(account)
    yield _key(account)
    yield '</section><section class="chart"><h2>Over time</h2>'
    yield _ZOOM
    yield '<div class="scroll" tabindex="0" role="region" aria-label="The run over time"><div class="plot">'
    yield _over(axis, account.series.stops)
    yield from _nodes(account, axis)
    yield from _steps(account, axis)
    yield from _rates(account.series.spans, axis)
    yield from _marks(account, axis, saves)
    yield _times(axis)
    yield "</div></div>"
    zones = " to ".join(dict.fromkeys(map(zone_text, axis)))  # summer time may begin or end
    yield f"<p class=soft>{date_text(axis.begin)} to {date_text(axis.end)}, local time ({zones}). "
    yield "A drawing tells more where the mouse rests.</p></section>"


_ZOOM = (
    '<fieldset class="zoom"><legend>Width</legend>'
    '<label><input type="radio" name="z" id="z1" checked> 1x</label> '
    '<label><input type="radio" name="z" id="z4"> 4x</label> '
    '<label><input type="radio" name="z" id="z16"> 16x</label></fieldset>'
)


def _svg(height: int, parts: str, label: str, kind: str = "") -> str:
    head = f'<svg viewBox="0 0 {_WIDE} {height}" preserveAspectRatio="none" style="height:{height}px"'
    told = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    return f'{head} class="{kind}" {told}>{parts}</svg>'


def _lane(name: str, drawn: str) -> str:
    return f'<div class="lane"><div class="name">{name}</div>{drawn}</div>'


def _rect(x: float, width: float, fill: str, title: str, *, y: float = 1, height: float = _ROW - 2) -> str:
    place = f'x="{x:.1f}" y="{y:g}" width="{max(width, 0.4):.1f}" height="{height:g}"'
    return f'<rect {place} fill="{fill}"><title>{escape(title)}</title></rect>'


# the account of time


def _bar(account: Account) -> str:
    parts, told = [], []
    for bucket, seconds in by_size(account.seconds):
        share = seconds / account.wall_s
        text = f"{account.text_of(bucket)} {share_text(share)}"
        told.append(text)
        number = share_text(share) if share >= _WITH_NUMBER else ""
        style = f"width:{100 * share:.2f}%;background:{COLOURS[bucket]};color:{ink(COLOURS[bucket])}"
        parts.append(
            f'<span style="{style}" title="{escape(f"{text}, {span_text(seconds)}")}">{number}</span>'
        )
    return f'<div class="bar" role="img" aria-label="{escape(", ".join(told))}">{"".join(parts)}</div>'


def ink(ground: str) -> str:
    """Return black or white, whichever stands out more from a colour ``#rrggbb``."""
    return "#000" if luminance(ground) > _MIDDLE else "#fff"


_MIDDLE = 0.179  # the luminance from which black and white stand out alike
_LINEAR = 0.03928  # the part of a colour up to which sRGB is linear


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour ``#rrggbb``, as WCAG defines it, from 0 to 1."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= _LINEAR else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _key(account: Account) -> str:
    """Return the legend: the buckets that the run or one of its nodes has spent time in."""
    shown = dict(by_size(account.seconds))
    nodes = seconds_of_nodes(account.series.spans).values()
    of_nodes = dict.fromkeys(bucket for seconds in nodes for bucket in seconds if bucket not in shown)
    texts = {one: f"{account.text_of(one)} {share_text(s / account.wall_s)}" for one, s in shown.items()}
    texts |= {one: f"{account.text_of(one)} (of a node)" for one in of_nodes}
    marks = (
        f'<li><i style="background:{COLOURS[one]}"></i>{escape(text)}</li>' for one, text in texts.items()
    )
    return f'<ul class="key">{"".join(marks)}</ul>'


# the nodes

_Piece = tuple[float, float, Bucket, int]  # begin, seconds, bucket, stop
_Row = tuple[tuple[str, ...], list[_Piece]]


def _nodes(account: Account, axis: Axis) -> Iterator[str]:
    """Yield a lane for each group of nodes with the same history."""
    rows, left = _histories(account.series.spans)
    finest = min(_FINEST, _MOST_PIECES // len(rows))
    for nodes, history in rows:
        parts = []
        for piece in _coarse(history, (axis.end - axis.begin) / finest):
            at, seconds, bucket, stop = piece
            title = f"{names_text(nodes)}: {account.text_of(bucket)}, {date_text(at)}, {span_text(seconds)}"
            if stop >= 0:
                title += f"; after {cause_of(fact_of(account.stops[stop]))}"
            parts.append(_rect(axis.x(at), axis.x(at + seconds) - axis.x(at), COLOURS[bucket], title))
        label = f"{names_text(nodes)}: {_shares(account, history)}"
        yield _lane(
            f'<span title="{escape(names_text(nodes))}">{escape(_short(nodes))}</span>',
            _svg(_ROW, "".join(parts), label),
        )
    if left:
        yield f"<p class=soft>and {count_text(len(left), 'node')} more with other histories</p>"


def _shares(account: Account, history: Sequence[_Piece]) -> str:
    found: dict[Bucket, float] = {}
    for _, seconds, bucket, _ in history:
        found[bucket] = found.get(bucket, 0.0) + seconds
    return ", ".join(
        f"{account.text_of(one)} {share_text(seconds / account.wall_s)}" for one, seconds in by_size(found)
    )


def _short(nodes: tuple[str, ...]) -> str:
    text = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


_LETTERS = 22  # of a label


def _histories(spans: Sequence[Span]) -> tuple[list[_Row], list[str]]:
    """Return groups of nodes with the same series of buckets, each with it; and the nodes of further ones."""
    crews = list(dict.fromkeys(span.crew for span in spans))
    names = dict.fromkeys(name for crew in crews for name in (*crew.expected, *crew.members))
    sets = [(frozenset(crew.members), frozenset(crew.expected)) for crew in crews]
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(names, key=natural):
        roles = tuple(_role(name, crew, *one) for crew, one in zip(crews, sets, strict=True))
        groups.setdefault(roles, []).append(name)
    if not groups:
        return [(("run",), [(span.begin, span.seconds, span.bucket, span.stop) for span in spans])], []
    place_of = {crew: place for place, crew in enumerate(crews)}
    places = [place_of[span.crew] for span in spans]
    found = []
    for roles, nodes in list(groups.items())[:_MOST_ROWS]:
        seen = (_seen(span, roles[place]) for span, place in zip(spans, places, strict=True))
        pieces = [
            (span.begin, span.seconds, bucket, span.stop) for span, bucket in zip(spans, seen, strict=True)
        ]
        found.append((tuple(nodes), pieces))
    return found, [name for nodes in list(groups.values())[_MOST_ROWS:] for name in nodes]


_MEMBER, _OUT, _AWAY, _EXPECTED = range(4)


def _role(name: str, crew: Crew, members: frozenset[str], expected: frozenset[str]) -> int:
    if name in members:
        return _MEMBER
    if name in crew.out:
        return _OUT
    return _AWAY if name not in expected and (expected or members) else _EXPECTED


def _seen(span: Span, role: int) -> Bucket:
    """Return the bucket of a node with a role during a span; as in the account of nodes."""
    if span.bucket in (Bucket.QUEUED, Bucket.HELD, Bucket.DOWN) or role == _MEMBER:
        return span.bucket
    if role == _OUT:
        return Bucket.DOWN
    if role == _AWAY:
        return Bucket.ELSEWHERE
    return Bucket.SPARE if span.crew.members else span.bucket


def _coarse(pieces: Sequence[_Piece], least_s: float) -> Iterator[_Piece]:
    """Yield pieces, neighbours in one bucket as one, and short ones as one in the bucket of most of them."""
    held: list[_Piece] = []
    held_s = 0.0
    for piece in pieces:
        is_next = bool(held) and piece[0] <= held[-1][0] + held[-1][1] + least_s  # else the run was over
        if is_next and piece[2] is held[-1][2]:
            held[-1] = (held[-1][0], held[-1][1] + piece[1], *piece[2:])
            held_s += piece[1]
        elif is_next and held_s < least_s:
            held.append(piece)
            held_s += piece[1]
        else:
            yield from _joined(held)
            held, held_s = [piece], piece[1]
    yield from _joined(held)


def _joined(pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    if pieces:
        of_bucket: dict[Bucket, float] = {}
        for _, seconds, bucket, _ in pieces:
            of_bucket[bucket] = of_bucket.get(bucket, 0.0) + seconds
        most = max(of_bucket, key=of_bucket.__getitem__)
        stop = next(piece[3] for piece in pieces if piece[2] is most)
        yield pieces[0][0], sum(of_bucket.values()), most, stop


# steps and their rate


def _steps(account: Account, axis: Axis) -> Iterator[str]:
    """Yield the lane of the newest step; steps that were computed again are a pale branch."""
    series = account.series
    new = [span for span in series.spans if span.step is not None and span.steps]
    if not new:
        return
    last = max(span.step or 0 for span in new)
    top = max(last, series.total or 0, 1)
    ends = list(_points(new))
    chosen = list(_thinned(ends, (axis.end - axis.begin) / _MOST_POINTS))
    again = list(_branches(account))
    lines = [_line(axis, branch, top, "again") for branch in again] + [_line(axis, chosen, top, "steps")]
    total = f" of {series.total}" if series.total else ""
    label = f"step {last}{total} at {date_text(ends[-1][0])}"
    name = f"steps <br><span class=soft>0 to {top}</span>"
    name += " <br><span class=soft>pale: computed again</span>" if again else ""
    parts = "".join(f"<g>{line}</g>" for line in lines)
    yield _lane(name, _svg(_STEPS, f"<title>{escape(label)}</title>{parts}", label, "tall"))


def _points(spans: Sequence[Span]) -> Iterator[tuple[float, int]]:
    """Yield time and step at both ends of spans of new steps; no step is done between two spans.

    Agents report the first steps of a round together, so these are one rise at the begin of a span.
    """
    before: int | None = None
    for span in spans:
        last = span.step or 0
        if before is not None:
            yield span.begin, before
        yield span.begin, last - span.steps
        yield span.begin + span.seconds, last
        before = last


def _thinned(points: Sequence[tuple[float, int]], least_s: float) -> Iterator[tuple[float, int]]:
    """Yield points without those that are too near to the one before, but both ends of each longer time."""
    shown = -inf
    for place, (at, step) in enumerate(points):
        is_corner = place + 1 == len(points) or points[place + 1][0] - at >= least_s
        if is_corner or at - shown >= least_s:
            shown = at
            yield at, step


def _line(axis: Axis, points: Sequence[tuple[float, int]], top: int, kind: str) -> str:
    places = (f"{axis.x(at):.1f},{_STEPS - step * (_STEPS - 4) / top:.1f}" for at, step in points)
    return f'<polyline class="{kind}" points="{" ".join(places)}" vector-effect="non-scaling-stroke"/>'


def _branches(account: Account) -> Iterator[list[tuple[float, int]]]:
    """Yield the begin and the end of steps that were computed again, where both steps are known."""
    series = account.series
    again: dict[int, tuple[float, float]] = {}
    for span in series.spans:
        if span.bucket is Bucket.AGAIN and span.stop >= 0:
            begin = again.get(span.stop, (span.begin, 0.0))[0]
            again[span.stop] = begin, span.begin + span.seconds
    best, place = 0, 0
    for number, (begin, end) in again.items():
        while place < len(series.progress) and series.progress[place][0] <= begin:
            best, place = series.progress[place][1], place + 1
        resumed, reached = series.stops[number].resumed, _reached(account, number, best)
        if resumed is not None and reached is not None and reached > resumed:
            yield [(begin, resumed), (end, reached)]


def _reached(account: Account, number: int, best: int) -> int | None:
    """Return the step that was reached again after a stop; None if it is not known."""
    series = account.series
    if number + 1 < len(series.stops):
        step = series.stops[number + 1].step
        return None if step is None else min(step, best)
    return best if series.current is None else min(series.current, best)


def _rates(spans: Sequence[Span], axis: Axis) -> Iterator[str]:
    """Yield the lane of new steps per second, while they were computed."""
    width_s = (axis.end - axis.begin) / _BARS
    steps, seconds = [0.0] * _BARS, [0.0] * _BARS
    for span in spans:
        if span.bucket is not Bucket.TRAINING or not span.steps or span.seconds <= 0 or not width_s:
            continue
        first = int((span.begin - axis.begin) / width_s)
        last = int((span.begin + span.seconds - axis.begin) / width_s)
        for place in range(first, min(last, _BARS - 1) + 1):
            begin = max(span.begin, axis.begin + place * width_s)
            inside_s = min(span.begin + span.seconds, axis.begin + (place + 1) * width_s) - begin
            steps[place] += span.steps * max(inside_s, 0.0) / span.seconds
            seconds[place] += max(inside_s, 0.0)
    rates = [done / took if took > 0 else 0.0 for done, took in zip(steps, seconds, strict=True)]
    top = max(rates)
    if not top:
        return
    parts, one = [], _WIDE / _BARS
    for place, rate in enumerate(rates):
        if rate:
            height = rate * (_RATE - 4) / top
            title = f"{date_text(axis.begin + place * width_s)}: {rate_text(rate)}"
            bar = {"y": round(_RATE - height, 1), "height": round(height, 1)}
            parts.append(_rect(place * one, one, COLOURS[Bucket.TRAINING], title, **bar))
    name = f"rate <br><span class=soft>up to {escape(rate_text(top))}</span>"
    yield _lane(
        name, _svg(_RATE, "".join(parts), f"up to {rate_text(top)} while new steps were computed", "tall")
    )


# marks of stops and saves, and the times


def _near(places: Sequence[float]) -> Iterator[tuple[float, list[int]]]:
    """Yield the places of marks, those near each other as one, with the numbers of theirs."""
    held: list[int] = []
    for number in sorted(range(len(places)), key=places.__getitem__):
        if held and places[number] - places[held[0]] >= _NEAR:
            yield places[held[0]], held
            held = []
        held.append(number)
    if held:
        yield places[held[0]], held


def _marks(account: Account, axis: Axis, saves: Sequence[Save]) -> Iterator[str]:
    """Yield the lanes of stops and of saves; a title tells time, cause and cost."""
    if account.stops:
        told = [
            f"{date_text(one.stop.at)}: {cause_of(fact)}; {cost_text(fact)}"
            for one in account.stops
            for fact in [fact_of(one)]
        ]
        parts = _mark_parts([axis.x(one.stop.at) for one in account.stops], told, "stop")
        label = f"{count_text(len(told), 'stop')}; the tables below have their causes"
        yield _lane(f"stops <span class=soft>{len(told)}</span>", _svg(_ROW, parts, label))
    inside = [one for one in saves if axis.begin <= one.at <= axis.end]
    if inside:
        told = [f"{date_text(one.at)}: step {one.step} saved" for one in inside]
        parts = _mark_parts([axis.x(one.at) for one in inside], told, "save")
        label = f"{count_text(len(told), 'checkpoint')} of which the time is known"
        yield _lane(f"saves <span class=soft>{len(told)} shown</span>", _svg(_ROW, parts, label))


def _mark_parts(places: Sequence[float], told: Sequence[str], kind: str) -> str:
    parts = []
    for x, numbers in _near(places):
        texts = [told[number] for number in numbers[:_MOST_TOLD]]
        more = f"\nand {len(numbers) - _MOST_TOLD} more" if len(numbers) > _MOST_TOLD else ""
        title = escape("\n".join(texts) + more)
        place = f'x="{x - 2:.1f}" y="1" width="4" height="{_ROW - 2}"'
        parts.append(f'<rect class="{kind}" {place}><title>{title}</title></rect>')
    return "".join(parts)


def _over(axis: Axis, stops: Sequence[Stop]) -> str:
    """Return the lines over all lanes: a grid at the times of the axis, and the stops."""
    lines = [
        f'<line class="{kind}" x1="{axis.x(at):.1f}" x2="{axis.x(at):.1f}" y1="0" y2="10"/>'
        for at, _, kind in _ticks(axis)
    ]
    marks = list(_near([axis.x(stop.at) for stop in stops]))
    lines += [
        f'<line class="stop" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="10"/>'
        for x, _ in (marks if len(marks) <= _MOST_LINES else ())
    ]
    drawn = f'<svg class="over" viewBox="0 0 {_WIDE} 10" preserveAspectRatio="none" aria-hidden="true">'
    return f"{drawn}{''.join(lines)}</svg>"


def _times(axis: Axis) -> str:
    texts = "".join(
        f'<span class="{kind}" style="left:{axis.x(at) / 10:.2f}%">{text}</span>'
        for at, text, kind in _ticks(axis)
        if _EDGE < axis.x(at) < _WIDE - _EDGE
    )
    return f'<div class="lane times"><div class="name">time</div><div class="ticks">{texts}</div></div>'


_HOUR, _DAY = 3600.0, 86400.0
_APART_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, _DAY, 2 * _DAY, 5 * _DAY, 10 * _DAY, 30 * _DAY),
)
_TIMES = {"a": 7, "b": 28, "c": 112}  # how many fit: at all widths, at 4 times and at 16 times the width


def _in_season(at: float, shift_s: float) -> float:
    """Return the time whose local reading is that of a time with another shift from UTC [s].

    Where they skip that hour, it is the time at which they go on.
    """
    moved = at + shift_s - ahead_s(at)
    return moved if ahead_s(moved) == ahead_s(at) else max(at, moved)


def _ticks(axis: Axis) -> list[tuple[float, str, str]]:
    """Return the times on the axis, each with its text and the width from which it is shown."""
    found: dict[float, tuple[float, str, str]] = {}
    for kind, most in _TIMES.items():
        span_s = axis.end - axis.begin
        apart_s = next((one for one in _APART_S if span_s / one <= most), span_s / most)
        shift_s = ahead_s(axis.begin)
        number = int((axis.begin + shift_s) // apart_s) + 1
        place = 0
        while (at := number * apart_s - shift_s) < axis.end:
            odd = " o" if place % 2 and kind == "a" else ""
            if apart_s > _HOUR:  # shorter ones are whole with the shift of any season
                at = _in_season(at, shift_s)
            if at < axis.end:
                found.setdefault(at, (at, short_text(at, apart_s), kind + odd))
            number, place = number + 1, place + 1
    return list(found.values())
