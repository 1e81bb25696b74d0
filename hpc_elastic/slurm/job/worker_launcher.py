"""The command of the workers: its script, its variables, and launchers, which are refused. Pure.

Below a launcher each worker would start a whole training of its own. The flags of torchrun that take no
value are those of `torch.distributed.run`; of other launchers only the script after the launcher counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile

from hpc_elastic.errors import InputError
from hpc_elastic.isolated.argv import CALL
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.text import line_for_shell

_INTERPRETER = r"(?:python|pypy)[\d.]*"
_SCRIPT_SHELLS = ("bash", "sh")
TAKES_A_WORD = ("-X", "-W", "--check-hash-based-pycs")
_NO_SCRIPT = r"-[a-zA-Z]*[cm].*"
_LINE = r".*\S\s+\S.*"

_TORCHRUN = "torchrun"
_MODULES = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "hpc_elastic": "hpc-elastic",
    "hpc_elastic.run": "hpc-elastic",
}
_PROGRAMS = {
    "torchrun": _TORCHRUN,
    "deepspeed": "deepspeed",
    "composer": "composer",
    "horovodrun": "horovodrun",
    **dict.fromkeys(("srun", "jsrun", "aprun"), "srun"),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), "mpirun"),
}
_WITH_COMMAND = {("accelerate", "launch"), ("tune", "run"), ("colossalai", "run"), ("hpc-elastic", "run")}
_STARTS_PROCESSES = {"srun": "which starts tasks itself", "mpirun": "which starts processes itself"}
_SHELLS = ("bash", "sh", "dash", "zsh")
_BEFORE = ("nohup", "time", "exec", "command", "--")  # words that may stand before a program
_WRAPPERS = {  # programs that run another one, and how many words of their own come before that
    **dict.fromkeys(
        ("env", "nice", "ionice", "setsid", "stdbuf", "timeout", "taskset", "chrt", "numactl"), 0
    ),
    **dict.fromkeys(("uv", "conda", "mamba", "micromamba", "poetry", "pixi", "pdm", "pipenv", "nsys"), 1),
    **dict.fromkeys(("apptainer", "singularity"), 2),
}
_OF_WRAPPERS = (  # options of theirs that take a word
    "-[BCNckmnopstu]|--(?:name|prefix|python|with|bind|env|output|cwd|directory|project)"
)
_NUMBERS = r"(?:0x[\da-f]+|[\d,.:-]+)[smhd]?"  # times, priorities, sets of CPUs
_ASSIGNMENT = r"[A-Za-z_]\w*=.*"
_SWITCHES = frozenset({"m", "module", "no-python", "run-path", "standalone", "use-env", "virtual-local-rank"})
_WORKERS, _NODES = "nproc-per-node", "nnodes"
_OF_SUBMIT = {_WORKERS: "workers-per-node", _NODES: "nodes", "max-restarts": "max-restarts", "role": "role"}
_VALUES = {_WORKERS: r"\d+", _NODES: r"\d+(:\d+)?"}  # others, such as `gpu` and variables, are left out


class Launcher(NamedTuple):
    """A launcher and its arguments.

    Attributes:
        name: as people call it.
        arguments: the words behind it.
    """

    name: str
    arguments: tuple[str, ...]


def launcher_in(command: Sequence[str]) -> Launcher | None:
    """Return the launcher that a command starts, None if it starts none.

    Behind ``env``, ``timeout``, ``conda run`` and the like, an interpreter or ``bash -c`` it is found, too;
    the launchers inside a script are those of `launcher_in_text`.
    """
    words = _without_prefix(tuple(command))
    if not words:
        return None
    name, rest = words[0].rpartition("/")[2], words[1:]
    if name in _WRAPPERS:
        return launcher_in(_behind_wrapper(name, rest))
    if name in _SHELLS:
        return launcher_in_text(_text_of_shell(rest))[0]
    return _of_interpreter(rest) if re.fullmatch(_INTERPRETER, name) else _of_program(name, rest)


def _of_program(name: str, rest: tuple[str, ...]) -> Launcher | None:
    if name in _PROGRAMS:
        return Launcher(_PROGRAMS[name], rest)
    if rest and (name, rest[0]) in _WITH_COMMAND:
        return Launcher(f"{name} {rest[0]}", rest[1:])
    return None


def refuse_launcher(command: Sequence[str], where: str, *, is_run: bool = False) -> None:
    """Refuse a worker that is a launcher.

    Args:
        command: of a worker.
        where: the setting that holds it.
        is_run: it was given to ``hpc-elastic run``, which takes torchrun's own flags.

    Raises:
        InputError: with a better command.
    """
    found = launcher_in(command)
    if found is None:
        return
    before = _wrappers_of(tuple(command))
    line = _for_run(found, before) if is_run else _for_submit(found, before)
    starts = _STARTS_PROCESSES.get(found.name, "which starts workers itself")
    instead = f"write the script in its place: {line}" if line else "write the training script in its place"
    raise InputError(
        f"the worker is {found.name}, {starts}: every worker would be a whole training of its own",
        where=where,
        fix=f"{instead}\n  a single worker may start it: give one node and one worker per node yourself",
    )


def _without_prefix(words: tuple[str, ...]) -> tuple[str, ...]:
    while words and (
        words[0].rpartition("/")[2] in _BEFORE or re.fullmatch(_ASSIGNMENT, words[0], re.DOTALL)
    ):
        words = words[1:]
    return words


def _behind_wrapper(name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program that one of `_WRAPPERS` runs, and its words."""
    own = _WRAPPERS[name]
    while words:
        if re.fullmatch(_OF_WRAPPERS, words[0]):
            words = words[2:]
            continue
        if not (words[0].startswith("-") or re.fullmatch(_NUMBERS, words[0], re.IGNORECASE)):
            if own == 0:
                break
            own -= 1
        words = words[1:]
    return words


