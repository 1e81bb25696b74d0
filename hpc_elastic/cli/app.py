"""The commands of the command line: the call of one, and the message of an error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from hpc_elastic.cli.commands import COMMANDS, function_of
from hpc_elastic.cli.parameters import named, plain_values
from hpc_elastic.cli.say import complain, say
from hpc_elastic.errors import HpcElasticError, SlurmCommandError


def run(words: Sequence[str]) -> int:
    """Run a command of the app and return its exit code.

    Args:
        words: the arguments; those after the first ``--`` are the worker command and are not parsed.
    """
    try:
        with named("RUN"):
            code = _call(words)
    except HpcElasticError as error:
        return complain(str(error), _hint_for(error))
    except KeyboardInterrupt:
        say("\ninterrupted", err=True)
        return 130
    except OSError as error:
        return _os_error(error)
    return code


def _call(words: Sequence[str]) -> int:
    """Call a command; that of a plain line with its values, any other through typer."""
    if words and words[0] in COMMANDS and not COMMANDS[words[0]].takes_job:
        function = function_of(words[0])
        values = plain_values(function, words[1:])
        if values is not None:
            code = function(**values)
            return code if isinstance(code, int) else 0
    from hpc_elastic.cli.typer_app import run as run_typer  # noqa: PLC0415 - heavy; not for a plain line

    return run_typer(words)


def _hint_for(error: HpcElasticError) -> str:
    if not isinstance(error, SlurmCommandError):
        return ""
    from hpc_elastic.slurm.client.commands import hint_for  # noqa: PLC0415 - only for an error

    return hint_for(error)


def _os_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):  # as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return complain("the working directory does not exist any more", "cd to a directory that exists")
    return complain(f"{error.filename or 'a file'}: {error.strerror or error}", "look at the file system")


def _is_nowhere() -> bool:
    """Tell whether the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False
