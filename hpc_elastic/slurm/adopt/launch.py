"""The commands of a job script that start its training: where they stand, and of which words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.job.shell_text import (
    COMMENT,
    DOCUMENT,
    QUOTED,
    SUBSTITUTED,
    OpenBlock,
    Part,
    code_of,
    keywords,
    open_blocks,
    parts,
)
from hpc_elastic.text import for_shell

_PYTHON = (
    r"(?P<python>\"(?:[^\s\"'=;|&()]*/)?(?:python[\d.]*|\$\{?\w+\}?)\"|"
    r"(?:[^\s\"'=;|&()]*/)?(?:python[\d.]*|\$\{?\w+\}?))(?P<flags>(?:\s+(?:-[XW]\s+\S+|-(?!m\s)\S+))*)"
)
_PROGRAM = r"(?P<quote>\"?)(?P<folder>(?:[^\s\"'=;|&()]*/)?){name}(?P=quote)"
_BEGIN, _END = r"(?<![\w./$-])", r"(?![^\s;&|()\"'`])"
_PYTHONS = r"(?:[^\s\"'=;|&()]*/)?(?:python[\d.]*|\$\{?(?:PYTHON|PY)(?:3|_?(?:BIN|EXE|EXEC|CMD))?\b\}?)"


class Kind(Enum):
    """A way to start a training, as people call it."""

    TORCHRUN = "torchrun"
    LAUNCH = "torch.distributed.launch"
    ACCELERATE = "accelerate launch"
    DEEPSPEED = "deepspeed"
    PYTHON = "python"


_WAYS = (  # the first that a script has is its training
    (
        Kind.TORCHRUN,
        re.compile(
            rf"{_BEGIN}(?:{_PYTHON}\s+-m\s+torch\.distributed\.(?P<module>run|launch)"
            r"|(?:\S*python[\d.]*\s+(?:-u\s+)?)?(?P<which>\$\((?:which|command\s+-v|type\s+-p)\s+torchrun\))"
            rf"|{_PROGRAM.format(name='torchrun')}){_END}"
        ),
    ),
    (
        Kind.ACCELERATE,
        re.compile(
            rf"{_BEGIN}(?:{_PYTHON}\s+-m\s+accelerate\.commands\.launch"
            rf"|{_PROGRAM.format(name='accelerate')}\s+launch){_END}"
        ),
    ),
    (
        Kind.DEEPSPEED,
        re.compile(
            rf"{_BEGIN}(?:{_PYTHON}\s+-m\s+deepspeed\.launcher\.runner"
            rf"|{_PROGRAM.format(name='deepspeed')}(?=\s)){_END}"
        ),
    ),
    (
        Kind.PYTHON,
        re.compile(
            rf"{_BEGIN}(?P<python>\"{_PYTHONS}\"|{_PYTHONS})"
            r"(?P<flags>(?:\s+(?:-[XW]\s+\S+|-[uOBIsSE]+))*)\s+"
            r"(?P<script>-m\s+(?!pip\b|venv\b|torch\.distributed|accelerate|deepspeed|ipykernel|site\b)[\w.]+"
            r"|(?!\S*setup\.py(?:\s|$))[^\s\"'-][^\s;&|]*|\"[^\"\n]*\")"
        ),
    ),
)
_OURS = re.compile(r"hpc[-_]elastic\s+(?:run|finish)")
SRUN = re.compile(r"(?<![\w./-])(?:\S*/)?srun(?=\s)")
_START = re.compile(r"\s*(?:(?:\w+=\S*|time|nohup|exec)\s+)*")  # words that may stand before a command's name
_TALKS = (
    *("echo", "printf", "which", "type", "command", "hash", "pip", "pip3", "pkill", "killall", "pgrep"),
    *("grep", "cat", "sed", "awk", "ls", "rm", "cp", "mkdir", "test", "[", "[["),
)
_ASSIGNED = re.compile(
    r"\s*(?:(?:export|readonly|local|declare|typeset)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(?:\[\w*\])?(\+?=)"
)
_ARRAY = re.compile(r"([A-Za-z_]\w*)\+?=\Z")
_ONE_PASS = re.compile(r"for\s+\w+\s+in\s+[\w./:-]+\s*\Z")
_SHELL = re.compile(r"(?:(?:/usr)?/bin/)?(?:bash|sh)\s+-[leux]*c\s+(['\"])\s*\Z")
_LETTERS = "EHIKOQXZklqsuv"
_SWITCHES_TEXT = (  # of srun
    "kill-on-bad-exit label unbuffered exclusive exact overlap overcommit multi-prog disable-status pty "
    "quiet verbose preserve-env quit-on-interrupt oversubscribe hold immediate wait contiguous "
    "container-mount-home container-remap-root container-writable container-readonly container-entrypoint"
)
_SWITCHES = frozenset(_SWITCHES_TEXT.split())
_LOOP = "is in a loop: it starts several trainings, or one again and again"
_IN_BLOCK = {
    **dict.fromkeys(("while", "until", "select"), _LOOP),
    "for": _LOOP,
    "(": "is in parentheses, a shell of its own",
}


def as_it_is(name: str) -> str:
    """Return the way out for a script that cannot be changed: it needs no change to come back.

    Args:
        name: of the script.
    """
    return f"this script stays as it is: hpc-elastic submit {for_shell(name)}"


class NotShownError(Exception):
    """A changed script could do something other than the script does now; the text is the reason.

    Args:
        reason: for people.
        number: the line that starts the training, from 1; 0 if none does.
        more: another way out, behind the first one.
    """

    def __init__(self, reason: str, number: int = 0, more: str = "") -> None:
        super().__init__(reason)
        self.number = number
        self.more = more


class JobText(NamedTuple):
    """A job script with plain line ends.

    Attributes:
        name: of it, for messages.
        text: of it.
        code: the same with marks, see `code_of`.
        commands: of it, as places.
    """

    name: str
    text: str
    code: str
    commands: list[Part]

    @classmethod
    def of(cls, name: str, text: str) -> JobText:
        """Return a script that is looked at."""
        code = code_of(text)
        return cls(name, text, code, parts(code))

    def line_of(self, place: int) -> int:
        """Return the number of the line of a place, from 1."""
        return self.text.count("\n", 0, place) + 1

    def own_code(self, part: Part) -> str:
        """Return the code of a command."""
        return self.code[part.start : part.end]


class Edit(NamedTuple):
    """New words in the place of others."""

    start: int
    end: int
    text: str


class LaunchLine(NamedTuple):
    """A command that starts the training, in pieces: pre, head, ``srun``, options, launcher, tail, behind.

    Attributes:
        kind: the launcher.
        number: the line that names it, from 1.
        place: which of the script's commands it is.
        start, end: the lines that the command takes, as places in the script.
        pre: the words of these lines before the command and those that must succeed before it.
        head: the words before ``srun``, or before its place.
        has_srun: whether it is there.
        options: the words between ``srun`` and the launcher.
        python: the Python of the workers, as a word of the script.
        named: the launcher itself, with the script for `Kind.PYTHON`.
        quote: in which the launcher stands, behind ``bash -c``; empty for none.
        needs_exec: other commands stand before it in those quotes.
        tail: the words behind the launcher, up to the end of the pipeline.
        operator, behind: the operator and the words behind it in its line.
        is_piped: its output goes to another command.
        place_in_pipe: how many commands stand before it in the pipe.
        is_nested: whether it stands in a block, which may not be gone through.
        variables: the names of the variables with the launcher's words; then `named` is the use of one.
        kept_at: where in the script these words are; empty unless there are variables.
        branch: the branches of the blocks around it.
        is_executed: ``exec`` stands before it.
        tail_at: where in the script the tail begins.
    """

    kind: Kind
    number: int
    place: int
    start: int
    end: int
    pre: str
    head: str
    has_srun: bool
    options: str
    python: str
    named: str
    quote: str
    needs_exec: bool
    tail: str
    operator: str
    behind: str
    is_piped: bool
    place_in_pipe: int
    is_nested: bool
    variables: tuple[str, ...]
    kept_at: tuple[Edit, ...]
    branch: tuple[tuple[int, int], ...]
    is_executed: bool
    tail_at: int


class _Found(NamedTuple):
    """A place where a launcher is named: by which command, and the obstacle to starting it there."""

    at: re.Match[str]
    kind: Kind
    place: int
    trouble: str
    variable: str = ""
    quote: str = ""
    needs_exec: bool = False


class _VariableUse(NamedTuple):
    """A command that starts the words that variables hold."""

    place: int
    start: int
    end: int
    quote: str
    has_srun: bool


def find_launches(script: JobText) -> list[LaunchLine]:
    """Return the commands of a script that start its training: several only where one start has one of them.

    Raises:
        NotShownError: there is none, or several, or nothing behind it would see how it has ended.
        InputError: the script is ours already.
    """
    text, code, name = script.text, script.code, script.name
    if any(code[found.start()] != COMMENT for found in _OURS.finditer(text)):
        raise InputError("the script starts hpc-elastic already", where=name, fix="there is nothing to adopt")
    found = [list(_named(script, *way)) for way in _WAYS]
    for named in found:
        kept = [one for one in named if one.variable and not one.trouble]
        uses = _starts_of(script, kept)
        started = [one for one in named if not (one.variable or one.trouble)]
        if uses or started:
            launches = [_launch(script, one) for one in started]
            launches += [_launch(script, kept[0], *use) for use in uses]
            break
    else:
        raise _not_started(script, [one for named in found for one in named])
    launches.sort(key=lambda one: one.start)
    if any(not _are_apart(one, other) for one, other in pairwise(launches)):
        numbers = ", ".join(str(one.number) for one in launches)
        raise NotShownError(
            f"{launches[0].kind.value} is started more than once (lines {numbers}), and finish decides about "
            "one training",
            launches[0].number,
            "; or give each its own script",
        )
    return launches


def find_kind(text: str) -> str:
    """Return the kind of a script's launcher, as people call it; also where its form is not known.

    Args:
        text: of the script.
    """
    script = JobText.of("", text.replace("\r\n", "\n"))
    for kind, pattern in _WAYS:
        named = list(_named(script, kind, pattern))
        if named:
            has_srun = any(SRUN.search(script.text, 0, one.at.start()) for one in named)
            is_below = kind is Kind.PYTHON and has_srun
            return f"{kind.value} below srun" if is_below else kind.value
    return "something else"


def _number(script: JobText, found: _Found) -> int:
    return script.line_of(found.at.end() - 1)


def _words_of(found: _Found) -> str:
    is_launch = found.kind is Kind.TORCHRUN and found.at["module"] == "launch"
    return (Kind.LAUNCH if is_launch else found.kind).value


def _are_apart(one: LaunchLine, other: LaunchLine) -> bool:
    """Tell whether each start of a script runs at most one of two commands: branches of the same block."""
    return any(
        place == same and branch != another
        for (place, branch), (same, another) in zip(one.branch, other.branch, strict=False)
    )


def _named(script: JobText, kind: Kind, pattern: re.Pattern[str]) -> Iterator[_Found]:
    """Yield where a launcher is named by a command that may start it; not where a command talks about it."""
    code = script.code
    joined = script.text.replace("\\\n", "  ")
    for found in pattern.finditer(joined):
        mark = code[found.start("script") - 1 if kind is Kind.PYTHON else found.end() - 1]
        if mark == COMMENT or code[found.start()] == COMMENT:
            continue
        place = next(at for at, part in enumerate(script.commands) if found.start() <= part.end)
        part = script.commands[place]
        start = _START.match(code, part.start, part.end)
        begin = start.end() if start else part.start
        words = code[begin : part.end].split()
        inner = keywords(script.own_code(part))
        words = words[len(inner) :] if words[: len(inner)] == inner else words
        if words and words[0] in _TALKS and begin < found.start():
            continue
        if kind is Kind.PYTHON and not _trains(found, mark, begin):
            continue
        yield _Found(found, kind, place, *_kept(script, found, place, begin))


def _trains(found: re.Match[str], mark: str, begin: int) -> bool:
    """Tell whether a program in Python may be a training: not one that another word only names."""
    is_text = mark in (DOCUMENT, SUBSTITUTED)
    return not is_text and found.start() >= begin and found["script"] not in ("-", "<<", "<<<")


class _NamedIn(NamedTuple):
    """Where a launcher is named: the obstacle to starting it there, and its surroundings, as in `_Found`."""

    trouble: str = ""
    variable: str = ""
    quote: str = ""
    needs_exec: bool = False


def _kept(script: JobText, found: re.Match[str], place: int, begin: int) -> _NamedIn:
    """Return where a launcher is named."""
    code, mark = script.code, script.code[found.end() - 1]
    variable = "" if mark == DOCUMENT else _variable(script, place, found.start())
    if variable:
        return _NamedIn(variable=variable)
    trouble = ""
    if mark == DOCUMENT:
        trouble = "stands in a here-document, a script of its own"
    elif begin > found.start() or re.match(r"alias\b", code[begin : begin + 6]):
        trouble = "is kept in an alias"
    elif mark == QUOTED:
        return _in_quotes(script, found)
    elif mark == SUBSTITUTED and "$(" not in found[0]:
        trouble = "is in a substitution"
    return _NamedIn(trouble)


def _in_quotes(script: JobText, found: re.Match[str]) -> _NamedIn:
    """Return where a launcher is named that ends in quotes: its own, or those of a shell's words."""
    quote, needs_exec, trouble = _shell_word(script, found)
    if quote or trouble:
        return _NamedIn(trouble, "", quote, needs_exec)
    is_word = found.start() == 0 or script.code[found.start() - 1] != QUOTED
    groups = found.groupdict()
    has_own = groups.get("quote") or (groups.get("python") or "").startswith('"') or found[0][-1] == '"'
    return _NamedIn("" if has_own and is_word else "is in quotes, and not in those of a `bash -c`")


