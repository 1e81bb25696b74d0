"""The composition root: builds the parts of an agent and joins agent and Slurm."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import HpcElasticError, RunDirError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env, copy_prefix
from hpc_elastic.isolated.callers_path import has_own_path
from hpc_elastic.meet.membership import claim_node_name
from hpc_elastic.meet.shared_fs import SharedFsRendezvous
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.multiprocessing.context import StartSettings
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.agent import NodeAgent
from hpc_elastic.node.listeners.telemetry_hooks import Services, Surroundings, TelemetryMaker, tell_nobody
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.probe import Probe
from hpc_elastic.node.probe import ProbedNode as ProbedPlace
from hpc_elastic.node.probe import ProbingAgent as ProbedAgent
from hpc_elastic.node.probe_rules import ProbeOptions
from hpc_elastic.node.setup.agent_log import AgentLog, LogMarks
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.setup.notices import LaterNotices, NoNotices, Notices
from hpc_elastic.node.spec import WorkerSpec
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.node.workers.worker_env import RunEnv
from hpc_elastic.processes.guard import Guard
from hpc_elastic.record.journal import AfterDrain
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.run_jobs.may_start import admit, ended_text
from hpc_elastic.start.meeting import LaunchOptions, OpenAgent, ended_before, rendezvous_of
from hpc_elastic.start.scratch import is_kept, own_folder, scratch_directory
from hpc_elastic.start.without_script import finish_in_its_place, record_takeover
from hpc_elastic.store.mount import mount_at, safe_lease
from hpc_elastic.store.plain_file import open_to_append
from hpc_elastic.store.trust import HeldRoot
from hpc_elastic.text import for_shell, visible_lines
from hpc_elastic.typed_json import whole_number

if TYPE_CHECKING:
    from hpc_elastic.node.listeners.gpu_sampler import GpuSampler
    from hpc_elastic.processes.preload.preloader import Preloader
    from hpc_elastic.start.meeting import LaunchOptions


_REMEMBERING = 8  # so many nodes of a job ask Slurm; a thousand at once would be a burden to slurmctld
_LONGEST_SAMPLING_S = 60.0  # between two looks at GPUs for a limit of silence,
_SAMPLES = 20  # of which there are so many in that limit
_SERVICES = (Env.ENABLE_FILE_TIMER, Env.HEALTH_CHECK_PORT, Env.STATE_TIMEOUT)
"""Variables that ask for a service of the agent."""
_SITE = os.path.join(os.path.dirname(__file__), "..", "metrics", "static_init.py")
"""Listeners that a site installs."""


def run_agent(options: LaunchOptions, slurm: SlurmEnv | None, guard: Guard | None = None) -> int:
    """Run this node's agent to its end.

    Args:
        options: the options of the agent.
        slurm: the facts of Slurm's environment, if it started it as a step.
        guard: the guard of this process, if it has been started already.

    Returns:
        The exit code of the agent's process.

    Raises:
        RunDirError: the run directory cannot be used.
    """
    os.environ.pop(Env.RESUME, None)  # this run is meant, and none of a job that its workers submit
    admit(options.paths, os.environ)
    check_telemetry(os.environ)
    prepare_run_dir(options.paths)
    ended = ended_before(options.paths, slurm)
    if ended is not None:
        sys.stderr.write(f"{visible_lines(ended_text(options.paths, ended))}\n")
        return ended.ending.exit_code if ended.ending else ExitCode.FAILED
    with open_agent(options, slurm, owns_process=True, guard=guard) as opened:
        outcome = opened.agent.run_to_end()
        if options.settings.keep_in_memory and outcome.is_followed:
            _keep_state(options, opened)
        record_takeover(opened, outcome)
        code = _say_goodbye(options, outcome, opened)
        finish_in_its_place(options.paths, slurm.task if slurm else None, opened, outcome.exit_code)
        if slurm is not None and Env.SUBMISSION not in os.environ:  # no script runs `finish`
            _remember_bad_nodes(options, slurm, opened, outcome)
        return code


@contextmanager
def open_agent(
    options: LaunchOptions, slurm: SlurmEnv | None, *, owns_process: bool, guard: Guard | None = None
) -> Iterator[OpenAgent]:
    """Give an agent that is ready to run; afterwards nothing of it is left in this process.

    The run directory has been prepared. Signals are caught meanwhile, where this is the main thread.

    Args:
        options: the options of the agent.
        slurm: the facts of Slurm's environment, if it started it as a step.
        owns_process: whether this process has no children beside the agent's.
        guard: the guard of this process, if it has been started already.
    """
    signals = options.signals
    with ExitStack() as stack:
        guard = Guard.start() if guard is None else guard
        stack.callback(guard.stop)
        if slurm is None or slurm.task is not None:  # a host may have two tasks of an array
            name, claim = claim_node_name(options.node, options.paths.root)
            stack.callback(os.close, claim)
            options = options._replace(node=name)
        loop = EventLoop(SystemClock())
        stack.callback(loop.close)
        loop.catch((*signals.drain, *signals.warning, *signals.interrupt))
        scratch = stack.enter_context(scratch_directory(copies=copy_prefix(options.paths.root, options.node)))
        guard.inherit(scratch)
        is_task = slurm is not None and slurm.task is not None
        root = HeldRoot(options.paths.root)
        stack.callback(root.close)
        agent_log = _open_log(options.paths.agent_log(options.node))
        stack.callback(os.close, agent_log)
        log = AgentLog(SystemClock(), options.node, [agent_log, 2])
        options = _with_safe_lease(options, log)
        rendezvous = rendezvous_of(options, slurm, loop, log.say, root.check)
        _take_over_state(options, scratch, log)
        log.marks = LogMarks(
            options.paths.log_times(options.node),
            agent_log,
            SystemClock(),
            lambda: rendezvous.run.state.last,
        )
        stack.callback(log.marks.close)
        context = StartContext(
            guard,
            scratch,
            below_slurm=slurm is not None,
            gpus=slurm.gpus_on_node if slurm is not None else None,
            owns_process=owns_process,
            is_task=is_task,
            notices=_notices_of(options, slurm, loop),
        )
        context = _with_helpers(context, options, log, stack)
        if context.preloader is not None:
            rendezvous.also_while_waiting(context.preloader.stand_by)
        agent = _build(options, rendezvous, loop, log, context)
        own_log = AgentLog(SystemClock(), options.node, [agent_log])
        own_log.marks = log.marks
        has_peers = slurm is not None and not is_task
        yield OpenAgent(agent, rendezvous.run, loop, log, own_log, root, scratch, has_peers)


def _keep_state(options: LaunchOptions, opened: OpenAgent) -> None:
    """Have the states in this node's memory stay for the next start, where no checkpoint is as new."""
    from hpc_elastic.start import kept_state  # noqa: PLC0415 - only if it is asked for

    mine = kept_state.Mine(options.run_id, options.paths, opened.run.node)
    try:
        made = kept_state.keep(opened.scratch, mine, SystemClock().wall(), options.settings.keep_in_memory)
    except (HpcElasticError, OSError) as error:
        opened.log.say(f"no state stays in this node's memory: {' '.join(str(error).split())}")
        return
    if made is not None:
        where = f"in this node's memory for {options.settings.keep_in_memory:g} s, for the next start"
        opened.log.say(f"left {where}: {made.text} ({made.size} bytes)")


