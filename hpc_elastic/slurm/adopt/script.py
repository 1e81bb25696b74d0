"""A job script of the user's own, changed so that its run survives the faults of the cluster. Pure.

The script stays the user's: only the command that starts its training changes, and the options for Slurm.
A script whose launcher is started by srun on each node keeps its srun. Where the result cannot be shown to be
right, nothing is changed; a draft marks the places that are left.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from hpc_elastic.errors import InputError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import RUNS_FOLDER, Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.adopt.checks import (
    CONTAINER,
    AgentPlan,
    Program,
    end_of_wait,
    plan_of,
)
from hpc_elastic.slurm.adopt.facts import (
    SIGNALS,
    AskedOptions,
    OwnTraps,
    assigned,
    facts_of,
    own_traps,
    split_options,
    words_of,
)
from hpc_elastic.slurm.adopt.launch import (
    SRUN,
    Edit,
    JobText,
    Kind,
    LaunchLine,
    NotShownError,
    as_it_is,
    find_launches,
)
from hpc_elastic.slurm.job.own_script import names_in
from hpc_elastic.slurm.job.shell_text import COMMENT, QUOTED, SUBSTITUTED, code_of

_SRUN_LINE = 'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill'

_RUN_DIR = f'"${{{Env.RESUME}:-${{SLURM_SUBMIT_DIR:-$PWD}}/{RUNS_FOLDER}/run-$SLURM_JOB_ID}}"'
_ALL_SIGNALS = " ".join(SIGNALS)
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
_SRUN_FLAGS = (
    ("--nodes", "--nodes={nodes}", ("-N",)),
    ("--ntasks", "--ntasks={nodes}", ("-n",)),
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
_PER_TASK_OPTIONS = ("cpus-per-task", "gpus-per-task", "tres-per-task")
_ANY_GPUS = re.compile(r"(?:^|\s)(?:-G|--gpus[\w-]*|--gres|--tres-per-task)(?=[\s=\d])")
_ALL_GPUS = "--gpus=$((${{SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}}{of_nodes} * {per_task}))"
_LEAD_S = 120
_LEFT = "LEFT TO YOU"
_MARK = "\ufeff"  # editors of Windows begin a file with it
_LOCAL_RANK = (
    'import torch; print("--local-rank" if int(torch.__version__.split(".")[0]) > 1 else "--local_rank")'
)


class Change(NamedTuple):
    """One change, and the reason for it."""

    what: str
    why: str


_SRUN_TRAP = Change(
    f"trap : {_ALL_SIGNALS}", "Slurm signals this shell, too; it must not end before the agent has saved"
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
_STRICT_AGAIN = Change("case $strict in *e*) set -e ;; esac", "where set -e was in force, it holds again")
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
    f"trap : {_ALL_SIGNALS}", "Slurm signals the script, too; it must live on to decide about a requeue"
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


_FOREGROUND = Change(
    "no `&` and no `wait`", "the training runs in the foreground: the agents hear the signals"
)
_ENDS = Change(
    "exit with the code that finish has returned", "commands behind it do not hide how the job ended"
)


class Adopted(NamedTuple):
    """A changed script."""

    text: str
    changes: tuple[Change, ...]
    job_script: tuple[str, ...] = ()  # lines for the script that has srun run this one on each node


class NotAdoptedError(InputError):
    """A script stays as it is.

    Args:
        message: the reason.
        where: the script.
        fix: the command that runs it as it is.
        draft: a new script with the places that are left to the user; empty if no launcher was found.
    """

    def __init__(self, message: str, *, where: str, fix: str, draft: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.draft = draft


class _Job(NamedTuple):
    """A script with all that is known about it.

    Attributes:
        script: with plain line ends.
        facts: of its options.
        traps: its own.
        ours: the words that start this package's commands.
    """

    script: JobText
    facts: AskedOptions
    traps: OwnTraps
    ours: str


def adopt(
    text: str, name: str, ours: Sequence[str] = ("hpc-elastic",), program: Program = lambda _: None
) -> Adopted:
    """Return a script whose launcher is replaced by our agent, with the list of changes.

    Args:
        text: of the script.
        name: of the script, for messages.
        ours: the program of this package, which runs on all nodes of the job.
        program: returns the text of a program in Python by its name in the script, if it can be read.

    Raises:
        NotAdoptedError: a changed script cannot be shown to be right.
        InputError: it is no script of a POSIX shell, starts nothing that agents could, or is ours already.
    """
    job, shell = _job_of(text, name, ours)
    number = 0
    try:
        launches = find_launches(job.script)
        number = launches[0].number
        plans = [plan_of(job.script, one, job.facts, job.traps, program) for one in launches]
        _check_pipes(launches, shell)
        return _changed(text, job, launches, plans)
    except NotShownError as error:
        number = number or error.number
        draft = _draft(str(error), job, number) if number else ""
        fix = as_it_is(name) + error.more
        raise NotAdoptedError(str(error), where=name, fix=fix, draft=draft) from None


def _job_of(text: str, name: str, ours: Sequence[str]) -> tuple[_Job, str]:
    """Return a script with all that is known about it, and its shell.

    Raises:
        InputError: it is of another language.
    """
    plain, shell = _plain(text, name)
    script = JobText.of(name, plain)
    words = " ".join(map(shlex.quote, ours))  # noqa: TID251 - a line of a script
    return _Job(script, _facts(plain), own_traps(script), words), shell


def _check_pipes(launches: Sequence[LaunchLine], shell: str) -> None:
    piped = next((one for one in launches if one.is_piped), None)
    if piped is not None and "bash" not in shell:
        what = f"{piped.kind.value} in line {piped.number}"
        raise NotShownError(f"{what} has `|` behind it, and only bash tells how it ended")


def _plain(text: str, name: str) -> tuple[str, str]:
    """Return a script with plain line ends, and its shell.

    Raises:
        InputError: it is of another language.
    """
    plain = text.removeprefix(_MARK).replace("\r\n", "\n").rstrip("\n")
    plain += "\n" * plain.endswith("\\")  # the empty line that ends a command is part of it
    return plain, _shell(plain, name)


def _facts(plain: str) -> AskedOptions:
    lines = plain.split("\n")
    return facts_of(line for line in lines[: _first_command(lines)] if line.startswith("#SBATCH"))


def _changed(text: str, job: _Job, launches: list[LaunchLine], plans: list[AgentPlan]) -> Adopted:
    """Return a script in which agents start the training."""
    plain, last = job.script.text, launches[-1]
    lines = plain.split("\n")
    header, header_changes = _header(lines)
    is_alone = len(launches) == 1 and not last.is_nested
    known = _strictness((plain[: last.start] if is_alone else plain).split("\n"))
    edits: list[Edit] = []
    changes: list[Change] = [*_line_ends(text), *header_changes, *_unread_options(lines)]
    for launch, plan in zip(launches, plans, strict=True):
        block, told = _block(job, launch, plan, known)
        end = launch.end
        if launch.operator == "&":
            end = end_of_wait(job.script, launch)
            told.append(_FOREGROUND)
        block += [] if is_alone else _behind(launch, known)
        edits += [Edit(launch.start, end, "\n".join(block)), *_kept_edits(job, launch, plan)]
        changes += told
    traps, trap_changes = _without_traps(job, edits)
    if is_alone:
        new, tail_changes = _with_tail(plain, edits, traps, last, known)
    else:
        new, tail_changes = _applied(plain, [*edits, *traps]) + '\nexit "${finished:-$?}"', [_ENDS]
    with_header = _insert_options(new.split("\n"), header)
    changes += [*trap_changes, *tail_changes, _FINISH, _BEGINS, *_array(job.facts)]
    return Adopted("\n".join(with_header) + "\n", tuple(dict.fromkeys(changes)))


def _with_tail(
    plain: str, edits: Sequence[Edit], traps: Sequence[Edit], launch: LaunchLine, known: _Strict
) -> tuple[str, list[Change]]:
    """Return a script whose one training stands in no block, with the lines behind it."""
    main, *others = edits
    before = _applied(plain[: main.start], [one for one in (*others, *traps) if one.end <= main.start])
    later = [one for one in traps if one.start >= main.end]
    moved = [one._replace(start=one.start - main.end, end=one.end - main.end) for one in later]
    rest = _applied(plain[main.end :], moved)
    tail, changes = _tail(launch, rest.split("\n")[1:], known)
    head = before.split("\n")[:-1] if before else []
    return "\n".join([*head, main.text, *tail]), changes


def _applied(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with some parts of it replaced."""
    for edit in sorted(edits, reverse=True):
        text = f"{text[: edit.start]}{edit.text}{text[edit.end :]}"
    return text


