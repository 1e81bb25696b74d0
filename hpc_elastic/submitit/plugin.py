"""The executor ``hpcelastic`` of submitit, and the environment of its jobs.

Each call becomes a run of its own: one agent per node, the function once per worker, requeued by our
rules. submitit imports this module in every process that uses it, so it imports nothing but submitit.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from submitit.core.core import Executor, Job
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.settings.table import JOB
from hpc_elastic.submitit import parameters as names

if TYPE_CHECKING:
    from hpc_elastic.slurm.job.spec import JobSpec

NAME = "hpcelastic"  # class name without Executor, in small letters: submitit allows no underscore

_THE_FUNCTION = {"command", "module"}  # the call itself, so that these are no parameters


class HpcElasticExecutor(Executor):
    """Submits functions as runs that survive preemption, requeue and node loss.

    Use it as ``submitit.AutoExecutor(folder, cluster="hpcelastic")``; parameters that only it has are
    written with its name in front: ``hpcelastic_partition="gpu"``, ``hpcelastic_min_nodes=2``.

    Args:
        folder: for the run directories and the files of submitit; on a file system that all nodes share.
            May contain ``%j``.
        python: interpreter of agents and workers; this one by default.
        local: run on this machine without Slurm, with so many agents as nodes.

    Raises:
        InputError: `local` is no number of nodes.
    """

    def __init__(self, folder: str | Path, python: str | None = None, local: int | None = None) -> None:
        super().__init__(folder)
        if local is not None and (type(local) is not int or local < 1):
            raise InputError(
                f"local = {local!r} is no number of nodes",
                where="hpcelastic_local",
                fix="1, 2, ...; without it the job goes to Slurm",
            )
        self._python = python
        self._local = local

    @classmethod
    def affinity(cls) -> int:
        """Return 1 where there is Slurm: this executor is selected only by name."""
        return 1 if shutil.which("sbatch") else -1

    @classmethod
    def _equivalence_dict(cls) -> Any:
        return names.GENERIC

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        own = (*names.RENAMED, *names.AS_SBATCH, *names.HANDLED, *names.WITHOUT_EFFECT)
        return names.ValidNames((*(set(JOB) - _THE_FUNCTION), *own))

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = super()._convert_parameters(params)
        if "mem" in converted:
            converted["mem"] = names.memory_text(converted["mem"])
        return converted

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Take over parameters, and refuse wrong ones at once.

        Raises:
            InputError: a parameter is not known, or its value cannot be used.
        """
        wanted = {**self.parameters, **kwargs}
        self._spec(wanted, "submitit")
        super()._internal_update_parameters(**kwargs)

    def _spec(self, parameters: dict[str, Any], name: str) -> JobSpec:
        from hpc_elastic.api.function import MODULE  # noqa: PLC0415 - submitit imports this module early
        from hpc_elastic.api.start import named_as_fields  # noqa: PLC0415 - the same
        from hpc_elastic.slurm.job.job_file import spec_over  # noqa: PLC0415 - the same
        from hpc_elastic.slurm.job.settings_files import settings_for  # noqa: PLC0415 - the same

        fields = {"name": name, **names.fields_of(parameters), "module": MODULE}
        if self._python is not None:
            fields["python"] = self._python
        if self._local is not None:
            fields = {"nodes": str(self._local), "allow_local_run_dir": True, **fields}
        told = {"SUBMITIT_EXECUTOR": NAME, "SUBMITIT_FOLDER": str(self.folder)}
        if names.joins_stderr(parameters):
            told[Env.STDERR_TO_STDOUT] = "1"
        with named_as_fields():
            profile, is_local = parameters.get("profile"), self._local is not None
            spec = spec_over(settings_for(fields, profile, is_local=is_local), fields)
        self._check_local(spec)
        names.array_parallelism(parameters, self._why_no_array(spec))
        return spec.replaced(env={**spec.env, **told})

    def _check_local(self, spec: JobSpec) -> None:
        nodes = spec.node_range
        if self._local is not None and not nodes.low <= self._local <= nodes.high:
            raise InputError(
                f"nodes = {nodes}, and hpcelastic_local = {self._local} plays {self._local} on this machine",
                where="nodes",
                fix="change one of them, or leave out nodes",
            )

    def _why_no_array(self, spec: JobSpec) -> str:
        """Return why the calls of a `map_array` do not become one array; empty if they do."""
        if self._local is not None:
            return f"with hpcelastic_local={self._local} all of them start at once on this machine"
        if spec.mode == "array":
            return "with hpcelastic_mode='array' each of them is an array itself"
        return f"with hpcelastic_chain={spec.chain} each of them is a chain of jobs" if spec.chain else ""

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        from hpc_elastic.api import function  # noqa: PLC0415 - submitit imports this module early
        from hpc_elastic.submitit import submission  # noqa: PLC0415 - the same

        for delayed in delayed_submissions:
            function.check_arguments(
                delayed, "give the arguments of the function behind it, as to the function"
            )
        calls = [function.pickled_call(delayed) for delayed in delayed_submissions]
        specs = self._specs([function.name_of(delayed.function) for delayed in delayed_submissions])
        at_once = names.array_parallelism(self.parameters)
        jobs: list[Job[Any]] = [
            *submission.submit(submission.WantedJobs(self.folder, specs, calls, self._local, at_once))
        ]
        return jobs

    def _specs(self, functions: Sequence[str]) -> list[JobSpec]:
        """Return the job of each call; calls of one function have the same."""
        known = {name: self._spec(self.parameters, name) for name in dict.fromkeys(functions)}
        return [known[name] for name in functions]


_OF_ARRAY = re.compile(r"(\d+)_(\d+)")


class HpcElasticJobEnvironment(JobEnvironment):
    """The class of ``submitit.JobEnvironment()`` in a worker: ranks and nodes are those of its round."""

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
        from hpc_elastic.slurm.client.environment import job_ref  # noqa: PLC0415 - submitit imports this module early
        from hpc_elastic.submitit import job  # noqa: PLC0415 - the same

        known = job.first_job_id(os.environ[Env.RUN_DIR])
        return known or job_ref(os.environ) or ""  # right after sbatch its id may not be written down yet

    @property
    def array_job_id(self) -> str | None:
        """The id of the job array, for a call of a `map_array` or batch; else None."""
        found = _OF_ARRAY.fullmatch(self.raw_job_id)
        return found[1] if found else None

    @property
    def array_task_id(self) -> str | None:
        """The index of the call in its job array; None if there is none."""
        found = _OF_ARRAY.fullmatch(self.raw_job_id)
        return found[2] if found else None

    @property
    def hostnames(self) -> Sequence[str]:
        """The nodes of the round, in the order of their ranks."""
        from hpc_elastic.submitit import job  # noqa: PLC0415 - submitit imports this module early

        return job.nodes_of_round(os.environ[Env.RUN_DIR], int(os.environ[Env.ROUND])) or [self.hostname]

    def _requeue(self, countdown: int) -> None:
        """Do nothing: the run's own rules decide about its requeue."""
