"""The text of a first job file, from facts of Slurm and of a directory. Pure.

A comment in the file names the source of each value, and its alternatives.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.table import JOB
from hpc_elastic.settings.values import BadValueError, is_control, slurm_time_text
from hpc_elastic.slurm.client.answers import OfferedPartition
from hpc_elastic.slurm.client.deadlines import seconds
from hpc_elastic.slurm.job.own_script import value_of
from hpc_elastic.slurm.job.worker_launcher import launcher_in_text, settings_of

USUAL_S = 4 * 3600
_MOST_CPUS = 8  # of a job without GPUs
_MOST_NAMED = 8
_OF_LINES = ("partition", "account", "qos", "time", "nodes", "gpus-per-node", "mem")
_PYTHON_LINE = re.compile(r"(?:^|[\s;&|(])(?:\S*/)?python[\d.]*\s+((?:-[bBEsSuI]+\s+)*)(\S+\.py\b.*)")
_UNKNOWN = re.compile(r"[$`*?]")
_END_OF_COMMAND = re.compile(r"\d*[<>]|[&|;)]")


class FirstProgram(NamedTuple):
    """The program of a first job.

    Attributes:
        words: the worker's command.
        origin: where it was found.
        settings: of the job that the place tells, by their names.
        left_out: words behind it that only a shell knows.
    """

    words: tuple[str, ...]
    origin: str
    settings: Mapping[str, str] = {}
    left_out: tuple[str, ...] = ()


class FirstJobFacts(NamedTuple):
    """The facts about a first job.

    Attributes:
        program: the program.
        environment: the setting that names the user's environment, and its value; None: it is that of this
            package.
        environment_origin: in words.
        partitions: of Slurm; none where it does not answer.
        accounts: of the user, the default one first.
        trouble: why Slurm tells nothing; empty: it does.
        given: settings that settings files give to all jobs, with their places.
        is_local: the directory is not seen by other machines.
    """

    program: FirstProgram
    environment: tuple[str, str | bool] | None = None
    environment_origin: str = ""
    partitions: tuple[OfferedPartition, ...] = ()
    accounts: tuple[str, ...] = ()
    trouble: str = ""
    given: Mapping[str, str] = {}
    is_local: bool = False


class JobLine(NamedTuple):
    """A setting of the file."""

    name: str
    value: str | int | bool | list[str] | None
    comment: str
    is_only_shown: bool = False

    @property
    def text(self) -> str:
        """The line of the file, below its comment."""
        value = json.dumps(self.value, ensure_ascii=False).replace("\x7f", "\\u007f")
        mark = "# " if self.is_only_shown else ""
        comment = "".join(" " if is_control(char) else char for char in self.comment)
        return f"# {comment}\n{mark}{self.name} = {value}"


def program_in_script(name: str, text: str) -> FirstProgram | None:
    """Return the program that a job script starts; None if none is found.

    Args:
        name: of the script.
        text: its content.
    """
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    settings = _asked_in(lines)
    launcher, number = launcher_in_text(text)
    if launcher is None:
        return _of_python_line(name, text, settings)
    of_launcher, words = settings_of(launcher)
    tasks = {"workers_per_node": value_of("ntasks-per-node", lines)} if not of_launcher else {}
    told = _sound({**tasks, **of_launcher, **settings})
    return _program(words, f"{name}, line {number}", told)


def _asked_in(lines: Sequence[str]) -> dict[str, str]:
    """Return the settings that the options of a job script stand for."""
    asked = {option.replace("-", "_"): value_of(option, lines) for option in _OF_LINES}
    gpus = re.search(r"gpu:((?:[\w.-]+:)?\d+)", value_of("gres", lines))
    return _sound(
        {"gpus_per_node": gpus[1] if gpus else "", **{name: text for name, text in asked.items() if text}}
    )


def _sound(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings whose values can be used; those of a shell's variables cannot."""

    def is_sound(name: str, value: str) -> bool:
        try:
            JOB[name].kind.parse(value)
        except BadValueError:
            return False
        return bool(value) and not _UNKNOWN.search(value)

    return {name: value for name, value in settings.items() if is_sound(name, value)}


def _of_python_line(name: str, text: str, settings: Mapping[str, str]) -> FirstProgram | None:
    joined = re.sub(r"\\\n", "  ", text)  # of the same length
    for code in joined.splitlines():
        found = None if code.lstrip().startswith("#") else _PYTHON_LINE.search(code)
        if found is None:
            continue
        try:
            words = tuple(shlex.split(found[2], comments=True))
        except ValueError:
            continue
        number = text.count("\n", 0, joined.index(code)) + 1
        return _program(words, f"{name}, line {number}", dict(settings))
    return None


def _program(words: Sequence[str], origin: str, settings: Mapping[str, str]) -> FirstProgram | None:
    """Return a program with the words that stand for themselves."""
    end = next((at for at, word in enumerate(words) if _END_OF_COMMAND.match(word)), len(words))
    own = words[:end]
    plain = next((at for at, word in enumerate(own) if _UNKNOWN.search(word)), len(own))
    if 0 < plain < len(own) and own[plain - 1].startswith("-"):  # an option of that value
        plain -= 1
    if plain < 1 and "module" not in settings:
        return None
    return FirstProgram(tuple(own[:plain]), origin, settings, tuple(own[plain:]))


def chosen_partition(facts: FirstJobFacts) -> OfferedPartition | None:
    """Return the partition of a first job: that of its script, the default one, or one with GPUs."""
    wanted = facts.program.settings.get("partition", "")
    named = [one for one in facts.partitions if one.name == wanted]
    with_gpus = [one for one in facts.partitions if one.gpus]
    default = [one for one in facts.partitions if one.is_default]
    most = sorted(with_gpus, key=lambda one: -one.nodes)
    has_gpus = [one for one in default if one.gpus]
    return next(iter([*named, *has_gpus, *most, *default, *facts.partitions]), None)


