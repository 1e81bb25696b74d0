"""The commands that people type, with the words that each takes. A command's module is imported by its call.

A setting of a job is no row here: commands that take a job have one option for each row of
`hpc_elastic.settings.table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.cli.arguments import CommandRow, Option, Word
from hpc_elastic.ids import RUNS_FOLDER, Env
from hpc_elastic.settings.setting import (
    BUDGET,
    COUNT,
    MODULES,
    NUMBER,
    PATH,
    SECONDS,
    TEXT,
    Bounds,
    ValueKind,
    choice,
)
from hpc_elastic.settings.values import whole

if TYPE_CHECKING:
    from argparse import Namespace

    from hpc_elastic.cli.parser import Parser

_START, _LOOK_AFTER, _CLUSTER = "Start a run", "Look after a run", "The cluster and this installation"
BY_SCRIPTS = "Called by job scripts"
FORMATS = ("text", "md", "json", "html")
"""The formats of `report`."""
EVERY_S, EVERY_LINES_S = 2, 60
"""The time between two looks of `watch` on a terminal, and elsewhere."""
_SEVERAL: ValueKind[int] = ValueKind("whole number, 2 or more", "N", whole, bounds=Bounds(2))


def _runs(_line: Namespace) -> Sequence[str]:
    from hpc_elastic.slurm.run_jobs.existing_run import names_of_runs  # noqa: PLC0415 - for a shell alone

    return names_of_runs()


def _rules(_line: Namespace) -> Sequence[str]:
    from hpc_elastic.slurm.lint.pitfalls import Pitfall  # noqa: PLC0415 - as above

    return [one.value for one in Pitfall]


def _profiles(_line: Namespace) -> Sequence[str]:
    from hpc_elastic.errors import HpcElasticError  # noqa: PLC0415 - as above
    from hpc_elastic.slurm.job.settings_files import profiles_here  # noqa: PLC0415 - as above

    try:
        return profiles_here()
    except (HpcElasticError, OSError):
        return []


def _steps(line: Namespace) -> Sequence[str]:
    """Return the steps that the run behind ``--resume`` can go back to, the newest first."""
    from hpc_elastic.cli.run_argument import find_run  # noqa: PLC0415 - as above
    from hpc_elastic.errors import HpcElasticError  # noqa: PLC0415 - as above
    from hpc_elastic.record.saved import whole_steps  # noqa: PLC0415 - as above

    run = getattr(line, "resume", None)
    try:
        return list(map(str, whole_steps(find_run(run)))) if run else []
    except (HpcElasticError, OSError):
        return []


_RUN = Word(
    "run",
    "RUN",
    f"Run directory, or a run id, job id or job name found below ./{RUNS_FOLDER}.",
    is_needed=True,
    offers=_runs,
)
_RUN_TO_SEE = Word(
    "run",
    "RUN",
    f"Run directory, run id, job id or job name. Without it: the newest run below ./{RUNS_FOLDER}.",
    offers=_runs,
)
_RUN_OR_FOLDER = Word(
    "run",
    "RUN",
    "Run directory, run id, job id or job name, or a folder: all runs in it. "
    f"Without it: all runs below ./{RUNS_FOLDER}.",
    offers=_runs,
)
_JOB_FILE = Word(
    "job_file",
    "JOB_FILE",
    "Job file (TOML), or a job script, which runs as it is with the words behind it as its arguments; "
    "options win over its values.",
)
_PROFILE = Option(
    "profile", "Take the settings of this profile of the settings files.", TEXT, "NAME", offers=_profiles
)
_JSON = Option("json", "Print the facts as JSON, for programs.")
_JSON_OF_STATUS = Option("json", "Print the state afterwards as `status --json` does.")

_SUBMIT = CommandRow(
    "submitting.submit",
    _START,
    "Queue a training run that survives preemption, requeue and node loss.",
    (_JOB_FILE,),
    (
        _PROFILE,
        Option("dry_run", "Check everything and show the job; queue nothing."),
        Option(
            "resume",
            "Queue a run that ended or was stopped once more, from its last checkpoint.",
            TEXT,
            "RUN_DIR",
            offers=_runs,
        ),
        Option(
            "from_step",
            "With --resume: go on from the checkpoint of this step. Newer ones stay.",
            BUDGET,
            offers=_steps,
        ),
        Option("local", "Run here and now without Slurm, with N agents as nodes.", COUNT),
        Option(
            "skip_sbatch_test",
            "Do not ask Slurm beforehand (sbatch --test-only, the partition's time limit).",
        ),
        _JSON,
        Option("parsable", "Print the job id alone, for scripts."),
    ),
    "Example: hpc-elastic submit --nodes 2:4 --gpus-per-node 8 --exclusive --time 4h -- train.py --lr 0.1\n\n"
    "train.py runs with the Python that hpc_elastic is installed in; --python takes another one.\n\n"
    "The same can be written in a job file: hpc-elastic submit train.toml\n\n"
    "A job script of your own runs as it is: hpc-elastic submit job.sbatch [ARGS]\n\n"
    "Settings of all jobs stand in hpc-elastic.toml or ~/.config/hpc-elastic/config.toml: hpc-elastic config",
    takes_job=True,
    behind="command",
    behind_metavar="COMMAND...",
)
_SBATCH = CommandRow(
    "submitting.sbatch",
    _START,
    "Queue a job script as sbatch does; it starts again after preemption, node failure and time limit.",
    details="Example: hpc-elastic sbatch --partition=gpu --time=4:00:00 job.sbatch --lr 0.1\n\n"
    "The words are those of sbatch: its options, the job script, and the arguments of the script, which runs "
    "as it is. Settings of hpc-elastic submit that sbatch does not have stand among the options, such as "
    "--max-time-limits 5, and --profile NAME, unless NAME is one of the words of sbatch.",
    takes_line=True,
)
_RENDER = CommandRow(
    "submitting.render",
    _START,
    "Print the job script that submit would queue; nothing is checked on disk or queued.",
    (_JOB_FILE,),
    (_PROFILE,),
    details="Example: hpc-elastic render --nodes 2:4 --gpus-per-node 8 --exclusive --time 4h -- train.py",
    takes_job=True,
    behind="command",
    behind_metavar="COMMAND...",
)
_INIT = CommandRow(
    "submitting.init",
    _START,
    "Write a first job file from the facts that Slurm and this directory give.",
    (
        Word(
            "script",
            "SCRIPT",
            "Training script, or a job script that starts one; by default it is looked for.",
        ),
    ),
    (
        Option("output", "File to write, - for standard output; by default job.toml.", PATH, "FILE", "-o"),
        Option("force", "Replace the file if it is there."),
    ),
    "Partition, limits and GPUs are those that sinfo tells, the account is that of sacctmgr; the program is "
    "that of a job script here, or train.py. Nothing is asked, and each line says where its value is from.",
)
_ADOPT = CommandRow(
    "submitting.adopt",
    _START,
    "Show how a job script changes, and why; nothing is changed without --write.",
    (Word("script", "SCRIPT", "A job script that starts torchrun; - for stdin.", is_needed=True),),
    (
        Option("write", "Change the script; the old one is kept as SCRIPT.orig.", short="-w"),
        Option(
            "per_node",
            "srun runs SCRIPT on each node of a job, or sbatch takes it as the job; by default by its "
            "content.",
            off="--job",
        ),
    ),
    "The difference is on stdout, so that it can be kept or given to patch; the reasons are on stderr.",
)
_LINT = CommandRow(
    "submitting.lint",
    _START,
    "Show pitfalls in job scripts, training scripts and job files; exit code 1 if there are any.",
    (
        Word(
            "files", "FILE", "An sbatch script, a training script (.py) or a job file (.toml).", is_list=True
        ),
    ),
    (
        Option(
            "explain",
            "Print the reason and the fix of a rule, in place of a FILE.",
            TEXT,
            "CODE",
            offers=_rules,
        ),
        Option("fix", "Change the script where that is safe."),
        _JSON,
    ),
)
_WATCH = CommandRow(
    "looking.watch",
    _LOOK_AFTER,
    "Show a run, or all runs of a folder, on a screen that stays up to date until Ctrl-C.",
    (_RUN_OR_FOLDER,),
    (
        Option("rank", "Show the newest lines of this global rank, too.", BUDGET, "R"),
        Option(
            "every",
            f"Seconds between two looks; by default {EVERY_S} on a terminal, else {EVERY_LINES_S}.",
            COUNT,
            "S",
        ),
    ),
)
_REPORT = CommandRow(
    "looking.report",
    _LOOK_AFTER,
    "Show a run on one page: where its time went, its starts, stops, nodes and steps.",
    (_RUN_TO_SEE,),
    (
        Option(
            "output", "File to write, - for standard output; its suffix names the format.", PATH, "FILE", "-o"
        ),
        Option("format", f"One of {', '.join(FORMATS)}; text by default.", choice(*FORMATS), "FORMAT"),
        _JSON,
    ),
)
_LOGS = CommandRow(
    "looking.logs",
    _LOOK_AFTER,
    "Show the output of the newest round's workers and of all agents, in order of time.",
    (_RUN_TO_SEE,),
    (
        Option("follow", "Go on showing new lines, until the run has ended.", short="-f"),
        Option("rank", "Only this global rank.", BUDGET, "R"),
        Option("node", "Only this node: its agent and its workers.", TEXT, "NAME"),
        Option("attempt", "Workers of this round instead of the newest; all for every round.", TEXT, "ROUND"),
        Option("lines", "The newest N lines (100); 0, and by default with --since: all.", BUDGET, short="-n"),
        Option("since", "Only lines after this time, or of the last 10m, 2h.", TEXT, "TIME"),
        Option("grep", "Only lines with this regular expression of Python.", TEXT, "PATTERN"),
        Option("first_failure", "Only the worker that failed first in its round."),
        Option("times", "Begin each line with its time."),
        _JSON,
    ),
    "A line of a worker begins with its round and rank, that of an agent with time and node.",
)
_SCALE = CommandRow(
    "ending.stop",
    _LOOK_AFTER,
    "Change how many nodes a running run uses.",
    (_RUN,),
    (
        Option(
            "nodes",
            "How many nodes the run is to use from now on.",
            NUMBER,
            short="-N",
            is_needed=True,
        ),
        Option("keep_spares", "Array mode: nodes beyond that stand by, instead of being given back."),
        _JSON_OF_STATUS,
    ),
    "A run that is one job keeps its nodes: those beyond N stand by. In array mode they are given back, "
    "and N may be more than the run was submitted for.",
)
_DRILL = CommandRow(
    "ending.drill",
    _LOOK_AFTER,
    "Cause an event in a running run that the cluster may cause, and report how the run came back.",
    (_RUN,),
    (
        Option("preempt", "SIGTERM to the agents, as when Slurm preempts."),
        Option("timeout", "The warning ahead of the time limit."),
        Option("node_loss", "Kill the agent and workers of a node."),
        Option("crash", "Kill a worker."),
        Option("hang", "Have a worker make no further step."),
        Option("requeue", "Put the job back into the queue."),
        Option("node", "Which node; the last one by default.", TEXT, "NODE"),
        Option("rank", "Which worker; the last one of the node by default.", NUMBER, "RANK"),
        Option("wait", "How long the run may take to come back. Default: 15m.", SECONDS),
        Option("yes", "Ask nothing.", short="-y"),
        _JSON,
    ),
)
_DOCTOR = CommandRow(
    "site.doctor",
    _CLUSTER,
    "Check Python, Slurm and a directory before runs depend on them.",
    (Word("directory", "DIR", f"Directory for runs. Default: ./{RUNS_FOLDER}."),),
    (
        Option(
            "nodes",
            "Try the directory from N nodes; Slurm is asked for them. Options of srun go after --.",
            _SEVERAL,
        ),
        Option(
            "preload",
            "Preload these modules on this machine, as --preload of submit and run does, and print the "
            "time that it saves.",
            MODULES,
            "MODULE,...",
        ),
        _JSON,
    ),
    "Started by srun on several nodes, or with --nodes N, it finds out whether they see the same "
    "directory, how soon a name is seen, and whether locks exclude between nodes. The exit code is 1 if "
    "something is wrong.\n\n"
    "Example: hpc-elastic doctor /scratch/me --nodes 2 -- -p short",
    behind="srun_options",
    behind_metavar="SRUN_OPTION...",
)
_CONFIG = CommandRow(
    "site.config",
    _CLUSTER,
    "Show the settings that settings files give to jobs, each with its origin.",
    (Word("job_file", "JOB_FILE", "Job file (TOML) or job script, which goes before the files."),),
    (_PROFILE, _JSON),
    "Settings files, the later ones win: /etc/hpc-elastic/config.toml, ~/.config/hpc-elastic/config.toml, "
    "and the nearest hpc-elastic.toml at or above the working directory.",
)
_NODES = CommandRow(
    "site.nodes",
    _CLUSTER,
    "Show the nodes on which runs have failed; forgive some, or have jobs do without some.",
    (
        Word(
            "words",
            "forgive|suspect HOST...",
            "Without it: the table. HOST may be a list such as node[1-3].",
            is_list=True,
        ),
    ),
    (
        Option(
            "project",
            f"Directory of the runs, or one run. Default: {Env.LEDGER}, else ./{RUNS_FOLDER}, else here.",
            PATH,
        ),
        Option("reason", "Why a node is suspect; kept with it.", TEXT),
        _JSON,
    ),
    "A suspect node is left out of the jobs that are submitted or requeued from now on, until its score "
    "has fallen below 0.5: it halves every day.\n\n"
    'Example: hpc-elastic nodes suspect node7 --reason "slow links"',
)

# A fault that the user can mend is raised as HpcElasticError and printed as one block.
COMMANDS: Mapping[str, CommandRow] = {
    "submit": _SUBMIT,
    "sbatch": _SBATCH,
    "render": _RENDER,
    "init": _INIT,
    "adopt": _ADOPT,
    "lint": _LINT,
    "status": CommandRow(
        "looking.status",
        _LOOK_AFTER,
        "Show where a run stands, the budgets that it has used, and the next command.",
        (_RUN_OR_FOLDER,),
        (Option("timeline", "Show its events, too."), _JSON),
    ),
    "watch": _WATCH,
    "explain": CommandRow(
        "looking.explain",
        _LOOK_AFTER,
        "Show why a run is in its state: each stop with cause and cost, and the next command.",
        (_RUN_TO_SEE,),
        (_JSON,),
    ),
    "report": _REPORT,
    "timeline": CommandRow(
        "looking.status",
        _LOOK_AFTER,
        "Show the events of a run: starts, rounds, failures, drains, requeues, the end.",
        (_RUN_TO_SEE,),
        (_JSON,),
    ),
    "logs": _LOGS,
    "checkpoints": CommandRow(
        "looking.checkpoints",
        _LOOK_AFTER,
        "Show the checkpoints of a run, and from which of them it goes on.",
        (_RUN_TO_SEE,),
        (_JSON,),
        "Example: hpc-elastic submit --resume RUN --from-step 1200",
    ),
    "stop": CommandRow(
        "ending.stop",
        _LOOK_AFTER,
        "Have the workers save and stop at the same step; the job ends and is not requeued.",
        (_RUN,),
        (_JSON_OF_STATUS,),
    ),
    "cancel": CommandRow(
        "ending.stop",
        _LOOK_AFTER,
        "End a run at once; the work since its last checkpoint is lost.",
        (_RUN,),
        (_JSON_OF_STATUS,),
    ),
    "scale": _SCALE,
    "drill": _DRILL,
    "doctor": _DOCTOR,
    "nodes": _NODES,
    "config": _CONFIG,
    "version": CommandRow("site.version", _CLUSTER, "Print the version."),
}

OF_NODES: Mapping[str, str] = {
    "run": "Run one agent, with torchrun's flags; job scripts call it.",
    "finish": "Decide whether the job is requeued, held or over; job scripts call it after srun.",
}
"""The commands that `hpc_elastic.cli.main` calls by itself, each with its summary."""


def function_of(name: str) -> Callable[..., object]:
    """Import the function of a command."""
    from importlib import import_module  # noqa: PLC0415 - not on nodes

    function: Callable[..., object] = getattr(
        import_module(f"hpc_elastic.cli.commands.{COMMANDS[name].module}"), name
    )
    return function


def parser_of_nodes(name: str) -> Parser:
    """Import and return the parser of a command of `OF_NODES`."""
    from hpc_elastic.cli.commands.ending import finish  # noqa: PLC0415 - not for other commands
    from hpc_elastic.cli.run import flags  # noqa: PLC0415 - as above

    return flags.parser() if name == "run" else finish.parser()
