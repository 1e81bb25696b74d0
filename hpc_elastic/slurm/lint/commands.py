"""The commands and the options of a job script, with those in a variable or in the words of a shell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.job.shell_text import COMMENT, DOCUMENT, QUOTED, Part, code_of, parts

_SRUN = re.compile(r"(?<![\w./-])srun(?![\w./-])")
_ASSIGNED = re.compile(
    r"\s*(?:(?:export|readonly|local|declare|typeset)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?=)"
)
_VALUE_ALONE = re.compile(rf"([^\s{COMMENT}]*)\s*{COMMENT}*\s*\Z")
_USED = re.compile(r"\"?\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\]|:?-[^{}]*)?\}|([A-Za-z_]\w*))\"?")
_OTHER_SHELL = re.compile(r"(?<![\w-])(?:(?:ba|z|k|da)?sh\s+(?:-\w+\s+)*-\w*c|eval)\s+\Z")
_MOST_BEFORE = 256  # characters of a shell and its options before its words
_LONGEST = 1 << 13  # of a command with its variables [characters]: a variable may be put together of others


class ScriptCommand(NamedTuple):
    """A command of a script.

    Args:
        line: of the script where it stands, from 1.
        code: its text with marks for quoted text, and with the text of its variables.
        runs: the same with the words that it gives to a shell of its own.
        text: as it stands in the script.
        after: the operator behind it.
    """

    line: int
    code: str
    runs: str
    text: str
    after: str

    @property
    def starts_srun(self) -> bool:
        """Whether it runs srun."""
        return _SRUN.search(self.code) is not None

    @property
    def srun_options(self) -> str:
        """The options of srun: the words up to the first that is neither an option nor its value."""
        srun = _SRUN.search(self.code)
        words = self.code[srun.end() :].split() if srun else []
        before = ["", *words]
        ends = (n for n, word in enumerate(words) if word[0] != "-" and not before[n].startswith("-"))
        return " ".join(words[: next(ends, None)])


def commands_of(text: str, code: str) -> list[ScriptCommand]:
    """Return the commands of a script; one that only gives a variable its text runs nothing.

    A variable has the text of the last assignment above its use, also where that stands in another branch.

    Args:
        text: the script.
        code: the same with marks, see `code_of`.
    """
    found: list[ScriptCommand] = []
    values: dict[str, str] = {}
    rest = iter(parts(code))
    for part in rest:
        own, said = code[part.start : part.end], text[part.start : part.end]
        name = _ASSIGNED.match(own)
        given = None if name is None else _given(text, code, name.end(), part, rest)
        if name is not None and given is not None:
            before = f"{values.get(name[1], '')} " if name[2] == "+=" else ""
            values[name[1]] = f"{before}{_filled(given, values)}"[:_LONGEST]
            continue
        begin = part.start + len(own) - len(own.lstrip())
        used = list(_variables(said, own, values))
        found.append(
            ScriptCommand(
                text.count("\n", 0, begin) + 1,
                _replaced(own, used),
                _replaced(own, sorted([*used, *_words_of_a_shell(said, own, values)])),
                said,
                part.after,
            )
        )
    return found


def _given(text: str, code: str, at: int, part: Part, rest: Iterator[Part]) -> str | None:
    """Return the text that a command gives to a variable, if it does nothing else.

    Args:
        text: the script.
        code: the same with marks.
        at: where the value begins in the command.
        part: the command.
        rest: the commands behind it; those that are the words of a list are taken out.
    """
    own = code[part.start : part.end]
    if part.after == "(" and not own[at:].strip():
        inner = [part]
        while inner[-1].after != ")" and (more := next(rest, None)) is not None:
            inner.append(more)
        return text[part.end + 1 : inner[-1].end]
    value = _VALUE_ALONE.match(own, at)
    if value is None:
        return None
    start = part.start + at
    return _unquoted(text[start : start + len(value[1])])


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def _filled(value: str, values: dict[str, str]) -> str:
    """Return a text with those of its variables that are known."""
    return _USED.sub(lambda used: values.get(used[1] or used[2], used[0]), value[:_LONGEST])


def _replaced(own: str, words: list[tuple[int, int, str]]) -> str:
    """Return the code of a command in which some parts, in order, have another text."""
    at, pieces = 0, []
    for start, end, value in words:
        if start >= at:
            pieces += [own[at:start], code_of(value)]
            at = end
    return "".join([*pieces, own[at:]])


def _variables(text: str, own: str, values: dict[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield the variables that the shell splits into words, and lists and words in quotes of their own."""
    for used in _USED.finditer(text):
        value = values.get(used[1] or used[2])
        start, end = used.span()
        is_quoted = own[start] == QUOTED
        is_whole = text[start] == '"' == text[end - 1] and QUOTED not in (
            own[:start][-1:],
            own[end : end + 1],
        )
        if value is not None and own[start] not in (COMMENT, DOCUMENT) and (is_whole or not is_quoted):
            yield start, end, value


def _words_of_a_shell(text: str, own: str, values: dict[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield the quoted words behind ``bash -c`` and ``eval``."""
    for quoted in re.finditer(f"{QUOTED}+", own):
        begin = quoted.start()
        if _OTHER_SHELL.search(own, max(0, begin - _MOST_BEFORE), begin):
            yield *quoted.span(), _filled(_unquoted(text[quoted.start() : quoted.end()]), values)
