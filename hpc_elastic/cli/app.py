"""The commands that people type. Each lives in a module of its own and is registered here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hpc_elastic import __version__
from hpc_elastic.cli import job_options, usage
from hpc_elastic.cli.commands import adopt, doctor, drill, logs, nodes, render, scale, status, stop, submit
from hpc_elastic.cli.commands import finish as finish_command
from hpc_elastic.cli.run import command
from hpc_elastic.cli.say import say
from hpc_elastic.errors import HpcElasticError, SlurmCommandError
from hpc_elastic.ids import ExitCode
from hpc_elastic.slurm.client.commands import hint_for as slurm_hint

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer shows only this one of its errors

app = typer.Typer(
    name="hpc-elastic",
    help="Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss.",
    epilog="Begin with: hpc-elastic submit --nodes 2 --gpus-per-node 8 --exclusive --time 4h -- train.py",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_START, _LOOK_AFTER = "Start a run", "Look after a run"
_CLUSTER, _BY_SCRIPTS = "The cluster and this installation", "Called by job scripts"

# One line per command. A command is a function with typer parameters; it raises HpcElasticError for
# what the user can mend, and `run` below prints that as one block.
app.command("submit", rich_help_panel=_START)(job_options.with_job_options(submit.submit))
app.command("render", rich_help_panel=_START)(job_options.with_job_options(render.render))
app.command("adopt", rich_help_panel=_START)(adopt.adopt)
app.command("status", rich_help_panel=_LOOK_AFTER)(status.status)
app.command("timeline", rich_help_panel=_LOOK_AFTER)(status.timeline)
app.command("logs", rich_help_panel=_LOOK_AFTER)(logs.logs)
app.command("stop", rich_help_panel=_LOOK_AFTER)(stop.stop)
app.command("cancel", rich_help_panel=_LOOK_AFTER)(stop.cancel)
app.command("scale", rich_help_panel=_LOOK_AFTER)(scale.scale)
app.command("drill", rich_help_panel=_LOOK_AFTER)(drill.drill)
app.command("doctor", rich_help_panel=_CLUSTER)(doctor.doctor)
app.command("nodes", rich_help_panel=_CLUSTER)(nodes.nodes)


_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command("run", rich_help_panel=_BY_SCRIPTS, context_settings=_PASSED_ON, add_help_option=False)
def run_one_agent(context: typer.Context) -> int:
    """Run one agent, with torchrun's flags; job scripts call it."""
    return command.main(_words_of(context), owns_process=True)


@app.command("finish", rich_help_panel=_BY_SCRIPTS, context_settings=_PASSED_ON, add_help_option=False)
def finish(context: typer.Context) -> int:
    """Decide what becomes of the job; job scripts call it after srun."""
    return finish_command.main(_words_of(context))


def _words_of(context: typer.Context) -> list[str]:
    """Return the words of a light command, which reads them itself."""
    after = ("--", *context.obj) if context.obj else ()
    return [*context.args, *after]


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - a callback of typer
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss."""


@app.command(rich_help_panel=_CLUSTER)
def version() -> None:
    """Print the version."""
    say(__version__)


def run(words: Sequence[str]) -> int:
    """Run a command of the app and return its exit code.

    Args:
        words: the arguments; what follows the first ``--`` is the worker command and is not parsed.
    """
    before, command = _split_command(words)
    if before[:1] == ["help"]:
        before = [*before[1:], "--help"]
    try:
        code = app(args=before or ["--help"], prog_name="hpc-elastic", standalone_mode=False, obj=command)
    except HpcElasticError as error:
        return _complain(str(error), slurm_hint(error) if isinstance(error, SlurmCommandError) else "")
    except _UsageError as error:
        return _complain(usage.message_of(error), usage.hint_for(error, before, command))
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        say("\ninterrupted", err=True)
        return 130
    except OSError as error:
        return _os_error(error)
    if not before:
        code = ExitCode.USAGE  # nothing was asked for; the help was shown
    return code if isinstance(code, int) else ExitCode.OK


def _split_command(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in words:
        return list(words), ()
    at = list(words).index("--")
    return list(words[:at]), tuple(words[at + 1 :])


def _os_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):  # as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return _complain(f"{error.filename or 'a file'}: {error.strerror or error}", "look at the file system")


def _complain(message: str, fix: str = "") -> int:
    text = message if not fix or "\n  fix: " in message else f"{message}\n  fix: {fix}"
    say(f"error: {text}", err=True)
    return ExitCode.USAGE
