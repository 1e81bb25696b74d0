"""The tables of a report: the same for text, Markdown and HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from hpc_elastic.account.account import Account, StartAccount, seconds_of_nodes
from hpc_elastic.account.gpus import by_share
from hpc_elastic.account.spans import Bucket
from hpc_elastic.clock import date_text
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import NodeSlow, Record
from hpc_elastic.record.node_faults import slow_text
from hpc_elastic.report.explain.facts import Explanation
from hpc_elastic.report.explain.words import bound_text, cause_of, share_text, times_text
from hpc_elastic.report.timeline import names_text, span_text
from hpc_elastic.text import WIDTH, bytes_text, wrapped

_MOST_NODES = 40  # rows of the table of nodes
_LONG = 12  # characters of a word in a table


class ReportTable(NamedTuple):
    """A table with a title; all cells are texts for people."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(found: Explanation) -> list[ReportTable]:
    """Return the tables of a report that have rows."""
    account = found.account
    tables = [
        ReportTable("Where the time went", ("bucket", "time", "share"), tuple(_buckets(account))),
        ReportTable("Starts of the job", _OF_STARTS, tuple(_starts(account.starts))),
        ReportTable("Stops of the run, by cause", _OF_CAUSES, tuple(_causes(account))),
        ReportTable("The newest stops", _OF_STOPS, tuple(_stops(found))),
        ReportTable("Slow nodes", ("when", "node", "round", "steps"), tuple(_slow(found.slow))),
        ReportTable("GPUs, the least busy first", _OF_GPUS, tuple(_gpus(account))),
        ReportTable("Nodes", ("node", "training", "down", "spare", "not in the job"), tuple(_nodes(account))),
    ]
    return [table for table in tables if table.rows]


_OF_STARTS = ("start", "job", "began", "time", "rounds", "from step", "to step", "saved", "goodput")
_OF_CAUSES = ("stops", "cost", "lost steps", "work between two")
_OF_GPUS = ("node", "GPU", "busy", "memory up to", "of", "samples")
_OF_STOPS = ("when", "times", "cause", "cost", "lost steps", "log")


def _buckets(account: Account) -> Iterator[tuple[str, ...]]:
    for bucket, seconds in by_size(account.seconds):
        yield account.text_of(bucket), span_text(seconds), share_text(seconds / account.wall_s)


def by_size(seconds: Mapping[Bucket, float]) -> list[tuple[Bucket, float]]:
    """Return the buckets, the largest first."""
    return sorted(seconds.items(), key=lambda item: -item[1])


def _starts(starts: Sequence[StartAccount]) -> Iterator[tuple[str, ...]]:
    for number, start in enumerate(starts, start=1):
        facts = start.facts
        goodput = "?" if start.goodput is None else share_text(start.goodput)
        steps = (_number(facts.began), _number(facts.reached), _number(facts.saved))
        rounds = str(facts.rounds)
        yield str(number), facts.job_id, date_text(facts.at), span_text(start.wall_s), rounds, *steps, goodput


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _causes(account: Account) -> Iterator[tuple[str, ...]]:
    for each in account.causes:
        what = times_text(each.cause, each.times)
        lost = f"{bound_text(0, lacks=each.lost_at_least)}{each.lost_steps}"
        yield what, span_text(each.seconds), lost, span_text(each.between_s)


def _stops(found: Explanation) -> Iterator[tuple[str, ...]]:
    for stop in reversed(found.stops):
        when, cost = date_text(stop.last.at), span_text(stop.seconds)
        bound = bound_text(stop.perhaps_lost, lacks=stop.lost_at_least)
        lost = f"{bound}{stop.lost_steps + stop.perhaps_lost}"
        yield when, str(stop.times), cause_of(stop), cost, lost, stop.evidence


def _slow(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for record in records[-_MOST_NODES:]:
        if isinstance(record.entry, NodeSlow):
            entry = record.entry
            yield date_text(record.at), entry.node, str(entry.number), slow_text(entry)


def _gpus(account: Account) -> Iterator[tuple[str, ...]]:
    for node, gpu in by_share(account.gpus)[:_MOST_NODES]:
        busy = "?" if gpu.share is None else share_text(gpu.share)
        memory = ("?" if size is None else bytes_text(size) for size in (gpu.peak, gpu.limit))
        yield node, gpu.number, busy, *memory, str(gpu.samples)


def _nodes(account: Account) -> Iterator[tuple[str, ...]]:
    """Yield a row for each group of nodes with the same account."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node, seconds in sorted(seconds_of_nodes(account.series.spans).items(), key=_place):
        work = seconds.get(Bucket.TRAINING, 0.0) + seconds.get(Bucket.WORKING, 0.0)
        rest = (seconds.get(bucket, 0.0) for bucket in (Bucket.DOWN, Bucket.SPARE, Bucket.ELSEWHERE))
        cells = tuple(span_text(each) if each else "" for each in (work, *rest))
        groups.setdefault(cells, []).append(node)
    for cells, nodes in list(groups.items())[:_MOST_NODES]:
        yield names_text(tuple(nodes)), *cells


def _place(item: tuple[str, object]) -> tuple[object, ...]:
    return natural(item[0])


def as_text(tables: Sequence[ReportTable]) -> list[str]:
    """Return tables as lines of 80 columns; a path is never broken.

    The last column of a table that is too wide for its paths follows each row on a line of its own.
    """
    lines: list[str] = []
    for table in tables:
        rows = [table.head, *table.rows]
        lines += ["", f"{table.title}:"]
        lines += _with_last_below(rows) if _is_crowded(rows) else _lines(rows)
    return lines


def _lines(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = _widths(rows)
    for row in rows:
        yield from _in_columns(row, widths)


def _is_crowded(rows: Sequence[tuple[str, ...]]) -> bool:
    """Tell whether rows are too wide, and their last cells too long to be narrowed."""
    width = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    return width > WIDTH and any(len(word) > _LONG for row in rows for word in row[-1].split())


def _with_last_below(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = _widths([row[:-1] for row in rows])
    yield from _in_columns(rows[0][:-1], widths)
    for row in rows[1:]:
        yield from _in_columns(row[:-1], widths)
        if row[-1]:
            yield f"    {rows[0][-1]}: {row[-1]}"


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the widths of columns: the widest are narrowed, down to their longest word, until all fit."""
    columns = list(zip(*rows, strict=True))
    least = [max(len(word) for cell in column for word in (cell.split() or [""])) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + 2 * len(widths) > WIDTH:
        room = [(width, place) for place, width in enumerate(widths) if width > least[place]]
        if not room:
            break
        widths[max(room)[1]] -= 1
    return widths


def _in_columns(cells: tuple[str, ...], widths: Sequence[int]) -> Iterator[str]:
    parts = [wrapped(cell, "", "", width) for cell, width in zip(cells, widths, strict=True)]
    for row in zip_longest(*parts, fillvalue=""):
        yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()


def as_markdown(tables: Sequence[ReportTable]) -> list[str]:
    """Return tables as lines of Markdown."""
    lines: list[str] = []
    for table in tables:
        lines += ["", f"## {table.title}", "", _markdown_row(table.head), "|" + "---|" * len(table.head)]
        lines += map(_markdown_row, table.rows)
    return lines


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"
