"""The executor ``hpcelastic`` of submitit, and what its jobs know of themselves.

Each call becomes a run of its own: one agent per node, the function once per worker, requeued by our
rules. submitit imports this module in every process that uses it, so it imports nothing but submitit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from submitit.core.core import Executor, Job
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission, JobPaths

from hpc_elastic.ids import Env
from hpc_elastic.submitit import parameters as names
from hpc_elastic.submitit.spec_fields import SPEC_FIELDS

if TYPE_CHECKING:
    from hpc_elastic.slurm.job_spec import JobSpec

NAME = "hpcelastic"  # class name without Executor, in small letters: submitit allows no underscore


class HpcElasticExecutor(Executor):
    """Submits functions as runs that survive preemption, requeue and node loss.

    Use it as ``submitit.AutoExecutor(folder, cluster="hpcelastic")``; parameters that only it has are
    written with its name in front: ``hpcelastic_partition="gpu"``, ``hpcelastic_min_nodes=2``.

    Args:
        folder: for the run directories and what submitit keeps; on a file system that all nodes share.
            May contain ``%j``.
        python: interpreter of agents and workers; this one by default.
        local: run on this machine without Slurm, with so many agents as nodes.
    """

    def __init__(self, folder: str | Path, python: str | None = None, local: int | None = None) -> None:
        super().__init__(folder)
        self._python = python
        self._local = local

    @classmethod
    def affinity(cls) -> int:
        """Return 1 where there is Slurm: only who asks for this executor by name gets it."""
        return 1 if shutil.which("sbatch") else -1

    @classmethod
    def _equivalence_dict(cls) -> Any:
        return names.GENERIC

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        own = (*names.RENAMED, *names.AS_SBATCH, *names.HANDLED, *names.WITHOUT_EFFECT)
        return {*SPEC_FIELDS, *own}

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = super()._convert_parameters(params)
        if "mem" in converted:
            converted["mem"] = names.memory_text(converted["mem"])
        return converted

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Take over parameters, and refuse at once what cannot work.

        Raises:
            InputError: a parameter is not known, or its value cannot be used.
        """
        wanted = {**self.parameters, **kwargs}
        self._spec(wanted, "submitit")
        super()._internal_update_parameters(**kwargs)

    def _spec(self, parameters: dict[str, Any], name: str) -> JobSpec:
        from hpc_elastic.runs.function import MODULE  # noqa: PLC0415 - submitit imports this module early
        from hpc_elastic.slurm.job_spec import JobSpec  # noqa: PLC0415 - the same

        fields = {"name": name, **names.fields_of(parameters), "module": MODULE}
        if self._python is not None:
            fields["python"] = self._python
        if self._local is not None:
            fields = {"nodes": str(self._local), "allow_local_run_dir": True, **fields}
        told = {"SUBMITIT_EXECUTOR": NAME, "SUBMITIT_FOLDER": str(self.folder)}
        return JobSpec(**{**fields, "env": {**fields.get("env", {}), **told}})

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        return [self._start(delayed) for delayed in delayed_submissions]

    def _start(self, delayed: DelayedSubmission) -> Job[Any]:
        from hpc_elastic.runs import function, start  # noqa: PLC0415 - submitit imports this module early
        from hpc_elastic.submitit import job  # noqa: PLC0415 - the same

        call = function.pickled_call(delayed)
        spec = self._spec(self.parameters, function.name_of(delayed.function))
        place = JobPaths.get_first_id_independent_folder(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        if spec.run_dir is None:
            spec = spec.model_copy(update={"run_dir": job.new_run_dir(place, spec.name)})
        run = start.start(spec, call, local=self._local)
        return job.HpcElasticJob.of_run(self.folder, run)


class HpcElasticJobEnvironment(JobEnvironment):
    """What ``submitit.JobEnvironment()`` is in a worker: ranks and nodes are those of its round."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "SLURM_JOB_ID",
        "num_tasks": "WORLD_SIZE",
        "num_nodes": "GROUP_WORLD_SIZE",
        "node": "GROUP_RANK",
        "nodes": "SLURM_JOB_NODELIST",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
    }

    @classmethod
    def name(cls) -> str:
        """Return the name of the executor."""
        return NAME

    @property
    def raw_job_id(self) -> str:
        """The id of the run's first job, which is submitit's name for the run."""
        from hpc_elastic.submitit import job  # noqa: PLC0415 - submitit imports this module early

        return job.first_job_id(os.environ[Env.RUN_DIR])

    @property
    def hostnames(self) -> Sequence[str]:
        """The nodes of the round, in the order of their ranks."""
        from hpc_elastic.submitit import job  # noqa: PLC0415 - submitit imports this module early

        return job.nodes_of_round(os.environ[Env.RUN_DIR], int(os.environ[Env.ROUND])) or [self.hostname]

    def _requeue(self, countdown: int) -> None:
        """Do nothing: the run's own rules decide about its requeue."""
