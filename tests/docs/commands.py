"""The command lines of hpc-elastic that a page shows."""

from __future__ import annotations

import re
import shlex

from hpc_elastic.cli.commands import COMMANDS
from hpc_elastic.cli.commands.ending.finish import parser as finish_parser
from hpc_elastic.cli.parser import parser_of
from hpc_elastic.cli.run.flags import parser as run_parser

_COMMAND = re.compile(r"(?:^|\s)(hpc-elastic (?:.|\\\n)*)")


def slips(text: str) -> list[str]:
    """Return the commands in a text that have a name or an option that hpc-elastic does not have."""
    return [command for command in _COMMAND.findall(text) if _slip(shlex.split(command, comments=True))]


def _slip(words: list[str]) -> str:
    """Return the word that hpc-elastic would not know, or nothing."""
    name, mine = words[1], words[2 : words.index("--") if "--" in words else None]
    if name in {"COMMAND", "..."}:
        return ""
    if name not in {*COMMANDS, "run", "finish"}:
        return name
    if name in COMMANDS:
        made = parser_of(name, COMMANDS[name])
    else:
        made = run_parser() if name == "run" else finish_parser()
        mine = mine[: next((at for at, word in enumerate(mine) if word.endswith(".py")), None)]
    known = made.known_flags()
    given = [word.partition("=")[0] for word in mine if re.match(r"--?[a-z]", word)]
    return next((option for option in given if option not in known), "")
