"""A function on all nodes of a job that submitit's own executors have submitted: one agent per task."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission, UncompletedJobError

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.settings.values import are_module_names

if TYPE_CHECKING:
    from hpc_elastic.record.state import RunState

_DRAIN_S = 90.0  # how long `checkpoint` waits for the workers of all nodes
_LOOK_S = 0.1


class ElasticTask:
    """A callable for ``executor.submit``: each task of the job is the agent of its node.

    Give the job one task per node (``nodes=4, tasks_per_node=1``). The function runs once per worker;
    it is started again after a failure, on the nodes that are left after a loss, and after a requeue.
    The task's value is that of rank 0, the same for all tasks.

    Args:
        function: called by each worker, with the arguments of `submit`.
        workers_per_node: by default the GPUs of the node, else 1.
        min_nodes: with how many nodes the run goes on after a loss; by default all of them.
        max_restarts: how often the workers are started again after one has failed.
        by_rank: return the list of the values of all ranks instead.
        preload: modules that one process per node imports once, ``auto``: those that the workers have
            imported; each worker is a copy of it.
        run_dir: the run directory; by default ``<job id>_run`` in submitit's folder.

    Raises:
        InputError: `function` cannot be called, a number is too small, or `preload` is no list of names.
    """

    preload: tuple[str, ...] = ()  # also of a task that an earlier version has pickled

    def __init__(  # noqa: PLR0913 - settings of a job
        self,
        function: Callable[..., Any],
        *,
        workers_per_node: int | None = None,
        min_nodes: int | None = None,
        max_restarts: int = 3,
        by_rank: bool = False,
        run_dir: str | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        if not callable(function):
            raise InputError(
                f"{function!r} cannot be called",
                where="ElasticTask",
                fix="give the function, and its arguments to submit: submit(ElasticTask(train), 0.1)",
            )
        _check_number("workers_per_node", workers_per_node, 1)
        _check_number("min_nodes", min_nodes, 1)
        _check_number("max_restarts", max_restarts, 0)
        if not isinstance(run_dir, str | os.PathLike | None):
            raise InputError(
                f"run_dir is {run_dir!r}", where="ElasticTask", fix="give a path, or leave it out"
            )
        if not are_module_names(preload):
            raise InputError(
                f"preload is {preload!r}",
                where="ElasticTask",
                fix='give names of modules in a list: preload=["torch"]',
            )
        self.function = function
        self.workers_per_node = workers_per_node
        self.min_nodes = min_nodes
        self.max_restarts = max_restarts
        self.by_rank = by_rank
        self.run_dir = run_dir
        self.preload = tuple(preload)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run this node's agent to its end, and return the values of the workers.

        Raises:
            InputError: this is no job of submitit's, or the job has several tasks per node.
            ChildFailedError: the run has failed; on all nodes for the same reason.
            UncompletedJobError: the run was stopped, or cannot be requeued.
        """
        from hpc_elastic.api import function  # noqa: PLC0415 - not where the task is submitted

        env = _environment()
        _check_shape(env)
        paths = self._paths(env)
        call = function.pickled_call(DelayedSubmission(self.function, *args, **kwargs))
        try:
            self._launch(env, paths, call)
        except Exception:
            state = _state(paths)
            if not state.leaving or state.ending is not None:
                raise
            _hand_back(env, paths)
        values = function.results(paths, _world_size(paths))
        return values if self.by_rank else values[0]

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        """Make the workers of all nodes save and stop, and return the call after the requeue.

        submitit asks for it where its handler gets the signal, and not the agent: before the agent has
        begun, or where the agent is not in the main thread.
        """
        paths = self._paths(JobEnvironment())
        if os.path.isdir(paths.journal):
            _drain(paths)
        return DelayedSubmission(self, *args, **kwargs)

    __submitit_checkpoint__ = checkpoint  # submitit's other name of the same hook

    def _paths(self, env: JobEnvironment) -> RunPaths:
        if self.run_dir is not None:
            return RunPaths(self.run_dir)
        below_submitit = "SUBMITIT_FOLDER" in os.environ
        folder = str(env.paths.folder) if below_submitit else os.path.join(os.getcwd(), RUNS_FOLDER)
        return RunPaths(os.path.join(folder, f"{env.job_id}_run"))

    def _launch(self, env: JobEnvironment, paths: RunPaths, call: bytes) -> None:
        from hpc_elastic.cli.run.values import slots  # noqa: PLC0415 - not where the task is submitted
        from hpc_elastic.launcher import LaunchConfig, launch_agent  # noqa: PLC0415 - the same
        from hpc_elastic.slurm.client.environment import SlurmEnv  # noqa: PLC0415 - the same

        workers = self.workers_per_node or slots(None, SlurmEnv.from_environ(os.environ), os.environ)
        config = LaunchConfig(
            min_nodes=self.min_nodes or env.num_nodes,
            max_nodes=env.num_nodes,
            nproc_per_node=workers,
            run_id=str(env.job_id),
            rdzv_backend="shared_fs",
            rdzv_endpoint=paths.root,
            max_restarts=self.max_restarts,
            signals_to_handle="SIGTERM,SIGINT,SIGUSR2",
            preload=self.preload,
        )
        launch_agent(config, work, [paths.root, call, str(env.job_id)])


