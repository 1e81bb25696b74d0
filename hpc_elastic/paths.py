"""Every file name of a run, in one place."""

from __future__ import annotations

import os
import re

OF_ROUND = "round-"  # the key-value store of a round's workers is called so, with the round's number
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
MAX_NAME = 64  # characters that a name keeps of a text


def round_scope(number: int) -> str:
    """Return the scope of the key-value store of a round's workers."""
    return f"{OF_ROUND}{number}"


def readable_name(text: str) -> str:
    """Return a text as part of a file name: letters, digits, ``._-`` only; empty if it has none of them."""
    return _UNSAFE.sub("-", text).strip(".-")[:MAX_NAME]


def own_name(text: str) -> str:
    """Return a text as part of a file name that no other text has; empty for an empty one."""
    name = readable_name(text)
    if name == text:
        return name
    from zlib import crc32  # noqa: PLC0415 - most texts are names already

    number = f"{crc32(text.encode(errors='surrogateescape')):08x}"
    return f"{name}-{number}" if name else number


class RunPaths:
    """The files of one run below its run directory.

    Args:
        root: the run directory; made absolute, not created.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"RunPaths({self.root!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunPaths) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def _at(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def name(self) -> str:
        """The last part of the run directory."""
        return os.path.basename(self.root)

    @property
    def identity(self) -> str:
        """``run.json``: format, run id, owner; created exclusively, once."""
        return self._at("run.json")

    @property
    def job(self) -> str:
        """``job.json``: the job spec as it was submitted."""
        return self._at("job.json")

    @property
    def script(self) -> str:
        """``job.sbatch``: the script that was submitted."""
        return self._at("job.sbatch")

    @property
    def functions(self) -> str:
        """``batch.sh``: the functions that the script calls."""
        return self._at("batch.sh")

    @property
    def start(self) -> str:
        """``start.bin``: the modules of an agent, which starts from this one file."""
        return self._at("start.bin")

    @property
    def batch_log(self) -> str:
        """The batch script's output, a Slurm file name pattern; appended over requeues."""
        return self._at("slurm-%j.out")

    @property
    def function(self) -> str:
        """The call that the workers make, pickled, if the work of the run is a function."""
        return self._at("function.pkl")

    def function_of(self, job_id: str) -> str:
        """The call of workers of submitit's executors after a requeue, if it differs from the first."""
        return self._at(f"function-{job_id}.pkl")

    @property
    def results(self) -> str:
        """The values of that call, one file per rank."""
        return self._at("results")

    @property
    def submissions(self) -> str:
        """One numbered record per submission."""
        return self._at("submissions")

    @property
    def journal(self) -> str:
        """The run's one log: numbered immutable records."""
        return self._at("journal")

    @property
    def members(self) -> str:
        """One empty file per agent; the facts are in its name."""
        return self._at("members")

    @property
    def nodes(self) -> str:
        """One JSON file per agent with the facts that the name does not hold."""
        return self._at("nodes")

    @property
    def batch_beat(self) -> str:
        """A counter that the batch script advances while it lives."""
        return self._at("nodes", "batch.beat")

    @property
    def steps(self) -> str:
        """The steps at which nodes can stop, told in names when a stop is agreed on."""
        return self._at("steps")

    @property
    def checkpoints(self) -> str:
        """Durable checkpoint marks."""
        return self._at("checkpoints")

    @property
    def drain(self) -> str:
        """A file that a user makes: the run saves, stops and ends."""
        return self._at("drain")

    @property
    def site(self) -> str:
        """``site.json``: the limits of the cluster for a job that ends."""
        return self._at("site.json")

    @property
    def lock(self) -> str:
        """The file lock that keeps contenders from wasting work."""
        return self._at("lock")

    @property
    def kv(self) -> str:
        """The key-value stores, one directory per scope; made when the first one is opened."""
        return self._at("kv")

    @property
    def logs(self) -> str:
        """Everything that agents and workers print."""
        return self._at("logs")

    @property
    def agent_logs(self) -> str:
        """One log per node, appended over requeues."""
        return self._at("logs", "agents")

    def agent_log(self, node: str) -> str:
        """Return the log file of the agent on a node."""
        return self._at("logs", "agents", f"{node}.log")

    @property
    def timeouts(self) -> str:
        """How long steps and sections have taken: one small file per node."""
        return self._at("timeouts")

    def hang_logs(self, round_number: int, look: int) -> str:
        """Return the directory of the stacks of all ranks of a round in which workers hang."""
        return self._at("logs", f"hang-{round_number}" + (f".{look}" if look > 1 else ""))

    def attempt_logs(self, round_number: int) -> str:
        """Return the log directory of all ranks of a round."""
        return self._at("logs", f"attempt_{round_number}")

    @property
    def account(self) -> str:
        """How far the workers of each round were, and when: one file per node that has told it."""
        return self._at("account")

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
