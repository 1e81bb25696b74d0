"""``hpc-elastic drill``: causes in a run of one's own an event that the cluster may cause some day."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout

from hpc_elastic.account.read import read_begun
from hpc_elastic.cli.commands.looking.status import say_next
from hpc_elastic.cli.run_argument import find_one_run, task_to_show
from hpc_elastic.cli.say import hand_out, say, say_aside, say_in_colour
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import LOGIN
from hpc_elastic.record.array_task import start_of
from hpc_elastic.record.checkpoints import complete_marks, encode_name, object_names
from hpc_elastic.record.journal import DrillBegan, DrillCalledOff, Role
from hpc_elastic.record.run_log import open_log, read_records
from hpc_elastic.report.drill_report import (
    MEANWHILE,
    Course,
    InjectedFault,
    Saved,
    budget_warnings,
    course_of,
    judge,
    verdict,
)
from hpc_elastic.report.explain.as_json import document
from hpc_elastic.report.run_facts import ask_status, next_steps
from hpc_elastic.settings.values import parse_duration_s
from hpc_elastic.slurm.client.commands import Slurm, SlurmTimeoutError
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.drill.drill import (
    CAUSES,
    ON_A_NODE,
    ONE_WORKER,
    Drill,
    Striker,
    Target,
    UnsureError,
    check_drill,
    choose,
)
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, is_array, read_run
from hpc_elastic.store.files import list_names
from hpc_elastic.text import for_shell

_AUTO_LEAST_S = 1800.0  # the least that hang_timeout = auto comes to
_LOOK_S = 0.2
_TELL_S = 10.0  # between two lines about a job that waits
_UNSURE_ERRORS = (UnsureError, SlurmTimeoutError)
_UNSURE = "whether anything was struck is not known: hpc-elastic timeline shows the rest"


def check_rank(chosen: Drill, rank: int | None) -> None:
    """Refuse a place that a drill does not ask for: it would strike more than the user named."""
    if rank is not None and chosen not in ONE_WORKER:
        names = " and ".join(f"--{one.value}" for one in ONE_WORKER)
        raise InputError(
            f"--{chosen.value} strikes no single worker", where="--rank", fix=f"it goes with {names}"
        )


def check_node(run: RunFiles, chosen: Drill, node: str | None) -> None:
    """Refuse a node where the whole job is struck."""
    if node is not None and chosen not in ON_A_NODE and not is_array(run):
        names = ", ".join(f"--{one.value}" for one in ON_A_NODE)
        raise InputError(
            f"--{chosen.value} strikes the whole job, not a node of it",
            where="--node",
            fix=f"leave it out; it goes with {names}, and in array mode with all drills",
        )


def target_of(run: RunFiles, slurm: Slurm, chosen: Drill, node: str | None, rank: int | None) -> Target:
    """Return whom it hits; the run must have workers now, and belong to this user."""
    formed = run.state.running
    ending = run.state.ending
    if ending is not None and run.state.epoch.submission >= run.submission:
        raise InputError(
            run.how_it_ended,
            where="RUN",
            fix=run.how_to_run_again,
        )
    job = ask_job(run, slurm).job
    if job is not None and job.to_be_released:
        raise InputError(
            f"job {run.job_id} is held in the queue, so the run has no workers",
            where="RUN",
            fix=f"scontrol release {run.job_id}, and try again when it runs",
        )
    if formed is None or run.state.ending is not None or (job is not None and not job.state.is_active):
        raise InputError(
            "the run has no workers now, so there is nothing to try on",
            where="RUN",
            fix=f"wait until hpc-elastic status {for_shell(run.paths.root)} says that it runs",
        )
    if not run.job_id:
        raise InputError(
            "the run is neither a Slurm job nor one of submit --local",
            where="RUN",
            fix="kill the process yourself: the agents' process ids are in members/",
        )
    return choose(formed, chosen, node, rank)


def tell_hang_limit(run: RunFiles, patience_s: float) -> None:
    """Say beforehand that no agent will find the hang in the time that the drill looks."""
    limit = str(run.spec.get("hang_timeout") or "auto")
    if not run.spec:
        return  # its agents have flags of their own
    if limit == "off":
        say("warning: hang_timeout is off in this run: no agent finds a worker that hangs", err=True)
        return
    limit_s = _AUTO_LEAST_S if limit == "auto" else parse_duration_s(limit)
    if limit_s >= patience_s:
        when = "half an hour at the earliest (hang_timeout = auto)" if limit == "auto" else f"{limit_s:g} s"
        say(
            f"warning: a hang is found after {when}, and this looks for --wait {patience_s:g}s only", err=True
        )


def tell_budgets(run: RunFiles, chosen: Drill, target: Target) -> None:
    """Say beforehand which budgets of the run it spends: it counts as the real event does."""
    start = start_of(target.member.node_id) if is_array(run) else None
    restarts = start.restart if start is not None else None
    cause, has_queue = CAUSES[chosen][0], not run.is_local
    for text in budget_warnings(cause, run.state, run.spec, has_queue=has_queue, task_restarts=restarts):
        say(f"warning: {text}", err=True)


def confirm(run: RunFiles, text: str) -> None:
    """Ask the user for consent.

    Raises:
        InputError: no terminal is there to ask at.
        KeyboardInterrupt: the user says no.
    """
    if not sys.stdin.isatty():
        raise InputError(
            "there is no one to confirm: standard input is no terminal", where="drill", fix="give --yes"
        )
    say(f"{run.name} in {run.paths.root}: {text}")
    try:
        said = input("its work since the last checkpoint is computed again; go on? [y/N]: ")
    except EOFError:
        said = ""
    if said.strip().lower() not in ("y", "yes"):
        raise KeyboardInterrupt


def unchanged(run: RunFiles) -> RunFiles:
    """Return the run as it is now, after its user was asked; it may have gone on without waiting.

    Raises:
        InputError: other processes work there now than those that were asked about.
    """
    now = read_run(run.paths)
    if now.state.running != run.state.running:
        raise InputError(
            f"round {run.state.rounds} ended while you were asked; nothing was struck",
            where="drill",
            fix="give the command again",
        )
    return now


def drill(  # noqa: PLR0913 - one flag per drill
    run: str,
    *,
    preempt: bool = False,
    timeout: bool = False,
    node_loss: bool = False,
    crash: bool = False,
    hang: bool = False,
    requeue: bool = False,
    node: str | None = None,
    rank: int | None = None,
    wait: float = 900.0,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Cause an event in a running run that the cluster may cause, and report how the run came back."""
    flags = (preempt, timeout, node_loss, crash, hang, requeue)
    chosen = _chosen(flags)
    check_rank(chosen, rank)
    found = read_run(task_to_show(find_one_run(run)))
    slurm = Slurm()
    check_drill(found, chosen)
    check_node(found, chosen, node)
    target = target_of(found, slurm, chosen, node, rank)
    words = target.text(chosen, is_one_task=is_array(found))
    if chosen is Drill.HANG:
        tell_hang_limit(found, wait)
    tell_budgets(found, chosen, target)
    if not yes:
        confirm(found, words)
        found = unchanged(found)
    striker = Striker(found, slurm, SystemClock())
    site = striker.granted(target) if chosen is Drill.PREEMPT else None
    with redirect_stdout(sys.stderr) if json else nullcontext():  # stdout has the document alone
        course = _strike_and_follow(found, striker, chosen, target, wait)
        code = _tell_verdict(found, course, site)
    if json:
        hand_out(_as_json(found, chosen, target, course, is_well=code == ExitCode.OK))
    return code


