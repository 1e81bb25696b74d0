"""A job script of the user's own, changed so that its run survives the faults of the cluster. Pure.

The script stays the user's: only the line that starts torchrun changes, and the options for Slurm. A script
whose torchrun is started by srun on each node keeps its srun.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from hpc_elastic.errors import InputError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import RUNS_FOLDER, Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.adopt.torchrun_line import Line, as_it_is, find_line
from hpc_elastic.slurm.job.shell_text import code_of

_SRUN = re.compile(r"(?<![\w./-])srun(?=\s)")
_SRUN_LINE = 'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill'

_RUN_DIR = f'"${{{Env.RESUME}:-${{SLURM_SUBMIT_DIR:-$PWD}}/{RUNS_FOLDER}/run-$SLURM_JOB_ID}}"'
SIGNALS = "TERM INT HUP USR1 USR2"
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
_CONTAINERS = r"(?<!\S)(?:singularity|apptainer|enroot|podman|docker|shifter|charliecloud|ch-run)\s"
_SRUN_FLAGS = (
    ("--nodes", '--nodes="$SLURM_JOB_NUM_NODES"', ("-N",)),
    ("--ntasks", '--ntasks="$SLURM_JOB_NUM_NODES"', ("-n",)),
    ("--ntasks-per-node", "--ntasks-per-node=1", ()),
    ("--kill-on-bad-exit", "--kill-on-bad-exit=0", ("-K",)),
    ("--wait", "--wait=0", ("-W",)),
    ("--no-kill", "--no-kill", ("-k",)),
)
_PER_TASK = (
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_TRES_BIND",  # by which Slurm 26.05 gives a task one GPU, however many its step has
    "SLURM_GPUS_PER_TASK",
)
_PER_TASK_OPTION = re.compile(r"\s(?:-c|--(?:cpus|gpus|tres)-per-task)(?=[\s=\d])")
_GPUS_PER_TASK = re.compile(r"\s--gpus-per-task[\s=]+(?:[^\s:]+:)?(\d+)")
_ANY_GPUS = re.compile(r"(?:^|\s)(?:-G|--gpus[\w-]*|--gres|--tres-per-task)(?=[\s=\d])")
_ALL_GPUS = "--gpus=$((${{SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}} * {per_task}))"
_LEAD_S = 120
_MARK = "\ufeff"  # editors of Windows begin a file with it
_ISOLATED = "-I -m hpc_elastic"


class Change(NamedTuple):
    """One change, and the reason for it."""

    what: str
    why: str


_SRUN_TRAP = Change(
    f"trap : {SIGNALS}", "Slurm signals this shell, too; it must not end before the agent has saved"
)
_SRUN_LEAVE = Change(
    '[ "$ended" = 0 ] || exit "$ended"', "the commands behind it run only where the training is over"
)
_LEAVE = Change(
    f'[ "$finished" != {int(ExitCode.REQUEUE)} ] || exit "$finished"',
    "the commands behind it do not run before the training is over: the job is queued once more",
)
_KEEP_STRICT = Change("strict=$-", "whether set -e is in force, perhaps by a script that is sourced")
_END_STRICT = Change("set +e", "with set -e the script would end before finish")
_END_TRAP = Change("trap - ERR", "a trap of ERR may end the script before finish")
_LEAVE_STRICT = Change(
    'case $strict in *e*) [ "$finished" = 0 ] || exit "$finished"; set -e ;; esac',
    "where set -e was in force, the rest runs only if all went well, and it holds again",
)
_LEAVE_TRAPPED = Change(
    '[ "$finished" = 0 ] || exit "$finished"', "as with a trap of ERR that ends the script"
)
_STRICT = re.compile(
    r"(?<![\w./-])(?:set[ \t](?:[^\n;&|]*[ \t])?-[a-zA-Z]*e[a-zA-Z]*(?![\w-])"
    r"|(?:set|shopt)[ \t][^\n;&|]*errexit)"
)
_NOT_STRICT = re.compile(r"^set[ \t]+\+(?:e|o[ \t]+errexit)[ \t]*$", re.MULTILINE)
_SOURCED = re.compile(r"(?:^|[;&|({]|\b(?:then|do|else))[ \t]*(?:source|\.)[ \t]+([^\s;&|)]+)", re.MULTILINE)
_EVALUATED = re.compile(r"(?:^|[;&|({]|\b(?:then|do|else))[ \t]*eval[ \t]([^\n;&|]*)", re.MULTILINE)
_KNOWN_SOURCES = re.compile(  # they leave set -e as it is
    r".*?(?:(?:^|/)(?:activate|conda\.sh|mamba\.sh|setvars\.sh|\.?bashrc|\.?(?:bash_)?profile)|^/etc/.*|.*/init/\w+)"
)
_ON_ERROR = re.compile(r"(?<![\w./-])trap[ \t][^\n;&|]*(?<!\w)ERR(?!\w)")


_TRAP = Change(
    f"trap : {SIGNALS}", "Slurm signals the script, too; it must live on to decide about a requeue"
)
_FINISH = Change(
    "hpc-elastic finish at the end",
    "requeues the job after a preemption, a time limit or a lost node, which Slurm alone often does not; "
    "never a cancelled or a finished one",
)
_BEGINS = Change(
    "hpc-elastic finish --begins ahead of it",
    "in a further start it records ends of earlier ones that no process was left to record, and nothing is "
    "started if a budget is spent by them",
)
_IN_CONTAINER = Change(
    "the container", "has to have hpc_elastic, too; finish runs on the host, which has Slurm"
)
_PYXIS = re.compile(r"(?<![\w-])--container-image(?![\w-])")


class Adopted(NamedTuple):
    """A changed script."""

    text: str
    changes: tuple[Change, ...]
    job_script: tuple[str, ...] = ()  # lines for the script that has srun run this one on each node


def adopt(text: str, name: str, *, is_found_isolated: bool = True) -> Adopted:
    """Return a script whose torchrun is replaced by our agent, with the list of changes.

    Args:
        text: of the script.
        name: of the script, for messages.
        is_found_isolated: whether ``python -I`` finds this package; not if only PYTHONPATH leads to it.

    Raises:
        InputError: it is no script of a POSIX shell, starts no torchrun, several, or one that finish cannot
            follow, or is ours already.
    """
    plain, shell, line = find(text, name, is_found_isolated=is_found_isolated)
    if line.is_piped and "bash" not in shell:
        raise InputError(
            f"torchrun in line {line.number} has `|` behind it, and only bash tells how it ended",
            where=name,
            fix="begin the script with #!/bin/bash, or leave the output to #SBATCH --output",
        )
    lines = plain.split("\n")
    header, header_changes = _header(lines)
    before = _insert_options(lines[: line.first], header)
    gpus = _all_gpus(before, line)
    command, command_changes = _changed_command(line, gpus)
    known = _strictness(before)
    tail, tail_changes = _tail(lines, line.last + 1, known)
    strict = [
        *([_KEEP_STRICT, _END_STRICT] if known.by_option else []),
        *([_END_TRAP] if known.by_trap else []),
    ]
    whole = _whole_node(before, "\n".join(command))
    changed = [
        *before,
        *(change.what for change in strict),
        *(change.what for change in whole),
        f"trap : {SIGNALS}  # this shell outlives the signals that the agents save for",
        *begin_lines(line),
        *command,
        *_finish(line),
        *tail,
    ]
    changes = (
        *_line_ends(text),
        *header_changes,
        *_unread_options(lines),
        *strict,
        *whole,
        _TRAP,
        *_own_traps(lines[: line.first]),
        *command_changes,
        *([_IN_CONTAINER] if _PYXIS.search(plain) and _IN_CONTAINER not in command_changes else []),
        _FINISH,
        _BEGINS,
        *tail_changes,
        *_own_requeues(changed),
    )
    return Adopted("\n".join(changed) + "\n", changes)


def find(text: str, name: str, *, is_found_isolated: bool) -> tuple[str, str, Line]:
    """Return a script with plain line ends, its shell, and its command that starts torchrun.

    Args:
        text: of the script.
        name: of the script, for messages.
        is_found_isolated: as `adopt`.

    Raises:
        InputError: as `adopt`.
    """
    plain = text.removeprefix(_MARK).replace("\r\n", "\n").rstrip("\n")
    plain += "\n" * plain.endswith("\\")  # the empty line that ends a command is part of it
    shell = _shell(plain, name)
    line = find_line(plain, name)
    if not is_found_isolated:
        line = line._replace(program=re.sub(rf"{_ISOLATED}\Z", _ISOLATED.removeprefix("-I "), line.program))
    return plain, shell, line


def _shell(text: str, name: str) -> str:
    """Return the shell of a script.

    Raises:
        InputError: it is of another language.
    """
    first = text.partition("\n")[0]
    words = [word for word in first.removeprefix("#!").split() if not word.startswith("-")]
    programs = [word.rpartition("/")[2] for word in words]
    program = next((word for word in programs if word != "env"), "")
    if not first.startswith("#!") or program in _SHELLS:
        return program
    raise InputError(
        f"it is a script of {program or repr(first)}, not of bash or sh",
        where=name,
        fix=as_it_is(name),
    )


def _line_ends(text: str) -> Iterator[Change]:
    if text.startswith(_MARK):
        yield Change("the byte order mark at the begin is taken out", "sbatch refuses a script that has one")
    if "\r\n" in text:
        yield Change("line ends of Windows are taken out", "sbatch refuses a script that has them")


def _own_traps(lines: list[str]) -> Iterator[Change]:
    """Yield the notes about traps of the user's that ours replaces."""
    for number, line in enumerate(lines, 1):
        if re.match(rf"\s*trap\s.*\b(?:{SIGNALS.replace(' ', '|')})\b", line):
            yield Change(
                f"trap in line {number} no longer acts once the training begins",
                "the agents hear these signals and have the workers save",
            )


