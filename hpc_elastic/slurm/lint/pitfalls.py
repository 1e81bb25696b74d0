"""The rules of ``hpc-elastic lint``, each with its reason and its fix, and the kinds of files. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum

from hpc_elastic.named_tuple import NamedTuple

BOM = "\ufeff"
OF_CHECKPOINTS = re.compile(r"ckpt|checkpoint|step|epoch", re.IGNORECASE)
"""Matches in names that checkpoints usually have."""
_PYTHON = re.compile(r"#!.*\bpython[\d.]*\b")
_SCRIPT_NAMES = (".sbatch", ".slurm", ".batch", ".job", ".sub", ".sl", ".sh", ".bash")
_OPTION_LINE = re.compile(r"^#SBATCH\s", re.MULTILINE)


class Pitfall(str, Enum):
    """The code of a rule: HE1xx of job scripts, HE2xx of training scripts, HE3xx of job files."""

    SHELL_SYNTAX = "HE101"
    WINDOWS_TEXT = "HE102"
    NO_SHEBANG = "HE103"
    LATE_OPTION = "HE104"
    NO_REQUEUE = "HE105"
    LOG_TRUNCATED = "HE106"
    SIGNAL_TO_BATCH = "HE107"
    EXEC_SRUN = "HE108"
    NO_TRAP = "HE109"
    SRUN_IN_BACKGROUND = "HE110"
    OWN_REQUEUE = "HE111"
    HALF_NO_KILL = "HE112"
    KILL_ON_BAD_EXIT = "HE113"
    TORCHRUN = "HE114"
    NO_HOOK = "HE115"
    EXPORT_DROPS = "HE116"
    NO_OUTPUT_DIRECTORY = "HE117"
    VARIABLE_IN_OPTION = "HE118"
    FAILURE_HIDDEN = "HE119"
    GPUS_TYPED = "HE120"
    RANK_OF_BATCH = "HE121"
    LAUNCHER_PER_TASK = "HE122"
    ONE_NODE = "HE123"
    NEW_NAME = "HE124"
    REMOVES = "HE125"
    SORTED_AS_TEXT = "HE126"
    TRAP_WAITS = "HE127"
    SPOOLED = "HE128"
    SIGNAL_TO_NOBODY = "HE129"
    PYTHON_SYNTAX = "HE201"
    NO_TICK = "HE202"
    NO_MARK = "HE203"
    NO_STOP = "HE204"
    NO_RESUME = "HE205"
    OWN_HANDLER = "HE206"
    NO_CALLBACK = "HE207"
    OTHER_REQUEUE = "HE208"
    NEW_NAME_IN_PROGRAM = "HE209"
    SORTED_AS_TEXT_IN_PROGRAM = "HE210"
    JOB_FILE = "HE301"


class Rule(NamedTuple):
    """A rule.

    Args:
        title: the finding, as a short sentence.
        why: its consequence.
        fix: the way out.
        is_fixable: ``--fix`` does it.
    """

    title: str
    why: str
    fix: str
    is_fixable: bool = False


RULES: Mapping[Pitfall, Rule] = {
    Pitfall.SHELL_SYNTAX: Rule(
        "the shell cannot read the script",
        "The job is queued, waits for its nodes, and ends at this line. `bash -n` has found it.",
        "Correct the line.",
    ),
    Pitfall.WINDOWS_TEXT: Rule(
        "a byte order mark or line ends of Windows",
        "sbatch refuses a script that has them.",
        "Save the file as plain text with line ends of Unix; `--fix` does it.",
        is_fixable=True,
    ),
    Pitfall.NO_SHEBANG: Rule(
        "the first line names no shell",
        "sbatch refuses a script whose first line does not begin with `#!`.",
        "Begin the script with `#!/bin/bash`.",
    ),
    Pitfall.LATE_OPTION: Rule(
        "an #SBATCH line behind the first command",
        "sbatch reads no options behind the first command, and says nothing.",
        "Move the line above the first command.",
    ),
    Pitfall.NO_REQUEUE: Rule(
        "the job is not requeued",
        "With `--no-requeue` a preempted job, or one that has lost a node, ends for good. Without it Slurm "
        "requeues such a job (`JobRequeue=1`, its default).",
        "Write `--requeue`, if the program continues from its last checkpoint.",
    ),
    Pitfall.LOG_TRUNCATED: Rule(
        "a requeue empties the log",
        "By default (`JobFileAppend=0`) each start of the job truncates the output of the one before.",
        "Add `#SBATCH --open-mode=append`; `--fix` does it.",
        is_fixable=True,
    ),
    Pitfall.SIGNAL_TO_BATCH: Rule(
        "the warning reaches the batch script only",
        "With `--signal=B:...` Slurm signals the shell of the batch host. The programs below srun hear "
        "nothing before SIGTERM, nor does one that the shell waits for.",
        "Leave out `B:`; then the tasks of each node get the signal. Without srun write `exec` before the "
        "program.",
    ),
    Pitfall.EXEC_SRUN: Rule(
        "exec replaces the script by srun",
        "No shell is left that could requeue the job when srun has ended.",
        "Leave out `exec`.",
    ),
    Pitfall.NO_TRAP: Rule(
        "the shell dies of SIGTERM, and srun with it",
        "At a time limit, a requeue or scancel Slurm sends SIGTERM to the shell, too. Without a trap it ends "
        "at once, and slurmstepd kills srun: the tasks lose their output, and nothing behind srun runs.",
        "Add `trap : TERM INT HUP USR1 USR2` above the first srun.",
    ),
    Pitfall.SRUN_IN_BACKGROUND: Rule(
        "srun runs in the background",
        "Slurm sends SIGCONT and SIGTERM as a pair. The first one ends `wait`, and the script may end while "
        "its tasks still save.",
        "Run srun in the foreground; with `trap :` the shell goes on when srun has ended. Or `wait` for it "
        "twice.",
    ),
    Pitfall.OWN_REQUEUE: Rule(
        "the script requeues its job itself",
        "scancel sends the same signals as a preemption, so such a script brings back a job that its user "
        "has cancelled, and a program that fails at once is started for ever.",
        "Let `hpc-elastic finish` decide: `hpc-elastic submit SCRIPT` runs it as it is.",
    ),
    Pitfall.HALF_NO_KILL: Rule(
        "--no-kill for only one of sbatch and srun",
        "After the loss of a node the job shrinks only if both have it. sbatch does not hand it on to srun.",
        "Give `--no-kill` to both, or to neither.",
    ),
    Pitfall.KILL_ON_BAD_EXIT: Rule(
        "one task that fails ends all others",
        "With `--kill-on-bad-exit` srun ends the other tasks while they save.",
        "Give srun `--kill-on-bad-exit=0`.",
    ),
    Pitfall.TORCHRUN: Rule(
        "torchrun ends with a lost node",
        "Its agents meet at a host of the job. If that is lost, or the job is requeued, nothing decides "
        "whether and from where the run continues.",
        "`hpc-elastic adopt SCRIPT` shows the lines that change; "
        "`hpc-elastic submit SCRIPT` runs it as it is.",
    ),
    Pitfall.NO_HOOK: Rule(
        "the shell of a job does not know `conda activate`",
        "A job's shell reads no `~/.bashrc`, in which conda defines `activate`. The line fails, and the "
        "Python of the system runs the program.",
        'Write `eval "$(conda shell.bash hook)"` above the line.',
    ),
    Pitfall.EXPORT_DROPS: Rule(
        "the tasks get only a part of the environment",
        "`--export` without ALL hands on only the variables that it names. srun takes the option over from "
        "the header (`SLURM_EXPORT_ENV`): PATH, modules and an activated environment do not reach its tasks.",
        "Write `--export=ALL,NAME=VALUE`; below a header with NONE give srun `--export=ALL`.",
    ),
    Pitfall.NO_OUTPUT_DIRECTORY: Rule(
        "the directory of the output does not exist",
        "Slurm makes no directories: the job fails when it starts, without a line of output. A `mkdir` in "
        "the script comes too late.",
        "Make the directory before the job is submitted.",
    ),
    Pitfall.VARIABLE_IN_OPTION: Rule(
        "a variable in an #SBATCH line",
        "sbatch does not expand variables or `~` in these lines; it takes them as they stand.",
        "Write the value, or one of sbatch's own names (`%u` user, `%j` job), or give the option on the "
        "command line of sbatch.",
    ),
    Pitfall.FAILURE_HIDDEN: Rule(
        "`| tee` hides a failure",
        "The exit code of a pipe is that of its last command: a program that fails looks as if it were "
        "done, and the next command runs.",
        "Write `set -o pipefail` above the line.",
    ),
    Pitfall.GPUS_TYPED: Rule(
        "a number of GPUs with a type in it",
        "The variable has the text of the option, for example `a100:4`, which is no number of processes.",
        "Use `$SLURM_GPUS_ON_NODE`, which is a number.",
    ),
    Pitfall.RANK_OF_BATCH: Rule(
        "a rank is read in the batch script",
        "The batch script runs once, on the first node: its `SLURM_PROCID`, `SLURM_NODEID` and "
        "`SLURM_LOCALID` are 0. All tasks get that 0.",
        "Read it in the task: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'`, in single quotes.",
    ),
    Pitfall.LAUNCHER_PER_TASK: Rule(
        "each task starts a launcher",
        "A launcher starts the workers of a whole node. Several of them on a node start each worker several "
        "times, and their ports and GPUs collide.",
        "Give `--ntasks-per-node=1`, with all GPUs and CPUs of a node for that task.",
    ),
    Pitfall.ONE_NODE: Rule(
        "a launcher runs on the first node only",
        "The batch script runs on the first node. Without srun nothing starts on the others: the launcher "
        "waits for them, or the job pays for nodes that it does not use.",
        "Start the launcher with `srun --ntasks-per-node=1`.",
    ),
    Pitfall.NEW_NAME: Rule(
        "an output or a run has another name at each start",
        "A requeued job starts the script anew. With a new name it does not find its checkpoints, and begins "
        "at step 0.",
        "Use a name that a requeue keeps, for example `$SLURM_JOB_ID`.",
    ),
    Pitfall.REMOVES: Rule(
        "each start removes files that a requeue needs",
        "A requeued job starts the script anew, and its checkpoints are gone.",
        'Remove it only at the first start: `[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -r ...`.',
    ),
    Pitfall.SORTED_AS_TEXT: Rule(
        "the newest checkpoint is looked for by its name",
        "Names are sorted as text: `step_900` comes behind `step_1000`. A start may go on from an old one.",
        "Sort by the number: `sort -V`.",
    ),
    Pitfall.TRAP_WAITS: Rule(
        "the trap runs only when the program has ended",
        "A shell handles a signal when its command in the foreground has ended, which is after the "
        "time limit.",
        "Run the program in the background (`&`) and `wait` for it, twice: the signal ends the first one.",
    ),
    Pitfall.SPOOLED: Rule(
        "the script looks for its own directory",
        "Slurm runs a copy of the script in a directory of its own, so `$0` and `BASH_SOURCE` name that.",
        "Use `$SLURM_SUBMIT_DIR`, or a full path.",
    ),
    Pitfall.SIGNAL_TO_NOBODY: Rule(
        "the warning reaches no program",
        "Without `B:` Slurm sends the signal of `--signal` to the steps of the job, and not to its batch "
        "script. A script without srun has no steps: nothing hears the warning.",
        "Start the program with srun, which gives it the signal; or write `--signal=B:...` and a trap.",
    ),
    Pitfall.PYTHON_SYNTAX: Rule(
        "Python cannot read the script",
        "The job is queued, waits for its nodes, and its workers end at once.",
        "Correct the line.",
    ),
    Pitfall.NO_TICK: Rule(
        "the script reports no steps",
        "Goodput, rate and time left are not known, and a hang is not noticed.",
        "Call `worker.tick(step)` after each step.",
    ),
    Pitfall.NO_MARK: Rule(
        "the script marks no checkpoint",
        "No start knows a checkpoint of the one before, so each may begin at step 0.",
        "Call `worker.checkpoint_saved(step, path)` after each save.",
    ),
    Pitfall.NO_STOP: Rule(
        "the script does not ask whether to stop",
        "A preemption or a time limit ends it unsaved, unless it saves by itself (`--unasked run-on`).",
        "Leave the loop and save when `worker.should_stop()` is true.",
    ),
    Pitfall.NO_RESUME: Rule(
        "the script saves, but does not ask where to start",
        "After a restart ranks may load different checkpoints, or none.",
        "Begin at `worker.latest_checkpoint()`, which is the same on all ranks.",
    ),
    Pitfall.OWN_HANDLER: Rule(
        "the script has a signal handler of its own",
        "Ranks get a signal at different steps, so those that leave their loop first hang the others. With "
        "should_stop the agent agrees on one step for all ranks, and sends the signal only as a last resort.",
        "Use `worker.should_stop()` in place of the handler.",
    ),
    Pitfall.NO_CALLBACK: Rule(
        "the framework's loop has no callback of hpc_elastic",
        "Steps, checkpoints and requests to stop are not known: a preemption ends the run unsaved, and a "
        "hang is not noticed.",
        "Add the callback; the finding says which.",
    ),
    Pitfall.OTHER_REQUEUE: Rule(
        "the program requeues its job itself",
        "Two that requeue get in each other's way. scancel sends the same signals as a preemption, so such a "
        "program brings back a job that its user has cancelled.",
        "Leave it out (`auto_requeue=False`): below `hpc-elastic` the end of the job decides.",
    ),
    Pitfall.NEW_NAME_IN_PROGRAM: Rule(
        "an output or a run has another name at each start",
        "A requeued job starts the program anew. With a new name it does not find its checkpoints.",
        'Use a name that a requeue keeps, for example `os.environ["SLURM_JOB_ID"]`.',
    ),
    Pitfall.SORTED_AS_TEXT_IN_PROGRAM: Rule(
        "the newest checkpoint is looked for by its name",
        "Names are sorted as text: `step_900` comes behind `step_1000`. A start may go on from an old one.",
        "Sort by the number, or ask `worker.latest_checkpoint()`.",
    ),
    Pitfall.JOB_FILE: Rule(
        "submit would refuse the job file",
        "Its settings are checked as by `hpc-elastic submit`. Files, programs and Slurm are not looked at: "
        "`hpc-elastic submit --dry-run` does that, and queues nothing.",
        "See the message.",
    ),
}


class LintFinding(NamedTuple):
    """A pitfall in a line of a file."""

    line: int  # from 1
    rule: Pitfall
    detail: str = ""  # in place of the rule's title
    fix: str = ""  # in place of the rule's fix


class FileKind(Enum):
    """The use of a file."""

    JOB_FILE = "job file"
    TRAINING = "training script"
    SHELL_JOB = "job script"
    PYTHON_JOB = "job script in Python"  # sbatch takes any interpreter


def kind_of(name: str, text: str) -> FileKind | None:
    """Return the kind of a file; None if `lint` does not know it."""
    suffix = os.path.splitext(name)[1].lower()
    plain = text.removeprefix(BOM)
    is_for_sbatch = suffix in _SCRIPT_NAMES or _OPTION_LINE.search(plain) is not None
    if suffix == ".toml":
        return FileKind.JOB_FILE
    if suffix == ".py" or _PYTHON.match(plain):
        return FileKind.PYTHON_JOB if is_for_sbatch else FileKind.TRAINING
    return FileKind.SHELL_JOB if is_for_sbatch or plain.startswith("#!") else None
