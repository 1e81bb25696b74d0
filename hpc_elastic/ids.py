"""Small names shared by all parts: environment variables, and the writers of records that are no agent."""

from __future__ import annotations

BATCH = "batch"  # writer of the records that the job script makes; in array mode with the task behind it
LOGIN = "login"  # writer of the records that the commands of the login node make
CANCELLED_CODE = 130  # as a program that was interrupted
COPY = "copy-"  # begins the names of copies of a state in the memory of a node
OF_MPI = ("PMI_", "PMI2_", "PMIX_")  # begin the names of variables that tell a task its place in MPI
SHUTDOWN_S = 30  # default from SIGTERM to SIGKILL of workers [s]


class Env:
    """Environment variables that hpc_elastic reads or sets."""

    RUN_DIR = "HPC_ELASTIC_RUN_DIR"
    RESUME = "HPC_ELASTIC_RESUME"  # directory of the run that a script which `adopt` has changed goes on with
    RUN_ID = "HPC_ELASTIC_RUN_ID"
    SUBMISSION = "HPC_ELASTIC_SUBMISSION"  # how often the run was submitted before
    LINK = "HPC_ELASTIC_LINK"  # how many jobs of the same submission came before this one
    EXPEDITED = "HPC_ELASTIC_EXPEDITED"  # not empty: the job was queued with --requeue=expedite
    MODE = "HPC_ELASTIC_MODE"  # "array": the job is one task of an array whose tasks make up one run
    LOCAL = "HPC_ELASTIC_LOCAL"  # set by the runner that plays Slurm on one machine
    LAUNCH_FAILURE = "HPC_ELASTIC_LAUNCH_FAILURE"  # the line of the job script that failed before srun
    RELAUNCH = "HPC_ELASTIC_RELAUNCH"  # how often srun was started again in this job start
    ROUND = "HPC_ELASTIC_ROUND"
    NODE = "HPC_ELASTIC_NODE"
    CHANNEL = "HPC_ELASTIC_CHANNEL"
    STDERR_TO_STDOUT = "HPC_ELASTIC_STDERR_TO_STDOUT"  # "1": the stderr of a call goes to stdout
    SITE_CONFIG = "HPC_ELASTIC_SITE_CONFIG"  # the settings file of the site; empty: there is none
    OF_WORKERS = "HPC_ELASTIC_WORKER_ENV_"  # begins the names of variables that workers alone get, without it
    LEDGER = "HPC_ELASTIC_LEDGER"  # directory of the ledger of nodes
    CHECKPOINT = "HPC_ELASTIC_CHECKPOINT"
    STOP_WAIT_S = "HPC_ELASTIC_STOP_WAIT_S"
    METRICS = "HPC_ELASTIC_METRICS"  # where the agent's metrics go
    EVENTS = "HPC_ELASTIC_EVENTS"  # where its events go
    HEALTH_CHECK_ADDRESS = "HPC_ELASTIC_HEALTH_CHECK_ADDRESS"
    HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
    ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
    TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
    STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
    ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
    EXIT_BARRIER_TIMEOUT = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"  # at the end, for the other nodes [s]
    SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"  # from SIGTERM to SIGKILL [s]


RUNS_FOLDER = "hpc_elastic_runs"  # runs without a directory of the user's choice live below it
LOCAL_JOB = "local-"  # job ids of runs on one machine without Slurm start so


def copy_prefix(root: str, node: str) -> str:
    """Return the beginning of the names of the copies that the workers of a run keep in a node's memory.

    Args:
        root: the run directory.
        node: the name of the agent.
    """
    from zlib import crc32  # noqa: PLC0415 - only agents and workers need it

    key = crc32(f"{root}\0{node}".encode(errors="surrogateescape"))
    return f"{COPY}{key:08x}-"