def _take_over_state(options: LaunchOptions, scratch: str, log: AgentLog) -> None:
    """Take over the states that the last start of the run has kept in this node's memory, if any."""
    folder = own_folder(scratch)
    if not folder or not any(map(is_kept, os.listdir(folder))):
        return
    from hpc_elastic.start import kept_state  # noqa: PLC0415 - rare

    mine = kept_state.Mine(options.run_id, options.paths, options.node)
    found = kept_state.take_over(scratch, mine, SystemClock().wall())
    if found is not None:
        log.say(f"left by the last start in this node's memory: {found.text}")


def _open_log(path: str) -> int:
    """Open the log of the agent.

    Raises:
        RunDirError: it cannot be written.
    """
    try:
        return open_to_append(path)
    except OSError as error:
        raise RunDirError(
            f"the agent's log {path} cannot be written on {os.uname().nodename}: {error.strerror}",
            where="run directory",
            fix=f"look at its mode, room and mount: ls -ld {for_shell(os.path.dirname(path))}",
        ) from error


def _with_safe_lease(options: LaunchOptions, log: AgentLog) -> LaunchOptions:
    """Return the options with a lease that is long enough for the caching of this node's mount."""
    settings = options.rendezvous
    mount = mount_at(options.paths.root)
    lease, why = safe_lease(mount, settings.heartbeat_interval, settings.lease)
    if why:
        log.say(f"the lease is {lease:g} s on this node: {why}")
    return options._replace(rendezvous=settings._replace(lease=lease))


