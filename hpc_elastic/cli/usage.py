"""The advice on words that a command line does not know."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from hpc_elastic.cli.arguments import PROGRAM
from hpc_elastic.cli.commands import COMMANDS, OF_NODES
from hpc_elastic.cli.pages import topics
from hpc_elastic.cli.parser import LIKE, Slip, near
from hpc_elastic.errors import InputError
from hpc_elastic.settings.table import JOB
from hpc_elastic.text import for_shell, line_for_shell

_ONE_COPY: Final = "the program is not copied, each start runs its files as they are then"
_BY_AGENTS: Final = "the job script sets it for the agents; leave it out"
_OF_A_JOB: Final = {  # options of other programs -> their counterparts here
    "after": "a job that waits for another one: --dependency afterok:JOBID",
    "afterok": "a job that waits for another one: --dependency afterok:JOBID",
    "conda-env": "write --conda NAME",
    "virtualenv": "write --venv DIR",
    "snapshot": f"{_ONE_COPY}; to keep them: copy them, and name the copy with --workdir",
    "copy-code": f"{_ONE_COPY}; to keep them: copy them, and name the copy with --workdir",
    "config": "settings of one job go into a job file: hpc-elastic submit NAME.toml; those of all jobs into "
    "hpc-elastic.toml or ~/.config/hpc-elastic/config.toml",
    "image": "write --container IMAGE",
    "bind": "directories that a container sees: --mounts DIR,...",
    "gpu": "GPUs are counted per node: --gpus-per-node N",
    "gpus": "GPUs are counted per node: --gpus-per-node N",
    "num-gpus": "GPUs are counted per node: --gpus-per-node N",
    "num-nodes": "write --nodes N",
    "nnodes": "write --nodes N, or --nodes MIN:MAX",
    "nproc-per-node": "write --workers-per-node N; without it there is one per GPU",
    "nproc": "write --workers-per-node N; without it there is one per GPU",
    "timeout": "the time limit of one start: --time TIME",
    "walltime": "the time limit of one start: --time TIME",
    "queue": "write --partition NAME",
    "project": "write --account NAME",
    "memory": "write --mem SIZE",
    "requeue": "runs come back by themselves; --max-requeues N limits that",
    "retries": "write --max-restarts N",
    "max-retries": "write --max-restarts N",
    "detach": "submit does not wait; to follow the run: hpc-elastic logs -f RUN",
    "follow": "follow the run after submit: hpc-elastic logs -f RUN",
    "wait": "follow the run after submit: hpc-elastic logs -f RUN",
    "dry": "write --dry-run",
    "test-only": "write --dry-run",
    "from-checkpoint": "a run goes on from a checkpoint of its own: --resume RUN --from-step N",
    "master-addr": _BY_AGENTS,
    "master-port": _BY_AGENTS,
    "node-rank": _BY_AGENTS,
    "rdzv-backend": _BY_AGENTS,
    "rdzv-endpoint": _BY_AGENTS,
    "rdzv-id": _BY_AGENTS,
    "standalone": "to run here and now: --local 1",
}
_OF_OTHERS: Final[Mapping[tuple[str, str], str]] = {  # the same of the other commands
    ("status", "watch"): "to look again and again: hpc-elastic watch RUN",
    ("status", "follow"): "to look again and again: hpc-elastic watch RUN",
    ("logs", "tail"): "write --lines N",
    ("logs", "stderr"): "the lines of both streams are shown together; --rank R shows those of one worker",
    ("stop", "force"): "to end a run at once, unsaved: hpc-elastic cancel RUN",
    ("stop", "now"): "to end a run at once, unsaved: hpc-elastic cancel RUN",
    ("cancel", "save"): "to save and end a run: hpc-elastic stop RUN",
    ("report", "html"): "write --format html",
    ("lint", "write"): "write --fix",
}
_MORE_LIKE = 0.8  # a flag that is proposed before anything else


def advice_on(slip: Slip) -> str:
    """Return the words to write in place of unknown ones; empty if these are not known either."""
    found = _OF_OTHERS.get((slip.command, slip.flag.lstrip("-")), "")
    if slip.command in COMMANDS and COMMANDS[slip.command].takes_job:
        found = _job_advice(slip)
    return found or near(slip, _MORE_LIKE) or _of_another_command(slip) or near(slip)


def advice_on_command(words: Sequence[str]) -> str:
    """Return the line to write in place of one whose first word is no command."""
    if _looks_like_a_program(words[0]):
        return f"one agent with that program: {line_for_shell([PROGRAM, 'run', *words])}"
    like = difflib.get_close_matches(words[0], [*COMMANDS, *OF_NODES, "help"], n=2, cutoff=LIKE)
    if not like and words[0] in topics():
        return f"{PROGRAM} help {words[0]}"
    return f"did you mean {' or '.join(like)}? see {PROGRAM} --help" if like else f"see {PROGRAM} --help"


def advice_on_page(name: str) -> str:
    """Return the words to write in place of the unknown name of a command or page."""
    like = difflib.get_close_matches(name, {*COMMANDS, *OF_NODES, *topics()}, n=2, cutoff=LIKE)
    meant = f"did you mean {' or '.join(like)}? " if like else ""
    return f"{meant}all pages: {PROGRAM} help topics; all commands: {PROGRAM} --help"


def _of_another_command(slip: Slip) -> str:
    """Return the line of the command that has a flag which this one does not have."""
    having = [
        name
        for name, command in COMMANDS.items()
        if slip.flag and any(slip.flag in (option.flag, option.short) for option in command.options)
    ]
    if not having:
        return ""
    named = [] if COMMANDS[slip.command].takes_job else [word for word in slip.words if word[:1] != "-"]
    run = named[0] if named else "RUN"
    return f"{slip.flag} is an option of {line_for_shell([PROGRAM, having[0], run, slip.flag])}"


def _job_advice(slip: Slip) -> str:
    """Return the advice on a line that describes a job."""
    name = slip.flag.lstrip("-")
    found = (
        _script_advice(slip)
        or _command_advice(slip)
        or _OF_A_JOB.get(name.replace("_", "-"), "")
        or _short_advice(slip)
    )
    return found or _sbatch_advice(name, slip) or (_program_advice(slip) if slip.behind else "")


def _script_advice(slip: Slip) -> str:
    """Return the command that takes any option of sbatch, where the words name a job script."""
    from hpc_elastic.slurm.job import options  # noqa: PLC0415 - for two commands
    from hpc_elastic.slurm.job.own_script_file import is_job_script  # noqa: PLC0415

    name = slip.flag.removeprefix("--")
    if name not in options.BUILT_IN and (slip.flag[:2] == "--" or slip.flag[1:2] not in options.SHORT):
        return ""
    for word in slip.words:
        with suppress(InputError):  # no script that sbatch takes
            if word[:1] != "-" and is_job_script(word):
                line = line_for_shell([PROGRAM, "sbatch", slip.flag])
                return f"with a job script: {line} ... {for_shell(word)}, which takes all options of sbatch"
    return ""


def _command_advice(slip: Slip) -> str:
    """Return the line with the missing ``--`` where the words hold a worker command without it."""
    flag, words = slip.flag, slip.words
    last = next((at for at, word in enumerate(words) if flag and word.partition("=")[0] == flag), len(words))
    for at in range(last):
        if _looks_like_a_program(words[at]) and _is_free(slip, words[at - 1] if at else ""):
            line = line_for_shell([PROGRAM, slip.command, *words[:at], "--", *words[at:]])
            return f"the worker command goes after --: {line}"
    return "" if flag else f"the worker command goes after --: {PROGRAM} submit --nodes 2 -- train.py"


def _program_advice(slip: Slip) -> str:
    """Return the line with an option of the training program's behind the program."""
    at = next((at for at, word in enumerate(slip.words) if word.partition("=")[0] == slip.flag), None)
    if at is None or near(slip, _MORE_LIKE):
        return ""
    words, follows = slip.words, slip.words[at + 1 : at + 2]
    taken = 1 if "=" in words[at] or not follows or follows[0].startswith("-") else 2
    line = [*words[:at], *words[at + taken :], "--", *slip.behind, *words[at : at + taken]]
    shown = line_for_shell([PROGRAM, slip.command, *line])
    return f"options of the program go after --, behind it: {shown}"