def _variable(script: JobText, place: int, at: int) -> str:
    """Return the variable whose value is begun before a place in a command; empty if it is none's."""
    part = script.commands[place]
    given = _ASSIGNED.match(script.code, part.start, part.end)
    if given is not None and given.end() <= at and not re.search(r"\s", script.code[given.end() : at]):
        return given[1]
    blocks = open_blocks(script.code, script.commands[:place])
    if blocks and blocks[-1].word == "(":
        array = _ARRAY.search(script.own_code(script.commands[blocks[-1].place]))
        return array[1] if array else ""
    return ""


def _shell_word(script: JobText, found: re.Match[str]) -> tuple[str, bool, str]:
    """Return the quote of ``bash -c '...'`` around a launcher, whether other commands stand before it there,
    and the obstacle to starting it so. The launcher has to be the last command in there.
    """
    code, text = script.code, found.string
    begin = found.start()
    while begin > 0 and code[begin - 1] == QUOTED:
        begin -= 1
    shell = _SHELL.search(text[: begin + 1])
    end = re.compile(f"[^{QUOTED}]|\\Z").search(code, found.start())
    if shell is None or end is None:
        return "", False, ""
    before, inside = text[begin + 1 : found.start()], text[found.end() : end.start() - 1]
    if shell[1] == '"':
        before, inside = (each.replace('\\"', "  ") for each in (before, inside))
    inner = parts(code_of(inside.rstrip()))
    if len([one for one in inner if inside[one.start : one.end].strip()]) > 1:
        return "", False, "has another command behind it in the words of `bash -c`"
    own = parts(code_of(before))[-1]
    lead = before[own.start :].strip()
    if keywords(lead) or not re.fullmatch(r"(?:\w+=\S*\s*|exec\s*|time\s*)*", lead):
        return "", False, "stands behind other words in those of `bash -c`"
    if own.before in ("|", "|&", "||", "("):
        return "", False, f"stands behind `{own.before}` in the words of `bash -c`"
    if open_blocks(code_of(before), parts(code_of(before))):
        return "", False, "stands in a block in the words of `bash -c`"
    return shell[1], bool(before.strip()) and not lead.startswith("exec"), ""


