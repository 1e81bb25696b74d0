"""A job script of the user's own, changed so that its run survives what happens to jobs. Pure.

The script stays the user's: only the line that starts torchrun and what Slurm has to be told change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hpc_elastic.errors import InputError
from hpc_elastic.ids import ExitCode

_LAUNCHERS = (
    r"(?:\S*/)?torchrun",
    r"(?:\S*/)?python3?(?:\s+-u)?\s+-m\s+torch\.distributed\.(?:run|launch)",
)
_LAUNCHER = re.compile(rf"(?<![\w./-])(?:{'|'.join(_LAUNCHERS)})(?=\s|$)")
_SRUN = re.compile(r"(?<![\w./-])srun(?=\s|$)")
_RUN_DIR = '"$PWD/run-$SLURM_JOB_ID"'
_SIGNALS = "TERM INT HUP USR1 USR2"
_SRUN_FLAGS = (
    ("--nodes", '--nodes="$SLURM_JOB_NUM_NODES"', ("-N",)),
    ("--ntasks", '--ntasks="$SLURM_JOB_NUM_NODES"', ("-n",)),
    ("--ntasks-per-node", "--ntasks-per-node=1", ()),
    ("--kill-on-bad-exit", "--kill-on-bad-exit=0", ("-K",)),
    ("--wait", "--wait=0", ("-W",)),
    ("--no-kill", "--no-kill", ("-k",)),
)
_LEAD_S = 120


class Change(NamedTuple):
    """One change, and the reason for it."""

    what: str
    why: str


_LEAVE_STRICT = (
    Change('[ "$finished" = 0 ] || exit "$finished"', "as with set -e, the rest runs only if all went well"),
    Change("set -e", "holds again for the rest of the script"),
)
_LEAVE = (
    Change(
        f'[ "$finished" != {int(ExitCode.REQUEUE)} ] || exit "$finished"',
        "what comes behind does not run before the training is over: the job is queued once more",
    ),
)


class Adopted(NamedTuple):
    """A changed script."""

    text: str
    changes: tuple[Change, ...]


def adopt(text: str, name: str) -> Adopted:
    """Return a script whose torchrun is replaced by our agent, and what was changed.

    Args:
        text: of the script.
        name: of the script, for messages.

    Raises:
        InputError: it starts no torchrun, several, or one that finish cannot follow, or is ours already.
    """
    lines = text.splitlines()
    start, end = _command(lines, name)
    header, header_changes = _header(lines)
    command, command_changes = _changed_command(lines[start:end])
    before = _insert_options(lines[:start], header)
    tail, tail_changes = _tail(lines, end, is_strict=_is_strict(before))
    strict = (
        [Change("set +e", "with set -e the script would end before finish")] if _is_strict(before) else []
    )
    changed = [
        *before,
        *(change.what for change in strict),
        f"trap : {_SIGNALS}  # this shell outlives the signals that the agents save for",
        *command,
        *_finish(),
        *tail,
    ]
    trap = Change(
        f"trap : {_SIGNALS}", "Slurm signals the script, too; it must live on to decide about a requeue"
    )
    finish = Change(
        "hpc-elastic finish at the end",
        "requeues the job after a preemption, a time limit or a lost node, which Slurm alone often does not; "
        "never a cancelled or a finished one",
    )
    changes = (
        *header_changes,
        *strict,
        trap,
        *command_changes,
        finish,
        *tail_changes,
        *_own_requeues(changed),
    )
    return Adopted("\n".join(changed) + "\n", changes)


def _own_requeues(lines: list[str]) -> Iterator[Change]:
    """Yield what is to be told about lines of the user's that requeue the job, too."""
    for number, line in enumerate(lines, 1):
        if re.search(r"(?<![\w./-])scontrol\s+requeue", line) and not _comment(line):
            yield Change(
                f"scontrol requeue in line {number} of the new script stays",
                "take it out: finish has decided by then, and a training that has failed would come back",
            )


def _command(lines: list[str], name: str) -> tuple[int, int]:
    """Return where the command with torchrun begins and ends, continuation lines included."""
    if any("hpc-elastic run" in line or "hpc_elastic run" in line for line in lines if not _comment(line)):
        raise InputError("the script starts hpc-elastic already", where=name, fix="there is nothing to adopt")
    found = [at for at, line in enumerate(lines) if _LAUNCHER.search(line) and not _comment(line)]
    if not found:
        raise InputError(
            "no line of the script starts torchrun",
            where=name,
            fix="if another script does, adopt that one; else write the line by hand: "
            "srun --ntasks-per-node=1 hpc-elastic run train.py",
        )
    if len(found) > 1:
        numbers = ", ".join(str(at + 1) for at in found)
        raise InputError(
            f"torchrun is started more than once (lines {numbers})",
            where=name,
            fix="give each its own script, or change the lines by hand as docs/how-to.md shows",
        )
    start = end = found[0]
    while start > 0 and lines[start - 1].rstrip().endswith("\\") and not _comment(lines[start - 1]):
        start -= 1
    while lines[end].rstrip().endswith("\\") and end + 1 < len(lines):
        end += 1
    trouble = next(_troubles(lines, start, end), "")
    if trouble:
        raise InputError(
            f"torchrun in line {found[0] + 1} {trouble}, so finish cannot follow it",
            where=name,
            fix="write it as one command in a line of its own, or change the script by hand "
            "as docs/how-to.md shows",
        )
    return start, end + 1


