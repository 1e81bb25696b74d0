"""Slurm's commands for one array, as the end of a task and `scale` use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_elastic.errors import SlurmCommandError
from hpc_elastic.slurm.client.answers import ListedNode, SlurmTask
from hpc_elastic.slurm.client.commands import Slurm


class ArraySlurm(Slurm):
    """Answers from its attributes and writes down what it is asked to do.

    Attributes:
        tasks: the tasks that are not over.
        fields: what ``scontrol show job`` says about any task.
        done: the commands that change something.
        is_silent: whether no command works.
        refused: whether no task is requeued.
        all_nodes: those of each partition.
        later: what it says about a task from the second question on, if that is something else.
        commented: the jobs that carry the comment that is looked for.
        queued: what sbatch was called with.
        asked: the arrays whose tasks were asked for.
        refusal: the words in which sbatch refuses; empty if it does not.
    """

    def __init__(self, tasks: Sequence[SlurmTask] = (), **fields: str) -> None:
        super().__init__({})
        self.tasks = list(tasks)
        self.fields = {"JobState": "RUNNING", "Restarts": "0", "Reason": "None", "Requeue": "1", **fields}
        self.done: list[str] = []
        self.is_silent = False
        self.refused = False
        self.later: dict[str, str] = {}
        self.most: int | None = 1001
        self.all_nodes: list[ListedNode] = []
        self.commented: list[str] = []
        self.queued: list[Sequence[str]] = []
        self.asked: list[str] = []
        self.refusal = ""

    def _answer(self, what: str = "") -> None:
        if self.is_silent:
            raise SlurmCommandError(("scontrol",), 1, "Unable to contact slurm controller")
        if what:
            self.done.append(what)

    def array_tasks(self, token: str, array: str) -> list[SlurmTask]:  # noqa: ARG002 - it has only these
        """Return the tasks."""
        self.asked.append(array)
        self._answer()
        return self.tasks

    def show_job(self, job_ref: str) -> dict[str, str] | None:  # noqa: ARG002 - the same for all
        """Return the fields."""
        self._answer()
        said, self.fields = self.fields, {**self.fields, **self.later}
        return said

    def nodes(self, partitions: str | None) -> list[ListedNode]:  # noqa: ARG002 - the same in all
        """Return the nodes."""
        self._answer()
        return self.all_nodes

    def show_partition(self, name: str) -> dict[str, str]:
        """Return a partition without limits."""
        self._answer()
        return {"PartitionName": name}

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Write it down."""
        if self.refused:
            raise SlurmCommandError(("scontrol", "requeue"), 1, "not now")
        self._answer(f"{'requeuehold' if hold else 'requeue'} {job_ref}")

    def excluded_by(self, job_ref: str) -> str:  # noqa: ARG002 - the same for all
        """Return that a task does without no node."""
        return ""

    def update(self, job_ref: str, *fields: str) -> None:
        """Accept it."""

    def cancel_waiting(self, job_ref: str) -> None:
        """Write it down."""
        self._answer(f"cancel waiting {job_ref}")

    def throttle(self, array: str, tasks: int) -> None:
        """Write it down."""
        self._answer(f"throttle {array} {tasks}")

    def max_array_size(self) -> int | None:
        """Return what was set."""
        self._answer()
        return self.most

    def jobs_with_comment(self, token: str) -> list[str]:  # noqa: ARG002 - it has only these
        """Return what was set."""
        self._answer()
        return self.commented

    def sbatch(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],  # noqa: ARG002 - not looked at
        text: str | None = None,  # noqa: ARG002 - as above
        directory: str = "",  # noqa: ARG002 - as above
    ) -> str:
        """Write it down."""
        if self.refusal:
            raise SlurmCommandError(("sbatch",), 1, self.refusal)
        self.queued.append(arguments)
        self._answer(f"sbatch {arguments[0]} {arguments[-1]}")
        return "99"