def _array(facts: AskedOptions) -> Iterator[Change]:
    if facts.is_array:
        yield Change(
            "#SBATCH --array",
            "each task is a run of its own, run-<id of its job>, and comes back alone; a later task does not "
            "go on with the run of an earlier one",
        )


def _block(job: _Job, launch: LaunchLine, plan: AgentPlan, known: _Strict) -> tuple[list[str], list[Change]]:
    """Return the lines in the place of a launch, up to the end of finish, with their reasons."""
    command, changes = _changed_command(job, launch, plan)
    strict = [
        *([_KEEP_STRICT, _END_STRICT] if known.by_option else []),
        *([_END_TRAP] if known.by_trap else []),
    ]
    whole = _whole_node(job.facts, "\n".join(command))
    indent = re.match(r"[ \t]*", launch.pre or launch.head or job.script.text[launch.start :])
    space = indent[0] if indent and launch.is_nested else ""
    lines = [
        *(change.what for change in strict),
        *(change.what for change in whole),
        f"trap : {_ALL_SIGNALS}  # this shell outlives the signals that the agents save for",
        *begin_lines(job.ours),
    ]
    if launch.variables:
        lines.append(f"export PET_RUN_DIR={_RUN_DIR}  # --run-dir of the agents")
    if launch.kind is Kind.LAUNCH and not _uses_env(job, launch):
        lines.append(f"export rank_flag=$({launch.python} -c {shlex.quote(_LOCAL_RANK)})")  # noqa: TID251 - a line of a script
        changes.append(
            Change("rank_flag=...", "the flag by which this version of torch tells a worker its local rank")
        )
    bind = CONTAINER.search(launch.options)
    if bind is not None and launch.kind is not Kind.PYTHON:
        name = f"{bind[1].upper()}_BIND"
        lines.append(f'export {name}="${{{name}:+${name},}}{_RUN_DIR[1:-1]}"')
        changes.append(
            Change(f"{name}", "the run directory is mounted in the container, for the workers' error files")
        )
    pre = [launch.pre.rstrip()] if launch.pre.strip() else []
    after = [f"ended={ended_of(launch)}", f"trap '' {_ALL_SIGNALS}", finish_line(job.ours)]
    return [*pre, *(space + line for line in lines), *command, *(space + line for line in after)], [
        *strict,
        *whole,
        _TRAP,
        *changes,
        *(Change(*note) for note in plan.notes),
    ]


