"""The report of a run as one HTML page: no script, no font and no picture from anywhere else. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape as escape_html

from hpc_elastic.account.account import Account, seconds_of_nodes
from hpc_elastic.account.spans import Bucket, Crew, Span
from hpc_elastic.clock import date_text
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.explain.tables import ReportTable, by_size
from hpc_elastic.report.explain.words import share_text
from hpc_elastic.report.timeline import names_text, span_text
from hpc_elastic.text import visible_lines

_WIDTH, _ROW, _LABEL = 900, 20, 170  # of the drawings [px]
_MOST_ROWS = 48  # of the timeline
_STEPS_HEIGHT = 160
_FINEST = _WIDTH * 2  # pieces of a row of the timeline at most
_COLOURS = {
    Bucket.TRAINING: "#2a9d5c",
    Bucket.WORKING: "#7bc096",
    Bucket.AGAIN: "#e07b39",
    Bucket.LOST: "#c2185b",
    Bucket.SAVING: "#3f7fbf",
    Bucket.NOTICING: "#d9b310",
    Bucket.STOPPING: "#b8860b",
    Bucket.MEETING: "#8e6bbf",
    Bucket.STARTING: "#a98bd0",
    Bucket.IMPORTING: "#c3aee0",
    Bucket.LOADING: "#d9cdec",
    Bucket.DRAINING: "#5fb7c4",
    Bucket.ENDING: "#9fd3dc",
    Bucket.QUEUED: "#9aa0a6",
    Bucket.HELD: "#5f6368",
    Bucket.DOWN: "#d64545",
    Bucket.SPARE: "#cfd8dc",
    Bucket.ELSEWHERE: "#eceff1",
}
_STYLE = """
:root{color-scheme:light dark;--fg:#1c1e21;--bg:#fff;--soft:#5f6368;--line:#dadce0}
@media(prefers-color-scheme:dark){:root{--fg:#e8eaed;--bg:#202124;--soft:#9aa0a6;--line:#3c4043}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:0 auto;
max-width:1100px;padding:1.5rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{border-bottom:1px solid var(--line);padding:.2rem .7rem .2rem 0;text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600}svg{max-width:100%;height:auto}
svg text{fill:var(--fg);font:12px system-ui,sans-serif}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);padding:.8rem}
.key span{display:inline-block;margin-right:1rem}.key i{display:inline-block;width:.8em;height:.8em;
margin-right:.3em}
"""


def escape(text: str) -> str:
    """Return foreign text that can stand in the page: no markup, and no character that acts."""
    return escape_html(visible_lines(text))


class PageTexts(NamedTuple):
    """The texts of a page, as they are; the page escapes them."""

    title: str
    explanation: Sequence[str]
    files: Mapping[str, str]  # the script and the spec of the job, by name


def page_of(texts: PageTexts, account: Account, tables: Sequence[ReportTable]) -> str:
    """Return the page."""
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(texts.title)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><h1>{escape(texts.title)}</h1>",
        f"<pre>{escape(chr(10).join(texts.explanation))}</pre>",
        *_pictures(account),
        *(part for table in tables for part in _table(table)),
    ]
    for name, text in texts.files.items():
        parts.append(f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>")
    return "\n".join([*parts, "</body></html>", ""])


def _pictures(account: Account) -> Iterator[str]:
    if not account.wall_s:
        return
    yield "<h2>Account of time</h2>"
    yield _bar(account)
    yield _key(account)
    yield "<h2>Nodes over time</h2>"
    yield _timeline(account)
    if len(account.series.progress) > 1:
        yield "<h2>Steps over time</h2>"
        yield _steps(account)


def _svg(height: int, parts: Sequence[str], label: str) -> str:
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img"'
    return f'{head} aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _rect(x: float, y: float, width: float, bucket: Bucket, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.0f}" width="{max(width, 0.3):.1f}" height="{_ROW - 2}"'
    return f'<rect {place} fill="{_COLOURS[bucket]}"><title>{escape(title)}</title></rect>'


def _bar(account: Account) -> str:
    parts, x = [], 0.0
    for bucket, seconds in by_size(account.seconds):
        width = _WIDTH * seconds / account.wall_s
        title = f"{account.text_of(bucket)}: {span_text(seconds)}, {share_text(seconds / account.wall_s)}"
        parts.append(_rect(x, 0, width, bucket, title))
        x += width
    return _svg(_ROW, parts, "the wall time of the run by buckets")


def _key(account: Account) -> str:
    shown = dict(by_size(account.seconds))
    nodes = seconds_of_nodes(account.series.spans).values()
    shown |= {bucket: 0.0 for seconds in nodes for bucket in seconds if bucket not in shown}
    texts = {one: escape(account.text_of(one)) for one in shown}
    marks = (f'<span><i style="background:{_COLOURS[one]}"></i>{text}</span>' for one, text in texts.items())
    return f'<p class="key">{"".join(marks)}</p>'


def _timeline(account: Account) -> str:
    """Return a row for each group of nodes with the same history."""
    spans = account.series.spans
    begin = spans[0].begin
    end = spans[-1].begin + spans[-1].seconds
    scale = (_WIDTH - _LABEL) / max(end - begin, 1e-9)
    rows = _histories(spans)
    parts = []
    for place, (nodes, history) in enumerate(rows[:_MOST_ROWS]):
        y = place * _ROW
        parts.append(f'<text x="0" y="{y + 12}">{escape(_short(nodes))}</text>')
        for at, seconds, bucket in _coarse(history, (end - begin) / _FINEST):
            title = f"{names_text(nodes)}: {account.text_of(bucket)}, {date_text(at)}, {span_text(seconds)}"
            parts.append(_rect(_LABEL + (at - begin) * scale, y, seconds * scale, bucket, title))
    height = min(len(rows), _MOST_ROWS) * _ROW + _ROW
    ends = f'<text x="{_LABEL}" y="{height - 2}">{date_text(begin)}</text>'
    ends += f'<text x="{_WIDTH}" y="{height - 2}" text-anchor="end">{date_text(end)}</text>'
    return _svg(height, [*parts, ends], "the buckets of each node over time")


def _short(nodes: tuple[str, ...]) -> str:
    text = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


_LETTERS = 22  # of a label

_Piece = tuple[float, float, Bucket]


def _histories(spans: Sequence[Span]) -> list[tuple[tuple[str, ...], list[_Piece]]]:
    """Return the groups of nodes with the same series of buckets, each with that series."""
    crews = list(dict.fromkeys(span.crew for span in spans))
    names = dict.fromkeys(name for crew in crews for name in (*crew.expected, *crew.members))
    sets = [(frozenset(crew.members), frozenset(crew.expected)) for crew in crews]
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(names, key=natural):
        roles = tuple(_role(name, crew, *one) for crew, one in zip(crews, sets, strict=True))
        groups.setdefault(roles, []).append(name)
    if not groups:
        return [(("run",), [(span.begin, span.seconds, span.bucket) for span in spans])]
    place_of = {crew: place for place, crew in enumerate(crews)}
    found = []
    for roles, nodes in groups.items():
        pieces = [(span.begin, span.seconds, _seen(span, roles[place_of[span.crew]])) for span in spans]
        found.append((tuple(nodes), pieces))
    return found


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
    """Yield pieces, neighbours in one bucket as one, and short ones as a part of the longest."""
    held: list[_Piece] = []
    for piece in pieces:
        if held and piece[2] is held[-1][2]:
            held[-1] = (held[-1][0], held[-1][1] + piece[1], piece[2])
        elif held and sum(one[1] for one in held) < least_s:
            held.append(piece)
        else:
            yield from _joined(held)
            held = [piece]
    yield from _joined(held)


def _joined(pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    if pieces:
        longest = max(pieces, key=lambda piece: piece[1])
        yield pieces[0][0], sum(piece[1] for piece in pieces), longest[2]


def _steps(account: Account) -> str:
    progress, spans = account.series.progress, account.series.spans
    last = progress[-1]
    top = max(last[1], account.series.total or 0, 1)
    began = spans[0].begin  # as in the picture of the nodes
    span_s = max(spans[-1].begin + spans[-1].seconds - began, 1e-9)
    every = max(1, len(progress) // _WIDTH)
    chosen = [*progress[::every], last]
    x_scale, y_scale = (_WIDTH - _LABEL) / span_s, (_STEPS_HEIGHT - 20) / top
    places = ((_LABEL + (at - began) * x_scale, _STEPS_HEIGHT - step * y_scale) for at, step in chosen)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline points="{points}" fill="none" stroke="{_COLOURS[Bucket.TRAINING]}" stroke-width="2"/>'
    texts = f'<text x="0" y="18">step {top}</text><text x="0" y="{_STEPS_HEIGHT}">step 0</text>'
    return _svg(_STEPS_HEIGHT + 4, [line, texts], "the newest step over time")


def _table(table: ReportTable) -> Iterator[str]:
    yield f"<h2>{escape(table.title)}</h2><table><tr>"
    yield "".join(f"<th>{escape(cell)}</th>" for cell in table.head) + "</tr>"
    for row in table.rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"