def _strike_and_follow(
    run: RunFiles, striker: Striker, chosen: Drill, target: Target, patience_s: float
) -> Course:
    """Strike, and follow the run; a worker that hangs goes on at the end, whenever that comes.

    Raises:
        HpcElasticError: see `_strike`.
        KeyboardInterrupt: whether anything was struck is not known.
    """
    fault, may_hang = None, chosen is Drill.HANG
    with _interruptible():
        try:
            fault = _strike(run, striker, chosen, target)
            say(f"done: {target.text(chosen, is_one_task=is_array(run))}")
            return _follow(run, fault, patience_s)
        except KeyboardInterrupt:
            if fault is None:
                raise
            say("no longer followed")
            return _course(run, fault)
        except HpcElasticError as error:
            may_hang = may_hang and (fault is not None or isinstance(error, _UNSURE_ERRORS))
            raise
        finally:
            if may_hang:
                _let_go_on(run, striker, target, fault)


def _chosen(flags: tuple[bool, ...]) -> Drill:
    drills = [drill for drill, wanted in zip(_IN_ORDER, flags, strict=True) if wanted]
    if len(drills) == 1:
        return drills[0]
    names = ", ".join(f"--{drill.value}" for drill in _IN_ORDER)
    what = "no drill is chosen" if not drills else f"{len(drills)} drills are chosen"
    raise InputError(what, where="drill", fix=f"give one of {names}")