def work(root: str, call: bytes, job_id: str) -> None:
    """Call the function in a worker, and keep its value.

    A callable with submitit's hook has a successor after a requeue; that is kept for this job alone,
    as another one that is given the same run directory brings a function of its own.
    """
    import pickle  # noqa: PLC0415 - only for functions

    from hpc_elastic.api import call as runs_call  # noqa: PLC0415 - the same
    from hpc_elastic.api import function  # noqa: PLC0415 - the same
    from hpc_elastic.api.call import keep  # noqa: PLC0415 - the same

    paths, rank = RunPaths(root), int(os.environ["RANK"])
    following = paths.function_of(job_id)
    is_kept = os.path.lexists(following)
    delayed = (
        function.load_call(following) if is_kept else pickle.loads(call)  # noqa: S301 - handed over by the agent of this node
    )
    if runs_call.has_hook(delayed):
        runs_call.heed_sigterm(following, rank, delayed)
    keep(paths, delayed.result(), os.environ)


def _check_number(name: str, value: int | None, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise InputError(f"{name} = {value!r}", where="ElasticTask", fix=f"{least} or more")


def _environment() -> JobEnvironment:
    try:
        return JobEnvironment()
    except RuntimeError:  # it has the names of submitit's executors, and no remedy
        raise InputError(
            "called outside of a job of submitit",
            where="ElasticTask",
            fix="give it to an executor: executor.submit(ElasticTask(train), 0.1), with Hydra --multirun; "
            "to run the function here call it without ElasticTask",
        ) from None


def _check_shape(env: JobEnvironment) -> None:
    if env.num_tasks != env.num_nodes:
        raise InputError(
            f"the job has {env.num_tasks} tasks on {env.num_nodes} nodes, and each would be an agent",
            where="ElasticTask",
            fix="update_parameters(tasks_per_node=1); the agent of a node starts its workers",
        )


def _state(paths: RunPaths) -> RunState:
    from hpc_elastic.record.run_log import read_state  # noqa: PLC0415 - not where the task is submitted

    return read_state(paths)


def _world_size(paths: RunPaths) -> int:
    formed = _state(paths).round
    return formed.workers if formed is not None else 0


def _drain(paths: RunPaths) -> None:
    """Ask all agents to have their workers save and stop, and wait for that."""
    from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested  # noqa: PLC0415 - rare
    from hpc_elastic.record.run_log import open_log  # noqa: PLC0415 - rare

    clock, log = SystemClock(), open_log(paths, os.uname().nodename)
    asked = DrainRequested(Cause.PREEMPTION, os.uname().nodename, AfterDrain.LEAVE, "submitit's signal")
    state = log.commit(lambda now: asked if now.running is not None else None)
    give_up_at = clock.monotonic() + _DRAIN_S
    while state.running is not None and state.drained is None and state.ending is None:
        if clock.monotonic() > give_up_at:
            return
        clock.sleep(_LOOK_S)
        state = log.refresh()


def _hand_back(env: JobEnvironment, paths: RunPaths) -> None:
    """Give the job back to its queue after a drain; the first task does it, by the rules of a job script.

    The process ends without leaving a result, which submitit would take for the end of the job.

    Raises:
        UncompletedJobError: the run is over, so that there is nothing to requeue.
    """
    if env.global_rank != 0:
        sys.exit(0)
    if env.cluster != "slurm":
        env._requeue(0)  # noqa: SLF001 - as submitit's own handler does; ends this process
        sys.exit(0)
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.end.choices import RequeueBudgets  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.end.finish import Finish  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.run_jobs.job_start import Start  # noqa: PLC0415 - rare

    start = Start.from_environ(paths, os.environ, relaunch=0, srun_exit_code=0)
    ended = Finish(start, RequeueBudgets(max_relaunch=0), Slurm(), SystemClock(), _say).run()
    if ended.state.ending is not None:
        raise UncompletedJobError(f"the run in {paths.root} is {ended.state.ending.decision.value}")
    sys.exit(0)


def _say(line: str) -> None:
    sys.stderr.write(f"hpc_elastic: {line}\n")
