"""The job spec: one description of a run, the same from the command line, TOML and Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hpc_elastic.slurm.job import options, spec_input, spec_rules
from hpc_elastic.slurm.job.values import (
    NodeRange,
    parse_duration_s,
    parse_nodes,
    parse_time_limit_s,
    slurm_time_text,
)

OptionValue = str | int | float | bool  # in this order: pydantic keeps the type that was given
_MOST = 10**12  # of anything that is counted
Count = Annotated[int, Field(ge=1, le=_MOST)]
Budget = Annotated[int, Field(ge=0, le=_MOST)]
Seconds = Annotated[float, BeforeValidator(parse_duration_s)]
Words = Annotated[tuple[str, ...], BeforeValidator(spec_input.words)]
Lines = Annotated[tuple[str, ...], BeforeValidator(spec_input.lines)]
Names = Annotated[tuple[str, ...], BeforeValidator(spec_input.names)]
Text = Annotated[str, BeforeValidator(spec_input.one_line)]
Memory = Annotated[str, BeforeValidator(spec_input.memory)]


class JobSpec(BaseModel):
    """What to run and what to run it on.

    Durations are seconds or text with a unit (``90s``, ``2m``); `time` is minutes or text, as in Slurm.

    Raises:
        InputError: a field is unknown, cannot be read, or contradicts another one; `where` is its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    command: Words = Field(
        (),
        description="The worker's program and its arguments; a string is split as a shell would.",
    )
    module: Text | None = Field(
        None,
        description="Python module to run as worker (python -m MODULE); the arguments come from command.",
    )
    python: Text | None = Field(
        None,
        description="Python of the agents and of the workers. Default: the one hpc_elastic is installed in.",
    )
    workers_per_node: Count | None = Field(
        None, description="Workers on each node. Default: the GPUs per node, else 1."
    )
    container: Words = Field(
        (), description="Prefix of the worker command, e.g. 'apptainer exec --nv image.sif'."
    )

    name: Text = Field("", description="Job name. Default: the name of the training script.")
    partition: Text | None = Field(None, description="Partition.")
    account: Text | None = Field(None, description="Account to charge.")
    qos: Text | None = Field(None, description="Quality of service.")
    time: Annotated[str | int | None, BeforeValidator(spec_input.time_limit)] = Field(
        None, description="Time limit of one start: minutes, 4h, 1h30m, HH:MM:SS or D-HH:MM:SS."
    )
    nodes: Annotated[str | int, BeforeValidator(spec_input.nodes)] = Field(
        "1", description="Nodes: N, or MIN:MAX for a run that may shrink and grow. Default: 1."
    )
    mode: Literal["step", "array"] = Field(
        "step",
        description="step: one job of all nodes. array: a job array of one-node tasks, each preempted and "
        "requeued alone. Default: step.",
    )
    spares: Budget | None = Field(
        None, description="Array mode: tasks beyond the most nodes, which stand by. Default: 0."
    )
    gpus_per_node: Annotated[str | int | None, BeforeValidator(spec_input.gpus)] = Field(
        None, description="GPUs on each node: N or TYPE:N."
    )
    cpus_per_node: Count | None = Field(None, description="CPUs on each node, shared by its workers.")
    cpus_per_task: Count | None = Field(
        None, description="As cpus_per_node: the one task on a node is its agent."
    )
    mem: Memory | None = Field(None, description="Memory on each node, e.g. 480G; 0 for all of it.")
    mem_per_cpu: Memory | None = Field(None, description="Memory for each CPU, e.g. 4G.")
    constraint: Text | None = Field(None, description="Node features asked for.")
    exclusive: bool = Field(default=False, description="Take whole nodes.")
    reservation: Text | None = Field(None, description="Reservation.")
    nodelist: Text | None = Field(None, description="Nodes that must be used, e.g. node[1-4].")
    exclude: Text | None = Field(None, description="Nodes that must not be used.")
    mail_type: Text | None = Field(None, description="When to send mail: BEGIN, END, FAIL, REQUEUE, ALL.")
    mail_user: Text | None = Field(None, description="Who gets the mail.")
    dependency: Text | None = Field(None, description="Jobs to wait for, e.g. afterok:1234.")
    comment: Text | None = Field(
        None, description="Comment of the job; a token that names the submission is put before it."
    )
    sbatch: dict[str, OptionValue] = Field(
        default_factory=dict, description="Any other sbatch option by its name; true for a flag."
    )

    workdir: Text | None = Field(
        None, description="Directory the workers start in. Default: the current one."
    )
    env: Annotated[dict[str, str], BeforeValidator(spec_input.variables)] = Field(
        default_factory=dict, description="Environment variables of the workers."
    )
    tracker_ids: bool = Field(
        default=False,
        description="Have W&B, Comet, Neptune and TensorBoard go on with one experiment after each start.",
    )
    inherit_env: bool = Field(
        default=True, description="Pass the environment of the submitting shell on to the job."
    )
    modules: Names = Field((), description="Environment modules to load (module load ...).")
    setup: Lines = Field(
        (), description="Shell lines that run once per job start, on the first node, before the agents."
    )
    run_dir: Text | None = Field(
        None, description="Run directory on a shared file system. Default: ./hpc_elastic_runs/NAME-DATE-ID."
    )
    allow_local_run_dir: bool = Field(
        default=False, description="Accept a run directory that looks local to this machine."
    )

    max_restarts: Budget = Field(
        3, description="How often all workers are started again after one has failed. Default: 3."
    )
    hang_timeout: Annotated[str | int | float | None, BeforeValidator(spec_input.silence)] = Field(
        None,
        description="How long workers that tick may make no progress: a time, auto (learned) or off."
        " Default: auto.",
    )
    first_step_timeout: Annotated[str | int | float | None, BeforeValidator(spec_input.silence)] = Field(
        None,
        description="The same before the first tick; a time means that every worker ticks. Default: auto.",
    )
    max_hangs: Budget | None = Field(
        None, description="How often all workers are started again after a hang. Default: 3."
    )
    same_failure: Budget | None = Field(
        None,
        description="The same failure so often in a row, with no checkpoint marked in between, ends the run "
        "though restarts are left; 0: never. Default: 3.",
    )
    max_requeues: Budget | None = Field(
        None, description="How often the job is requeued, whatever for. Default: 500."
    )
    max_node_losses: Budget | None = Field(None, description="How often nodes may be lost. Default: 100.")
    max_preemptions: Budget | None = Field(
        None, description="How often the job is requeued after a preemption. Default: no limit of its own."
    )
    max_time_limits: Budget | None = Field(
        None, description="How often the job is requeued at its time limit. Default: no limit of its own."
    )
    max_launch_failures: Budget | None = Field(
        None, description="How often the job is requeued after its agents could not start. Default: 3."
    )
    max_starts_without_save: Budget | None = Field(
        None,
        description="How many starts in a row may save nothing newer than they began from, of a program that "
        "marks its checkpoints or ticks; 0: no limit. Default: 3.",
    )
    on_budget_spent: Literal["hold", "fail"] | None = Field(
        None,
        description="What becomes of the job when one of these budgets is spent: hold lets it wait in the "
        "queue until you release it, fail ends the run. Default: hold.",
    )
    resubmit: bool = Field(
        default=True, description="Submit the job again where Slurm does not requeue it. Default: yes."
    )
    chain: Count | None = Field(
        None,
        description="Queue so many jobs at once, which take the run up one after the other, in place of "
        "requeues. Default: one job, which is requeued.",
    )
    chain_by: Literal["singleton", "afterany"] | None = Field(
        None,
        description="How a job of a chain waits: for the one before (afterany), or for all of its name "
        "(singleton). Default: afterany.",
    )
    checkpoint_lead: Seconds | None = Field(
        None, description="Time that stopping and saving a checkpoint takes. Default: 2m, less in short jobs."
    )
    warn_signal: Literal["USR1", "USR2"] = Field(
        "USR2", description="Signal of the warning before the time limit (NCCL catches USR1). Default: USR2."
    )
    drain_signals: Names = Field(
        (), description="Signals that mean: the nodes are wanted back now. Default: TERM,HUP."
    )
    warning_signals: Names = Field(
        (), description="Signals that mean: the time limit is near. Default: USR1,USR2."
    )
    health_check: Literal["off", "quick", "full"] | None = Field(
        None, description="What each node is asked before it joins; full: with nvidia-smi. Default: quick."
    )
    health_command: Text | None = Field(
        None, description="Check of your own on each node; where it fails the node stays out."
    )
    health_timeout: Seconds | None = Field(None, description="Time of the health command. Default: 60s.")
    probe_min_space: Annotated[str | None, BeforeValidator(spec_input.size)] = Field(
        None, description="Free space needed in $TMPDIR and the run directory. Default: 64M."
    )
    probe_min_inodes: Budget | None = Field(None, description="Free inodes needed there. Default: 1000.")
    gpu_devices: Text | None = Field(
        None, description="Pattern of the GPUs' device files. Default: /dev/nvidia[0-9]*."
    )
    exclude_suspects: bool = Field(
        default=True, description="Leave out nodes on which runs have failed of late. Default: yes."
    )
    ledger: Text | None = Field(
        None,
        description="Directory that remembers bad nodes. Default: .hpc_elastic/nodes beside the run.",
    )

    join_timeout: Seconds | None = Field(
        None, description="How long a round waits for the minimum of nodes. Default: 10m."
    )
    last_call_timeout: Seconds | None = Field(
        None, description="How long a round with the minimum waits for more nodes. Default: 30s."
    )
    exit_barrier_timeout: Seconds | None = Field(
        None, description="How long agents wait for each other at the end. Default: 5m."
    )
    heartbeat_interval: Seconds | None = Field(
        None, description="Time between two signs of life of an agent. Default: 1s."
    )
    lease: Seconds | None = Field(
        None,
        description="Silence after which an agent counts as lost; at least three heartbeats. Default: 4s.",
    )
    stop_timeout: Seconds | None = Field(
        None,
        description="How long workers may take to save when the nodes are wanted back. Default: what the "
        "cluster grants, else 25s.",
    )
    critical_timeout: Seconds | None = Field(
        None,
        description="How long a failure elsewhere waits for critical sections of workers. Default: 60s.",
    )
    unasked: Annotated[str | None, BeforeValidator(spec_input.unasked)] = Field(
        None,
        description="Workers that never ask whether to stop: term ends them at once, run-on lets them run "
        "until their time is up, signal:USR1 also sends them that signal first. Default: term.",
    )
    watch_node_drain: bool = Field(
        default=False,
        description="Ask Slurm each minute whether a node of the job is being drained, and leave then.",
    )
    monitor_interval: Seconds | None = Field(
        None, description="Accepted, as torchrun; exits are seen at once."
    )
    keep_logs: Budget | None = Field(
        None, description="Of how many rounds the workers' logs stay; 0: of all. Default: 100."
    )
    role: Text | None = Field(None, description="Role of the workers. Default: default.")
    redirects: Text = Field(
        "3",
        description="Streams of workers that go to files: 0-3 or LOCAL_RANK:N,... as torchrun. Default: 3.",
    )
    tee: Text | None = Field(
        None, description="Streams of workers that also go to the batch log, as torchrun. Default: 0."
    )
    local_ranks_filter: Text | None = Field(
        None, description="Local ranks whose output is shown in the batch log. Default: all."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: object, build: Callable[[object], JobSpec]) -> JobSpec:
        try:
            spec = build(spec_input.fold_sbatch(data))
        except ValidationError as error:
            raise spec_input.explain(error, tuple(cls.model_fields)) from None
        spec_rules.check(spec)
        return spec

    @property
    def node_range(self) -> NodeRange:
        """The least and the most nodes of the run."""
        return parse_nodes(self.nodes)

    @property
    def tasks(self) -> int:
        """How many tasks the array of the run has in array mode."""
        return self.node_range.high + (self.spares or 0)

    @property
    def time_limit_s(self) -> int | None:
        """The time limit [s]; None if there is none or the partition decides."""
        return None if self.time is None else parse_time_limit_s(self.time)

    @property
    def cpus(self) -> int | None:
        """The CPUs on each node, None if not asked for."""
        return self.cpus_per_node or self.cpus_per_task

    @property
    def gpus(self) -> int | None:
        """The GPUs on each node, None if not asked for by `gpus_per_node`."""
        return None if self.gpus_per_node is None else int(str(self.gpus_per_node).rpartition(":")[2])

    def header_options(self) -> list[tuple[str, OptionValue]]:
        """Return the sbatch options the user asked for, named fields first, in a fixed order."""
        named: dict[str, OptionValue | None] = {
            "job-name": self.name or None,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "time": None if self.time is None else slurm_time_text(self.time_limit_s),
            "nodes": "1" if self.mode == "array" else self.node_range.slurm_text,
            "gpus-per-node": self.gpus_per_node,
            "cpus-per-task": self.cpus,
            "mem": self.mem,
            "mem-per-cpu": self.mem_per_cpu,
            "constraint": self.constraint,
            "exclusive": True if self.exclusive else None,
            "reservation": self.reservation,
            "nodelist": self.nodelist,
            "exclude": self.exclude,
            "mail-type": self.mail_type,
            "mail-user": self.mail_user,
            "dependency": self.dependency,
        }
        given: list[tuple[str, OptionValue]] = []
        given += [(name, value) for name, value in named.items() if value is not None]
        return given + [(name, value) for name, value in self.sbatch.items() if value is not False]

    def option_names(self) -> tuple[str, ...]:
        """Return the long names of the options given in `sbatch`."""
        return tuple(options.option_name(name) for name in self.sbatch)
