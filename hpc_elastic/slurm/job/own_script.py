"""A job script of the user's own, which runs below ours: its text, interpreter and `#SBATCH` lines.

sbatch reads the options of a script above its first command, and no further; so its lines up to there become
a part of our script, as they are, and sbatch reads them there. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import Setting
from hpc_elastic.settings.table import JOB
from hpc_elastic.settings.values import has_control
from hpc_elastic.slurm.job import options
from hpc_elastic.text import for_shell

_MARK = "#SBATCH"
_OF_OTHERS = ("#PBS", "#BSUB")
_MOST_COMMANDS = 100  # sbatch looks no further for them
STREAM = re.compile(r"/dev/(?:stdin|fd/\d+)")


class OwnScript(NamedTuple):
    """A job script as the user has given it.

    Attributes:
        path: as the user gave it.
        data: the content, which is stored and run as it is.
        interpreter: the words of its first line, as the kernel takes them: a program, at most one argument.
        head: its lines before the first command that are comments, in order.
    """

    path: str
    data: bytes
    interpreter: tuple[str, ...]
    head: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name that sbatch gives to its job."""
        return "sbatch" if STREAM.fullmatch(self.path) else self.path.rpartition("/")[2]

    @property
    def is_of_shell(self) -> bool:
        """Whether a shell runs it."""
        return re.search(r"(?:^|[/ ])(?:ba|da|z|k|c|tc|fi)?sh\b", " ".join(self.interpreter)) is not None

    @property
    def option_lines(self) -> tuple[str, ...]:
        """The lines with options of sbatch."""
        return tuple(line for line in self.head if line.startswith(_MARK))

    @property
    def is_heterogeneous(self) -> bool:
        """Whether its job has several components."""
        return any(map(_is_separator, self.option_lines))

    @property
    def components(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The lines with options of sbatch of the first component of its job, and those of the others.

        A job has one component as a rule; each further one has a line of its own before its options.
        """
        lines = self.option_lines
        first = next((at for at, line in enumerate(lines) if _is_separator(line)), len(lines))
        return lines[:first], lines[first:]

    @property
    def lines_of_others(self) -> tuple[str, ...]:
        """The lines with options of PBS and LSF; sbatch takes them as well, also behind a command."""
        lines = self.data.decode("utf-8", "surrogateescape").split("\n")
        commands = accumulate(not line.startswith("#") for line in lines)
        return tuple(
            line for line, before in zip(lines, commands, strict=True)
            if before <= _MOST_COMMANDS and line.startswith(_OF_OTHERS)
        )  # fmt: skip


def parse_own_script(path: str, data: bytes) -> OwnScript:
    """Return a job script from its content. Pure.

    Args:
        path: as the user gave it.
        data: the content.

    Raises:
        InputError: sbatch would refuse it.
    """
    if not data.strip():
        fix = "name one that has commands: hpc-elastic sbatch [OPTIONS] job.sbatch [ARGS]"
        raise InputError("the job script is empty", where=path, fix=fix)
    first = data.split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        raise InputError(
            "the job script has no first line with #! and an interpreter, and Slurm takes no other",
            where=f"{path}:1",
            fix="begin it with #!/bin/bash",
        )
    if b"\r\n" in data or first.endswith(b"\r"):
        line = data[: data.index(b"\r")].count(b"\n") + 1
        raise InputError(
            "the job script has line ends of DOS (\\r\\n), which Slurm refuses",
            where=f"{path}:{line}",
            fix=f"sed -i 's/\\r$//' {for_shell(path)}",
        )
    if b"\0" in data:
        raise InputError(
            "the job script has a byte 0, which Slurm refuses", where=path, fix="name a text file"
        )
    if has_control(path.rpartition("/")[2]):
        raise InputError(
            "the name of the job script holds a line break or control character, which a #SBATCH line cannot "
            "carry as the name of the job",
            where=path,
            fix="rename it",
        )
    words = first[2:].decode("utf-8", "surrogateescape").strip(" \t").split(None, 1)
    if not words:
        raise InputError(
            "the first line of the job script names no interpreter",
            where=f"{path}:1",
            fix="write #!/bin/bash",
        )
    return OwnScript(path, data, tuple(word.rstrip() for word in words), _head(data))


def _is_separator(line: str) -> bool:
    return line.removeprefix(_MARK).split()[:1] in (["hetjob"], ["packjob"])


def _head(data: bytes) -> tuple[str, ...]:
    """Return the comments before the first command, without the first line."""
    found: list[str] = []
    for line in data.split(b"\n")[1:]:
        if line.strip() and not line.lstrip().startswith(b"#"):
            break
        if line.startswith(_MARK.encode()):
            found.append(line.decode("utf-8", "surrogateescape"))
    return tuple(found)


def sbatch_line(words: Sequence[str]) -> str:
    """Return options of a command line of sbatch as one ``#SBATCH`` line, or nothing.

    Args:
        words: the options, each with its value behind it or joined to it.

    Raises:
        InputError: a word cannot stand in such a line.
    """
    for word in words:
        if has_control(word):
            raise InputError(
                f"{word!r} holds a line break or control character, which a #SBATCH line cannot carry",
                where="sbatch_options",
                fix="remove it",
            )
    return " ".join(map(options.header_word, words))


class SbatchCall(NamedTuple):
    """A command line of sbatch.

    Attributes:
        options: those for the job, each with its value.
        script: the job script; empty without one.
        arguments: those of the script.
        wrap: the command that is a job without a script; None: there is none.
        is_parsable: whether the id of the job alone is to be printed.
        given: settings of ours, by their names; the value of a switch is true.
        profile: of the settings files; None: none is asked for.
    """

    options: tuple[str, ...]
    script: str = ""
    arguments: tuple[str, ...] = ()
    wrap: str | None = None
    is_parsable: bool = False
    given: Mapping[str, str | bool] = {}
    profile: str | None = None


_OF_PROFILING = frozenset(["all", "none", "energy", "task", "lustre", "filesystem", "network"])
_NOT_HERE = ("wait", "test-only", "help", "usage", "version")


def parse_call(words: Sequence[str], is_script: Callable[[str], bool]) -> SbatchCall:
    """Read a command line of sbatch, without its first word.

    An option that is not known here, as of a plug-in, has the next word as its value unless that is a script.

    Args:
        words: the line.
        is_script: tells whether a word names a script.

    Raises:
        InputError: an option has sbatch do something other than queue a job.
    """
    rest, given, wrap, profile, is_parsable = list(words), [], None, None, False
    own: dict[str, str | bool] = {}
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        if (row := _own_row(word)) is not None:
            own[row.name] = _own_value(row, word, rest)
            continue
        name, value, takes_next = _option_at(word, rest, is_script)
        if takes_next:
            value = rest.pop(0)
        if name in _NOT_HERE:
            fix = (
                "sbatch itself takes it"
                if name != "wait"
                else "hpc-elastic logs -f RUN shows the run until its end"
            )
            does = "queues no job" if name != "wait" else "waits for the end of the job"
            raise InputError(f"--{name} of sbatch {does}, and this command queues one", where=word, fix=fix)
        if name == "wrap":
            wrap = value
        elif name == "parsable":
            is_parsable = True
        elif name == "profile" and not is_profile_of_slurm(value):
            profile = value
        else:
            given += [word, value] if takes_next else [word]
    rest = rest[rest[:1] == ["--"] :]
    _refuse_two(rest, wrap)
    script, arguments = "".join(rest[:1]), tuple(rest[1:])
    return SbatchCall(tuple(given), script, arguments, wrap, is_parsable, own, profile)


def is_profile_of_slurm(value: str) -> bool:
    """Tell whether a value of ``--profile`` is one of sbatch: a measurement of Slurm's."""
    return all(word.strip().lower() in _OF_PROFILING for word in value.split(","))


def _refuse_two(rest: Sequence[str], wrap: str | None) -> None:
    """Refuse a line of two jobs; the words behind the options are given."""
    if rest[:1] == [":"]:
        raise InputError(
            "a line with : asks for a heterogeneous job",
            where=":",
            fix="write the options into the script, those of each further component below #SBATCH hetjob",
        )
    if wrap is not None and rest:
        raise InputError(
            f"--wrap is a job of its own, and {rest[0]} is another", where="--wrap", fix="give one of both"
        )


def _own_row(word: str) -> Setting | None:
    """Return the setting of ours that an option names; None for one of sbatch, whose names go first."""
    name = word.partition("=")[0]
    row = JOB.get(name.removeprefix("--no-").removeprefix("--").replace("-", "_"))
    is_ours = row is not None and name.startswith("--") and name[2:] not in options.BUILT_IN
    if row is None or not is_ours or row.name in ("sbatch", "sbatch_options", "command", "mode"):
        return None
    return row if row.is_switch or not name.startswith("--no-") else None


def _own_value(row: Setting, word: str, rest: list[str]) -> str | bool:
    """Return the value of an option of ours, and take it from the words behind."""
    if row.is_switch:
        return not word.startswith("--no-")
    name, equals, value = word.partition("=")
    if not equals and not rest:
        raise InputError(f"{name} needs a value", where=name, fix=f"write {name}={row.metavar}")
    return value if equals else rest.pop(0)


def _option_at(word: str, rest: Sequence[str], is_script: Callable[[str], bool]) -> tuple[str, str, bool]:
    """Return the long name of an option, its joined value, and whether the next word is its value."""
    if not word.startswith("--"):
        name = options.SHORT.get(word[1], word[1])
        return name, word[2:], name in options.WITH_VALUE and len(word) == len("-x") and bool(rest)
    name, equals, value = word[2:].partition("=")
    name = options.name_in_full(name)
    is_plugins = name not in options.BUILT_IN and bool(rest) and not is_script(rest[0])
    takes_value = name in options.WITH_VALUE or (is_plugins and not rest[0].startswith("-"))
    return name, value, takes_value and not equals and bool(rest)


def text_of_wrap(command: str) -> str:
    """Return the job script that sbatch makes of a command."""
    return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"


def asks_for(name: str, lines: Iterable[str]) -> bool:
    """Tell whether an option of sbatch is in ``#SBATCH`` lines.

    Args:
        name: the long name.
        lines: with or without `#SBATCH` before the options.
    """
    return name in names_in(lines)


def names_in(lines: Iterable[str]) -> set[str]:
    """Return the long names of the options of sbatch in ``#SBATCH`` lines.

    Args:
        lines: with or without `#SBATCH` before the options.
    """
    return {name for name, _ in options_in(lines)}


def value_of(name: str, lines: Iterable[str]) -> str:
    """Return the value of an option of sbatch in ``#SBATCH`` lines, the last one; empty without one.

    Args:
        name: the long name.
        lines: with or without `#SBATCH` before the options.
    """
    return next((value for found, value in reversed([*options_in(lines)]) if found == name), "")


def options_in(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of ``#SBATCH`` lines by their long names, each with its value or nothing.

    Args:
        lines: with or without `#SBATCH` before the options.
    """
    for line in lines:
        words = _words(line.removeprefix(_MARK))
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if name[:1] == "-" and name[:2] != "--":
                name, equals, value = f"-{name[1:2]}", word[2:3], word[2:].removeprefix("=")
            name = options.name_in_full(name[2:]) if name[:2] == "--" else options.option_name(name)
            if not equals and name in options.WITH_VALUE and words:
                value = words.pop(0)
            if word.startswith("-"):
                yield name, value


def _words(line: str) -> list[str]:
    """Return the words of a ``#SBATCH`` line; those of one that cannot be read are left to sbatch."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []
