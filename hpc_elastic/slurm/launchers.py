"""Launchers given as the worker's command, and the line to write instead. Pure.

A launcher starts workers itself: once per GPU it is as many whole trainings, which write over each other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

from hpc_elastic.errors import InputError

SWITCHES: Final = frozenset(
    {
        "--help",
        "--standalone",
        "--module",
        "--no-python",
        "--run-path",
        "--virtual-local-rank",
        "--use-env",
        "--tracker-ids",
        "--watch-node-drain",
    }
)
"""The long flags of torchrun and ``hpc-elastic run`` that take no value."""

_TORCHRUN = ("torchrun", "hpc-elastic run")  # the command lines that are read flag by flag
_PROGRAMS = {
    **dict.fromkeys(("torchrun", "deepspeed", "horovodrun", "srun", "mpirun", "mpiexec")),
    **dict.fromkeys(("mpiexec.hydra", "orterun", "prterun", "jsrun", "aprun")),
    "accelerate": "launch",
    "hpc-elastic": "run",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "hpc_elastic.run": "hpc-elastic run",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
}
_WITH_COMMAND = {"accelerate": "launch", "accelerate.commands.accelerate_cli": "launch", "hpc_elastic": "run"}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_PLACES = {
    **dict.fromkeys(("uv", "poetry", "pixi", "conda", "mamba", "micromamba"), "run"),
    **dict.fromkeys(("apptainer", "singularity"), "exec"),
}
_BEFORE = ("nohup", "exec", "command", "time", "setsid")  # of the words that stand before a program
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_OPERATORS = re.compile(r"[;&|<>()`\n]|\$\(")
_NUMBER = re.compile(r"[1-9]\d*")
_NODES = ("--nnodes", "--num-machines", "--num-nodes", "--nodes", "-N")
_NODES_OR_RANGE = re.compile(r"[1-9]\d*(?::[1-9]\d*)?")


class Launcher(NamedTuple):
    """A launcher, and what it was given.

    Attributes:
        name: as people call it, for example ``torchrun`` or ``accelerate launch``.
        words: behind the launcher: its own flags, the program and its arguments.
        before: in front of it: the command that runs it in an environment or a container.
    """

    name: str
    words: tuple[str, ...]
    before: tuple[str, ...] = ()


class _Inner(NamedTuple):
    """What a launcher was to start: sizes as far as they are known, and the worker's command."""

    nodes: str
    workers: str
    restarts: str
    module: bool
    program: bool
    command: tuple[str, ...]


def refuse(command: Sequence[str], where: str, ours: str = "submit") -> None:
    """Refuse a worker's command that is a launcher.

    Args:
        command: the words of the command; an interpreter may stand before them.
        where: the place, for the message.
        ours: the command of ``hpc-elastic`` that was given it: ``submit`` or ``run``.

    Raises:
        InputError: with the line to write instead.
    """
    found = launcher_of(tuple(command))
    if found is None:
        return
    raise InputError(
        f"{found.name} as the worker would be started once per worker, each time as a whole training: "
        "hpc-elastic starts the workers itself",
        where=where,
        fix=f"leave {found.name} out, and keep your other options: {line_instead(found, ours)}",
    )


def refuse_module(module: str, arguments: Sequence[str]) -> None:
    """Refuse a module as worker that is a launcher.

    Raises:
        InputError: with the line to write instead.
    """
    refuse(("python", "-m", module, *arguments), "module")


def launcher_of(command: tuple[str, ...]) -> Launcher | None:
    """Return the launcher that a command starts, None if it starts none that can be told."""
    words = _behind_prefixes(command)
    if not words:
        return None
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program in _SHELLS:
        return _in_shell(rest)
    if _PYTHON.fullmatch(program):
        return _in_python(rest)
    if _PLACES.get(program) in (rest or ("",))[:1]:
        return _in_place(words)
    needed = _PROGRAMS.get(program, "")
    if needed is None:
        return Launcher(program, rest)
    return Launcher(f"{program} {needed}", rest[1:]) if rest[:1] == (needed,) else None


def _in_place(words: tuple[str, ...]) -> Launcher | None:
    """Return the launcher that `uv run` or `apptainer exec` starts."""
    _, command = _other_flags(words[1:])
    found = launcher_of(command)
    return found and found._replace(before=words[: len(words) - len(command)] + found.before)