_IN_ORDER = (Drill.PREEMPT, Drill.TIMEOUT, Drill.NODE_LOSS, Drill.CRASH, Drill.HANG, Drill.REQUEUE)


def _strike(run: RunFiles, striker: Striker, chosen: Drill, target: Target) -> InjectedFault:
    """Do it; that it is a drill is on record before, so that it does not count against the node.

    Raises:
        HpcElasticError: it failed, or its outcome is unknown; a message has said so, too.
    """
    words, array = target.text(chosen, is_one_task=is_array(run)), is_array(run)
    node = target.member.node if chosen in ON_A_NODE else ""
    log = open_log(run.paths, LOGIN, Role.COMMAND)
    text, drill_id = f"drill: {words} (round {run.state.rounds})", secrets.token_hex(4)
    last = log.commit(lambda state: DrillBegan(state.epoch, drill_id, node, text)).last
    try:
        struck = striker.strike(chosen, target)
    except (*_UNSURE_ERRORS, KeyboardInterrupt):
        say(_UNSURE, err=True)
        raise
    except HpcElasticError as error:
        off = f"the drill was called off, nothing was struck: {_in_one_line(error)}"
        log.commit(lambda state: DrillCalledOff(state.epoch, drill_id, off))
        say("nothing was struck, and the run goes on as before:", err=True)
        raise
    causes = CAUSES[Drill.REQUEUE if target.is_script else chosen]
    is_whole = chosen in (Drill.PREEMPT, Drill.TIMEOUT, Drill.REQUEUE) and not array
    member = target.member
    return InjectedFault(
        frozenset(causes),
        member.node,
        member.node_id,
        target.rank,
        struck.round,
        struck.at,
        last,
        struck.step,
        is_whole,
        drill_id,
    )


def _in_one_line(error: HpcElasticError) -> str:
    """Return the fault in Slurm's own words; the terminal shows its fix."""
    return " ".join(str(error).partition("\n  fix: ")[0].split())


def _follow(run: RunFiles, fault: InjectedFault, patience_s: float) -> Course:
    """Print each phase as it comes, until the run is back, has ended, or the time is up."""
    clock = SystemClock()
    shown: set[tuple[str, str]] = set()
    began = told_at = clock.monotonic()
    begun = read_begun(run.paths)  # once, as each node has a file
    while True:
        course = _course(run, fault, begun)
        for phase in sorted((*course.phases, *course.others), key=lambda one: one.after_s):
            what = (phase.name, phase.text if phase.name == MEANWHILE else "")
            if what not in shown:
                shown.add(what)
                told_at = clock.monotonic()
                say(f"  {max(phase.after_s, 0.0):7.2f} s  {phase.name:<14} {phase.text}")
        if course.is_over or clock.monotonic() - began >= patience_s:
            return course
        if clock.monotonic() - told_at >= _TELL_S:
            told_at = clock.monotonic()
            _tell_waiting(run, told_at - began)
        clock.sleep(_LOOK_S)


