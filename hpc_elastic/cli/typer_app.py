"""The app that typer makes of the commands: help, completion, and lines that are not plain."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand

from hpc_elastic import __version__
from hpc_elastic.cli import usage
from hpc_elastic.cli.commands import COMMANDS, function_of
from hpc_elastic.cli.parameters import Flag, Positional, offered
from hpc_elastic.cli.say import complain, say
from hpc_elastic.exit_codes import ExitCode

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer shows only this one of its errors
_BY_SCRIPTS = "Called by job scripts"
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the app with the command that words begin with; with all, if they begin with none.

    Only the modules of these commands are imported.
    """
    app = typer.Typer(
        name="hpc-elastic",
        help="Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss.",
        epilog="Begin with: hpc-elastic submit --nodes 2 --gpus-per-node 8 --exclusive --time 4h -- train.py",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in [name for name in words[:1] if name in COMMANDS] or COMMANDS:
        app.command(name, rich_help_panel=COMMANDS[name].panel, cls=_kind_of(name))(_for_typer(name))
    app.command("version", rich_help_panel=COMMANDS["doctor"].panel)(version)
    for passed in (run_one_agent, finish):
        name, kind = ("run", _Run) if passed is run_one_agent else (passed.__name__, TyperCommand)
        app.command(
            name, cls=kind, rich_help_panel=_BY_SCRIPTS, context_settings=_PASSED_ON, add_help_option=False
        )(passed)
    return app


class _Run(TyperCommand):
    """A command whose flags are read elsewhere; a shell is offered them."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the flags that begin with the incomplete one."""
        from hpc_elastic.cli.run.flags import parser  # noqa: PLC0415 - only when a shell completes

        flags = [flag for flag in parser().known_flags() if flag.startswith("--") and "_" not in flag]
        self.params = _options_named(flags)
        return super().shell_complete(ctx, incomplete)


def _options_named(flags: Sequence[str]) -> list[Any]:
    """Return options as typer makes them of the parameters of a function."""

    def command(**_values: Any) -> None:
        pass

    parameters = [
        inspect.Parameter(
            f"flag_{number}",
            inspect.Parameter.KEYWORD_ONLY,
            default="",
            annotation=Annotated[str, typer.Option(flag)],
        )
        for number, flag in enumerate(flags)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False)
    app.command(add_help_option=False)(command)
    return list(typer.main.get_command(app).params)


def _kind_of(name: str) -> type[TyperCommand]:
    if not COMMANDS[name].takes_job:
        return TyperCommand
    from hpc_elastic.cli.job_help import JobCommand  # noqa: PLC0415 - for two commands

    return JobCommand


def _for_typer(name: str) -> Callable[..., object]:
    function = function_of(name)
    if COMMANDS[name].takes_job:
        from hpc_elastic.cli.job_options import with_job_options  # noqa: PLC0415 - heavy; for two commands

        function = with_job_options(function)
    of = inspect.signature(function, eval_str=True)
    parameters = [_parameter(each) for each in of.parameters.values()]

    def command(**values: Any) -> object:
        return function(**values)

    command.__doc__ = function.__doc__
    command.__signature__ = of.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(each: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as typer describes it."""
    if get_origin(each.annotation) is not Annotated:
        return each
    kind, written = get_args(each.annotation)
    shows = each.default is not None
    if isinstance(written, Positional):
        words = None if written.completes is None else offered(written.completes)
        mark = typer.Argument(
            metavar=written.metavar, help=written.help, show_default=shows, autocompletion=words
        )
        return each.replace(annotation=Annotated[kind, mark])
    if isinstance(written, Flag):
        mark = typer.Option(
            *written.names,
            help=written.help,
            metavar=written.metavar or None,
            min=written.least,
            show_default=shows,
            autocompletion=offered(lambda: written.values) if written.values else None,
        )
        return each.replace(annotation=Annotated[kind, mark])
    return each


def run_one_agent(context: typer.Context) -> int:
    """Run one agent, with torchrun's flags; job scripts call it."""
    from hpc_elastic.cli.run import command  # noqa: PLC0415 - not for the other commands

    return command.main(_words_of(context), owns_process=True)


def finish(context: typer.Context) -> int:
    """Decide whether the job is requeued, held or over; job scripts call it after srun."""
    from hpc_elastic.cli.commands.ending import finish as command  # noqa: PLC0415 - not for the other commands

    return command.main(_words_of(context))


def _words_of(context: typer.Context) -> list[str]:
    """Return the words of a light command, which reads them itself."""
    after = ("--", *context.obj) if context.obj else ()
    return [*context.args, *after]


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - a callback of typer
    if wanted:
        version()
        raise typer.Exit


def _options(
    version: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss."""


def version() -> None:
    """Print the version."""
    say(__version__)


def run(words: Sequence[str]) -> int:
    """Read words with typer, call the command that is meant, and return its exit code.

    Args:
        words: the arguments; those after the first ``--`` are the worker command and are not parsed.

    Raises:
        HpcElasticError: the command found an error that the user can mend.
        KeyboardInterrupt: the user has pressed Control-C.
    """
    before, command = _split_command(words)
    try:
        if before[:1] == ["help"]:
            return _help(before[1:])
        app = app_for(before)
        code = app(args=before or ["--help"], prog_name="hpc-elastic", standalone_mode=False, obj=command)
    except _UsageError as error:
        return complain(usage.message_of(error), usage.hint_for(error, before, command))
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    if not before:
        code = ExitCode.USAGE  # nothing was asked for; the help was shown
    return code if isinstance(code, int) else ExitCode.OK


def _help(words: Sequence[str]) -> int:
    """Print the help of a command, or the entry of one of its options.

    Args:
        words: the name of the command and an option, both optional.
    """
    named = [word for word in words if not word.startswith("-") and word != "help"][:1]
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    app = app_for(named)
    entry = _entry(app, named[0], option) if named and option else ()
    if entry:
        every = "--help-all" if COMMANDS[named[0]].takes_job else "--help"
        say(f"{entry[0]}\n  {entry[1]}\n\nall options: hpc-elastic {named[0]} {every}")
        return ExitCode.OK
    app(args=[*named, "--help"], prog_name="hpc-elastic", standalone_mode=False)
    return ExitCode.OK


def _entry(app: typer.Typer, name: str, option: str) -> tuple[str, str] | tuple[()]:
    """Return spelling and help of an option of a command; nothing if the command does not have it."""
    command = getattr(typer.main.get_command(app), "commands", {}).get(name)
    if command is None:
        return ()
    context = command.make_context(name, [], resilient_parsing=True)
    found = next((each for each in command.params if option in (*each.opts, *each.secondary_opts)), None)
    return (found.get_help_record(context) or ()) if found is not None else ()


def _split_command(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in words:
        return list(words), ()
    at = list(words).index("--")
    return list(words[:at]), tuple(words[at + 1 :])
