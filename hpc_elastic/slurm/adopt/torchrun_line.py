"""The one command of a job script that starts torchrun. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.job.shell_text import (
    COMMENT,
    DOCUMENT,
    QUOTED,
    SUBSTITUTED,
    Part,
    code_of,
    keywords,
    open_blocks,
    parts,
)
from hpc_elastic.text import for_shell

_PYTHON = r"(?P<python>\"?(?:[^\s\"=]*/)?(?:python[\d.]*|\$\{?\w+\}?)\"?(?:\s+(?:-[XW]\s+\S+|-(?!m\s)\S+))*)"
_LAUNCHER = re.compile(
    rf"(?<![\w./$-])(?:{_PYTHON}\s+-m\s+torch\.distributed\.(?P<module>run|launch)"
    r"|(?:\S*python[\d.]*\s+(?:-u\s+)?)?\$\((?:which|command\s+-v|type\s+-p)\s+torchrun\)"
    r"|(?P<quote>\"?)(?P<folder>(?:[^\s\"'=;|&()]*/)?)torchrun(?P=quote))(?![^\s;&|()\"'`])"
)
_OURS = re.compile(r"hpc[-_]elastic\s+run")
_SRUN = re.compile(r"(?<![\w./-])srun(?=\s)")
_START = re.compile(r"\s*(?:(?:\w+=\S*|time|nohup)\s+)*")  # words that may stand before a command's name
_TALKS = (
    "echo",
    "printf",
    "which",
    "type",
    "command",
    "hash",
    "pip",
    "pip3",
    "pkill",
    "killall",
    "pgrep",
    "grep",
)
_ENVIRONMENT = re.compile(r"(?<!\S)(?:uv|poetry|pixi|conda|mamba|micromamba)\s+run\s.*\Z", re.DOTALL)
_IN_BLOCK = {
    **dict.fromkeys(
        ("for", "while", "until", "select"), "is in a loop, which would use one run directory several times"
    ),
    **dict.fromkeys(("if", "case"), "is in a block of `{}`, which may not be gone through"),
    "{": "is in a function or in braces",
    "(": "is in parentheses, a shell of its own",
}


def as_it_is(name: str) -> str:
    """Return the way out for a script that cannot be changed: it needs no change to come back.

    Args:
        name: of the script.
    """
    return f"this script stays as it is: hpc-elastic submit {for_shell(name)}"


class Line(NamedTuple):
    """The command, in pieces: head, ``srun``, options, launcher, tail.

    Attributes:
        number: of the line with torchrun, from 1.
        first, last: the lines that the command takes, from 0.
        head: the words before ``srun``, or before its place.
        has_srun: whether it is there.
        options: the words between ``srun`` and the launcher.
        program: the words in place of the launcher: our command of the same Python.
        quote: in which the launcher stands, with ``bash -c`` in front; empty for none.
        environment: the command that runs it in its environment, such as ``uv run``.
        tail: the words behind the launcher.
        is_launch: the launcher is ``torch.distributed.launch``.
        is_piped: its output goes to another command.
        place_in_pipe: how many commands stand before it in the pipe.
    """

    number: int
    first: int
    last: int
    head: str
    has_srun: bool
    options: str
    program: str
    quote: str
    environment: str
    tail: str
    is_launch: bool
    is_piped: bool
    place_in_pipe: int


class _Found(NamedTuple):
    """A place where torchrun is named: in which command, and the obstacle to starting it there."""

    at: re.Match[str]
    part: Part
    trouble: str


def find_line(text: str, name: str) -> Line:
    """Return the command of a script that starts torchrun.

    Args:
        text: of the script.
        name: of the script, for messages.

    Raises:
        InputError: there is none, or there are several, or the next line would not see how it has ended.
    """
    code = code_of(text)
    if any(code[found.start()] != COMMENT for found in _OURS.finditer(text)):
        raise InputError("the script starts hpc-elastic already", where=name, fix="there is nothing to adopt")
    commands = parts(code)
    named = list(_named(text, code, commands))
    started = [found for found in named if not found.trouble]
    if len(started) > 1:
        numbers = ", ".join(str(_number(text, found)) for found in started)
        raise InputError(
            f"torchrun is started more than once (lines {numbers})",
            where=name,
            fix=f"{as_it_is(name)}; or give each its own script",
        )
    if not named:
        raise InputError(
            "no line of the script starts torchrun", where=name, fix=_fix_without(text, code, name)
        )
    found = (started or named)[0]
    index = commands.index(found.part)
    for trouble in (found.trouble, *_troubles(code, commands, index)):
        if trouble:
            raise InputError(
                f"torchrun in line {_number(text, found)} {trouble}, so finish cannot follow it",
                where=name,
                fix=f"{as_it_is(name)}; or write it as one command in a line of its own",
            )
    return _line(text, code, commands, index, found.at)


_OTHERS = re.compile(r"(?<![\w./-])(?:accelerate[ \t]+launch|deepspeed(?=[ \t]+(?:-|\S*\.py))|tune[ \t]+run)")


def _fix_without(text: str, code: str, name: str) -> str:
    """Return the fix for a script that starts no torchrun; its program may be kept in a variable."""
    spoken = "".join(" " if mark == COMMENT else char for char, mark in zip(text, code, strict=False))
    other = _OTHERS.search(spoken)
    if other:
        words = " ".join(other[0].split())
        return f"{as_it_is(name)}; agents that start the workers of `{words}`: docs/how-to/frameworks.md"
    return f"{as_it_is(name)}; or, if another script starts torchrun, adopt that one"


def _number(text: str, found: _Found) -> int:
    return text.count("\n", 0, found.at.end()) + 1


def _named(text: str, code: str, commands: list[Part]) -> Iterator[_Found]:
    """Yield where torchrun is named by a command that may start it; not where a command talks about it."""
    for found in _LAUNCHER.finditer(text.replace("\\\n", "  ")):
        mark = code[found.end() - 1]
        if mark == COMMENT:
            continue
        part = next(part for part in commands if found.start() <= part.end)
        start = _START.match(code, part.start, part.end)
        begin = start.end() if start else part.start
        words = code[begin : part.end].split()
        if words and words[0] in _TALKS and begin < found.start():
            continue
        yield _Found(found, part, _kept(code, found, mark, begin, words))


def _kept(code: str, found: re.Match[str], mark: str, begin: int, words: list[str]) -> str:
    """Return the obstacle to starting torchrun where it is named."""
    if mark == DOCUMENT:
        return "stands in a here-document"
    if begin > found.start() or re.match(r"(?:export|declare|local|alias)$|\w+=", "".join(words[:1])):
        return "is kept in a variable or an alias; its words have to be in the line that starts it"
    if mark == QUOTED and _shell_word(found.string, code, found.start()):
        return ""
    is_word = found.start() == 0 or code[found.start() - 1] != QUOTED
    if mark == QUOTED and not (found["quote"] and is_word):
        return "is in quotes, and not alone in those of a `bash -c`"
    return "is in a substitution" if mark == SUBSTITUTED and "$(" not in found[0] else ""


def _shell_word(text: str, code: str, at: int) -> str:
    """Return the quote of ``bash -c 'torchrun ...'`` if torchrun is all that is in it, and nothing follows.

    Args:
        text: of the script, continued lines in one.
        code: the result of `code_of`.
        at: where torchrun begins.
    """
    shell = re.search(r"(?<!\S)(?:bash|sh)\s+-l?c\s+(['\"])\s*\Z", text[:at])
    end = re.compile(f"[^{QUOTED}]|\\Z").search(code, at)
    inside, behind = text[at : end.start() - 1] if end else "", code[end.start() :] if end else ""
    is_alone = not re.search(r"[;&|\n]", inside.rstrip()) and re.match(rf"[ \t{COMMENT}]*(?:\n|\Z)", behind)
    return shell[1] if shell and is_alone else ""


def _troubles(code: str, commands: list[Part], index: int) -> Iterator[str]:
    """Yield why the code of a command does not reach the next line."""
    part = commands[index]
    words = keywords(code[part.start : part.end])
    first = code[part.start : part.end].split(maxsplit=1)[0]
    if first == "exec" or any(word in ("if", "while", "until", "!") for word in words):
        yield f"stands behind `{first}`"
    for block in reversed(open_blocks(code, commands[:index])):
        yield _IN_BLOCK[block].format(block)
    if part.before == "||":
        yield "stands behind `||`"
    following = index
    while commands[following].after in ("|", "|&"):
        following += 1
    after = commands[following].after
    rest = code[commands[following].end + len(after) :].partition("\n")[0].strip(f" \t{COMMENT}")
    if after == "&":
        yield "is started in the background"
    elif after in ("&&", "||") or (after == ";" and rest):
        yield f"has another command behind `{after}`"


def _line(text: str, code: str, commands: list[Part], index: int, found: re.Match[str]) -> Line:
    start = code.rfind("\n", 0, commands[index].start) + 1
    end = code.find("\n", found.end())
    end = len(text) if end < 0 else end
    part = commands[index]
    sruns = list(_SRUN.finditer(code, part.start, found.start()))
    place = _START.match(code, part.start, found.start())
    at = sruns[-1].start() if sruns else (place.end() if place else part.start)
    options = text[sruns[-1].end() if sruns else at : found.start()]
    environment = _ENVIRONMENT.search(options)
    return Line(
        number=text.count("\n", 0, found.end()) + 1,
        first=text.count("\n", 0, start),
        last=text.count("\n", 0, end),
        head=text[start:at],
        has_srun=bool(sruns),
        options=options,
        program=_program(text, found),
        quote=_shell_word(found.string, code, found.start()),
        environment=environment[0].replace("\\\n", " ") if environment else "",
        tail=text[found.end() : end],
        is_launch=found["module"] == "launch",
        is_piped=part.after in ("|", "|&"),
        place_in_pipe=_place_in_pipe(commands, index),
    )


def _program(text: str, found: re.Match[str]) -> str:
    """Return our command as the launcher was called: of the same Python, in the same folder."""
    if found["python"]:
        return f"{text[found.start('python') : found.end('python')]} -I -m hpc_elastic"
    quote, folder = found["quote"] or "", found["folder"] or ""
    return f"{quote}{folder}hpc-elastic{quote}"


def _place_in_pipe(commands: list[Part], index: int) -> int:
    place = 0
    while commands[index - place].before in ("|", "|&"):
        place += 1
    return place
