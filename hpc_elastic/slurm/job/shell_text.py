"""The code in a shell script, and how its commands hang together. Pure; good enough for job scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_elastic.named_tuple import NamedTuple

COMMENT = "\x01"
QUOTED = "\x02"
SUBSTITUTED = "\x03"  # stands for $(...), ${...} or backticks
DOCUMENT = "\x04"  # the lines of a here-document
_OPERATOR = r";;|&&|\|\||(?<![<>])&(?!>)|(?<!>)\|&?|[;\n()]"
_DOCUMENT = r"<<-?[ \t]*(?:\"([^\"\n]+)\"|'([^'\n]+)'|\\?([\w.-]+))"
_OPENS = {
    "if": "fi",
    "for": "done",
    "while": "done",
    "until": "done",
    "select": "done",
    "case": "esac",
    "{": "}",
}
_GOES_ON = ("then", "do", "else", "elif", "!", "time", *_OPENS)  # a command may stand behind these


class Part(NamedTuple):
    """A command between two operators, as places in the script.

    Attributes:
        start, end: where its text begins and ends.
        before, after: the operators; a line end or nothing at the ends of a line.
    """

    start: int
    end: int
    before: str
    after: str


def code_of(text: str) -> str:
    """Return a script, as long as it is, in which all that is no code has one of the marks above.

    Continued lines are one line: the line end is blank. So are lines behind ``|``, ``&&`` and ``||``.
    """
    done = "".join(_pieces(text))
    ends = rf"(\|&?|&&)([ \t{COMMENT}]*)\n"
    return re.sub(ends, r"\1\2 ", done)


def _pieces(text: str) -> Iterator[str]:
    at = 0
    words: list[str] = []  # those that end the here-documents which begin with the next line
    while at < len(text):
        document = None if text.startswith("<<<", at) else re.compile(_DOCUMENT).match(text, at)
        if text[at] == "\n" and words:
            end, mark = _end_of_documents(text, at, words), DOCUMENT
            words = []
        elif document is not None:
            words.append(document[1] or document[2] or document[3])
            end, mark = document.end(), QUOTED
        else:
            end, mark = _one(text, at)
        yield text[at:end] if not mark else mark * (end - at)
        at = end


def _one(text: str, at: int) -> tuple[int, str]:
    """Return where the part that begins at a place ends, and its mark, empty for code."""
    if text.startswith("\\\n", at):
        return at + 2, " "
    if text.startswith("<<<", at):
        return at + 3, ""
    if text[at] == "#" and (at == 0 or text[at - 1] in " \t\n;&|()"):
        end = text.find("\n", at)
        return (len(text) if end < 0 else end), COMMENT
    if text[at] == "(":
        return at + 1, ""
    end = _behind(text, at, in_quotes=False)
    if text[at] in "\\'\"":
        return end, QUOTED
    return end, SUBSTITUTED if end > at + 1 else ""


def _behind(text: str, at: int, *, in_quotes: bool) -> int:
    """Return the place behind a character, or behind the quotes or the substitution that begin there."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] == "'" and not in_quotes:
        end = text.find("'", at + 1)
        return len(text) if end < 0 else end + 1
    opening, closing = _opens(text, at, in_quotes=in_quotes)
    return _end(text, at + len(opening), closing) if closing else at + 1


def _opens(text: str, at: int, *, in_quotes: bool) -> tuple[str, str]:
    """Return the mark that begins quotes or a substitution at a place, and its end; nothing if none is."""
    for opening, closing in (("$(", ")"), ("${", "}"), ('"', '"'), ("`", "`")):
        if text.startswith(opening, at):
            return opening, closing
    return ("(", ")") if text[at] == "(" and not in_quotes else ("", "")


def _end(text: str, at: int, closing: str) -> int:
    """Return the place behind the end of the part that has begun before a place, nested parts included."""
    inside = [closing]
    while inside and at < len(text):
        in_quotes = inside[-1] == '"'
        if text[at] == inside[-1]:
            inside.pop()
            at += 1
        elif (opens := _opens(text, at, in_quotes=in_quotes))[1]:
            inside.append(opens[1])
            at += len(opens[0])
        else:
            at = _behind(text, at, in_quotes=in_quotes)
    return at


def _end_of_documents(text: str, at: int, words: list[str]) -> int:
    for word in words:
        found = re.compile(rf"\n\t*{re.escape(word)}(?=\n|\Z)").search(text, at)
        if found is None:
            return len(text)
        at = found.end()
    return at


def parts(code: str) -> list[Part]:
    """Return the commands of the result of `code_of`."""
    found: list[Part] = []
    start, before = 0, "\n"
    for operator in re.finditer(_OPERATOR, code):
        found.append(Part(start, operator.start(), before, operator[0]))
        start, before = operator.end(), operator[0]
    return [*found, Part(start, len(code), before, "\n")]


class OpenBlock(NamedTuple):
    """A block of a script that is open at a place.

    Attributes:
        word: the word or parenthesis that begins it.
        place: which of the commands begins it.
        branch: how many ``else``, ``elif`` or ``;;`` of it stand before the place.
        name: of the function that it is the body of; empty for any other block.
    """

    word: str
    place: int
    branch: int = 0
    name: str = ""


def open_blocks(code: str, before: list[Part]) -> list[OpenBlock]:
    """Return the blocks that are still open behind some commands, the outermost first."""
    blocks: list[OpenBlock] = []
    for place, part in enumerate(before):
        for word in _leading(code[part.start : part.end]):
            if word in _OPENS:
                blocks.append(
                    OpenBlock(word, place, name=_function(code, before, place) if word == "{" else "")
                )
            elif blocks and word == _OPENS.get(blocks[-1].word):
                blocks.pop()
            elif word in ("else", "elif"):
                _next_branch(blocks)
        _parenthesis(blocks, part.after, place)
    return blocks


def _parenthesis(blocks: list[OpenBlock], operator: str, place: int) -> None:
    """Take note of the operator behind a command that opens or closes a block."""
    if operator == "(":
        blocks.append(OpenBlock("(", place))
    elif operator == ")" and blocks and blocks[-1].word == "(":
        blocks.pop()
    elif operator == ";;":
        _next_branch(blocks)


def _next_branch(blocks: list[OpenBlock]) -> None:
    if blocks:
        blocks[-1] = blocks[-1]._replace(branch=blocks[-1].branch + 1)


def _function(code: str, commands: list[Part], place: int) -> str:
    """Return the name of the function whose body begins in a command: ``name() {`` or ``function name {``."""
    own = code[commands[place].start : commands[place].end]
    named = re.match(r"\s*function\s+([\w:.-]+)\s*\{", own)
    if named is not None:
        return named[1]
    at = place - 1
    while at >= 0 and commands[at].after == "\n" and not code[commands[at].start : commands[at].end].strip():
        at -= 1  # the brace stands in a line of its own
    if at < 1 or commands[at].after != ")" or code[commands[at].start : commands[at].end].strip():
        return ""
    named = re.search(r"(?:function\s+)?([\w:.-]+)\s*\Z", code[commands[at - 1].start : commands[at - 1].end])
    return named[1] if named is not None and commands[at - 1].after == "(" else ""


def _leading(command: str) -> Iterator[str]:
    """Yield the words of the shell's own that a command begins with, and the first that is none."""
    words = command.split()
    if words[:1] == ["function"] and words[-1] == "{":
        words = ["{"]
    for word in words:
        yield word
        if word not in _GOES_ON:
            return


def keywords(command: str) -> list[str]:
    """Return the words of the shell's own that a command begins with."""
    return [word for word in _leading(command) if word in _GOES_ON]