def _wrappers_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words before a program that are those of `_WRAPPERS`, which its line needs as well."""
    words = _without_prefix(command)
    name, behind = (words[0].rpartition("/")[2], words[1:]) if words else ("", ())
    if name not in _WRAPPERS:
        return ()
    behind = _without_prefix(_behind_wrapper(name, behind))
    return words[: len(words) - len(behind)] + _wrappers_of(behind)


def _text_of_shell(words: tuple[str, ...]) -> str:
    """Return the text behind ``-c``; empty for a script."""
    options, has_text = [*words], False
    while options and options[0].startswith(("-", "+")):
        word = options.pop(0)
        has_text |= re.fullmatch("-[a-z]*c[a-z]*", word) is not None
        if re.fullmatch("[-+][a-z]*o", word):  # as in -euo pipefail
            del options[:1]
    return options[0] if has_text and options else ""


def launcher_in_text(text: str) -> tuple[Launcher | None, int]:
    """Return the first launcher that a shell script starts, and in which line; None and 0 without.

    Args:
        text: the script; commands that cannot be understood are passed over.
    """
    from hpc_elastic.slurm.job.shell_text import (  # noqa: PLC0415 - only for texts of a shell
        COMMENT,
        DOCUMENT,
        code_of,
        keywords,
        parts,
    )

    code = code_of(text)
    plain = "".join(
        " " if kind in (COMMENT, DOCUMENT) else each for each, kind in zip(text, code, strict=True)
    )
    for part in parts(code):
        shown = plain[part.start : part.end]
        try:
            words = shlex.split(shown.replace("\\\n", " "))[len(keywords(code[part.start : part.end])) :]
            found = launcher_in(words)
        except (ValueError, RecursionError):
            continue
        if found is not None:
            line = text.count("\n", 0, part.start + len(shown) - len(shown.lstrip())) + 1
            return Launcher(found.name, _before_redirections(found.arguments)), line
    return None, 0


def _before_redirections(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words up to the first that is one of ``2>&1``, ``> log`` and the like."""
    return tuple(takewhile(lambda word: not re.match(r"(?:\d*|&)[<>]", word), words))


def _of_interpreter(words: tuple[str, ...]) -> Launcher | None:
    rest = [*words]
    while rest:
        word = rest.pop(0)
        if named := re.fullmatch("-[bBdEiIOPqRsSuvx]*m(.*)", word, re.DOTALL):
            module = named[1] or (rest.pop(0) if rest else "")
            return Launcher(_MODULES[module], tuple(rest)) if module in _MODULES else None
        if not word.startswith("-"):  # a script; that of an installed launcher has its name
            is_known = word.rpartition("/")[2] in (*_PROGRAMS, "accelerate")
            return launcher_in((word, *rest)) if is_known else None
        if word in TAKES_A_WORD:
            del rest[:1]
        elif re.fullmatch("-[a-zA-Z]*c.*", word):
            return None
    return None


def _for_run(launcher: Launcher, before: tuple[str, ...]) -> str:
    """Return the line of ``hpc-elastic run``, behind other words; empty where the script is not known."""
    words = launcher.arguments if launcher.name == _TORCHRUN else _script_and_on(launcher.arguments)
    return line_for_shell((*before, "hpc-elastic", "run", *words)) if words else ""