def _not_started(script: JobText, named: list[_Found]) -> NotShownError:
    """Return the refusal of a script that names launchers, and starts none in a form that is known."""
    if not named:
        return NotShownError("no line of the script starts torchrun, another launcher or a program in Python")
    first = named[0]
    number = _number(script, first)
    what = f"{_words_of(first)} in line {number}"
    if first.trouble:
        return NotShownError(f"{what} {first.trouble}", number)
    why = f"is kept in a variable, and no command begins with ${first.variable} in a form that is known"
    return NotShownError(f"{what} {why}", number)


def _starts_of(
    script: JobText, kept: Sequence[_Found]
) -> list[tuple[_VariableUse, tuple[str, ...], tuple[Edit, ...]]]:
    """Return the commands that start the words of variables, with the names and the words."""
    if not kept:
        return []
    names = {found.variable for found in kept}
    for part in script.commands:
        given = _ASSIGNED.match(script.code, part.start, part.end)
        if given is not None and _expands(names, script.text[given.end() : part.end]):
            names.add(given[1])
    edits = tuple(Edit(*found.at.span(), found.at[0]) for found in kept)
    return [(use, tuple(sorted(names)), edits) for use in _uses(script, names)]


def _expands(names: set[str], text: str) -> bool:
    return any(re.search(rf"\$\{{?{name}\b", text) for name in names)


