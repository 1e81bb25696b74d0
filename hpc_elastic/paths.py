"""Every file name of a run, in one place."""

from __future__ import annotations

import os
import re
from functools import partial

IDENTITY = "run.json"
TASKS = "tasks"  # the folder of the runs of an array of a user's own job script, one for each of its tasks
OF_ROUND = "round-"  # the key-value store of a round's workers is called so, with the round's number
_UNSAFE = r"[^A-Za-z0-9._-]+"
MAX_NAME = 64  # characters that a name keeps of a text


def absence_of(path: str) -> str:
    """Return how a path that leads nowhere is spoken of: it does not exist, or cannot be seen."""
    place = closed_above(path)
    return f"cannot be seen: no permission on {place}" if place else "does not exist"


def closed_above(path: str) -> str:
    """Return the directory that this user may not enter, so that a path cannot be seen; empty if none is."""
    try:
        os.stat(path)
    except PermissionError:
        place = os.path.dirname(os.path.realpath(path))  # a link may lead there
        while not os.path.exists(place):
            place = os.path.dirname(place)
        return place
    except (OSError, ValueError):
        pass
    return ""


def round_scope(number: int) -> str:
    """Return the scope of the key-value store of a round's workers."""
    return f"{OF_ROUND}{number}"


def readable_name(text: str) -> str:
    """Return a text as part of a file name: letters, digits, ``._-`` only; empty if it has none of them."""
    return re.sub(_UNSAFE, "-", text).strip(".-")[:MAX_NAME]


def own_name(text: str) -> str:
    """Return a text as part of a file name that no other text has; empty for an empty one."""
    name = readable_name(text)
    if name == text:
        return name
    from zlib import crc32  # noqa: PLC0415 - most texts are names already

    number = f"{crc32(text.encode(errors='surrogateescape')):08x}"
    return f"{name}-{number}" if name else number


def _name_at(root: str) -> str:
    """Return the last part of a run directory; for that of a task, which is a number, the array before it."""
    above, name = os.path.split(root)
    array, folder = os.path.split(above)
    return f"{os.path.basename(array)}_{name}" if folder == TASKS and name.isdecimal() else name


class RunPaths:
    """The files of one run below its run directory.

    Args:
        root: the run directory; made absolute, not created.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.name = _name_at(self.root)
        at = partial(os.path.join, self.root)
        self.identity = at(IDENTITY)  # format, run id, owner; created exclusively, once
        self.job = at("job.json")  # the job spec as it was submitted
        self.script = at("job.sbatch")  # the script that was submitted
        self.functions = at("batch.sh")  # the functions that the script calls
        self.own_script = at("slurm_script")  # a job script of the user's own, which that script runs
        self.start = at("start.bin")  # the modules of an agent, which starts from this one file
        self.batch_log = at("slurm-%j.out")  # the batch script's output, as a pattern of Slurm
        self.function = at("function.pkl")  # the pickled call of the workers of a run that is a function
        self.results = at("results")  # the values of that call, one file per rank
        self.submissions = at("submissions")  # one numbered record per submission
        self.journal = at("journal")  # the run's one log: numbered immutable records
        self.members = at("members")  # one empty file per agent; the facts are in its name
        self.nodes = at("nodes")  # one JSON file per agent with the facts that the name does not hold
        self.batch_beat = at("nodes", "batch.beat")  # a counter that the batch script advances while it lives
        self.steps = at("steps")  # the steps at which nodes can stop, told in names when a stop is agreed on
        self.checkpoints = at("checkpoints")  # durable checkpoint marks
        self.tasks = at(TASKS)
        self.drain = at("drain")  # a file that a user makes: the run saves, stops and ends
        self.site = at("site.json")  # the limits of the cluster for a job that ends
        self.lock = at("lock")  # the file lock that keeps contenders from wasting work
        self.kv = at("kv")  # the key-value stores, one directory per scope; made when the first one is opened
        self.logs = at("logs")  # everything that agents and workers print
        self.agent_logs = at("logs", "agents")  # one log per node, appended over requeues
        self.timeouts = at("timeouts")  # how long steps and sections have taken: one small file per node
        self.preload = at("preload.json")  # the modules that workers have imported
        self.paces = at("paces")  # the time of a step on each node, in the names of empty files
        self.activity = at("activity")  # the last signs of workers without steps, in the names of empty files
        self.account = at("account")  # how far the workers of each round were: one file per node
        self.gpus = at("gpus")  # the use of GPUs, where it is sampled: one small file per node

    def __repr__(self) -> str:
        return f"RunPaths({self.root!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunPaths) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def function_of(self, job_id: str) -> str:
        """The call of workers of submitit's executors after a requeue, if it differs from the first."""
        return os.path.join(self.root, f"function-{job_id}.pkl")

    def agent_log(self, node: str) -> str:
        """Return the log file of the agent on a node."""
        return os.path.join(self.root, "logs", "agents", f"{node}.log")

    def log_times(self, node: str) -> str:
        """Return the file that tells when the logs of a node had which length."""
        return os.path.join(self.root, "logs", "agents", f"{node}.times")

    def hang_logs(self, round_number: int, look: int) -> str:
        """Return the directory of the stacks of all ranks of a round in which workers hang."""
        return os.path.join(self.root, "logs", f"hang-{round_number}" + (f".{look}" if look > 1 else ""))

    def attempt_logs(self, round_number: int) -> str:
        """Return the log directory of all ranks of a round."""
        return os.path.join(self.root, "logs", f"attempt_{round_number}")

    def worker_logs(self, round_number: int, rank: int) -> str:
        """Return the log directory of one rank of a round."""
        return os.path.join(self.root, "logs", f"attempt_{round_number}", str(rank))

    def directories(self) -> tuple[str, ...]:
        """Return the directories that exist in every run directory."""
        return (
            self.submissions,
            self.journal,
            self.members,
            self.nodes,
            self.steps,
            self.checkpoints,
            self.logs,
            self.agent_logs,
        )