def _troubles(lines: list[str], start: int, end: int) -> Iterator[str]:
    """Yield why the code of a command, from the line `start` to `end`, is not what the next line sees."""
    text = re.sub(r"\s#.*$", "", lines[end]).rstrip()
    if re.search(r"(?<![&>])&$", text):
        yield "is started in the background"
    first = lines[start].strip()
    word = re.match(r"(exec|if|while|until|!)\s", first)
    if word:
        yield f"stands behind `{word[1]}`"
    if re.search(r"\|\|", "\n".join(lines[start : end + 1])):
        yield "has another command behind `||`"
    openings = [line.split()[0] for line in lines[:start] if line.split() and not _comment(line)]
    if sum(word in ("for", "while", "until") for word in openings) > openings.count("done"):
        yield "is in a loop, which would use one run directory several times"


def _is_strict(lines: list[str]) -> bool:
    """Tell whether the shell ends at the first command that fails."""
    options = [line.split() for line in lines if line.lstrip().startswith(("set -", "set +"))]
    state = False
    for words in options:
        for sign, letters in ((word[0], word[1:]) for word in words[1:] if word[0] in "+-"):
            if "e" in letters:
                state = sign == "-"
        if "errexit" in words:
            state = words[1] == "-o"
    return state


def _comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _header(lines: list[str]) -> tuple[list[str], list[Change]]:
    """Return the options that sbatch is to get, and why."""
    given = [line for line in lines if line.startswith("#SBATCH")]

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
        changes.append(Change("#SBATCH --signal without B:", "the warning goes to the agents, who save"))
    return [f"#SBATCH {option}" for option, _ in missing], changes


def _insert_options(lines: list[str], options: list[str]) -> list[str]:
    """Return the lines before the command, with further options behind the last one."""
    last = max((at for at, line in enumerate(lines) if line.startswith("#SBATCH")), default=-1)
    place = last + 1 if last >= 0 else (1 if lines and lines[0].startswith("#!") else 0)
    before = [_warn_agents(line) for line in lines[:place]]
    return [*before, *options, *lines[place:]]


def _warn_agents(line: str) -> str:
    """Return an option line whose warning goes to the agents, not to the script alone."""
    return re.sub(r"(--signal[= ])[BR]{1,2}:", r"\1", line) if line.startswith("#SBATCH") else line


def _changed_command(lines: list[str]) -> tuple[list[str], list[Change]]:
    text = "\n".join(lines)
    changes = [
        Change(
            f"hpc-elastic run --run-dir {_RUN_DIR} instead of torchrun",
            "its flags stay as they are; the nodes meet in the directory, so that no host is special",
        )
    ]
    launcher = _LAUNCHER.search(text)
    found = launcher[0] if launcher else ""
    text = _LAUNCHER.sub(lambda _: f"hpc-elastic run --run-dir {_RUN_DIR}", text, count=1)
    srun = _SRUN.search(text)
    if srun is not None:
        text, ends_others = _let_others_live(text, srun.end())
        changes += ends_others
    options = text[srun.end() : text.index("hpc-elastic run")] if srun else ""
    missing = [flag for name, flag, short in _SRUN_FLAGS if not _given(options, name, short)]
    added = " ".join(missing)
    if srun is None:
        text = text.replace("hpc-elastic run", f"srun {added} hpc-elastic run", 1)
        changes.append(Change("srun", "starts one agent on each node, and keeps a lost one from ending all"))
    elif missing:
        text = f"{text[: srun.end()]} {added}{text[srun.end() :]}"
        changes.append(Change(f"srun {added}", "one agent per node; one that ends does not end the others"))
    if "launch" in found:
        changes.append(Change("LOCAL_RANK", "is in the environment; no --local-rank is passed to the script"))
    return text.split("\n"), changes


def _let_others_live(text: str, start: int) -> tuple[str, list[Change]]:
    """Take back an option of srun by which one agent that leaves ends all others."""
    end = text.index("hpc-elastic run")
    options = text[start:end]
    pattern = r"(?<=\s)(?:--kill-on-bad-exit(?:=[1-9]\d*)?|-K[1-9]*)(?=\s)"
    found = re.search(pattern, options)
    if found is None:
        return text, []
    told = Change(f"--kill-on-bad-exit=0 instead of {found[0]}", "an agent that leaves would end all others")
    return text[:start] + re.sub(pattern, "--kill-on-bad-exit=0", options) + text[end:], [told]


def _given(options: str, name: str, short: tuple[str, ...]) -> bool:
    words = [name, *short]
    return any(re.search(rf"(?:^|\s){re.escape(word)}(?=[\s=\d\\\"$]|\Z)", options) for word in words)


def _finish() -> list[str]:
    return [
        "ended=$?",
        f"trap '' {_SIGNALS}",
        f'hpc-elastic finish --run-dir {_RUN_DIR} --srun-exit-code "$ended" --max-relaunch 0',
    ]


def _tail(lines: list[str], end: int, *, is_strict: bool) -> tuple[list[str], list[Change]]:
    """Return what follows the command, as far as it may: the exit code is now that of `finish`."""
    rest, changes = list(lines[end:]), []
    while rest and not rest[-1].strip():
        rest.pop()
    if rest and re.fullmatch(r"\s*(?:exit\s+\$\?|(?:rc|ret|status|code|ec)=\$\?)\s*", rest[0]):
        changes.append(Change(f"without {rest[0].strip()}", "the script ends with the code of finish"))
        rest = [line for line in rest[1:] if not re.fullmatch(r"\s*exit\s+\"?\$\w+\"?\s*", line)]
    if any(line.strip() and not _comment(line) for line in rest):
        leave = _LEAVE_STRICT if is_strict else _LEAVE
        rest = ["finished=$?", *(change.what for change in leave), *rest, 'exit "$finished"']
        changes += [
            *leave,
            Change("exit with what finish has returned", "commands behind it do not hide how the job ended"),
        ]
    return rest, changes