def _uses(script: JobText, names: set[str]) -> Iterator[_VariableUse]:
    """Yield the commands that begin with one of some variables, perhaps behind srun, a shell or ``eval``."""
    listed = "|".join(sorted(names))
    pattern = re.compile(rf"\$(?:\{{(?:{listed})(?:\[[@*]\])?\}}|(?:{listed})\b)")
    for place, part in enumerate(script.commands):
        if _ASSIGNED.match(script.code, part.start, part.end):
            continue
        begin = part.start + sum(len(word) + 1 for word in keywords(script.own_code(part)))
        found = next(
            (
                one
                for one in pattern.finditer(script.text, part.start, part.end)
                if script.code[one.start()] not in (COMMENT, DOCUMENT)
            ),
            None,
        )
        if found is not None:
            yield from _use_at(script, place, min(begin, found.start()), found)


def _use_at(script: JobText, place: int, begin: int, found: re.Match[str]) -> Iterator[_VariableUse]:
    """Yield the use of a variable if the command starts its words."""
    start = _START.match(script.code, begin, found.start())
    before = script.text[start.end() if start else begin : found.start()].replace("\\\n", "  ")
    if before.split()[:1] and before.split()[0] in _TALKS:
        return
    shell = _SHELL.search(before) or re.search(r"(?:^|\s)eval\s+(\"?)\Z", before)
    outer = before[: shell.start()] if shell else before
    is_quoted = not shell and outer.endswith('"')
    outer = outer[:-1].strip() if is_quoted else outer.strip()
    srun = SRUN.match(f"{outer} ")
    if outer and (srun is None or not only_options(outer.split()[1:])):
        return
    begins = found.start() - is_quoted
    ends = found.end() + (is_quoted and script.text.startswith('"', found.end()))
    yield _VariableUse(place, begins, ends, shell[1] if shell else "", srun is not None)


def only_options(words: Sequence[str]) -> bool:
    """Tell whether words are options of srun and their values, and no program."""
    takes_value = False
    for word in words:
        if word.startswith("-"):
            name = word.lstrip("-")
            is_switch = (
                name in _SWITCHES or name.startswith("no-") if word.startswith("--") else name in _LETTERS
            )
            is_joined = "=" in word or not (word.startswith("--") or len(word) == len("-n"))
            takes_value = not (is_switch or is_joined)
        elif takes_value:
            takes_value = False
        elif not word.startswith(("$", '"$')):  # a variable with options
            return False
    return True


def _launch(
    script: JobText,
    found: _Found,
    use: _VariableUse | None = None,
    variables: tuple[str, ...] = (),
    kept_at: tuple[Edit, ...] = (),
) -> LaunchLine:
    """Return a command in its pieces.

    Raises:
        NotShownError: nothing behind it would see how it has ended.
    """
    text, code, commands = script.text, script.code, script.commands
    place = found.place if use is None else use.place
    begin, named_end = found.at.span() if use is None else (use.start, use.end)
    blocks = _blocks(script, found, place)
    part = commands[place]
    last, first = place, place
    while commands[last].after in ("|", "|&"):
        last += 1
    while commands[first].before == "&&" or (commands[first].before in ("|", "|&")):
        first -= 1
    start = code.rfind("\n", 0, part.start) + 1
    end = code.find("\n", max(named_end, commands[last].end - 1))
    end = len(text) if end < 0 else end
    cut = _cut(script, first, start)
    sruns = list(SRUN.finditer(code, part.start, begin))
    lead = _START.match(code, max(part.start, cut), begin)
    at = sruns[-1].start() if sruns else (lead.end() if lead else part.start)
    head = text[cut:at]
    is_executed = re.search(r"(?:^|\s)exec\s+\Z", head) is not None
    operator, behind = _behind(script, last, end)
    kind = Kind.LAUNCH if _words_of(found) == Kind.LAUNCH.value else found.kind
    return LaunchLine(
        kind=kind,
        number=script.line_of(begin if use else found.at.end() - 1),
        place=place,
        start=start,
        end=end,
        pre=text[start:cut],
        head=re.sub(r"exec\s+\Z", "", head) if is_executed else head,
        has_srun=bool(sruns),
        options=text[sruns[-1].end() if sruns else at : begin],
        python=_python_of(text, found.at),
        named=text[begin:named_end],
        quote=found.quote if use is None else use.quote,
        needs_exec=found.needs_exec,
        tail=text[named_end : max(named_end, commands[last].end)] if operator else text[named_end:end],
        operator=operator,
        behind=behind,
        is_piped=part.after in ("|", "|&"),
        place_in_pipe=_place_in_pipe(commands, place),
        is_nested=bool(blocks),
        variables=variables,
        kept_at=kept_at,
        branch=tuple((block.place, block.branch) for block in blocks),
        is_executed=is_executed,
        tail_at=named_end,
    )