class StartContext(NamedTuple):
    """The objects that live as long as the agent's process."""

    guard: Guard
    scratch: str
    below_slurm: bool
    gpus: int | None  # that Slurm has promised this node
    owns_process: bool
    is_task: bool  # of an array whose tasks make up the run
    notices: Notices
    preloader: Preloader | None = None
    sampler: GpuSampler | None = None


def _with_helpers(
    context: StartContext, options: LaunchOptions, log: AgentLog, stack: ExitStack
) -> StartContext:
    """Return the context with the processes beside the workers that are asked for; the stack ends them."""
    if options.settings.preload:
        preloader = _preloader(options, context, log)
        stack.callback(preloader.close)
        context = context._replace(preloader=preloader)
    every_s = _between_samples_s(options, context, log)
    if every_s:
        sampler = _sampler(options, every_s, context, log)
        stack.callback(sampler.close)
        context = context._replace(sampler=sampler)
    return context


def _between_samples_s(options: LaunchOptions, context: StartContext, log: AgentLog) -> float:
    """Return the time between two looks at the use of the GPUs [s]; 0: there are none.

    Workers are silent only if their GPUs have nothing to do, so that use is sampled for a limit of silence.
    """
    silence_s = options.settings.silence_timeout
    if not silence_s:
        return options.settings.sample_gpus
    import shutil  # noqa: PLC0415 - only if it is asked for

    from hpc_elastic.processes.nvidia_smi import PROGRAM  # noqa: PLC0415 - the same

    is_there = shutil.which(PROGRAM) is not None
    if context.gpus and not is_there:
        log.say(f"--silence-timeout has no effect here: without {PROGRAM} the use of GPUs is not known")
    if not context.gpus and not is_there:
        return options.settings.sample_gpus
    often_s = min(_LONGEST_SAMPLING_S, max(1.0, silence_s / _SAMPLES))
    return min(options.settings.sample_gpus or often_s, often_s)


def _sampler(options: LaunchOptions, every_s: float, context: StartContext, log: AgentLog) -> GpuSampler:
    """Return the sampler of this node's GPUs."""
    from hpc_elastic.account.read import gpu_file  # noqa: PLC0415 - only if it is asked for
    from hpc_elastic.node.listeners.gpu_sampler import GpuSampler, SampledNode  # noqa: PLC0415 - the same

    path = gpu_file(options.paths, options.node)
    has_gpus = bool(context.gpus)
    place = SampledNode(
        options.node, path, context.scratch, os.environ, SystemClock(), log.say, has_gpus=has_gpus
    )
    return GpuSampler(every_s, place)


