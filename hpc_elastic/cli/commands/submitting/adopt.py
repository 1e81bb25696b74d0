"""``hpc-elastic adopt``: a job script, changed to start our agents where that can be shown to be right."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator

from hpc_elastic.cli.commands.submitting.shell_syntax import bad_line
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.isolated.argv import INSTALLED, own_argv
from hpc_elastic.isolated.lookup import own_path
from hpc_elastic.slurm.adopt import script as rules
from hpc_elastic.slurm.adopt.checks import Program
from hpc_elastic.slurm.adopt.launch import as_it_is
from hpc_elastic.slurm.adopt.script import NotAdoptedError, adopt_per_node, is_per_node
from hpc_elastic.store.plain_file import read_given
from hpc_elastic.store.users_file import users_file, write_new_users_file
from hpc_elastic.text import for_shell

_STDIN = "-"


def adopt(script: str, *, write: bool = False, per_node: bool | None = None) -> int:
    """Show how a job script changes, and why; nothing is changed without --write."""
    if write and script == _STDIN:
        raise InputError("there is no file to change", where="--write", fix="give the script by its name")
    try:
        return _write(script, per_node=per_node) if write else _look(script, per_node=per_node)
    except NotAdoptedError as error:
        if error.draft and script != _STDIN:
            _offer_draft(script, error.draft, write=write)
        raise


def _look(script: str, *, per_node: bool | None) -> int:
    text = _read(script)
    _show(script, text, _adopted(script, text, per_node=per_node))
    if script != _STDIN:
        say(f"\nto change it: hpc-elastic adopt --write {for_shell(script)}", err=True)
    return 0


def _write(script: str, *, per_node: bool | None) -> int:
    try:
        with users_file(script) as held:
            text = _text(script, held.read())
            adopted = _adopted(script, text, per_node=per_node)
            _show(script, text, adopted)
            held.exchange(adopted.text.encode("utf-8"), kept_as=f"{script}.orig")
    except FileExistsError as error:
        fix = "move it away, so that it is not overwritten"
        raise InputError(f"{error.filename} is there already", where="--write", fix=fix) from None
    except OSError as error:
        raise _refusal(script, error) from None
    say(f"\n{script} is changed; the old one is {script}.orig", err=True)
    return 0


def _offer_draft(script: str, draft: str, *, write: bool) -> None:
    """Tell of a draft, or write it beside a script."""
    stem, suffix = os.path.splitext(script)
    place = f"{stem}.draft{suffix}"
    if not write:
        how = f"hpc-elastic adopt --write {for_shell(script)} writes {place}"
        say(f"a new script with the places that are left to you: {how}", err=True)
        return
    try:
        write_new_users_file(place, draft.encode("utf-8"))
    except FileExistsError:
        say(f"{place} is there already, and stays as it is", err=True)
    except OSError as error:
        say(f"{place} cannot be written: {error.strerror}", err=True)
    else:
        say(f"{place} is a new script; the places that are left to you have LEFT TO YOU in them", err=True)


def _adopted(script: str, text: str, *, per_node: bool | None) -> rules.Adopted:
    found = bad_line(text)
    if found is not None:
        raise InputError(
            f"the shell cannot read line {found.line}: {found.words}",
            where=script,
            fix="correct the line, or take it out",
        )
    if is_per_node(text) if per_node is None else per_node:
        return adopt_per_node(text, script, _ours())
    adopted = rules.adopt(text, script, _ours(), _program_beside(script))
    if bad_line(adopted.text) is not None:
        raise InputError(
            "adopt finds no form of the script that the shell can read", where=script, fix=as_it_is(script)
        )
    return adopted


def _ours() -> tuple[str, ...]:
    """Return the words that start this package on a node, by the path of this program's Python."""
    python = os.path.abspath(sys.executable)
    if own_path() == INSTALLED:
        return own_argv(python)
    beside = os.path.join(os.path.dirname(python), "hpc-elastic")
    return (beside,) if os.access(beside, os.X_OK) else (python, "-m", "hpc_elastic")


def _program_beside(script: str) -> Program:
    """Return a reader of programs that a script names: below the working directory, or beside the script."""

    def read(word: str) -> str | None:
        if re.search(r"[$`*?]", word):
            return None
        for folder in ("", os.path.dirname(script)):
            try:
                place = os.path.join(folder, os.path.expanduser(word))
                return read_given(place).decode("utf-8", "replace")
            except (OSError, InputError):
                continue
        return None

    return read


def _show(script: str, text: str, adopted: rules.Adopted) -> None:
    hand_out("".join(_difference(text, adopted.text, script)))
    say("\nthe changes and their reasons:", err=True)
    for change in adopted.changes:
        say(f"  {change.what}\n      {change.why}", err=True)
    if adopted.job_script:
        say("\nthe job script that has srun run it on each node is to have these lines:", err=True)
        for line in adopted.job_script:
            say(f"  {line}", err=True)
        say("the first of them belongs among its options, above the first command", err=True)


def _read(script: str) -> str:
    try:
        return _text(script, read_given("/dev/stdin" if script == _STDIN else script))
    except OSError as error:
        raise InputError(
            f"{script} cannot be read: {error.strerror}", where="SCRIPT", fix="check the path"
        ) from None


def _text(script: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{script} is no text", where="SCRIPT", fix="give a job script") from None


def _difference(before: str, after: str, name: str) -> Iterator[str]:
    """Yield the lines of a difference that patch can read."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    for line in difflib.unified_diff(old, new, name, name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _refusal(script: str, error: OSError) -> InputError:
    fix = "keep the output without --write, and give it to patch"
    return InputError(
        f"{error.filename or script} cannot be written: {error.strerror}",
        where="--write",
        fix=error.fix if isinstance(error, UnfitFileError) else fix,
    )