def _uses_env(job: _Job, launch: LaunchLine) -> bool:
    words = words_of(launch, assigned(job.script))
    return re.search(r"(?<!\S)--use[-_]env(?!\S)", words) is not None


def _behind(launch: LaunchLine, known: _Strict) -> list[str]:
    """Return the lines behind finish in a block: the rest goes on as behind the training itself."""
    lines = ["finished=$?", _LEAVE.what, *([_STRICT_AGAIN.what] if known.by_option else [])]
    lines += ['exit "$finished"'] if launch.is_executed else _words_behind(launch) or ['(exit "$finished")']
    return lines


def _words_behind(launch: LaunchLine) -> list[str]:
    """Return the words behind a launch in its line, as they hold behind finish."""
    if launch.operator in ("&&", "||"):
        return [f'[ "$finished" = 0 ] {launch.operator}{launch.behind}']
    if launch.operator == ";;":
        return ['(exit "$finished")', f";;{launch.behind}"]
    if launch.operator in (";", ")") and launch.behind.strip():
        return ['(exit "$finished")', launch.behind.strip()]
    return []


def _kept_edits(job: _Job, launch: LaunchLine, plan: AgentPlan) -> list[Edit]:
    """Return the changes of the variables that hold the launcher's words.

    Raises:
        NotShownError: our words cannot stand there.
    """
    if not launch.kept_at:
        return []
    what = f"{launch.kind.value} in line {job.script.line_of(launch.kept_at[0].start)} is kept in a variable"
    if re.search(r"[\\'\"]", job.ours):
        raise NotShownError(f"{what}, which cannot hold the path of our program")
    if launch.kind is Kind.LAUNCH and not _uses_env(job, launch) and not launch.quote:
        raise NotShownError(
            f"{what}, and gives its script a flag for the local rank; adopt cannot see where its words end"
        )
    words = " ".join(
        ("env", f"PYTHON_EXEC={launch.python.strip(chr(34))}", *plan.environment, job.ours, "run")
    )
    words = words.replace("${PET_NPROC_PER_NODE:-1}", "1")  # single quotes would keep it
    if launch.kind is Kind.PYTHON:
        own = (f"--nnodes={plan.nnodes}", f"--nproc-per-node={plan.workers}", *plan.flags, "--no-python")
        words = f"{job.ours} run {' '.join(own)} "
    found = []
    for edit in launch.kept_at:
        begin = job.script.text.rfind("\n", 0, edit.start) + 1
        before = job.script.text[begin : edit.start]
        before = before[before.find("=") + 1 :].strip().lstrip("(")
        if before.lstrip("\"'").strip():
            raise NotShownError(f"{what}, behind other words: {before}")
        flags = "" if launch.has_srun else _flags_in_variable(job, plan, before, what)
        own_words = edit.text if launch.kind is Kind.PYTHON else ""
        found.append(edit._replace(text=f"{flags}{words}{own_words}"))
    return found