def text_of(facts: FirstJobFacts, file: str) -> str:
    """Return the text of the job file.

    Args:
        facts: about it.
        file: its name, for the commands in its first lines.
    """
    head = [
        "# A job of hpc-elastic. Check it, then queue it:",
        f"#   hpc-elastic submit --dry-run {file}",
        f"#   hpc-elastic submit {file}",
        f"# On this machine, without Slurm: hpc-elastic submit --local 1 {file}",
        "# All settings: hpc-elastic submit --help-all",
    ]
    groups = [_of_program(facts), _of_place(facts), _of_size(facts), _of_rest(facts)]
    lines = [line.text for group in groups for line in group]
    return "\n\n".join(["\n".join(head), *lines]) + "\n"


def _of_program(facts: FirstJobFacts) -> Iterator[JobLine]:
    program = facts.program
    module = program.settings.get("module")
    if module:
        yield JobLine("module", module, f"from {program.origin}")
    if program.words or not module:
        rest = " ".join(program.left_out)
        left = f"; left out, as only a shell knows them: {rest}" if rest else ""
        comment = f"the program and its arguments, from {program.origin}{left}"
        yield JobLine("command", [*program.words], comment)
    if facts.environment is not None:
        yield JobLine(*facts.environment, comment=f"the Python of the workers: {facts.environment_origin}")


def _of_place(facts: FirstJobFacts) -> Iterator[JobLine]:
    """Yield account, partition and time."""
    settings, partition = facts.program.settings, chosen_partition(facts)
    others = _named([one.name for one in facts.partitions if partition is None or one.name != partition.name])
    if "partition" in facts.given:
        yield from _given(facts, "partition")
    elif partition is not None:
        yield JobLine("partition", partition.name, _partition_comment(partition, others))
    else:
        name = settings.get("partition", "")
        why = f"not checked: {facts.trouble}" if name else facts.trouble
        yield JobLine("partition", name or "NAME", why or "Slurm names none", is_only_shown=not name)
    if "account" in facts.given:
        yield from _given(facts, "account")
    elif name := settings.get("account") or next(iter(facts.accounts), ""):
        more = _named([one for one in facts.accounts if one != name])
        origin = facts.program.origin if settings.get("account") else "your default"
        yield JobLine("account", name, f"charged for the job; {origin}{more}")
    else:
        yield JobLine("account", "NAME", "charged for the job; Slurm has told none", is_only_shown=True)
    if settings.get("qos") and "qos" not in facts.given:
        yield JobLine("qos", settings["qos"], f"from {facts.program.origin}")
    if "time" in facts.given:
        yield from _given(facts, "time")
    else:
        yield _time_line(settings.get("time", ""), partition)


def _given(facts: FirstJobFacts, name: str) -> Iterator[JobLine]:
    yield JobLine(name, "...", f"given by {facts.given[name]}", is_only_shown=True)


def _named(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; others: {', '.join(names[:_MOST_NAMED])}{more}"


def _partition_comment(one: OfferedPartition, others: str) -> str:
    gpus = f" and {one.gpus} GPUs" if one.gpus else ""
    kind = "the default; " if one.is_default else ""
    return f"{kind}{one.nodes} nodes with {one.cpus} CPUs{gpus}{others}"


def _time_line(asked: str, partition: OfferedPartition | None) -> JobLine:
    limit_s = None if partition is None else seconds(partition.limit)
    told = f"; the partition allows {partition.limit}" if partition is not None else ""
    comment = f"of each start, the run goes on in the next one{told}"
    if asked:
        return JobLine("time", asked, f"time limit {comment}")
    is_short = limit_s is not None and limit_s < USUAL_S
    return JobLine("time", slurm_time_text(int(limit_s or 0)) if is_short else "4h", f"time limit {comment}")


def _of_size(facts: FirstJobFacts) -> Iterator[JobLine]:
    """Yield nodes, GPUs, workers and CPUs."""
    settings, partition = facts.program.settings, chosen_partition(facts)
    nodes = settings.get("nodes", "1")
    kept = 'or a range, "2:4": then the run goes on while at least 2 are left'
    yield JobLine("nodes", int(nodes) if nodes.isdigit() else nodes, kept)
    gpus = settings.get("gpus_per_node") or str(partition.gpus if partition is not None else 0)
    if gpus != "0":
        yield JobLine("gpus_per_node", int(gpus) if gpus.isdigit() else gpus, "one worker for each GPU")
    if count := settings.get("workers_per_node", ""):
        is_same = gpus.rpartition(":")[2] == count
        yield JobLine("workers_per_node", int(count), f"from {facts.program.origin}", is_only_shown=is_same)
    cpus = partition.cpus if partition is not None else 0
    if gpus != "0":
        comment = f"whole nodes with all their CPUs, or: cpus_per_node = {cpus or 16}"
        yield JobLine("exclusive", value=True, comment=comment)
    else:
        told = f"of {cpus} on each node" if cpus else "on each node"
        yield JobLine("cpus_per_node", min(cpus, _MOST_CPUS) or 1, told)
    if settings.get("mem"):
        yield JobLine("mem", settings["mem"], f"on each node, from {facts.program.origin}")


def _of_rest(facts: FirstJobFacts) -> Iterator[JobLine]:
    count = facts.program.settings.get("max_restarts", "")
    if count:
        yield JobLine("max_restarts", int(count), f"from {facts.program.origin}")
    if facts.is_local:
        yield JobLine(
            "allow_local_run_dir",
            value=True,
            comment="other machines may not see this directory: for jobs on several nodes use a shared one",
        )
