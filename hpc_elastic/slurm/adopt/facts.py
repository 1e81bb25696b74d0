"""The facts that the text of a job script tells: nodes, tasks, GPUs, traps, values of variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.adopt.launch import JobText, LaunchLine, only_options
from hpc_elastic.slurm.job.own_script import options_in
from hpc_elastic.slurm.job.shell_text import code_of, keywords, open_blocks, parts
from hpc_elastic.slurm.job.traps import trap_of

SIGNALS = ("TERM", "INT", "HUP", "USR1", "USR2")
_ASSIGNMENT = re.compile(
    r"\s*(?:(?:export|readonly|local|declare|typeset)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)=(.*)", re.DOTALL
)
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\]|:?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
_MOST_FILLINGS = 6  # of variables in the values of variables
_LONGEST = 1 << 14  # [characters]
_GPUS = re.compile(r"(?:^|,)gpu(?::[A-Za-z][^:,]*)?(?::(\d+))?(?:\(|,|$)")
_REQUEUE = re.compile(r"(?<![\w./-])(?:\S*/)?scontrol\s+requeue\b")
_HARMLESS = re.compile(
    r"\s*(?:(?:echo|printf|date|exit|return|wait|true|sleep|local|set|:)(?![\w-])|[A-Za-z_]\w*=\S*\s*\Z|\Z)"
)
_KILL = re.compile(
    r"\s*(?:kill|pkill)\s+(?:-s\s+|-)(?:SIG)?([A-Z]\w+)\s+(?:-- )?(?:\"?\$\{?\w+\}?\"?|\"?\$!\"?|%\d|-f\s.*)"
    r"(?:\s*2?>\S+)*\s*\Z",
    re.DOTALL,
)


class AskedOptions(NamedTuple):
    """The options of a job, as far as its lines tell them.

    Attributes:
        given: the options of its ``#SBATCH`` lines by their long names, each with its value.
        nodes: how many nodes it has; None if that is not told by a plain number.
        tasks: how many tasks on each node; None if that is not told by a plain number.
        gpus: how many GPUs it has in all; None if that is not told.
    """

    given: tuple[tuple[str, str], ...]
    nodes: int | None
    tasks: int | None
    gpus: int | None

    def value(self, name: str) -> str | None:
        """Return the value of an option, the last one; None without one."""
        return next((value for known, value in reversed(self.given) if known == name), None)

    @property
    def is_array(self) -> bool:
        """Whether the job is one of an array."""
        return self.value("array") is not None

    @property
    def gpus_per_task(self) -> int | None:
        """GPUs of each task, which Slurm binds to it; None without."""
        return _last_number(self.value("gpus-per-task"))


def facts_of(option_lines: Iterable[str]) -> AskedOptions:
    """Return the facts in the ``#SBATCH`` lines of a script that sbatch reads."""
    given = tuple(options_in(option_lines))
    known = dict(given)
    nodes, tasks = _whole(known.get("nodes")), _whole(known.get("ntasks"))
    each = _whole(known.get("ntasks-per-node"))
    if nodes is None and "nodes" not in known and tasks is not None and each:
        nodes = -(-tasks // each)
    if each is None and tasks is not None and (nodes or tasks == 1):
        each = -(-tasks // (nodes or 1))
    if each is None and not known.keys() & {"ntasks", "ntasks-per-node", "ntasks-per-gpu"}:
        each = 1
    if (
        nodes is None
        and "nodes" not in known
        and tasks in (None, 1)
        and each == 1
        and "nodelist" not in known
    ):
        nodes = 1
    return AskedOptions(given, nodes, each, _gpus(known, nodes, each))


def _gpus(known: dict[str, str], nodes: int | None, tasks: int | None) -> int | None:
    """Return the GPUs of a job; 0 if nothing asks for any."""
    if "gpus" in known:
        return _last_number(known["gpus"])
    if "gres" in known:
        found = _GPUS.search(known["gres"])
        each: int | None = int(found[1] or 1) if found else 0
    elif "gpus-per-node" in known:
        each = _last_number(known["gpus-per-node"])
    elif "gpus-per-task" in known:
        per_task = _last_number(known["gpus-per-task"])
        each = None if per_task is None or tasks is None else per_task * tasks
    else:
        return None if known.keys() & {"tres-per-task", "gpus-per-socket"} else 0
    return None if each is None or nodes is None else each * nodes


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _last_number(text: str | None) -> int | None:
    """Return the number of a value such as ``a100:4``."""
    return _whole((text or "").rpartition(":")[2])


def assigned(script: JobText) -> dict[str, str]:
    """Return the values of variables as they stand in a script; the last one counts."""
    found: dict[str, str] = {}
    for place, part in enumerate(script.commands):
        own = script.text[part.start : part.end]
        for word in keywords(script.own_code(part)):
            own = own.lstrip().removeprefix(word)
        given = _ASSIGNMENT.match(own)
        if given is None:
            continue
        value = given[2]
        if part.after == "(" and not value.strip():
            end = place + 1
            while end < len(script.commands) and script.commands[end].after != ")":
                end += 1
            value = script.text[part.end + 1 : script.commands[min(end, len(script.commands) - 1)].end]
        found[given[1]] = value.strip().strip("\"'")[:_LONGEST]
    return found


def filled(text: str, values: dict[str, str]) -> str:
    """Return a text with the values of the variables that are known, and defaults of the others."""

    def value(used: re.Match[str]) -> str:
        name = used[1] or used[3]
        return values.get(name, used[0])

    for _ in range(_MOST_FILLINGS):
        more = _USED.sub(value, text)[:_LONGEST]
        if more == text:
            break
        text = more
    return text


def flag(words: str, *names: str) -> str | None:
    """Return the value of a flag with a value, the first one; None without one.

    Args:
        words: of a command.
        names: of the flag, with dashes between their parts; torchrun takes underscores, too.
    """
    for name in names:
        pattern = name.replace("-", "[-_]")
        found = re.search(rf"(?<!\S)[\"']?--?{pattern}(?:=|\s+)(\"[^\"]*\"|'[^']*'|\S+)", words)
        if found is not None:
            return found[1].strip("\"'\\")
    return None


class OwnTraps(NamedTuple):
    """The traps of a script at the signals of Slurm.

    Attributes:
        places: of the commands that set them.
        handlers: the names of the functions that they call.
        signal: that they send to the program; empty for none.
        trouble: the command of one of them that an agent cannot run; empty without one.
    """

    places: tuple[int, ...]
    handlers: tuple[str, ...]
    signal: str
    trouble: str


def own_traps(script: JobText) -> OwnTraps:
    """Return the traps of a script at the signals that agents are to hear."""
    places, handlers, signal, trouble = [], [], "", ""
    for place, part in enumerate(script.commands):
        trap = trap_of(_without_keywords(script, place))
        if trap is None or not trap.signals & set(SIGNALS):
            continue
        places.append(place)
        if not trap.does_something:
            continue
        body = _body_of(script, trap.action.split()[0])
        if body is not None:
            handlers.append(trap.action.split()[0])
        for command in _commands_in(trap.action if body is None else body):
            sent = _KILL.match(command)
            if _REQUEUE.search(command) or _HARMLESS.match(command):
                continue
            if sent is not None and (not signal or signal == sent[1]):
                signal = sent[1]
                continue
            number = script.line_of(
                part.start + len(script.text[part.start :]) - len(script.text[part.start :].lstrip())
            )
            shown = " ".join(command.split())[:60]
            trouble = trouble or f"the trap in line {number} runs `{shown}`, which an agent cannot do for it"
    return OwnTraps(tuple(places), tuple(handlers), signal, trouble)


def _without_keywords(script: JobText, place: int) -> str:
    part = script.commands[place]
    own = script.text[part.start : part.end]
    for word in keywords(script.own_code(part)):
        own = own.lstrip().removeprefix(word)
    return own


def _commands_in(text: str) -> Iterator[str]:
    code = code_of(text)
    for part in parts(code):
        own, said = code[part.start : part.end], text[part.start : part.end]
        if own.strip("\x01 \t\n"):
            for word in (*keywords(own), "}", "fi"):
                said = said.lstrip().removeprefix(word)
            condition = re.match(r"\s*(?:\[\[?\s|test\s)", said)
            if condition is None:
                yield said.strip()


def _body_of(script: JobText, name: str) -> str | None:
    """Return the text of a function; None if there is none of this name."""
    word = re.escape(name)
    named = re.search(rf"(?:(?<![\w-])function\s+{word}(?![\w-])|(?<![\w-]){word}\s*\(\s*\))", script.text)
    if named is None:
        return None
    begin = end = None
    first = next(at for at, part in enumerate(script.commands) if part.end >= named.start())
    for place in range(first, len(script.commands)):
        inside = any(one.name == name for one in open_blocks(script.code, script.commands[: place + 1]))
        if inside and begin is None:
            begin = script.commands[place].start
        if begin is not None and not inside:
            end = script.commands[place].start
            break
    if begin is None:
        return None
    text = script.text[begin : end if end is not None else len(script.text)]
    return re.sub(r"^[^{]*\{", "", text, count=1)


def requeues_elsewhere(script: JobText, traps: OwnTraps) -> Iterator[int]:
    """Yield the lines that queue the job again beside its traps, or queue further jobs."""
    for place, part in enumerate(script.commands):
        if place in traps.places:
            continue
        own = script.own_code(part)
        plain = _without_keywords(script, place)
        is_sbatch = re.match(r"\s*(?:\w+=\S*\s+)*(?:\S*/)?sbatch\s", plain) is not None
        if not (is_sbatch or _REQUEUE.search(own)):
            continue
        blocks = open_blocks(script.code, script.commands[: place + 1])
        if not any(block.name in traps.handlers for block in blocks if block.name):
            yield script.line_of(part.start + len(own) - len(own.lstrip()))


def split_options(options: str) -> tuple[str, str]:
    """Return the options of srun in the words between it and a launcher, and the program behind them."""
    words = [
        (found.start(), found[0])
        for found in re.finditer(r"(?:\"[^\"]*\"|'[^']*'|\\\n|[^\s\\]|\\.)+", options)
    ]
    plain = [word for _, word in words]
    for count in range(len(words), -1, -1):
        if only_options(plain[:count]):
            at = words[count][0] if count < len(words) else len(options.rstrip())
            rest = options[at:]
            return (options, "") if not rest.strip(" \\\n\t") else (options[:at], rest)
    return "", options


def words_of(launch: LaunchLine, values: dict[str, str]) -> str:
    """Return the words of a launch with the values of its variables, without quotes of a shell."""
    return filled(f"{launch.named} {launch.tail}", values).replace("\\\n", " ").replace("\\$", "$")


def handed_in(text: str, values: dict[str, str]) -> Sequence[str]:
    """Return the names in a text whose values come from outside of the script and are not Slurm's."""
    found = [used[1] or used[3] for used in _USED.finditer(text)]
    found = [name for name in found if name not in values and not name.startswith("SLURM")]
    return [*found, *re.findall(r"\$\{?([1-9@*])", text)]