def _unread_options(lines: list[str]) -> Iterator[Change]:
    """Yield the notes about options that sbatch does not read, or that ours overrule."""
    first = _first_command(lines)
    for number, line in enumerate(lines, 1):
        if number > first and line.startswith("#SBATCH"):
            yield Change(
                f"{line.strip()} in line {number} has no effect",
                f"sbatch reads no options behind the first command, in line {first + 1}: move it above",
            )
        elif line.startswith("#SBATCH") and re.search(r"\s--no-requeue(?=\s|$)", line):
            yield Change(
                f"--no-requeue in line {number} has no effect",
                "--requeue stands behind it: without that a preempted job does not come back",
            )


def _own_requeues(lines: list[str]) -> Iterator[Change]:
    """Yield the notes about lines of the user's that requeue the job, too."""
    for number, line in enumerate(lines, 1):
        if re.search(r"(?<![\w./-])scontrol\s+requeue", line) and not _comment(line):
            yield Change(
                f"scontrol requeue in line {number} of the new script stays",
                "take it out: finish has decided by then, and a training that has failed would come back",
            )


class _Strict(NamedTuple):
    """The settings that may end a script at the first command that fails, as far as they are seen."""

    by_option: bool
    by_trap: bool


def _strictness(lines: list[str]) -> _Strict:
    """Tell which settings may end the shell before finish; the shell alone knows whether they are in force.

    A ``set -e`` in any place counts: behind ``&&``, in a block, in a function, and in a script that is
    sourced, unless that is a well-known one. Its end counts in a line of its own, outside of all blocks.
    """
    text = "\n".join(lines)
    code = code_of(text)
    off = [found.end() for found in _NOT_STRICT.finditer(code)]
    words = lines[0].split()[1:] if lines and lines[0].startswith("#!") and not off else []
    by_line = any(re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", word) for word in words)
    start = max(off, default=0)
    by_text = _STRICT.search(code, start) is not None or _evaluates(_STRICT, text, code, start)
    by_option = by_line or by_text or _sources_any(text, code, start)
    return _Strict(by_option, _ON_ERROR.search(code) is not None or _evaluates(_ON_ERROR, text, code))


def _evaluates(what: re.Pattern[str], text: str, code: str, start: int = 0) -> bool:
    """Tell whether an ``eval`` has something in its words, which may stand in quotes."""
    return any(what.search(text[slice(*found.span(1))]) for found in _EVALUATED.finditer(code, start))


def _sources_any(text: str, code: str, start: int) -> bool:
    """Tell whether a script of the user's is sourced, which may have ``set -e``."""
    names = (text[slice(*found.span(1))].strip("\"'") for found in _SOURCED.finditer(code, start))
    return any(_KNOWN_SOURCES.fullmatch(name) is None for name in names)


def _comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _header(lines: list[str]) -> tuple[list[str], list[Change]]:
    """Return the options that sbatch is to get, and why."""
    given = [line for line in lines[: _first_command(lines)] if line.startswith("#SBATCH")]

    def has(*names: str) -> bool:
        return any(re.search(rf"\s{re.escape(name)}(?=[\s=]|$)", line) for line in given for name in names)

    wanted: tuple[tuple[bool, str, str], ...] = (
        (has("--requeue"), "--requeue", "the job may be started again"),
        (has("--open-mode"), "--open-mode=append", "a second start does not overwrite the log of the first"),
        (has("--no-kill", "-k"), "--no-kill", "a lost node does not end the others"),
        (
            has("--signal"),
            f"--signal=USR2@{_LEAD_S}",
            f"the agents are warned {_LEAD_S} s before the time limit; give it the time that saving takes",
        ),
    )
    missing = [(option, why) for is_there, option, why in wanted if not is_there]
    changes = [Change(f"#SBATCH {option}", why) for option, why in missing]
    if any(_warn_agents(line) != line for line in given):
        changes.append(Change("#SBATCH --signal without B:", "the warning goes to the agents, which save"))
    return [f"#SBATCH {option}" for option, _ in missing], changes


def _whole_node(lines: Sequence[str], command: str) -> list[Change]:
    """Return the change by which an agent gets its whole node, where options ask for parts of it per task.

    Args:
        lines: of the script, up to its command.
        command: the changed command; a variable that it uses itself stays.
    """
    given = [line for line in lines if line.startswith("#SBATCH")]
    if not any(_PER_TASK_OPTION.search(line) for line in given):
        return []
    names = [name for name in _PER_TASK if not re.search(rf"\b{name}\b", command)]
    return [Change(f"unset {' '.join(names)}", "an agent gets all CPUs and GPUs of its node, not one task's")]


def _all_gpus(lines: Sequence[str], line: Line) -> str:
    """Return the option by which srun gives its one task of a node all GPUs of the job there, or nothing.

    Args:
        lines: of the script, up to its command.
        line: the command.
    """
    given = (_GPUS_PER_TASK.search(each) for each in lines if each.startswith("#SBATCH"))
    found = next(filter(None, given), None)
    if found is None or _ANY_GPUS.search(line.options):
        return ""
    return " " + _ALL_GPUS.format(per_task=found[1])


def _first_command(lines: list[str]) -> int:
    """Return the number of the first line with a command: sbatch reads no options behind it."""
    return next((at for at, line in enumerate(lines) if line.strip() and not _comment(line)), len(lines))


def _insert_options(lines: list[str], options: list[str]) -> list[str]:
    """Return the lines before the command, with further options behind the last one."""
    above = lines[: _first_command(lines)]
    last = max((at for at, line in enumerate(above) if line.startswith("#SBATCH")), default=-1)
    place = last + 1 if last >= 0 else (1 if lines and lines[0].startswith("#!") else 0)
    before = [_warn_agents(line) for line in lines[:place]]
    return [*before, *options, *lines[place:]]


def _warn_agents(line: str) -> str:
    """Return an option line whose warning goes to the agents, not to the script alone."""
    return re.sub(r"(--signal[= ])[BR]{1,2}:", r"\1", line) if line.startswith("#SBATCH") else line


def _changed_command(line: Line, gpus: str = "") -> tuple[list[str], list[Change]]:
    """Return the lines of the command with our agent in place of torchrun.

    Args:
        line: the command.
        gpus: a further option of srun.
    """
    changes = [
        Change(
            f"{line.program} run --run-dir {_RUN_DIR} instead of torchrun",
            "its flags stay as they are; the nodes meet in the directory, so that no host is special",
        )
    ]
    if line.program.endswith(_ISOLATED):
        changes.append(
            Change("python -I", "files in the working directory take no part in the imports of the agents")
        )
    options, ends_others = _let_others_live(line.options)
    changes += ends_others
    missing = [flag for name, flag, short in _SRUN_FLAGS if not _given(options, name, short)]
    added = "".join(f" {flag}" for flag in missing) + gpus
    if not line.has_srun:
        options = f"{added} {options}"
        changes.append(Change("srun", "starts one agent on each node, and keeps a lost one from ending all"))
    elif added:
        options = added + options
        changes.append(Change(f"srun{added}", "one agent per node; one that ends does not end the others"))
    if line.is_launch:
        changes.append(Change("LOCAL_RANK", "is in the environment; no --local-rank is passed to the script"))
    if re.search(_CONTAINERS, options):
        changes.append(_IN_CONTAINER)
    return f"{line.head}srun{options}{agent_command(line)}".split("\n"), changes


def agent_command(line: Line) -> str:
    """Return our agent in the place of torchrun, with the words behind it."""
    place = _RUN_DIR.replace('"', '\\"') if line.quote == '"' else _RUN_DIR
    return f"{line.program} run --run-dir {place}{line.tail}"


def _let_others_live(options: str) -> tuple[str, list[Change]]:
    """Take back an option of srun by which one agent that leaves ends all others."""
    pattern = r"(?<=\s)(?:--kill-on-bad-exit(?:=[1-9]\d*)?|-K[1-9]*)(?=\s)"
    found = re.search(pattern, options)
    if found is None:
        return options, []
    told = Change(f"--kill-on-bad-exit=0 instead of {found[0]}", "an agent that leaves would end all others")
    return re.sub(pattern, "--kill-on-bad-exit=0", options), [told]


def _given(options: str, name: str, short: tuple[str, ...]) -> bool:
    words = [name, *short]
    return any(re.search(rf"(?:^|\s){re.escape(word)}(?=[\s=\d\\\"$]|\Z)", options) for word in words)


def _finish(line: Line) -> list[str]:
    """Return the lines that decide which commands come after the training."""
    return [f"ended={ended_of(line)}", f"trap '' {SIGNALS}", finish_line(line)]


def ended_of(line: Line) -> str:
    """Return the name under which the shell knows the command's exit code."""
    return "${PIPESTATUS[" + str(line.place_in_pipe) + "]}" if line.is_piped else "$?"


def finish_line(line: Line) -> str:
    """Return the command that decides the fate of the job."""
    return f'{_finish_command(line)} --srun-exit-code "$ended" --max-relaunch 0'


def begin_lines(line: Line) -> list[str]:
    """Return the lines ahead of the training: a further start looks after the ends of earlier ones."""
    begins = f"begins=$(trap '' {SIGNALS}; {_finish_command(line)} --max-relaunch 0 --begins)"
    return [
        "begins=",
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || {begins}',
        'ended=$?; [ "$begins" != 0 ] || exit "$ended"',
    ]


def _finish_command(line: Line) -> str:
    return f"{line.environment}{line.program} finish --run-dir {_RUN_DIR}"


def _tail(lines: list[str], end: int, strict: _Strict) -> tuple[list[str], list[Change]]:
    """Return the lines that follow the command, as far as they may: the exit code is now that of `finish`."""
    rest, changes = list(lines[end:]), []
    first = next((at for at, line in enumerate(rest) if line.strip() and not _comment(line)), len(rest))
    handed_on = re.fullmatch(r"\s*(?:exit\s+\"?\$\?\"?|(\w+)=\$\?)\s*", rest[first]) if rest[first:] else None
    behind = [line for line in rest[first + 1 :] if line.strip() and not _comment(line)]
    if handed_on and all(_exits_with(line, handed_on[1]) for line in behind):
        changes.append(Change(f"without {rest[first].strip()}", "the script ends with the code of finish"))
        return [line for line in rest[:first] if line.strip()], changes
    if rest[first:]:
        rest[first] = re.sub(r"\$\?|\$\{\?\}", "$finished", rest[first])
        leave = [_LEAVE_TRAPPED] if strict.by_trap else [_LEAVE]
        leave += [_LEAVE_STRICT] if strict.by_option else []
        rest = ["finished=$?", *(change.what for change in leave), *rest, 'exit "$finished"']
        changes += [
            *leave,
            Change(
                "exit with the code that finish has returned",
                "commands behind it do not hide how the job ended",
            ),
        ]
    return rest, changes


def _exits_with(line: str, name: str | None) -> bool:
    """Tell whether a line does nothing but end the script with a code that was kept under a name."""
    return bool(name) and re.fullmatch(rf"\s*exit\s+\"?\$\{{?{name}\}}?\"?\s*", line) is not None


def is_per_node(text: str) -> bool:
    """Tell whether only srun can run a script: sbatch takes none without a first line ``#!``."""
    return not text.startswith("#!") and "#SBATCH" not in text and not _SRUN.search(code_of(text))


def adopt_per_node(text: str, name: str, *, is_found_isolated: bool = True) -> Adopted:
    """Return a script whose torchrun is replaced by our agent, with the lines that its job script is to have.

    Args:
        text: of the script.
        name: of the script, for messages.
        is_found_isolated: as `adopt`.

    Raises:
        InputError: as `adopt`, or the script starts srun itself.
    """
    plain, _shell, line = find(text, name, is_found_isolated=is_found_isolated)
    if line.has_srun:
        raise InputError(
            f"torchrun in line {line.number} is started by srun: no script that srun runs on each node",
            where=name,
            fix="leave --per-node out",
        )
    lines = plain.split("\n")
    rest = [each for each in lines[line.last + 1 :] if each.strip()]
    leave = [f"ended={ended_of(line)}", _SRUN_LEAVE.what] if rest or line.is_piped else []
    command = f"{line.head}{line.options.lstrip()}{agent_command(line)}"
    changed = [*lines[: line.first], _SRUN_TRAP.what, *command.split("\n"), *leave, *lines[line.last + 1 :]]
    changes = (
        Change(
            f"{line.program} run instead of torchrun, in its place",
            "srun runs this script on each node already; the nodes meet in the run directory",
        ),
        _SRUN_TRAP,
        *([_SRUN_LEAVE] if leave else []),
    )
    return Adopted("\n".join(changed).rstrip("\n") + "\n", changes, _job_script(name, line))


def _job_script(name: str, line: Line) -> tuple[str, ...]:
    """Return the lines that the script is to have which runs this one."""
    return (
        "#SBATCH --requeue --open-mode=append --no-kill --signal=USR2@120",
        f"trap : {SIGNALS}",
        *begin_lines(line),
        f"{_SRUN_LINE} bash {shlex.quote(name)}",  # noqa: TID251 - a line of a script
        "ended=$?",
        f"trap '' {SIGNALS}",
        finish_line(line),
    )
