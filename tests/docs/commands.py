"""The command lines of hpc-elastic that a page shows."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from hpc_elastic.cli.commands.ending.finish import _parser as finish_parser
from hpc_elastic.cli.run.flags import parser as run_parser
from hpc_elastic.cli.typer_app import app_for

_COMMAND = re.compile(r"(?:^|\s)(hpc-elastic (?:.|\\\n)*)")


def slips(text: str) -> list[str]:
    """Return the commands in a text that have a name or an option that hpc-elastic does not have."""
    return [command for command in _COMMAND.findall(text) if _slip(shlex.split(command, comments=True))]


def _slip(words: list[str]) -> str:
    """Return the word that hpc-elastic would not know, or nothing."""
    name, mine = words[1], words[2 : words.index("--") if "--" in words else None]
    if name in {"COMMAND", "..."}:
        return ""
    if name in {"run", "finish"}:
        made = run_parser() if name == "run" else finish_parser()
        known = {option for action in made._actions for option in action.option_strings}
        mine = mine[: next((at for at, word in enumerate(mine) if word.endswith(".py")), None)]
    else:
        group = typer.main.get_command(app_for([]))
        commands: dict[str, Any] = getattr(group, "commands", {})
        if name not in commands:
            return name
        known = {option for parameter in commands[name].params for option in parameter.opts}
    given = [word.partition("=")[0] for word in mine if re.match(r"--?[a-z]", word)]
    return next((option for option in given if option not in known), "")