def _looks_like_a_program(word: str) -> bool:
    return word.endswith((".py", ".sh")) or os.path.basename(word).startswith("python")


def _is_free(slip: Slip, before: str) -> bool:
    """Tell whether a word after this one is no option's value."""
    return not before.startswith("-") or "=" in before or not slip.flags.get(before, True)


def _short_advice(slip: Slip) -> str:
    """Return the counterpart of a letter of sbatch, and the line that gives it to the program."""
    from hpc_elastic.slurm.job.options import SHORT  # noqa: PLC0415 - for two commands

    name = SHORT.get(slip.flag[1:2], "") if slip.flag[:2] != "--" else ""
    advice = name and (_OF_A_JOB.get(name) or _sbatch_advice(name, slip))
    if not advice:
        return ""
    program = _program_advice(slip) if slip.behind else ""
    return "; ".join(filter(None, (f"{slip.flag[:2]} of sbatch is --{name}: {advice}", program)))


def _sbatch_advice(name: str, slip: Slip) -> str:
    """Return how an option of sbatch that has no flag of its own is given."""
    from hpc_elastic.slurm.job import options  # noqa: PLC0415 - for two commands

    if name in options.BY_PLUGINS:
        return options.BY_PLUGINS[name]
    if name in options.OWNED:
        why, instead = options.OWNED[name]
        return f"the sbatch option --{name} cannot be given: {why}; {instead}"
    if name in options.FIELDS:
        return f"write {JOB[options.FIELDS[name]].flag}"
    if name not in options.BUILT_IN:
        return ""
    value = "" if name in options.FLAGS else f"={_value_of(slip.flag, slip.words)}"
    return f"options of sbatch go into -o: {line_for_shell(['-o', name + value])}"


def _value_of(flag: str, words: Sequence[str]) -> str:
    """Return the value of a flag in a line; VALUE if it has none."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            follows = [each for each in words[at + 1 : at + 2] if not each.startswith("-")]
            return (value if equals else next(iter(follows), "")) or "VALUE"
    return "VALUE"