def _preloader(options: LaunchOptions, context: StartContext, log: AgentLog) -> Preloader:
    """Return the process that imports modules for the workers, which has begun to do so."""
    from hpc_elastic.processes.linux import adopt_orphans  # noqa: PLC0415 - only if it is asked for
    from hpc_elastic.processes.preload.preloader import (  # noqa: PLC0415 - the same
        LessonFile,
        Preloaded,
        Preloader,
    )
    from hpc_elastic.processes.preload.rules import AUTO  # noqa: PLC0415 - the same

    adopt_orphans()  # the workers that it forks
    env = {**(base_env_for(os.environ) or os.environ), **dict(run_env(options).defaults)}
    argv, path = _interpreter(options.command)
    if not argv:
        log.say(
            f"nothing is preloaded: functions are started by {options.command.start_method}, and not by spawn"
        )
    named = tuple(name for name in dict.fromkeys(options.settings.preload) if name != AUTO)
    lessons = LessonFile(options.paths.preload) if AUTO in options.settings.preload else None
    wanted = Preloaded(named, argv, env, os.getcwd(), context.scratch, lessons, path)
    made = Preloader(wanted, SystemClock(), log.say)
    if argv:
        made.start()
    return made


def _interpreter(command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the workers' command, none of functions that are forked, and the search path of functions."""
    if command.function is None:
        return command.argv, ()
    if command.start_method != "spawn" and not has_own_path():
        return (), ()
    from hpc_elastic.multiprocessing.function_start import spawning_command  # noqa: PLC0415 - not for programs

    return (*spawning_command(), ""), () if has_own_path() else tuple(sys.path)


def _build(
    options: LaunchOptions,
    rendezvous: SharedFsRendezvous,
    loop: EventLoop,
    log: AgentLog,
    context: StartContext,
) -> NodeAgent:
    command = options.command
    spec = WorkerSpec(
        role=command.role,
        local_world_size=options.slots,
        rdzv_handler=rendezvous,
        entrypoint=command.function or command.argv[0],
        args=command.args if command.function else command.argv[1:],
        max_restarts=options.settings.max_restarts,
        event_log_handler=options.settings.event_log_handler,
    )
    around = Surroundings(
        environ=os.environ,
        run_id=options.run_id,
        run_dir=options.paths.root,
        node=options.node,
        settings=options.settings,
        scratch=context.scratch,
        loop=loop,
        clock=SystemClock(),
        say=log.say,
    )
    parts = AgentParts(
        clock=SystemClock(),
        loop=loop,
        log=log,
        rendezvous=rendezvous,
        command=command,
        run=run_env(options),
        start=_start_settings(options, context),
        paths=options.paths,
        scratch=context.scratch,
        times=options.times,
        signals=options.signals,
        on_timeout=AfterDrain.LEAVE if context.below_slurm else AfterDrain.REJOIN,
        on_signal=AfterDrain.REJOIN if context.is_task else AfterDrain.LEAVE,
        services=services_for(around),
        telemetry=telemetry_for(around),
        notices=context.notices,
        hangs=HangOptions.of_settings(options.settings),
        environ=around.environ,
        gpus=context.sampler,
        unfit=_probe_of(options, rendezvous, around, context),
        settings=options.settings,
    )
    return NodeAgent(spec, parts)


def _notices_of(options: LaunchOptions, slurm: SlurmEnv | None, loop: EventLoop) -> Notices:
    """Return the agent's notices from Slurm beside signals; without effect outside Slurm."""
    if slurm is None or Env.LOCAL in os.environ:
        return NoNotices()

    def watch() -> Notices:
        from hpc_elastic.slurm.watch.job_watch import WatchOptions, watch_job  # noqa: PLC0415 - not to start

        has_script = Env.SUBMISSION in os.environ
        wanted = WatchOptions(
            options.times.drain.warning, options.settings.watch_node_drain, hands_back=has_script
        )
        if slurm.task is not None:
            from hpc_elastic.slurm.watch.array_delay import watch_task  # noqa: PLC0415 - nor this

            return watch_task(options.paths, slurm, wanted, loop)
        return watch_job(options.paths, slurm, wanted, loop)

    return LaterNotices(watch, is_alone=slurm.task is not None)


def _start_settings(options: LaunchOptions, context: StartContext) -> StartSettings:
    # where Slurm finds processes by their parents it signals workers directly: they must not die of it
    ignored = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if context.below_slurm else ()
    return StartSettings(
        ignore_signals=ignored,
        guard=context.guard,
        owns_process=context.owns_process,
        base_env=base_env_for(os.environ),
        grace_s=options.times.shutdown,
        preloader=context.preloader,
        beside=() if context.sampler is None else context.sampler.pids,
    )


def _probe_of(
    options: LaunchOptions, rendezvous: SharedFsRendezvous, around: Surroundings, context: StartContext
) -> Probe:
    expected = rendezvous.run.facts.expected
    place = ProbedPlace(
        node=options.node,
        run_dir=options.paths.root,
        listed=options.paths.members,
        scratch=context.scratch,
        workers=options.slots,
        environ=around.environ,
        below_slurm=context.below_slurm,
        gpus=context.gpus,
        is_first=not expected or expected[0] == options.node,
    )
    agent = ProbedAgent(around.loop, around.clock, around.say, rendezvous.run.tick)
    return Probe(ProbeOptions.of_settings(options.settings), place, agent)


def _remember_bad_nodes(options: LaunchOptions, slurm: SlurmEnv, opened: OpenAgent, outcome: Outcome) -> None:
    """Record the failures of nodes in a run without a batch script of ours; a few nodes do it for all."""
    state, log, place = opened.run.state, opened.log, opened.run.place_among_survivors()
    if not state.lost and outcome.exit_code not in (ExitCode.UNFIT, ExitCode.WEDGED):
        return
    if place is not None and place >= _REMEMBERING:
        return
    from hpc_elastic.record.node_faults import node_faults  # noqa: PLC0415 - rare
    from hpc_elastic.record.run_log import open_log  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.nodes.nodes import note_taken, remember_run  # noqa: PLC0415 - rare

    try:
        journal = open_log(options.paths, options.node)
        journal.refresh()
        blamed = node_faults(journal.records, options.paths.name)
        note_taken(journal, blamed, state.epoch, slurm.job_ref, Slurm(), log.say)
        remember_run(options.paths, journal.records, os.environ, log.say)
    except (HpcElasticError, OSError) as error:
        log.say(f"bad nodes are not remembered: {' '.join(str(error).split())}")


def _say_goodbye(options: LaunchOptions, outcome: Outcome, opened: OpenAgent) -> int:
    """Tell how it ended and return the exit code of the process.

    Below a batch script `hpc-elastic finish` shows the root cause once, for all nodes; in a user's own
    script, where the agents of a step share one output, the first node that is left does.
    """
    below_batch_script = Env.SUBMISSION in os.environ
    log = opened.log
    log.say(f"leaving: {outcome.reason}")
    if outcome.failure:
        from hpc_elastic.multiprocessing.errors import FailureRecord, failure_summary  # noqa: PLC0415

        summary = failure_summary(options.title, [FailureRecord.from_json(outcome.failure)])
        is_told = below_batch_script or (opened.shares_console and _another_tells(opened.run))
        (opened.own_log if is_told else log).say(summary)
    if outcome.exit_code == ExitCode.REQUEUE and opened.loop.last_signal and not below_batch_script:
        return 128 + opened.loop.last_signal
    return outcome.exit_code


def _another_tells(run: SharedRun) -> bool:
    """Tell whether another node is the first of those that are left."""
    return run.place_among_survivors() not in (0, None)


def default_python() -> str:
    """Return the interpreter that runs training scripts."""
    return os.environ.get("PYTHON_EXEC", sys.executable)


if __name__ == "__main__":
    sys.exit("error: this is no program, unlike torch.distributed.launch\n  fix: hpc-elastic run")


def run_env(options: LaunchOptions) -> RunEnv:
    """Return the variables that are the same for all workers; those of the agent's environment stay."""
    cpus = len(os.sched_getaffinity(0))
    environ = base_env_for(os.environ) or os.environ
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cpus // options.slots)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",  # the output of a program is in its log while it runs
    }
    if options.settings.tracker_ids:
        from hpc_elastic.node.workers.worker_env import tracker_env  # noqa: PLC0415 - on request

        defaults.update(tracker_env(options.run_id, options.paths.root))
    given = tuple((name, value) for name, value in defaults.items() if name not in environ)
    if options.command.virtual_local_rank:  # a worker's own device is one of these
        given += tuple((name, environ[name]) for name in ("CUDA_VISIBLE_DEVICES",) if name in environ)
    is_slurm_task = "SLURM_PROCID" in environ
    return RunEnv(
        run_id=options.run_id,
        run_dir=options.paths.root,
        node=options.node,
        max_restarts=options.settings.max_restarts,
        master_addr=options.master_addr,
        master_port=options.master_port,
        defaults=given,
        is_slurm_task=is_slurm_task,
        slurm_cpus=_slurm_cpus(environ),
        names_coordinator=is_slurm_task and "JAX_COORDINATOR_ADDRESS" not in environ,
    )


