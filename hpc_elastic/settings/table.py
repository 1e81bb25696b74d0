"""The settings of a job: each once, for all rooms that take it, hand it on or read it. Pure.

A new setting is one row here, and the code that reads it. A row without `to` is read where the script of the
job is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hpc_elastic.settings.setting import (
    BUDGET,
    CONTAINER,
    COUNT,
    GPUS,
    INTERVAL,
    LINES,
    LOCAL_RANKS,
    MEMORY,
    MODULES,
    NAMES,
    NODES,
    OPTIONS,
    PATH,
    REPEATS,
    SECONDS,
    SIGNALS,
    SILENCE,
    SIZE,
    STREAMS,
    SWITCH,
    TEXT,
    TIME_LIMIT,
    UNASKED,
    VARIABLES,
    WORDS,
    Agent,
    FinishFlag,
    Sbatch,
    ValueKind,
    Written,
    choice,
    rows_of,
    setting,
)

ON, OFF = True, False
_NO_LIMIT = Written(default="no limit of its own")
_MEETING = Agent(is_unset=True)  # or ``--rdzv-conf`` tells it
_STREAMS = "0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:N,..."

_MODE: ValueKind[Literal["step", "array", "script"]] = choice("step", "array", "script")
_WARN_SIGNAL: ValueKind[Literal["USR1", "USR2"]] = choice("USR1", "USR2")
_ON_BUDGET_SPENT: ValueKind[Literal["hold", "fail"]] = choice("hold", "fail")
_CHAIN_BY: ValueKind[Literal["singleton", "afterany"]] = choice("singleton", "afterany")
_RUNTIME: ValueKind[Literal["apptainer", "enroot", "podman", "charliecloud"]] = choice(
    "apptainer", "enroot", "podman", "charliecloud"
)
_HEALTH_CHECK: ValueKind[Literal["off", "quick", "full"]] = choice("off", "quick", "full")


# fmt: off
class TheProgram:
    """The program."""

    command = setting(WORDS, (), "The worker's program and its arguments")
    module = setting(
        TEXT, None, "Python module to run as worker (python -m MODULE); the arguments come from command",
        written=Written("-m", "MODULE"),
    )
    workers_per_node = setting(
        COUNT, None, "Workers on each node", written=Written(default="the GPUs per node, else 1")
    )
    workdir = setting(
        PATH, None, "Directory the workers start in", to=Sbatch("chdir"),
        written=Written(default="the current one"),
    )
    tracker_ids = setting(
        SWITCH, OFF, "Have W&B, Comet, Neptune and TensorBoard go on with one experiment after each start",
        to=Agent(),
    )
    preload = setting(
        MODULES, (),
        "Python modules that one process per node imports once; each worker is a copy of it; "
        "auto: those that the workers have imported",
        to=Agent(()),
    )


class TheEnvironment:
    """The Python and the environment of the workers."""

    python = setting(
        TEXT, None, "Python of the agents, and of the workers where no other is named",
        written=Written(metavar="PATH", default="the one hpc_elastic is installed in"),
    )
    conda = setting(
        TEXT, None, "Conda environment of the workers, by its name or directory; the agents keep their Python"
    )
    venv = setting(PATH, None, "Virtual environment of the workers; the agents keep their Python")
    uv = setting(
        SWITCH, OFF, "Workers run in the environment that uv sync has made for the project of the working "
        "directory",
    )
    modules = setting(
        NAMES, (), "Environment modules to load (module load ...); a Python that they bring is the workers'"
    )
    container = setting(
        CONTAINER, (), "Words before the command of the workers, e.g. 'apptainer exec --nv image.sif'; "
        "submit makes them of an image alone. The image's own Python runs the workers", to=Agent(()),
        written=Written(metavar="IMAGE|PREFIX"),
    )
    container_runtime = setting(
        _RUNTIME, None, "Program that runs the image",
        written=Written(default="the one on this machine that takes such an image"),
    )
    mounts = setting(
        NAMES, (), "Directories that the container sees, beside the run directory and the working directory: "
        "DIR or DIR:DIR-INSIDE", written=Written(metavar="DIR,..."),
    )
    env = setting(
        VARIABLES, {}, "Environment variables of the whole job: setup lines, agents and workers",
        written=Written("-e"),
    )
    worker_env = setting(VARIABLES, {}, "Environment variables of the workers alone")
    inherit_env = setting(SWITCH, ON, "Pass the environment of the submitting shell on to the job")
    setup = setting(
        LINES, (), "Shell lines that run once per job start, on the first node, before the agents"
    )


class WhereItRuns:
    """Where it runs (Slurm)."""

    name = setting(
        TEXT, "", "Job name", to=Sbatch("job-name"),
        written=Written("-J", default="the name of the training script"),
    )
    partition = setting(TEXT, None, "Partition", to=Sbatch("partition"), written=Written("-p"))
    account = setting(TEXT, None, "Account to charge", to=Sbatch("account"), written=Written("-A"))
    qos = setting(TEXT, None, "Quality of service", to=Sbatch("qos"), written=Written("-q"))
    time = setting(
        TIME_LIMIT, None, "Time limit of one start: minutes, 4h, 1h30m, HH:MM:SS or D-HH:MM:SS",
        to=Sbatch("time"), written=Written("-t"),
    )
    nodes = setting(
        NODES, "1", "Nodes: N, or MIN:MAX for a run that may shrink and grow", to=Sbatch("nodes"),
        written=Written("-N"),
    )
    mode = setting(
        _MODE, "step", "step: one job of all nodes. array: a job array of one-node tasks, each preempted and "
        "requeued alone. script: command is a job script, which runs as it is",
    )
    spares = setting(BUDGET, None, "Array mode: tasks beyond the most nodes, which stand by", 0)
    gpus_per_node = setting(GPUS, None, "GPUs on each node: N or TYPE:N", to=Sbatch("gpus-per-node"))
    cpus_per_node = setting(COUNT, None, "CPUs on each node, shared by its workers")
    cpus_per_task = setting(
        COUNT, None, "As cpus_per_node: the one task on a node is its agent", to=Sbatch("cpus-per-task")
    )
    mem = setting(MEMORY, None, "Memory on each node, e.g. 480G; 0 for all of it", to=Sbatch("mem"))
    mem_per_cpu = setting(MEMORY, None, "Memory for each CPU, e.g. 4G", to=Sbatch("mem-per-cpu"))
    constraint = setting(
        TEXT, None, "Node features asked for", to=Sbatch("constraint"), written=Written("-C")
    )
    exclusive = setting(SWITCH, OFF, "Take whole nodes", to=Sbatch("exclusive"))
    reservation = setting(TEXT, None, "Reservation", to=Sbatch("reservation"))
    nodelist = setting(
        TEXT, None, "Nodes that must be used, e.g. node[1-4]", to=Sbatch("nodelist"), written=Written("-w")
    )
    exclude = setting(TEXT, None, "Nodes that must not be used", to=Sbatch("exclude"), written=Written("-x"))
    mail_type = setting(
        TEXT, None, "When to send mail: BEGIN, END, FAIL, REQUEUE, ALL", to=Sbatch("mail-type")
    )
    mail_user = setting(TEXT, None, "User that gets the mail", to=Sbatch("mail-user"))
    dependency = setting(
        TEXT, None, "Jobs to wait for, e.g. afterok:1234", to=Sbatch("dependency"), written=Written("-d")
    )
    comment = setting(
        TEXT, None, "Comment of the job; a token that names the submission is put before it",
        to=Sbatch("comment"),
    )
    sbatch = setting(
        OPTIONS, {}, "Any other sbatch option by its name; true for a flag", written=Written("-o")
    )
    sbatch_options = setting(
        WORDS, (), "Mode script: options of sbatch, as on its own command line, e.g. '-p gpu --time=4:00:00'"
    )


class RunDirectoryAndLogs:
    """Run directory and logs."""

    run_dir = setting(
        PATH, None, "Run directory on a shared file system",
        written=Written(default="./hpc_elastic_runs/NAME-DATE-ID"),
    )
    allow_local_run_dir = setting(SWITCH, OFF, "Accept a run directory that looks local to this machine")
    redirects = setting(
        STREAMS, "3", f"Streams of workers that go to log files: {_STREAMS}", to=Agent("0", short="-r"),
    )
    tee = setting(
        STREAMS, None, "Streams of workers that also go to the batch log or the console", "0",
        Agent(short="-t"),
    )
    local_ranks_filter = setting(
        LOCAL_RANKS, None, "Local ranks whose output is shown in the batch log or on the console", "",
        Agent(), Written(default="all"),
    )
    keep_logs = setting(
        BUDGET, None, "Of how many rounds the workers' logs stay; 0: of all", 100, Agent(),
        Written(metavar="ROUNDS"),
    )
    sample_gpus = setting(
        SECONDS, None, "Time between two looks of the agents at the use of their GPUs, with nvidia-smi; "
        "0: none", 0.0, Agent(),
    )


class TimeToSave:
    """Time to save."""

    checkpoint_lead = setting(
        SECONDS, None, "Time that stopping and saving a checkpoint takes", 120.0,
        written=Written(default="2m, less in short jobs"),
    )
    stop_timeout = setting(
        SECONDS, None, "How long workers may take to save when the nodes are wanted back", 25.0,
        Agent(is_unset=True),
        Written(default="the time that the cluster grants (KillWait, GraceTime), else 25s"),
    )
    critical_timeout = setting(
        SECONDS, None, "How long a failure elsewhere waits for critical sections of workers", 60.0, Agent()
    )
    keep_in_memory = setting(
        SECONDS, None, "How long states that workers have kept in the memory of their node stay there for "
        "the next start of the job, where no checkpoint is as new; 0: they go with the agent", 0.0, Agent(),
    )
    unasked = setting(
        UNASKED, None, "Workers that never ask whether to stop: term ends them at once, run-on lets them "
        "run until their time is up, signal:USR1 also sends them that signal first", "term", Agent(),
    )
    watch_node_drain = setting(
        SWITCH, OFF, "Ask Slurm each minute whether a node of the job is being drained, and leave then",
        to=Agent(),
    )
    warn_signal = setting(
        _WARN_SIGNAL, "USR2", "Signal of the warning before the time limit (NCCL catches USR1)"
    )
    drain_signals = setting(
        SIGNALS, (), "Signals that mean: the nodes are wanted back now", to=Agent(("TERM", "HUP")),
        written=Written(default="TERM,HUP"),
    )
    warning_signals = setting(
        SIGNALS, (), "Signals that mean: the time limit is near", to=Agent(("USR1", "USR2")),
        written=Written(default="USR1,USR2"),
    )


class FailuresAndHangs:
    """Failures and hangs."""

    max_restarts = setting(
        BUDGET, 3, "How often all workers are started again after one has failed, in the whole run; a lost "
        "node costs none", to=Agent(0),
    )
    same_failure = setting(
        REPEATS, None, "The same failure so often in a row, with no checkpoint marked in between, ends the "
        "run though restarts are left; 0: never", 3, Agent(0),
    )
    max_hangs = setting(BUDGET, None, "How often all workers are started again after a hang", 3, Agent())
    hang_timeout = setting(
        SILENCE, None, "How long workers that tick may go without a tick or another section before all are "
        "started again: a time, auto (learned) or off", "auto", Agent(),
        Written(default="auto, five times the longest so far, at least 30m"),
    )
    first_step_timeout = setting(
        SILENCE, None, "The same from a worker's start to its first tick; a time means that every worker "
        "ticks", "auto", Agent(), Written(default="auto, learned from earlier rounds"),
    )
    silence_timeout = setting(
        SECONDS, None, "How long a worker that never ticks may show no output, no CPU time and no GPU use "
        "before all are started again as after a hang; 0: as long as it likes", 0.0, Agent(),
    )


class Requeues:
    """Requeues."""

    max_requeues = setting(
        BUDGET, None, "How often the job is requeued, for any cause; 0: it has one start", 500, FinishFlag()
    )
    max_node_losses = setting(BUDGET, None, "How often nodes may be lost", 100, FinishFlag())
    max_preemptions = setting(
        BUDGET, None, "How often the job is requeued after a preemption", to=FinishFlag(), written=_NO_LIMIT
    )
    max_time_limits = setting(
        BUDGET, None, "How often the job is requeued at its time limit", to=FinishFlag(), written=_NO_LIMIT
    )
    max_launch_failures = setting(
        BUDGET, None, "How often the job is requeued after its agents could not start", 3, FinishFlag()
    )
    max_starts_without_save = setting(
        BUDGET, None, "How many starts in a row may save nothing newer than they began from, of a program "
        "that marks its checkpoints or ticks; 0: no limit", 3, FinishFlag(),
    )
    on_budget_spent = setting(
        _ON_BUDGET_SPENT, None, "The end of a job that has spent one of these budgets: hold lets it "
        "wait in the queue until you release it, fail ends the run", "hold", FinishFlag(),
    )
    resubmit = setting(SWITCH, ON, "Submit the job again where Slurm does not requeue it", to=FinishFlag())
    expedite = setting(
        SWITCH, ON, "Have Slurm start the job again at once after a requeue, where the site allows that: "
        "--requeue=expedite, Slurm 25.11 or later",
    )
    chain = setting(
        COUNT, None, "Queue so many jobs at once, which take the run up one after the other, in place of "
        "requeues", to=FinishFlag(0), written=Written(default="one job, which is requeued"),
    )
    chain_by = setting(
        _CHAIN_BY, None, "How a job of a chain waits: for the one before (afterany), "
        "or for all of its name (singleton)", "afterany",
    )


class Messages:
    """Messages."""

    notify_webhook = setting(
        PATH, None, "File with the URL of a webhook that gets a message about the end of the run; only you "
        "may read the file (mode 0600)", to=FinishFlag(), written=Written(metavar="FILE"),
    )
    notify_template = setting(
        TEXT, None, "Body for the webhook: json, slack, teams, or a file with JSON of your own", "json",
        FinishFlag(), Written(metavar="NAME|FILE"),
    )
    notify_command = setting(
        TEXT, None, "Command that gets the same message, as JSON on its standard input", to=FinishFlag(),
        written=Written(metavar="COMMAND"),
    )
    notify_on = setting(
        NAMES, (), "Events with a message: some of failed, held, done, no-progress",
        to=FinishFlag(), written=Written(metavar="EVENT,...", default="all"),
    )


class BadNodes:
    """Bad nodes."""

    health_check = setting(
        _HEALTH_CHECK, None, "Check of each node before it joins: off, quick, or full "
        "with nvidia-smi", "quick", Agent(),
    )
    health_command = setting(
        TEXT, None, "Check of your own on each node; where it fails the node stays out, and its last line "
        "is the reason", "", Agent(), Written(metavar="COMMAND"),
    )
    health_timeout = setting(
        INTERVAL, None, "Time of the health command, of nvidia-smi, and of the wait for GPU memory that "
        "others hold", 60.0, Agent(),
    )
    probe_min_space = setting(
        SIZE, None, "Free space needed in $TMPDIR and the run directory", "64M", Agent()
    )
    probe_min_inodes = setting(BUDGET, None, "Free inodes needed there", 1000, Agent())
    gpu_devices = setting(
        TEXT, None, "Pattern of the GPUs' device files, of which there are at least as many as Slurm has "
        "promised", "", Agent(), Written(metavar="PATTERN", default="/dev/nvidia[0-9]*, where there are any"),
    )
    exclude_suspects = setting(SWITCH, ON, "Leave out nodes on which runs have failed of late")
    ledger = setting(
        PATH, None, "Directory that remembers bad nodes",
        written=Written(default=".hpc_elastic/nodes beside the run"),
    )


class TimeoutsOfTheAgents:
    """Timeouts of the agents."""

    join_timeout = setting(INTERVAL, None, "How long a round waits for the minimum of nodes", 600.0, _MEETING)
    last_call_timeout = setting(
        INTERVAL, None, "How long a round with the minimum waits for more nodes", 30.0, _MEETING
    )
    exit_barrier_timeout = setting(
        SECONDS, None, "How long agents wait for each other at the end", 300.0, Agent()
    )
    heartbeat_interval = setting(INTERVAL, None, "Time between two signs of life of an agent", 1.0, _MEETING)
    lease = setting(
        INTERVAL, None, "Silence after which an agent counts as lost; at least three heartbeats", 4.0,
        _MEETING,
    )
    monitor_interval = setting(INTERVAL, None, "Accepted, as torchrun; exits are seen at once", 0.1, Agent())
    role = setting(TEXT, None, "Role of the workers (ROLE_NAME)", "default", Agent(), Written(metavar="NAME"))

# fmt: on


class JobSettings(
    TheProgram,
    TheEnvironment,
    WhereItRuns,
    RunDirectoryAndLogs,
    TimeToSave,
    FailuresAndHangs,
    Requeues,
    Messages,
    BadNodes,
    TimeoutsOfTheAgents,
):
    """All settings of a job, each as a value of its type."""


JOB = rows_of(*JobSettings.__bases__)
RENDEZVOUS = tuple(row.name for row in JOB.values() if row.to is _MEETING)
OF_FINISH = tuple(row for row in JOB.values() if isinstance(row.to, FinishFlag))
OF_AGENT = tuple(row for row in JOB.values() if isinstance(row.to, Agent))


def in_force(spec: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting in a job as it was stored, which has only those that are no default."""
    given = spec.get(name)
    return JOB[name].holds if given is None else given