def _flags_in_variable(job: _Job, plan: AgentPlan, before: str, what: str) -> str:
    """Return srun with the options of a step of agents, ahead of a launcher in a variable.

    Raises:
        NotShownError: the variable's text is not expanded where it is given.
    """
    nodes = plan.nodes.strip('"')
    if before.startswith("'") and nodes != "1":
        if job.facts.tasks != 1:
            raise NotShownError(f"{what}, in single quotes, and the job has several tasks on a node")
        return "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill "
    return (
        f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill "
    )


def _without_traps(job: _Job, edits: Sequence[Edit]) -> tuple[list[Edit], list[Change]]:
    """Return the changes that take the script's own traps out, which would bring the job back, too."""
    found, changes = [], []
    script = job.script
    for place in job.traps.places:
        part = script.commands[place]
        start = script.code.rfind("\n", 0, part.start + 1) + 1 if part.before == "\n" else -1
        end = script.code.find("\n", part.end)
        end = len(script.text) if end < 0 else end
        own = script.text[part.start : part.end].strip()
        is_alone = start >= 0 and script.text[start:end].strip() == own
        inside = any(edit.start <= part.start < edit.end for edit in edits)
        number = script.line_of(part.end - 1)
        changes.append(
            Change(
                f"the trap in line {number} is taken out"
                if is_alone or inside
                else f"the trap in line {number} no longer acts",
                "the agents hear these signals, and finish decides about a requeue",
            )
        )
        if is_alone and not inside:
            found.append(Edit(start, min(end + 1, len(script.text)), ""))
    return found, changes


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
    names = names_in(given)
    wanted: tuple[tuple[bool, str, str], ...] = (
        ("requeue" in names, "--requeue", "the job may be started again"),
        (
            "open-mode" in names,
            "--open-mode=append",
            "a second start does not overwrite the log of the first",
        ),
        ("no-kill" in names, "--no-kill", "a lost node does not end the others"),
        (
            "signal" in names,
            f"--signal=USR2@{_LEAD_S}",
            f"the agents are warned {_LEAD_S} s before the time limit; give it the time that saving takes",
        ),
    )
    missing = [(option, why) for is_there, option, why in wanted if not is_there]
    changes = [Change(f"#SBATCH {option}", why) for option, why in missing]
    if any(_warn_agents(line) != line for line in given):
        changes.append(Change("#SBATCH --signal without B:", "the warning goes to the agents, which save"))
    return [f"#SBATCH {option}" for option, _ in missing], changes


def _whole_node(facts: AskedOptions, command: str) -> list[Change]:
    """Return the change by which an agent gets its whole node, where options ask for parts of it per task.

    Args:
        facts: of the job.
        command: the changed command; a variable that it uses itself stays.
    """
    if not any(name in _PER_TASK_OPTIONS for name, _ in facts.given):
        return []
    names = [name for name in _PER_TASK if not re.search(rf"\b{name}\b", command)]
    return [Change(f"unset {' '.join(names)}", "an agent gets all CPUs and GPUs of its node, not one task's")]


def _all_gpus(facts: AskedOptions, options: str, nodes: str) -> str:
    """Return the option by which srun gives its one task of a node all GPUs of the job there, or nothing.

    Args:
        facts: of the job.
        options: of srun, or the words before a launcher.
        nodes: of the step.
    """
    if facts.gpus_per_task is None or _ANY_GPUS.search(options):
        return ""
    of_nodes = " / $SLURM_JOB_NUM_NODES" if nodes == "1" else ""
    return " " + _ALL_GPUS.format(per_task=facts.gpus_per_task, of_nodes=of_nodes)


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


def _changed_command(job: _Job, line: LaunchLine, plan: AgentPlan) -> tuple[list[str], list[Change]]:
    """Return the lines of the command with our agent in place of the launcher."""
    what = "of python" if line.kind is Kind.PYTHON else f"instead of {line.kind.value}"
    changes = [
        Change(
            f"{job.ours} run --run-dir {_RUN_DIR} {'ahead ' if line.kind is Kind.PYTHON else ''}{what}",
            "the program that ran adopt starts the workers, so it has to be on all nodes; they have the "
            "script's own Python, and need nothing of ours. The nodes meet in the directory",
        )
    ]
    options, wrapper = split_options(line.options) if line.has_srun else ("", line.options)
    options, told = _let_others_live(options)
    changes += told
    options, told = _one_task(options, line)
    changes += told
    missing = [
        text.format(nodes=plan.nodes) for name, text, short in _SRUN_FLAGS if not _given(options, name, short)
    ]
    is_in_variable = bool(line.variables) and not line.has_srun
    added = "".join(f" {each}" for each in missing) + _all_gpus(job.facts, line.options, plan.nodes)
    if not line.has_srun:
        options = f"{added} {options}"
        changes.append(Change("srun", "starts one agent on each node, and keeps a lost one from ending all"))
    else:  # the last of two options holds, and a variable may have more of them
        options = f"{options.rstrip()}{added} " if "$" in options else added + options
        changes.append(Change(f"srun{added}", "one agent per node; one that ends does not end the others"))
    if is_in_variable:
        return f"{line.head}{line.options}{line.named}{line.tail}".split("\n"), changes
    if line.variables:
        tail = _with_local_rank(job, line)
        return f"{line.head}srun{options}{wrapper}{line.named}{tail}".split("\n"), changes
    return f"{line.head}srun{options}{_agent(job, line, plan, wrapper)}".split("\n"), changes


def _one_task(options: str, line: LaunchLine) -> tuple[str, list[Change]]:
    """Return the options of srun without those of tasks that are workers now, and of restarts by others."""
    changes = []
    if line.kind is Kind.PYTHON:
        for pattern in (
            r"(?<=\s)(?:--ntasks(?:-per-node)?(?:=|\s+)\S+|-n\s*\S+)(?=\s|\Z)",
            r"(?<=\s)--(?:gpus-per-task|gpu-bind|cpus-per-task)(?:=|\s+)\S+(?=\s|\Z)",
            r"(?<=\s)-c\s*\S+(?=\s|\Z)",
        ):
            changes += [
                Change(f"without {found[0]}", "one agent on each node starts the workers")
                for found in re.finditer(pattern, options)
            ]
            options = re.sub(pattern, "", options)
    resumes = re.search(r"(?<=\s)--auto-resume(?:=|\s+)1(?=\s|\Z)", options)
    if resumes is not None:
        options = options.replace(resumes[0], "")
        changes.append(Change(f"without {resumes[0]}", "two that bring a step back get in each other's way"))
    return options, changes


def _agent(job: _Job, line: LaunchLine, plan: AgentPlan, wrapper: str) -> str:
    """Return our agent in the place of a launcher, with the words behind it."""
    place, ours = _RUN_DIR, job.ours
    execs = "exec " if line.needs_exec else ""
    if line.kind is Kind.PYTHON:
        own = (f"--nnodes={plan.nnodes}", f"--nproc-per-node={plan.workers}", *plan.flags, "--no-python")
        return (
            f"{ours} run --run-dir {place} {' '.join(own)} {wrapper.lstrip()}{execs}{line.named}{line.tail}"
        )
    if line.quote == '"':
        place, ours = place.replace('"', '\\"'), re.sub(r'(["$`\\])', r"\\\1", ours)
    if line.quote == "'" and "'" in ours:
        raise NotShownError("the launcher is in single quotes, which cannot hold the path of our program")
    if CONTAINER.search(wrapper) and line.quote:
        flags = " ".join((*plan.flags, "--no-python"))
        words = f"{job.ours} run --run-dir {_RUN_DIR} {flags} {wrapper.lstrip()}"
        return f"{words}exec {line.python} -u {plan.script}"
    wrapper, container = _container_of(wrapper)
    tail = _with_local_rank(job, line)
    variables = " ".join((f"PYTHON_EXEC={line.python}", *plan.environment))
    if plan.script:
        flags = " ".join((f"--nnodes={plan.nnodes}", f"--nproc-per-node={plan.workers}", *plan.flags))
        tail = f" {flags} {plan.script}"
    return f"{wrapper}{execs}env {variables} {ours} run --run-dir {place}{container}{tail}"


def _container_of(wrapper: str) -> tuple[str, str]:
    """Return the words ahead of a container, and the option by which workers are started in it."""
    inside = CONTAINER.search(wrapper)
    if inside is None:
        return wrapper, ""
    text = re.sub(r"\s*\\\n\s*", " ", wrapper[inside.start() :]).strip().replace('"', '\\"')
    return wrapper[: inside.start()], f' --container "{text}"'


def _with_local_rank(job: _Job, line: LaunchLine) -> str:
    """Return the words behind a launcher; torch's oldest one has a flag for the local rank behind them."""
    tail = line.tail
    if line.kind is not Kind.LAUNCH or _uses_env(job, line):
        return tail
    code = job.script.code[line.tail_at : line.tail_at + len(tail)]
    if line.quote:
        end = re.search(f"[^{QUOTED}{SUBSTITUTED}]|\\Z", code)
        at = (end.start() if end else len(tail)) - 1
        flag_words = r" $rank_flag=\\\${local_rank}" if line.quote == '"' else r" $rank_flag=\${local_rank}"
    else:
        end = re.search(rf"\s*(?:(?:\d*|&)[<>]|\||{COMMENT}|\Z)", code)
        at = end.start() if end else len(tail)
        flag_words = ' "$rank_flag=\\${local_rank}"'
    while at and tail[at - 1] in " \n\\\t":
        at -= 1
    return f"{tail[:at]}{flag_words}{tail[at:]}"


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


