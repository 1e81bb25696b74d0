"""``hpc-elastic adopt``: what a job script with torchrun looks like with our agent."""

from __future__ import annotations

import difflib
import os
from typing import Annotated

import typer

from hpc_elastic.errors import InputError
from hpc_elastic.slurm import adopt as rules

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="A job script that starts torchrun.")]
Write = Annotated[
    bool, typer.Option("--write", "-w", help="Change the script; the old one is kept as SCRIPT.orig.")
]


def adopt(script: Script, write: Write = False) -> int:  # noqa: FBT002 - typer's way to write a flag
    """Show how a job script with torchrun changes, and why; nothing is changed without --write.

    The difference is on stdout, so that it can be kept or given to patch; the reasons are on stderr.
    """
    text = _read(script)
    adopted = rules.adopt(text, script)
    before, after = text.splitlines(keepends=True), adopted.text.splitlines(keepends=True)
    typer.echo("".join(difflib.unified_diff(before, after, script, script)), nl=False)
    typer.echo("\nwhat changes, and why:", err=True)
    for change in adopted.changes:
        typer.echo(f"  {change.what}\n      {change.why}", err=True)
    if write:
        _replace(script, adopted.text)
        typer.echo(f"\n{script} is changed; the old one is {script}.orig", err=True)
    else:
        typer.echo(f"\nto change it: hpc-elastic adopt --write {script}", err=True)
    return 0


def _read(script: str) -> str:
    try:
        with open(script, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        raise InputError(f"{script} is no text", where="SCRIPT", fix="give a job script") from None
    except OSError as error:
        raise InputError(
            f"{script} cannot be read: {error.strerror}", where="SCRIPT", fix="check the path"
        ) from None


def _replace(script: str, text: str) -> None:
    backup = f"{script}.orig"
    if os.path.lexists(backup):
        raise InputError(
            f"{backup} is there already", where="--write", fix="move it away, so that it is not overwritten"
        )
    mode = os.stat(script).st_mode & 0o7777
    os.rename(script, backup)
    with open(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
