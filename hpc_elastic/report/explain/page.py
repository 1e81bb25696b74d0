"""The report of a run as one HTML page: no script, no font and no picture from anywhere else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape as escape_html
from itertools import compress
from urllib.parse import quote

from hpc_elastic.account.spans import Bucket
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.explain.axis import COLOURS, escape
from hpc_elastic.report.explain.head import Figure
from hpc_elastic.report.explain.tables import ReportTable
from hpc_elastic.report.run_facts import NextStep
from hpc_elastic.text import sentence, visible, with_units

_STYLE = f"""
:root{{color-scheme:light dark;--fg:#1c1e21;--bg:#fff;--soft:#5f6368;--line:#dadce0;--box:#f6f7f8;
--mark:#1c1e21;--save:#0072b2;--link:#0b57a4;--lab:10.5rem}}
@media(prefers-color-scheme:dark){{:root{{--fg:#e8eaed;--bg:#202124;--soft:#a8adb3;--line:#3c4043;
--box:#2a2c2f;--mark:#fff;--save:#8ab8f0;--link:#8ab8f0}}}}
*{{box-sizing:border-box}}
body{{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:0 auto;
max-width:1500px;padding:1.2rem 1.5rem}}
h1{{font-size:1.5rem;margin:0 0 .7rem;overflow-wrap:anywhere}}h2{{font-size:1.1rem;margin:1.7rem 0 .5rem}}
a{{color:var(--link)}}a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{{
outline:2px solid var(--link);outline-offset:2px}}
.soft{{color:var(--soft)}}p{{margin:.4rem 0}}
.badge{{display:inline-block;font-size:1rem;padding:.1rem .7rem;border-radius:1rem;vertical-align:.15rem}}
.green{{background:#19703a;color:#fff}}.red{{background:#b3261e;color:#fff}}
.yellow{{background:#f2c14e;color:#000}}
.figures{{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.7rem,1fr));gap:.6rem;margin:0}}
.figures div{{background:var(--box);border:1px solid var(--line);border-radius:.4rem;padding:.5rem .7rem}}
dt{{color:var(--soft);font-size:.85rem}}dd{{margin:0}}.value{{font-size:1rem;font-weight:600;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}.note{{color:var(--soft);font-size:.85rem}}
progress{{width:100%;height:.5rem;display:block;margin:.2rem 0;accent-color:{COLOURS[Bucket.TRAINING]}}}
.why{{font-size:1.05rem;margin-top:.9rem;overflow-wrap:anywhere}}
.todo{{margin:.3rem 0;padding-left:1.2rem}}.todo li{{margin:.3rem 0;overflow-wrap:anywhere}}
code{{font:13px/1.4 ui-monospace,monospace;background:var(--box);border:1px solid var(--line);
border-radius:.3rem;padding:.1rem .4rem;user-select:all;overflow-wrap:anywhere}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);padding:.8rem;
font:13px/1.4 ui-monospace,monospace}}
.bar{{display:flex;height:1.7rem;overflow:hidden;border-radius:.2rem}}
.bar span{{overflow:hidden;text-align:center;font-size:13px;line-height:1.7rem;white-space:nowrap}}
.key{{list-style:none;padding:0;margin:.5rem 0;display:flex;flex-wrap:wrap;gap:.1rem 1.1rem}}
.key i{{display:inline-block;width:.85em;height:.85em;margin-right:.35em;border:1px solid var(--soft)}}
.zoom{{border:0;padding:0;margin:0 0 .4rem;color:var(--soft)}}.zoom legend{{float:left;margin-right:.6rem}}
.chart:has(#z4:checked){{--zoom:4}}.chart:has(#z16:checked){{--zoom:16}}
.scroll{{overflow-x:auto}}.plot{{position:relative;width:calc(var(--zoom,1)*100%)}}
.lane{{display:grid;grid-template-columns:var(--lab) 1fr;align-items:start}}
.lane rect{{shape-rendering:crispEdges}}
.lane>svg{{width:100%;display:block}}.lane>.tall{{border-bottom:1px solid var(--line);margin-top:.3rem}}
.name{{font-size:12px;line-height:18px;overflow-wrap:anywhere;padding-right:.6rem;position:sticky;left:0;
width:var(--lab);background:var(--bg);z-index:1}}
.over{{position:absolute;left:var(--lab);top:0;width:calc(100% - var(--lab));height:100%;
pointer-events:none}}
.over line{{vector-effect:non-scaling-stroke;stroke:var(--soft);opacity:.35;stroke-width:1}}
.over .stop{{stroke:var(--mark);opacity:.6;stroke-dasharray:3 3}}
rect.stop{{fill:var(--mark)}}rect.save{{fill:var(--save)}}
polyline{{fill:none;stroke:{COLOURS[Bucket.TRAINING]};stroke-width:2}}
.again{{stroke:{COLOURS[Bucket.AGAIN]};opacity:.55}}
.ticks{{position:relative;overflow-x:clip;height:1.3rem;font-size:12px;font-variant-numeric:tabular-nums}}
.ticks span{{position:absolute;transform:translateX(-50%);white-space:nowrap}}
.b,.c{{display:none}}.chart:has(#z4:checked) .b,.chart:has(#z16:checked) :is(.b,.c){{display:inline}}
details{{margin:.3rem 0}}.wide{{overflow-x:auto}}
table{{border-collapse:collapse;width:max-content}}
td,th{{border-bottom:1px solid var(--line);padding:.2rem 1.2rem .2rem 0;text-align:left;vertical-align:top}}
td{{overflow-wrap:break-word;max-width:34rem}}th{{color:var(--soft);font-weight:600;white-space:nowrap}}
.n{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}.d{{white-space:nowrap}}
@media(max-width:640px){{body{{padding:.8rem}}:root{{--lab:0px}}.lane{{grid-template-columns:1fr}}
.name{{width:max-content;max-width:95vw;padding-top:.2rem}}.name br{{display:none}}
.figures{{grid-template-columns:1fr;gap:.25rem}}
.figures div{{display:grid;grid-template-columns:6.3rem 1fr;padding:.2rem .5rem}}.note{{grid-column:2}}
.value{{font-size:1rem}}dt,.note{{font-size:.8rem}}
.chart:not(:has(#z4:checked,#z16:checked)) .o{{display:none}}}}
@media print{{@page{{size:A4;margin:12mm}}:root{{--fg:#000;--bg:#fff;--soft:#444;--line:#bbb;--box:#fff;
--mark:#000;--save:#0072b2;--link:#000;--zoom:1}}body{{padding:0;font-size:10pt;max-width:none;
-webkit-print-color-adjust:exact;print-color-adjust:exact}}.zoom{{display:none}}
.figures{{grid-template-columns:repeat(4,1fr)}}.scroll,.wide{{overflow:visible}}table{{width:auto}}
td{{max-width:none}}td,th{{padding-right:.5rem;white-space:normal;overflow-wrap:anywhere}}
section.chart,.figures div,.key,.bar,tr,.todo li{{break-inside:avoid}}
h2,thead,caption{{break-after:avoid}}thead{{display:table-header-group}}}}
"""


class PageHead(NamedTuple):
    """The top of a page."""

    name: str
    state: str  # in a word
    colour: str  # of the state: green, yellow, red
    figures: Sequence[Figure]
    why: Sequence[str]  # sentences about the state, the main one first
    steps_title: str
    advice: Sequence[str]
    then: Sequence[NextStep]
    made: str  # the time at which the page is made, with its zone


class LogPart(NamedTuple):
    """A part of a log that shows a stop."""

    title: str
    path: str  # below the run directory
    link: str  # path of the file from that of the page
    text: str


class PageTexts(NamedTuple):
    """The foot of a page: texts as they are; the page escapes them."""

    logs: Sequence[LogPart]
    explanation: Sequence[str]
    files: Mapping[str, str]  # the script and the spec of the job, by name


def page_of(head: PageHead, drawn: Iterable[str], tables: Sequence[ReportTable], texts: PageTexts) -> str:
    """Return the page."""
    title = escape(f"{head.name}: {head.state}")
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        *_head(head),
        "<main>",
        *drawn,
        *(part for table in tables for part in _table(table)),
        *_logs(texts.logs),
        *_folded({"The explanation in words": "\n".join(texts.explanation), **texts.files}),
    ]
    return "\n".join([*parts, "</main></body></html>", ""])


def _head(head: PageHead) -> Iterator[str]:
    badge = f'<span class="badge {head.colour}">{escape(head.state)}</span>'
    yield f"<header><h1>{escape(head.name)} {badge}</h1>"
    yield f'<dl class="figures">{"".join(map(_figure, head.figures))}</dl>'
    first, *others = head.why
    yield f'<p class="why">{escape(sentence(first))}</p>'
    yield "".join(f"<p>{escape(sentence(text))}</p>" for text in others)
    yield f"<p><b>{escape(head.steps_title)}</b></p>"
    items = [escape(text) for text in head.advice] + [_step(step) for step in head.then]
    yield f'<ul class="todo">{"".join(f"<li>{item}</li>" for item in items)}</ul>'
    yield f"<p class=soft>As of {escape(head.made)}.</p></header>"


def _figure(one: Figure) -> str:
    bar = ""
    if one.share is not None:
        percent = f"{100 * one.share:.1f}"
        bar = f'<progress max="100" value="{percent}" aria-label="{escape(one.name)}">{percent} %</progress>'
    note = f'<dd class="note">{with_units(escape(one.note))}</dd>' if one.note else ""
    value = f'<dd class="value">{with_units(escape(one.value))}{bar}</dd>'
    return f"<div><dt>{escape(one.name)}</dt>{value}{note}</div>"


def _step(step: NextStep) -> str:
    command = f"<code>{escape(step.command)}</code>" if step.command else ""
    return " ".join(filter(None, (escape(step.before), command, escape(step.after))))


def _table(table: ReportTable) -> Iterator[str]:
    used = [any(column) for column in zip(*table.rows, strict=True)]  # others say nothing
    head, *rows = [tuple(compress(row, used)) for row in (table.head, *table.rows)]
    kinds = [_KINDS.get(name, "") for name in head]
    title = escape(table.title)
    yield f'<section><h2>{title}</h2><div class="wide" tabindex="0" role="region" aria-label="{title}">'
    yield "<table><thead>" + _row("th", head, kinds, ' scope="col"') + "</thead><tbody>"
    for row in rows:
        yield _row("td", row, kinds)
    yield "</tbody></table></div></section>"


def _row(tag: str, cells: Sequence[str], kinds: Sequence[str], more: str = "") -> str:
    shown = []
    for cell, kind in zip(cells, kinds, strict=True):
        text = with_units(escape(cell)) if kind == "n" else escape(cell)
        shown.append(f"<{tag}{more}{f' class={kind}' if kind else ''}>{text}</{tag}>")
    return f"<tr>{''.join(shown)}</tr>"


_NUMBERS = (
    *("time", "share", "rounds", "from step", "to step", "saved", "goodput", "cost", "lost steps", "times"),
    *("work between two", "busy", "memory up to", "of", "samples", "training", "down", "spare"),
    *("not in the job", "round", "start"),
)
_KINDS = {**dict.fromkeys(_NUMBERS, "n"), "when": "d", "began": "d"}


def _logs(logs: Sequence[LogPart]) -> Iterator[str]:
    if logs:
        yield "<section><h2>Logs of the stops</h2>"
    for log in logs:
        link = path = escape(log.path)
        if visible(log.link) == log.link:  # else it does not name the file
            link = f'<a href="{escape_html(quote(log.link))}">{path}</a>'
        yield f"<details><summary>{escape(log.title)}</summary><p>{link}</p>"
        yield f"<pre>{escape(log.text)}</pre></details>"
    if logs:
        yield "</section>"


def _folded(texts: Mapping[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        yield f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
