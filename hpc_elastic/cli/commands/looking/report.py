"""``hpc-elastic report``: a run on one page, as text, Markdown, JSON or HTML."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpc_elastic.cli.commands import FORMATS
from hpc_elastic.cli.commands.looking.explain import Explained, explained
from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.report.explain.as_json import report_json
from hpc_elastic.report.explain.job_files import job_without_secrets, script_without_secrets
from hpc_elastic.report.explain.page import PageTexts, page_of
from hpc_elastic.report.explain.tables import as_markdown, as_text, tables_of
from hpc_elastic.slurm.run_jobs.run_files import read_run
from hpc_elastic.store.files import read
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
    text = _WRITERS[chosen](found)
    if output in (None, _STDOUT):
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


def _html(found: Explained) -> str:
    paths, spec = found.seen.run.paths, found.seen.run.spec
    files = {
        os.path.basename(paths.job): job_without_secrets(_content(paths.job)),
        os.path.basename(paths.script): script_without_secrets(_content(paths.script), spec),
    }
    texts = PageTexts(found.seen.run.name, found.lines, {name: text for name, text in files.items() if text})
    return page_of(texts, found.seen.account, tables_of(found.why))


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
    "html": _html,
    "json": _json,
}