def _behind_prefixes(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command without `env`, `nohup` and the like, and without what they set."""
    while words:
        program = words[0].rpartition("/")[2]
        if program == "env":
            words = _behind_env(words[1:])
        elif program in _BEFORE or _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        else:
            break
    return words


def _behind_env(words: tuple[str, ...]) -> tuple[str, ...]:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-u", "-C", "--unset", "--chdir") else words[1:]
    return words


def _in_shell(words: tuple[str, ...]) -> Launcher | None:
    """Return the launcher that ``bash -c 'torchrun ...'`` starts; several commands are not looked through."""
    while words and words[0].startswith("-") and not re.fullmatch(r"-[a-z]*c", words[0]):
        words = words[1:]
    if len(words) < 2 or not words[0].startswith("-") or _OPERATORS.search(words[1].strip()):  # noqa: PLR2004
        return None
    try:
        return launcher_of(tuple(shlex.split(words[1])))
    except ValueError:
        return None


def _in_python(words: tuple[str, ...]) -> Launcher | None:
    """Return the launcher that an interpreter runs: a module, or the script of a program such as torchrun."""
    while words and words[0].startswith("-"):
        if re.fullmatch(r"-[a-zA-Z]*c.*", words[0]):
            return None
        if re.fullmatch(r"-[a-zA-Z]*m", words[0]):
            return _of_module(words[1:])
        words = words[2:] if words[0] in ("-X", "-W", "--check-hash-based-pycs") else words[1:]
    is_program = words and words[0].rpartition("/")[2] in _PROGRAMS
    return launcher_of(words) if is_program else None


def _of_module(words: tuple[str, ...]) -> Launcher | None:
    if not words:
        return None
    module, rest = words[0].removesuffix(".__main__"), words[1:]
    if module in _MODULES:
        return Launcher(_MODULES[module], rest)
    needed = _WITH_COMMAND.get(module)
    name = "hpc-elastic" if module == "hpc_elastic" else "accelerate"
    return Launcher(f"{name} {needed}", rest[1:]) if needed and rest[:1] == (needed,) else None


def line_instead(found: Launcher, ours: str) -> str:
    """Return the command line of ours that does what the launcher was to do."""
    inner = _read(found)
    flags = []
    if inner.nodes:
        flags += ["--nodes" if ours == "submit" else "--nnodes", inner.nodes]
    if inner.workers and (ours == "run" or _NUMBER.fullmatch(inner.workers)):
        flags += ["--workers-per-node" if ours == "submit" else "--nproc-per-node", inner.workers]
    if inner.restarts:
        flags += ["--max-restarts", inner.restarts]
    command = inner.command or ("train.py",)
    if ours == "submit":
        module = ["--module", command[0]] if inner.module else []
        rest = command[1:] if inner.module else command
        behind = ["--", *rest] if rest else []
        return shlex.join(("hpc-elastic", "submit", *flags, *module, *behind))
    kind = ["-m"] if inner.module else ["--no-python"] if inner.program else []
    return shlex.join(("hpc-elastic", "run", *flags, *kind, *command))


def _read(found: Launcher) -> _Inner:
    """Take a launcher's words apart; what runs below another launcher is what that one starts."""
    flags, command = (_torchrun_flags if found.name in _TORCHRUN else _other_flags)(found.words)
    below = launcher_of(command)
    if below is not None:
        inner = _read(below)
        return inner._replace(nodes=inner.nodes or _nodes_in(flags))
    module, program = "--module" in flags, "--no-python" in flags
    if found.name not in _TORCHRUN:
        module, program, command = _kind_of(command, is_module=module)
    if found.before:
        python = () if program else ("python", "-m") if module else ("python",)
        module, program, command = False, True, (*found.before, *python, *(command or ("train.py",)))
    return _Inner(_nodes_in(flags), _workers_in(found, flags), _restarts_in(flags), module, program, command)


def _kind_of(command: tuple[str, ...], *, is_module: bool) -> tuple[bool, bool, tuple[str, ...]]:
    """Return whether it is a module or a program, and the command without the interpreter."""
    if not command or is_module or command[0].endswith(".py"):
        return is_module, False, command
    if not _PYTHON.fullmatch(command[0].rpartition("/")[2]):
        return False, True, command
    rest = command[1:]
    while rest[:1] == ("-u",):
        rest = rest[1:]
    if rest[:1] == ("-m",) and len(rest) > 1:
        return True, False, rest[1:]
    return (False, False, rest) if rest and rest[0].endswith(".py") else (False, True, command)


def _torchrun_flags(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the flags before the training script, by their long names, and what begins with the script."""
    flags: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words[0].partition("=")
        name, words = {"-m": "--module"}.get(name, name.replace("_", "-")), words[1:]
        if not equals and name not in SWITCHES:
            value, words = "".join(words[:1]), words[1:]
        flags[name] = value
    return flags, words


def _other_flags(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return flags with the words behind them, and what begins with a Python, a script or a launcher.

    The flags of these launchers are not known one by one, so the command is told by its first word.
    """
    flags: dict[str, str] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("-m", "--module") and not equals:
            return {**flags, "--module": ""}, words[place + 1 :]
        if word.startswith("-"):
            following = "".join(words[place + 1 : place + 2])
            flags[name.replace("_", "-")] = value if equals else following
        elif _is_command(word, words[place:]):
            return flags, words[place:]
    return flags, ()


def _is_command(word: str, words: tuple[str, ...]) -> bool:
    name = word.rpartition("/")[2]
    return name.endswith(".py") or bool(_PYTHON.fullmatch(name)) or launcher_of(words) is not None


def _nodes_in(flags: dict[str, str]) -> str:
    value = next((flags[name] for name in _NODES if name in flags), "")
    return value if _NODES_OR_RANGE.fullmatch(value) else ""


def _workers_in(found: Launcher, flags: dict[str, str]) -> str:
    """Return the workers per node; not what depends on the node or is counted over all nodes."""
    if found.name in _TORCHRUN:
        return flags.get("--nproc-per-node", "")
    value = flags.get("--num-gpus", flags.get("--ntasks-per-node", ""))
    if found.name == "accelerate launch":
        total, nodes = flags.get("--num-processes", ""), flags.get("--num-machines", "1")
        if not (_NUMBER.fullmatch(total) and _NUMBER.fullmatch(nodes)) or int(total) % int(nodes):
            return ""
        value = str(int(total) // int(nodes))
    return value if _NUMBER.fullmatch(value) else ""


def _restarts_in(flags: dict[str, str]) -> str:
    value = flags.get("--max-restarts", "")
    return value if re.fullmatch(r"\d+", value) else ""