def _cut(script: JobText, first: int, start: int) -> int:
    """Return where the command begins that a line runs, with those before it that must succeed."""
    part = script.commands[first]
    at = max(start, part.start)
    own = script.code[at : part.end]
    for word in keywords(own):
        if word != "time":
            at = script.code.index(word, at) + len(word)
    return at + len(script.code[at:]) - len(script.code[at:].lstrip(" \t")) if at > start else at


def _behind(script: JobText, last: int, end: int) -> tuple[str, str]:
    """Return the operator behind a pipeline and the words behind that in its line; nothing at its end."""
    part = script.commands[last]
    if part.after == "\n" or part.end >= end:
        return "", ""
    rest = script.text[part.end + len(part.after) : end]
    is_blank = not script.code[part.end + len(part.after) : end].strip(f" \t{COMMENT}")
    return ("", "") if part.after == ";" and is_blank else (part.after, rest)


def _blocks(script: JobText, found: _Found, place: int) -> list[OpenBlock]:
    """Return the blocks around a command that starts the training; each start goes through them once at most.

    Raises:
        NotShownError: it is in one that ends elsewhere, or that is gone through several times.
    """
    code, commands = script.code, script.commands
    number = script.line_of(commands[place].end - 1)
    what = f"{_words_of(found)} in line {number}"
    own = keywords(script.own_code(commands[place]))
    blocks = open_blocks(code, commands[:place])
    inner = [OpenBlock(word, place) for word in own if word in ("{", "for", "if", "while", "until", "case")]
    function = next((one for one in blocks if one.name), None)
    if any(word in ("if", "elif", "while", "until", "!") for word in own):
        word = next(word for word in own if word in ("if", "elif", "while", "until", "!"))
        raise NotShownError(f"{what} stands behind `{word}`, which takes its exit code", number)
    for block in reversed(blocks):
        head = script.own_code(commands[block.place]).strip()
        is_one_pass = block.word == "for" and _ONE_PASS.fullmatch(_from_for(head)) is not None
        if block.word in _IN_BLOCK and not is_one_pass:
            raise NotShownError(f"{what} {_IN_BLOCK[block.word]}; finish decides about one training", number)
    if function is not None:
        blocks += _call_of(script, function, what, number)
    if commands[place].before == "||":
        raise NotShownError(f"{what} stands behind `||`, so it may not be started", number)
    for at in _pipeline_before(commands, place):
        if commands[at].before == "||":
            raise NotShownError(f"{what} stands behind `||`, so it may not be started", number)
    return [*blocks, *inner]


