"""The messages about options and words that the command line does not know."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence

from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.job import options
from hpc_elastic.text import line_for_shell

_JOB_COMMANDS = ("submit", "render")
_SWITCHES = frozenset(
    {"--dry-run", "--skip-sbatch-test"}
    | {f"--{no}{row.flag[2:]}" for row in JOB.values() if row.is_switch for no in ("", "no-")}
)
_ALL_FLAGS = sorted(_SWITCHES | {row.flag for row in JOB.values()})


def message_of(error: Exception) -> str:
    """Return the fault in the words, in one line."""
    flag, value, least = _number_of(error)
    if flag:
        what = "not a whole number" if least is None else f"less than {least}"
        return f"{flag}: {value!r} is {what}"
    name = getattr(error, "option_name", None)
    if name is not None and hasattr(error, "possibilities"):
        return f"No such option: {name}"
    return str(getattr(error, "format_message", error.__str__)())


_NO_NUMBER = re.compile(r"'(.*)' is not a valid integer")  # as some versions of typer say it


def _number_of(error: Exception) -> tuple[str, str, int | None]:
    """Return option, value and least value of an option that takes another number; else an empty name.

    The least value is None if the value is no number at all.
    """
    flags = getattr(getattr(error, "param", None), "opts", None) or [""]
    flag, said = max(flags, key=len), _NO_NUMBER.search(str(getattr(error, "message", "")))
    if said is not None:
        return flag, said[1], None
    for found in getattr(error.__cause__, "errors", list)()[:1]:
        kind, value = str(found.get("type")), str(found.get("input"))
        if kind.startswith("int_"):
            return flag, value, None
        if kind == "greater_than_equal":
            return flag, value, found["ctx"]["ge"]
    return "", "", None


def hint_for(error: Exception, words: Sequence[str], command: Sequence[str] = ()) -> str:
    """Return the words to write instead.

    Args:
        error: the error of the command line's parser.
        words: the arguments before ``--``.
        command: those behind it.
    """
    option = str(getattr(error, "option_name", "") if hasattr(error, "possibilities") else "")
    if words[:1] and words[0] in _JOB_COMMANDS:
        hint = _command_hint(error, option, words) or _sbatch_hint(option, words)
        hint = hint or (_program_hint(option, words, command) if command else "")
        if hint:
            return hint
    likely = getattr(error, "possibilities", None)
    if likely:
        return f"did you mean {' or '.join(likely)}?"
    flag, _, least = _number_of(error)
    if flag:
        return f"give one number, for example {flag} {max(2, least or 0)}"
    context = getattr(error, "ctx", None)
    command = words[0] if words and not words[0].startswith("-") else ""
    return f"see {context.command_path if context else f'hpc-elastic {command}'.strip()} --help"


def _command_hint(error: Exception, option: str, words: Sequence[str]) -> str:
    """Return the line with the missing ``--`` where the words hold a worker command without it."""
    is_extra = "unexpected extra argument" in str(error).lower()
    if not option and not is_extra:
        return ""
    last = next((at for at, word in enumerate(words) if word.partition("=")[0] == option), len(words))
    for at in range(1, last):
        if _looks_like_a_program(words[at]) and _is_free(words[at - 1]):
            line = line_for_shell(["hpc-elastic", *words[:at], "--", *words[at:]])
            return f"the worker command goes after --: {line}"
    return "the worker command goes after --: hpc-elastic submit --nodes 2 -- train.py" if is_extra else ""


def _program_hint(option: str, words: Sequence[str], command: Sequence[str]) -> str:
    """Return the line with an option of the training program's behind the program."""
    if not option or difflib.get_close_matches(option, _ALL_FLAGS, n=1, cutoff=0.8):
        return ""
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == option), None)
    if at is None:
        return ""
    follows = words[at + 1 : at + 2]
    taken = 1 if "=" in words[at] or not follows or follows[0].startswith("-") else 2
    line = [*words[:at], *words[at + taken :], "--", *command, *words[at : at + taken]]
    return f"options of the program go after --, behind it: {line_for_shell(['hpc-elastic', *line])}"


def _looks_like_a_program(word: str) -> bool:
    return word.endswith((".py", ".sh")) or os.path.basename(word).startswith("python")


def _is_free(before: str) -> bool:
    """Tell whether a word after this one is no option's value."""
    return not before.startswith("-") or "=" in before or before in _SWITCHES


def _sbatch_hint(option: str, words: Sequence[str]) -> str:
    """Return how an option of sbatch that has no flag of its own is given."""
    name = option.lstrip("-")
    if name in options.OWNED:
        why, instead = options.OWNED[name]
        return f"the sbatch option --{name} cannot be given: {why}; {instead}"
    if name in options.FIELDS:
        return f"write --{options.FIELDS[name].replace('_', '-')}"
    if name not in options.BUILT_IN:
        return ""
    return f"options of sbatch go into -o: {line_for_shell(['-o', name + _value_of(option, words)])}"


def _value_of(option: str, words: Sequence[str]) -> str:
    name = option.lstrip("-")
    if name in options.FLAGS:
        return ""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == option:
            follows = words[at + 1 : at + 2]
            value = value if equals else next((each for each in follows if not each.startswith("-")), "")
            return f"={value or 'VALUE'}"
    return "=VALUE"