def ended_of(line: LaunchLine) -> str:
    """Return the name under which the shell knows the command's exit code."""
    return "${PIPESTATUS[" + str(line.place_in_pipe) + "]}" if line.is_piped else "$?"


def finish_line(ours: str) -> str:
    """Return the command that decides the fate of the job."""
    return f'{ours} finish --run-dir {_RUN_DIR} --srun-exit-code "$ended" --max-relaunch 0'


def begin_lines(ours: str) -> list[str]:
    """Return the lines ahead of the training: a further start looks after the ends of earlier ones."""
    look = f"{ours} finish --run-dir {_RUN_DIR} --max-relaunch 0 --begins"
    begins = f"begins=$(trap '' {_ALL_SIGNALS}; {look})"
    return [
        "begins=",
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || {begins}',
        'ended=$?; [ "$begins" != 0 ] || exit "$ended"',
    ]


def _tail(launch: LaunchLine, rest: list[str], strict: _Strict) -> tuple[list[str], list[Change]]:
    """Return the lines that follow the command, as far as they may: the exit code is now that of `finish`."""
    changes: list[Change] = []
    if launch.is_executed:
        return [], [Change("without exec", "this shell decides when the training has ended")]
    behind = _words_behind(launch)
    first = next((at for at, line in enumerate(rest) if line.strip() and not _comment(line)), len(rest))
    handed_on = re.fullmatch(r"\s*(?:exit\s+\"?\$\?\"?|(\w+)=\$\?)\s*", rest[first]) if rest[first:] else None
    others = [line for line in rest[first + 1 :] if line.strip() and not _comment(line)]
    if handed_on and not behind and all(_exits_with(line, handed_on[1]) for line in others):
        changes.append(Change(f"without {rest[first].strip()}", "the script ends with the code of finish"))
        return [line for line in rest[:first] if line.strip()], changes
    if rest[first:] or behind:
        if rest[first:] and not behind:
            rest[first] = re.sub(r"\$\?|\$\{\?\}", "$finished", rest[first])
        ends = not behind  # a command before `||` and `&&` ends no strict script
        leave = [_LEAVE_TRAPPED] if strict.by_trap and ends else [_LEAVE]
        leave += ([_LEAVE_STRICT] if ends else [_STRICT_AGAIN]) if strict.by_option else []
        rest = ["finished=$?", *(change.what for change in leave), *behind, *rest, 'exit "$finished"']
        changes += [*leave, _ENDS]
    return rest, changes


def _exits_with(line: str, name: str | None) -> bool:
    """Tell whether a line does nothing but end the script with a code that was kept under a name."""
    return bool(name) and re.fullmatch(rf"\s*exit\s+\"?\$\{{?{name}\}}?\"?\s*", line) is not None


def is_per_node(text: str) -> bool:
    """Tell whether only srun can run a script: sbatch takes none without a first line ``#!``."""
    return not text.startswith("#!") and "#SBATCH" not in text and not SRUN.search(code_of(text))


def adopt_per_node(text: str, name: str, ours: Sequence[str] = ("hpc-elastic",)) -> Adopted:
    """Return a script whose torchrun is replaced by our agent, with the lines that its job script is to have.

    Args:
        text: of the script.
        name: of the script, for messages.
        ours: as `adopt`.

    Raises:
        InputError: as `adopt`, or the script starts srun itself.
    """
    job, _ = _job_of(text, name, ours)
    try:
        return _changed_per_node(job, find_launches(job.script))
    except NotShownError as error:
        raise InputError(str(error), where=name, fix="change the script by hand") from None