def _for_submit(launcher: Launcher, before: tuple[str, ...]) -> str:
    """Return the end of the line of ``hpc-elastic submit``; empty where the script is not known.

    Args:
        launcher: it.
        before: the words before the worker's own.
    """
    if launcher.name == _TORCHRUN:
        options, worker = _of_torchrun(launcher.arguments)
    else:
        options, worker = [], _script_and_on(launcher.arguments)
    if before and options[-2:-1] == ["--module"]:
        options, worker = options[:-2], ["python", "-m", options[-1], *worker]
    elif before and worker and worker[0].endswith(".py"):
        worker = ["python", *worker]
    return line_for_shell((*options, "--", *before, *worker)) if worker or "--module" in options else ""


def settings_of(launcher: Launcher) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings of a job and the worker that a launcher stands for; no worker: it is not known."""
    if launcher.name in _STARTS_PROCESSES:  # often of another launcher
        words = launcher.arguments
        inner = (launcher_in(words[at:]) for at, word in enumerate(words) if not word.startswith("-"))
        launcher = next(filter(None, inner), launcher)
    if launcher.name != _TORCHRUN:
        return {}, tuple(_script_and_on(launcher.arguments))
    flags, worker = _of_torchrun(launcher.arguments)
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return {flag[2:].replace("-", "_"): value for flag, value in pairs}, tuple(worker)


def _script_and_on(words: Sequence[str]) -> list[str]:
    """Return the words from the first Python script on."""
    at = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    return [*words[at:]]


def _of_torchrun(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return torchrun's flags as options of submit, and its worker; needless flags are left out."""
    options: list[str] = []
    is_module = False
    rest = [*words]
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").replace("_", "-").partition("=")
        if name in _SWITCHES:
            is_module |= name in ("m", "module")
            continue
        if not equals:
            value = rest.pop(0) if rest else ""
        if name in _OF_SUBMIT and re.fullmatch(_VALUES.get(name, ".+"), value):
            options += [f"--{_OF_SUBMIT[name]}", value]
    return ([*options, "--module", rest[0]], rest[1:]) if is_module and rest else (options, rest)


def script_of(command: Sequence[str]) -> str | None:
    """Return the script that an interpreter is given, None if there is none."""
    if not _is_interpreter(command[0]):
        return None
    words = iter(command[1:])
    for word in words:
        if word in TAKES_A_WORD:
            next(words, None)
        elif word in ("-", "--help") or re.fullmatch(_NO_SCRIPT, word):
            return None
        elif not word.startswith("-"):
            return word
    return None


def title_of(command: Sequence[str]) -> str:
    """Return the title of a command, for people: the script's or module's name, not its interpreter's."""
    script = script_of(command)
    if script is None and _is_interpreter(command[0]) and "-m" in command[1:-1]:
        script = command[command.index("-m", 1) + 1]
    if script is None and command[-1] == CALL:
        return CALL
    return (script or command[0]).rpartition("/")[2]


def _is_interpreter(program: str) -> bool:
    name = program.rpartition("/")[2]
    return re.fullmatch(_INTERPRETER, name) is not None or name in _SCRIPT_SHELLS


def check_words(command: Sequence[str]) -> None:
    """Refuse a command whose first word is no program, and no file that is there.

    Raises:
        InputError: with the words to write instead.
    """
    first, rest = command[0], list(command[1:])
    if re.fullmatch(_ASSIGNMENT, first, re.DOTALL):
        _refuse_variables(command)
    if first == "-m" or first.startswith("--module"):
        module = rest[:1] if "=" not in first else [first.partition("=")[2]]
        behind = rest[1:] if "=" not in first else rest
        line = line_for_shell(["-m", *(module or ["MODULE"]), *(["--", *behind] if behind else [])])
        raise InputError(
            f"the worker command begins with the option {first}",
            where="command",
            fix=f"-m goes before --: hpc-elastic submit {line}",
        )
    if re.fullmatch(_LINE, first, re.DOTALL):
        raise InputError(
            f"the worker command is one word, {first!r}, so the whole of it names a program",
            where="command",
            fix=f"take the quotes away: -- {line_for_shell([*_words(first), *rest])}",
        )


def _refuse_variables(command: Sequence[str]) -> None:
    others = (at for at, word in enumerate(command) if not re.fullmatch(_ASSIGNMENT, word, re.DOTALL))
    count = next(others, len(command))
    flags = [word for assignment in command[:count] for word in ("-e", assignment)]
    line = line_for_shell(["hpc-elastic", "submit", *flags, "--", *(command[count:] or ["train.py"])])
    raise InputError(
        f"{command[0]} sets a variable, and is no program",
        where="command",
        fix=f"variables of the workers are given by -e, before --: {line}",
    )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