def _from_for(head: str) -> str:
    at = head.rfind("for ")
    return head[at:] if at >= 0 else head


def _pipeline_before(commands: Sequence[Part], place: int) -> Iterator[int]:
    while commands[place].before in ("|", "|&", "&&"):
        place -= 1
        yield place


def _call_of(script: JobText, function: OpenBlock, what: str, number: int) -> list[OpenBlock]:
    """Return the blocks around the one call of a function.

    Raises:
        NotShownError: it is called several times, or where its commands run in a shell of their own.
    """
    commands, name = script.commands, re.escape(function.name)
    calls = [
        place
        for place, part in enumerate(commands)
        if re.match(rf"\s*(?:\w+=\S*\s+)*{name}(?![\w.:-])", _plain(script, place)) and part.after != "("
    ]
    mentioned = [
        found.start()
        for found in re.finditer(rf"(?<![\w./-]){name}(?![\w.:/=-])", script.text)
        if script.code[found.start()] not in (COMMENT, DOCUMENT)
    ]
    if len(calls) != 1 or len(mentioned) != 2:  # noqa: PLR2004 - its definition and its call
        times = "never called by its name alone" if len(calls) != 1 and not calls else "named several times"
        raise NotShownError(f"{what} is in a function, {function.name}, that is {times}", number)
    place = calls[0]
    part = commands[place]
    if part.after in ("|", "|&", "&") or part.before in ("|", "|&"):
        raise NotShownError(
            f"{what} is in a function, {function.name}, that runs in a shell of its own", number
        )
    around = open_blocks(script.code, commands[:place])
    for block in around:
        if block.name or block.word in _IN_BLOCK:
            raise NotShownError(
                f"{what} is in a function that is called in a loop, function or subshell", number
            )
    return around


def _plain(script: JobText, place: int) -> str:
    """Return the code of a command without the words of the shell's own that it begins with."""
    own = script.own_code(script.commands[place])
    for word in keywords(own):
        own = own.lstrip().removeprefix(word)
    return own


def _python_of(text: str, found: re.Match[str]) -> str:
    """Return the word for the Python of the launcher: the interpreter itself, or the one beside it."""
    groups = found.groupdict()
    if groups.get("python"):
        return text[found.start("python") : found.end("python")]
    folder, quote = groups.get("folder") or "", groups.get("quote") or ""
    if not folder or folder.endswith(".local/bin/"):  # there pip puts programs of any Python
        return "python3"
    return f"{quote}{re.sub(r'^~/', '$HOME/', folder)}python3{quote}"


def _place_in_pipe(commands: Sequence[Part], index: int) -> int:
    place = 0
    while commands[index - place].before in ("|", "|&"):
        place += 1
    return place