def _slurm_cpus(environ: Mapping[str, str]) -> int | None:
    """Return how many CPUs Slurm has given this agent; None: not known.

    The one task of a node has all CPUs of the step there, also where fewer were asked for.
    """
    is_alone = environ.get("SLURM_STEP_TASKS_PER_NODE", "1").partition(",")[0].partition("(")[0] == "1"
    names = ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK")[not is_alone :]
    return next(filter(None, (whole_number(environ.get(name, "")) for name in names)), None)


def services_for(around: Surroundings) -> Services:
    """Return the services that the environment asks for; without any nothing more is imported."""
    if not any(name in around.environ for name in _SERVICES):
        return Services()
    from hpc_elastic.node.listeners.node_services import NodeServices  # noqa: PLC0415 - only if asked for

    return NodeServices(around)


def telemetry_for(around: Surroundings) -> TelemetryMaker:
    """Return the maker of the agent's telemetry; without a possible listener nothing more is imported.

    Raises:
        InputError: a listener cannot be made.
    """
    asked = (
        around.settings.event_log_handler != "null"
        or Env.METRICS in around.environ
        or Env.EVENTS in around.environ
    )
    configured = "hpc_elastic.metrics.api" in sys.modules or "hpc_elastic.events.handlers" in sys.modules
    if not (asked or configured or os.path.exists(_SITE)):
        return tell_nobody
    from hpc_elastic.node.listeners.listeners import telemetry_maker  # noqa: PLC0415 - only if asked for

    return telemetry_maker(around, initialize=not configured)


def check_telemetry(environ: Mapping[str, str]) -> None:
    """Refuse metrics and events that cannot be delivered, before anything is made for the run.

    Raises:
        InputError: a listener cannot be made.
    """
    if Env.METRICS in environ or Env.EVENTS in environ:
        from hpc_elastic.node.listeners.listeners import check_asked  # noqa: PLC0415 - only if asked for

        check_asked(environ)


def base_env_for(environ: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the workers' environment below their own variables; None: that of the agent.

    It has the variables that are for workers alone, and no pipe of timers that has no reader.
    """
    found = _with_own_variables(environ)
    if Env.TIMER_FILE not in environ:
        return found
    from hpc_elastic.node.listeners.watchdog import without_dead_pipe  # noqa: PLC0415 - only if asked for

    return without_dead_pipe(found or environ) or found


def _with_own_variables(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment with the variables that workers alone get; None: there are none."""
    theirs = [name for name in environ if name.startswith(Env.OF_WORKERS)]
    if not theirs:
        return None
    given = {name.removeprefix(Env.OF_WORKERS): environ[name] for name in theirs}
    return {**{name: text for name, text in environ.items() if name not in theirs}, **given}
