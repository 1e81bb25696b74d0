"""``hpc-elastic adopt``: a job script with torchrun, changed to start our agent."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Annotated, Optional

import typer

from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.errors import InputError
from hpc_elastic.isolated.argv import INSTALLED
from hpc_elastic.isolated.lookup import own_path
from hpc_elastic.slurm.adopt import script as rules
from hpc_elastic.slurm.adopt.script import adopt_per_node, is_per_node
from hpc_elastic.store.plain_file import read_given
from hpc_elastic.text import for_shell

_STDIN = "-"

Script = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="A job script that starts torchrun; - for stdin.")
]
Write = Annotated[
    bool, typer.Option("--write", "-w", help="Change the script; the old one is kept as SCRIPT.orig.")
]


PerNode = Annotated[
    Optional[bool],  # noqa: UP045 - typer reads it at run time on Python 3.10 too
    typer.Option(
        "--per-node/--job",
        help="srun runs SCRIPT on each node of a job, or sbatch takes it as the job; "
        "by default by its content.",
        show_default=False,
    ),
]


def adopt(
    script: Script,
    write: Write = False,  # noqa: FBT002 - typer's way to write a flag
    per_node: PerNode = None,
) -> int:
    """Show how a job script with torchrun changes, and why; nothing is changed without --write.

    The difference is on stdout, so that it can be kept or given to patch; the reasons are on stderr.
    """
    if write and script == _STDIN:
        raise InputError("there is no file to change", where="--write", fix="give the script by its name")
    text = _read(script)
    change_it = adopt_per_node if (is_per_node(text) if per_node is None else per_node) else rules.adopt
    adopted = change_it(text, script, is_found_isolated=own_path() == INSTALLED)
    hand_out("".join(_difference(text, adopted.text, script)))
    say("\nthe changes and their reasons:", err=True)
    for change in adopted.changes:
        say(f"  {change.what}\n      {change.why}", err=True)
    if adopted.job_script:
        say("\nthe job script that has srun run it on each node is to have these lines:", err=True)
        for line in adopted.job_script:
            say(f"  {line}", err=True)
        say("the first of them belongs among its options, above the first command", err=True)
    if write:
        _replace(script, adopted.text)
        say(f"\n{script} is changed; the old one is {script}.orig", err=True)
    elif script != _STDIN:
        say(f"\nto change it: hpc-elastic adopt --write {for_shell(script)}", err=True)
    return 0


def _read(script: str) -> str:
    try:
        return read_given("/dev/stdin" if script == _STDIN else script).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{script} is no text", where="SCRIPT", fix="give a job script") from None
    except OSError as error:
        raise InputError(
            f"{script} cannot be read: {error.strerror}", where="SCRIPT", fix="check the path"
        ) from None


def _difference(before: str, after: str, name: str) -> Iterator[str]:
    """Yield the lines of a difference that patch can read."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    for line in difflib.unified_diff(old, new, name, name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _replace(script: str, text: str) -> None:
    """Change a script, or the target of a link to it; the old one stays beside it.

    Raises:
        InputError: an old one is there, or the directory or the disk refuses the new one.
    """
    backup = f"{script}.orig"
    if os.path.lexists(backup):
        raise InputError(
            f"{backup} is there already", where="--write", fix="move it away, so that it is not overwritten"
        )
    try:
        shutil.copy2(script, backup)
        with open(script, "w", encoding="utf-8") as file:  # keeps its mode, owner and links
            file.write(text)
    except OSError as error:
        raise InputError(
            f"{error.filename or script} cannot be written: {error.strerror}",
            where="--write",
            fix="keep the output without --write, and give it to patch",
        ) from None
