"""The help of commands that take the options of a job: the most used ones first, and each name whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hpc_elastic.cli.say import say

FIRST = (  # the parameters that the short help shows of those that describe a job
    "nodes",
    "gpus_per_node",
    "workers_per_node",
    "exclusive",
    "time",
    "partition",
    "account",
    "setup",
    "run_dir",
    "preload",
)
_JOB = "The job"  # heading of those options
_EVERY = "hpc_elastic.help"  # key of the context: all options are shown


class JobCommand(TyperCommand):
    """A command of typer whose help is plain text: a table cuts names that are longer than its column."""

    def __init__(self, *arguments: Any, **words: Any) -> None:
        super().__init__(*arguments, **{**words, "rich_markup_mode": None})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options, by panels if all are wanted."""
        is_short = _EVERY not in ctx.meta
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], **({_JOB: []} if is_short else {})}
        left_out = 0
        for each in sorted(self.get_params(ctx), key=_place) if is_short else self.get_params(ctx):
            entry = each.get_help_record(ctx)
            panel = getattr(each, "rich_help_panel", None)
            if entry is None:
                continue
            if is_short and panel and each.name not in FIRST:
                left_out += 1
                continue
            name = "Arguments" if each.param_type_name == "argument" else panel or "Options"
            panels.setdefault(_JOB if is_short and panel else name, []).append(entry)
        for name, entries in panels.items():
            with formatter.section(name):
                formatter.write_dl(entries)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")


def _place(parameter: Any) -> int:
    return FIRST.index(parameter.name) if parameter.name in FIRST else len(FIRST)


def _show_every(context: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - a callback of typer
    if wanted:
        context.meta[_EVERY] = True
        say(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_every, help="Show all options and exit.")
]