def _changed_per_node(job: _Job, launches: list[LaunchLine]) -> Adopted:
    """Return a script that srun runs on each node, with our agent in the place of torchrun."""
    plain, name = job.script.text, job.script.name
    line = launches[0]
    what = f"{line.kind.value} in line {line.number}"
    if line.has_srun:
        raise InputError(
            f"{what} is started by srun: no script that srun runs on each node",
            where=name,
            fix="leave --per-node out",
        )
    if (
        len(launches) > 1
        or line.kind is not Kind.TORCHRUN
        or line.is_nested
        or line.variables
        or line.operator
        or CONTAINER.search(line.options)
    ):
        raise InputError(
            f"{what} is no command in a line of its own",
            where=name,
            fix="write it so, or change the script by hand",
        )
    rest = [each for each in plain[line.end :].split("\n") if each.strip()]
    leave = [f"ended={ended_of(line)}", _SRUN_LEAVE.what] if rest or line.is_piped else []
    command = f"{line.head}{_agent(job, line, AgentPlan(), line.options.lstrip())}"
    before = plain[: line.start].split("\n")[:-1]
    changed = [*before, _SRUN_TRAP.what, *command.split("\n"), *leave, *plain[line.end :].split("\n")[1:]]
    changes = (
        Change(
            f"{job.ours} run instead of torchrun, in its place",
            "srun runs this script on each node already; the nodes meet in the run directory",
        ),
        _SRUN_TRAP,
        *([_SRUN_LEAVE] if leave else []),
    )
    return Adopted("\n".join(changed).rstrip("\n") + "\n", changes, _job_script(name, job.ours))


def _job_script(name: str, ours: str) -> tuple[str, ...]:
    """Return the lines that the script is to have which runs this one."""
    return (
        "#SBATCH --requeue --open-mode=append --no-kill --signal=USR2@120",
        f"trap : {_ALL_SIGNALS}",
        *begin_lines(ours),
        f"{_SRUN_LINE} bash {shlex.quote(name)}",  # noqa: TID251 - a line of a script
        "ended=$?",
        f"trap '' {_ALL_SIGNALS}",
        finish_line(ours),
    )


def _draft(reason: str, job: _Job, number: int) -> str:
    """Return a complete new script in which the places are marked that adopt cannot fill.

    Args:
        reason: why the script stays as it is.
        job: it.
        number: the line that starts the training, from 1.
    """
    lines = job.script.text.split("\n")
    header, _ = _header(lines)
    begin = _first_command(lines)
    head = _insert_options(lines, header)[: begin + len(header)]
    setup = [line for line in lines[begin : number - 1] if line.strip()]
    nodes = '"$SLURM_JOB_NUM_NODES"'
    return "\n".join(
        [
            *(head or ["#!/bin/bash"]),
            f"# {_LEFT}: adopt has not changed {job.script.name}, and this is no finished script. Reason:",
            f"# {reason}.",
            f"echo 'take this line out when each place with {_LEFT} is done' >&2; exit 64  # {_LEFT}",
            "",
            f"# {_LEFT}: the lines of the script ahead of line {number}; keep those for the environment.",
            *(f"# {line}" for line in setup),
            "",
            f"trap : {_ALL_SIGNALS}",
            *begin_lines(job.ours),
            f"# {_LEFT}: the flags, the training script and its arguments; line {number} is",
            f"#   {lines[number - 1].strip()}",
            "# One agent runs on each node and starts N workers there. python3 is their Python.",
            f"{_SRUN_LINE} --ntasks={nodes} \\",
            f"    env PYTHON_EXEC=python3 {job.ours} run --run-dir {_RUN_DIR} \\",
            f"    --nnodes={nodes} --nproc-per-node=N TRAIN.PY ARGUMENTS",
            "ended=$?",
            f"trap '' {_ALL_SIGNALS}",
            finish_line(job.ours),
            "finished=$?",
            _LEAVE.what,
            "",
            f"# {_LEFT}: the lines behind line {number} that are to run when the training is over.",
            *(f"# {line}" for line in lines[number:] if line.strip()),
            'exit "$finished"',
            "",
        ]
    )