@contextmanager
def _interruptible() -> Iterator[None]:
    """End as for Ctrl-C when the terminal is closed or the process is ended: a worker may have to go on.

    A terminal that is closed sends several signals: only the first one interrupts. Below nohup SIGHUP stays
    ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def interrupt(_number: int, _frame: object) -> None:
        for number in taken:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        for number in taken:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _tell_waiting(run: RunFiles, waited_s: float) -> None:
    fields = ask_job(run, Slurm()).fields
    word, reason = fields.get("JobState", ""), fields.get("Reason", "None")
    how = (
        f": {word if is_array(run) else f'the job is {word}'}" + (f" ({reason})" if reason != "None" else "")
        if word
        else ""
    )
    say(f"  {waited_s:7.0f} s  waiting{how}")


def _course(run: RunFiles, fault: InjectedFault, begun: Mapping[int, int] = {}) -> Course:
    return course_of(read_records(run.paths), fault, _saved(run), begun)


def _saved(run: RunFiles) -> list[Saved]:
    """Return the durable checkpoints, the oldest first."""
    names = list_names(run.paths.checkpoints)
    found = []
    for mark in (mark for name in object_names(names) for mark in complete_marks(names, name)):
        try:
            found.append(
                Saved(mark.step, os.stat(os.path.join(run.paths.checkpoints, encode_name(mark))).st_mtime)
            )
        except FileNotFoundError:  # cleaned up by the training
            continue
    return sorted(found, key=lambda saved: saved.at)


def _as_json(run: RunFiles, chosen: Drill, target: Target, course: Course, *, is_well: bool) -> str:
    """Return the drill as a document."""
    phases, others = ([phase._asdict() for phase in part] for part in (course.phases, course.others))
    content = {
        "run": run.paths.root,
        "name": run.name,
        "drill": chosen.value,
        "node": target.member.node,
        "rank": target.rank,
        "is_well": is_well,
        "came_back": course.resumed is not None,
        "noticed": course.noticed,
        "lost_steps": course.steps_lost,
        "phases": phases,
        "others": others,
    }
    return document("drill", content)


def _tell_verdict(run: RunFiles, course: Course, site: Site | None) -> int:
    """Say whether the run came back, and where `site` is known also whether in time; return the exit code."""
    stop_s = run.spec.get("stop_timeout")
    given_s = stop_s if isinstance(stop_s, int | float) else None
    judgement = None if site is None or run.is_script else judge(course, site, given_s)
    if judgement is not None:
        say(f"  {judgement.text}")
    but = judgement.but if judgement is not None else ""
    is_well, text = verdict(course, but)
    say_in_colour(text, "green" if is_well else "red", bold=True)
    now = read_run(run.paths)
    asked, where = ask_status(now, say_aside)
    say_next(next_steps(now, where, asked))
    return ExitCode.OK if is_well else 1


def _let_go_on(run: RunFiles, striker: Striker, target: Target, fault: InjectedFault | None) -> None:
    """Let the worker go on where it was not ended; a worker that is gone needs nothing.

    Args:
        run: the files of the run.
        striker: has struck, or tried to.
        target: the worker.
        fault: None: whether anything was struck is not known.
    """
    try:
        striker.let_go_on(target)
    except HpcElasticError:
        return
    if fault is None:
        return
    course = _course(run, fault)
    if course.noticed or course.overtaken:  # the node that went on is another one
        return
    text = f"the drill is over: rank {target.rank} on {target.member.node} goes on, no agent had noticed"
    open_log(run.paths, LOGIN, Role.COMMAND).commit(lambda state: DrillCalledOff(state.epoch, fault.id, text))
    say(f"rank {target.rank} on {target.member.node} goes on")
