"""``hpc-elastic report``: a run on one page, as text, Markdown, JSON or HTML."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hpc_elastic.cli.commands import FORMATS
from hpc_elastic.cli.commands.looking.explain import Explained, explained
from hpc_elastic.cli.commands.looking.status import run_colour
from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.cli.status.facts import used_facts
from hpc_elastic.clock import SystemClock, date_text, zone_text
from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.saved import SavedState, saved_checkpoints
from hpc_elastic.report.explain.as_json import report_json
from hpc_elastic.report.explain.axis import Save, drawings
from hpc_elastic.report.explain.head import HeadFacts, figures_of
from hpc_elastic.report.explain.job_files import hidden_values, job_without_secrets, script_without_secrets
from hpc_elastic.report.explain.page import LogPart, PageHead, PageTexts, page_of
from hpc_elastic.report.explain.tables import as_markdown, as_text, tables_of
from hpc_elastic.report.explain.words import advice_text, cause_of, steps_title
from hpc_elastic.secrets_out import without_values
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.run_jobs.run_files import newest_checkpoint, read_run
from hpc_elastic.store.files import read
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.store.users_file import write_users_file
from hpc_elastic.text import visible

_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".txt": "text"}
_STDOUT = "-"


def report(
    run: str | None = None,
    output: str | None = None,
    format: str | None = None,  # noqa: A002 - the flag's name
    *,
    json: bool = False,
) -> int:
    """Show a run on one page: where its time went, its starts, stops, nodes and steps."""
    if json and format not in (None, "json"):
        raise InputError(f"--format {format} is another format", where="--json", fix="give one of the two")
    chosen = _format_of("json" if json else format, output)
    found = explained(read_run(find_run(run)))
    is_shown = output in (None, _STDOUT)
    folder = "." if is_shown else os.path.dirname(str(output)) or "."
    text = _html(found, folder) if chosen == "html" else _WRITERS[chosen](found)
    if is_shown:
        hand_out(text)
        return 0
    _write(str(output), text)
    say(f"written: {visible(str(output))}")
    return 0


def _write(output: str, text: str) -> None:
    try:
        write_users_file(output, text.encode(errors="replace"))
    except OSError as error:
        reason = f"{visible(repr(output))} cannot be written: {error.strerror or error}"
        fix = error.fix if isinstance(error, UnfitFileError) else "name a file in a directory that is there"
        raise InputError(reason, where="--output", fix=fix) from error


def _format_of(given: str | None, output: str | None) -> str:
    suffix = os.path.splitext(output or "")[1]
    if os.path.basename(output or "").lower() in _SUFFIXES:
        raise InputError(
            f"{visible(output or '')} is a suffix without a name",
            where="--output",
            fix=f"give the file a name: run{os.path.basename(output or '')}",
        )
    found = given or _SUFFIXES.get(suffix.lower(), "" if suffix else "text")
    if not found:
        raise InputError(
            f"{visible(suffix)} names no format of a report: {visible(output or '')}",
            where="--output",
            fix=f"end the name in {', '.join(_SUFFIXES)}, or give --format: one of {', '.join(FORMATS)}",
        )
    return found


def _text(found: Explained) -> str:
    return "\n".join([*found.lines, *map(visible, as_text(tables_of(found.why)))]) + "\n"


def _markdown(found: Explained) -> str:
    lines = [f"# {found.seen.run.name}", "", "```", *found.lines, "```"]
    return "\n".join([*lines, *map(visible, as_markdown(tables_of(found.why)))]) + "\n"


def _html(found: Explained, folder: str) -> str:
    """Return the page.

    Args:
        found: the run with the facts that explain it.
        folder: in which the page will be; links to logs begin there.
    """
    paths, spec = found.seen.run.paths, found.seen.run.spec
    files = {
        os.path.basename(paths.job): job_without_secrets(_content(paths.job)),
        os.path.basename(paths.script): script_without_secrets(_content(paths.script), spec),
    }
    saves = [
        Save(one.at, one.step)
        for one in saved_checkpoints(paths)
        if one.at is not None and one.state is not SavedState.HALF
    ]
    texts = PageTexts(_logs(found, folder), found.lines, {name: text for name, text in files.items() if text})
    return page_of(_head(found), drawings(found.seen.account, saves), tables_of(found.why), texts)


def _head(found: Explained) -> PageHead:
    seen, why = found
    now_s = SystemClock().wall()
    used = "" if seen.run.is_torchruns else dict(used_facts(seen.run)).get("used", "")
    figures = figures_of(seen, why, HeadFacts(now_s, newest_checkpoint(seen.run.paths, now_s), used))
    last = [f"the last stop, {date_text(stop.last.at)}: {cause_of(stop)}" for stop in why.stops[-1:]]
    return PageHead(
        seen.run.name,
        seen.where.phase.value,
        run_colour(seen.run, seen.where),
        figures,
        [seen.where.text, *last, *found.warnings],
        steps_title(why, found.well),
        [advice_text(one) for one in why.advice],
        seen.then,
        f"{date_text(now_s)}, local time ({zone_text(now_s)})",
    )


def _logs(found: Explained, folder: str) -> list[LogPart]:
    """Return the end of a log for each of the newest stops; of hangs, whose stacks are long, the begin."""
    run, values = found.seen.run, hidden_values(found.seen.run.spec, Slurm().environ)
    parts: dict[str, LogPart] = {}
    for stop in reversed(found.why.stops):
        if stop.evidence and stop.evidence not in parts:
            path = os.path.join(run.paths.root, stop.evidence)
            text = _part_of(path, values, is_begin=stop.last.cause is Cause.HANG)
            link = os.path.relpath(path, folder)
            parts[stop.evidence] = LogPart(
                f"{date_text(stop.last.at)}: {cause_of(stop)}", stop.evidence, link, text
            )
    return list(parts.values())


def _part_of(path: str, hidden: Sequence[str], *, is_begin: bool) -> str:
    """Return the first or the last lines of a file of the run without secrets, which may have several lines.

    Args:
        path: of the file.
        hidden: values that are not shown.
        is_begin: the first lines are asked for.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(0 if is_begin else max(0, size - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    lines = without_values(text, hidden).splitlines()
    if size > _MOST_BYTES and len(lines) > 1:  # a half line may show a half secret
        lines = lines[:-1] if is_begin else lines[1:]
    return "\n".join(lines[:_MOST_LINES] if is_begin else lines[-_MOST_LINES:])


_MOST_LINES, _MOST_BYTES = 20, 16384  # of a log on the page


def _content(path: str) -> str:
    try:
        return (read(path) or b"").decode(errors="replace")
    except OSError:
        return ""


def _json(found: Explained) -> str:
    return report_json(*found)


_WRITERS: dict[str, Callable[[Explained], str]] = {
    "text": _text,
    "md": _markdown,
    "json": _json,
}
