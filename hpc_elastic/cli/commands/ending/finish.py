"""``hpc-elastic finish``: the last line of the job script decides whether the job is requeued. Light."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from hpc_elastic.cli.parser import Parser, add_finish_flags, add_help
from hpc_elastic.clock import SystemClock, clock_text
from hpc_elastic.errors import HpcElasticError, SlurmError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, SetupFailure
from hpc_elastic.record.state import RunState, has_ended
from hpc_elastic.settings.of_commands import FINISH
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.bad_nodes import begin_with_nodes, run_with_nodes
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.expedited import let_end
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.end.requeue import PATIENCE_S, last_line
from hpc_elastic.slurm.end.unwritten import mark_text
from hpc_elastic.slurm.run_jobs.job_start import NOT_REQUEUED, Ended, Patience, Start, of_script
from hpc_elastic.store.files import write_all
from hpc_elastic.text import visible_lines

_CANNOT_RUN = (126, 127)  # exit codes of a shell for a program that cannot be run or is not there


def main(argv: Sequence[str]) -> int:
    """Decide whether the job is requeued, held or over; print only a number of nodes to stdout.

    That is for another srun. Below the run's own job script it is 0 for a code that the shell has, too, where
    a program cannot be run.

    Returns:
        The exit code for the job script; 80 asks for another srun.
    """
    arguments = parser().parse_args(argv)
    paths = RunPaths(arguments.run_dir)
    failure = _failure(arguments)
    slurm, clock = _slurm_of(arguments.job_info), SystemClock()
    start = Start.from_environ(
        paths,
        os.environ,  # noqa: TID251 - the batch script's
        relaunch=arguments.relaunch,
        srun_exit_code=arguments.srun_exit_code,
    )
    start = start._replace(
        chain=arguments.chain,
        launch_failure=failure,
        script_runs=arguments.script_runs,
    )
    start = of_script(start, os.environ) if arguments.script else start  # noqa: TID251 - as above
    limits = {row.name: getattr(arguments, row.name) for row in FINISH if row.name in RequeueBudgets._fields}
    budgets = RequeueBudgets(
        **limits, holds=arguments.on_budget_spent == "hold", resubmits=arguments.resubmit
    )
    if arguments.begins:
        return _begin(arguments, Finish(start, budgets, slurm, clock, _say))
    try:
        finish = Finish(start, budgets, slurm, clock, _say)
        ended = run_with_nodes(finish.run, finish.log, start, slurm, clock, _say)
    except (HpcElasticError, OSError) as error:
        _say(f"{NOT_REQUEUED}{error}")
        if start.is_submitted:
            _say_how_to_go_on(start)
        return _let_end(start, slurm, ExitCode.FAILED, patience_s=0.0)
    if ended.code == ExitCode.RELAUNCH:
        _print_nodes(ended.nodes)
    _look_after_end(arguments, finish, ended)
    code = _let_end(start, slurm, ended.code, patience_s=PATIENCE_S if finish.is_answered else 0.0)
    if code in _CANNOT_RUN and start.is_submitted:
        _print_nodes(0)
    return getattr(slurm, "asks", None) or code


def _look_after_end(arguments: argparse.Namespace, finish: Finish, ended: Ended) -> None:
    """Show the end of a run, remove its kept states and send messages, once Slurm has the job back."""
    if has_ended(ended.state):  # one that is held goes on
        from hpc_elastic.start.kept_state import remove_of  # noqa: PLC0415 - at the end of a run

        remove_of(finish.start.paths)
    if not arguments.script_runs:  # else the last call tells it
        _tell_the_end(ended.state, finish.start)
    if arguments.notify_webhook or arguments.notify_command:
        _send_message(arguments, finish, finish.start, ended)


def _begin(arguments: argparse.Namespace, finish: Finish) -> int:
    """Charge earlier ends before a start begins; it begins, too, where that cannot be done."""
    start = finish.start
    noun, restart = ("job", start.restarts) if start.task is None else ("task", start.task.restart)
    _say(mark_text(restart, noun, start.job_ref))
    try:
        ended = begin_with_nodes(finish, _say)
    except (HpcElasticError, OSError) as error:
        _say(f"earlier starts are not looked at: {' '.join(str(error).split())}")
        return ExitCode.OK
    if ended is None:
        return ExitCode.OK
    _print_nodes(0)
    _look_after_end(arguments, finish, ended)
    return _let_end(start, finish.slurm, ended.code, patience_s=0.0)


def _print_nodes(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _let_end(start: Start, slurm: Slurm, code: int, *, patience_s: float) -> int:
    """Return the exit code of the script, with which Slurm does not hold the job."""
    try:
        return let_end(start, slurm, Patience(SystemClock(), _say), code, patience_s=patience_s)
    except SlurmError as error:
        held = f"Slurm is going to hold {start.job_ref}, which ends: {last_line(str(error))}"
        _say(f"{held}; to take it out of the queue: scancel {start.job_ref}")
        return code


def _send_message(arguments: argparse.Namespace, finish: Finish, start: Start, ended: Ended) -> None:
    """Send the message about the end of the run; Slurm has the job back already."""
    from hpc_elastic.report.timeline import failure_text  # noqa: PLC0415 - where it is wanted
    from hpc_elastic.slurm.end.notify import Hooks, Messenger  # noqa: PLC0415 - as above
    from hpc_elastic.slurm.job.notice import check_events  # noqa: PLC0415 - as above

    try:
        hooks = Hooks(
            arguments.notify_webhook or "",
            arguments.notify_template,
            arguments.notify_command or "",
            check_events(arguments.notify_on, "--notify-on"),
        )
        failure = None if ended.state.ending is None else ended.state.ending.failure
        messenger = Messenger(hooks, finish.log, start, _say, SystemClock())
        messenger.tell(ended, failure_text(failure) if failure else "")
    except (HpcElasticError, OSError) as error:
        _say(f"no message is sent: {error}")


def _slurm_of(job_info: str | None) -> Slurm:
    if job_info is None:
        return Slurm()
    from hpc_elastic.slurm.client.commands import SlurmByScript  # noqa: PLC0415 - only in containers

    return SlurmByScript(job_info)


def parser() -> Parser:
    """Return the command line."""
    made = Parser(
        "finish",
        "--run-dir DIR [FLAG ...]",
        description="Called by the job script after srun: reads the run's records, asks Slurm about the\n"
        "job, then ends, requeues, or asks for another srun (exit code 80, node count on stdout).",
    )
    group = made.add_argument_group("options")
    add_help(group, "show this help message and exit")
    add_finish_flags(group, FINISH)
    return made


def _failure(arguments: argparse.Namespace) -> SetupFailure | None:
    """Return the failure before srun; None without one."""
    told = os.environ.get(Env.LAUNCH_FAILURE, "")  # noqa: TID251 - as above
    line, step = arguments.launch_failure or told, arguments.launch_failure_in
    return SetupFailure(line, step, arguments.launch_failure_code) if line or step else None


def _say(text: str, *, is_plain: bool = False) -> None:
    """Show a line; where the log cannot be written to, as its disk is full, the job goes on all the same.

    Control characters are shown as escapes: the words may be those of Slurm, a server or a file.

    Args:
        text: the line, or several.
        is_plain: without the time and the name of the command.
    """
    head = "" if is_plain else f"[{clock_text(SystemClock().wall())}] hpc_elastic finish: "
    shown = visible_lines(head + text)
    with suppress(OSError):
        write_all(2, f"{shown}\n".encode(errors="replace"))


def _tell_the_end(state: RunState, start: Start) -> None:
    """Print, as the last thing in the log, why a run failed or how to take it up again."""
    ending = state.ending
    if ending is not None and ending.decision is Decision.DONE:
        with suppress(Exception):  # as below
            _say_use(start.paths)
    if ending is None or ending.decision in (Decision.DONE, Decision.HELD):
        return
    if start.is_script:  # its output is above
        _say_how_to_go_on(start)
        return
    if ending.failure is not None:
        from hpc_elastic.multiprocessing.errors import FailureRecord, failure_summary  # noqa: PLC0415 - rare

        summary = failure_summary(_title(start.paths), [FailureRecord.from_json(ending.failure)])
        _say(summary, is_plain=True)
    if ending.decision is Decision.FAILED:
        with suppress(Exception):  # it decides nothing, so nothing that is wrong with it may cost the job
            _explain(start.paths)
    if not os.path.exists(start.end_file):  # else the local runner says it
        _say_how_to_go_on(start)


def _say_use(paths: RunPaths) -> None:
    """Print the use that a run has made of its nodes, as far as it is known."""
    from hpc_elastic.account.facts import use_of  # noqa: PLC0415 - as above
    from hpc_elastic.account.read import read_facts, read_gpus  # noqa: PLC0415 - at the end of a run
    from hpc_elastic.report.explain.words import gpus_text, use_text  # noqa: PLC0415 - as above

    if used := use_text(use_of(read_facts(paths))):
        _say(f"used: {used}")
    if busy := gpus_text(read_gpus(paths)):
        _say(f"GPUs: {busy}")


def _explain(paths: RunPaths) -> None:
    """Print why the run has failed, as ``hpc-elastic explain`` does."""
    from hpc_elastic.cli.commands.looking.explain import explained  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.run_jobs.run_files import SlurmAnswer, read_run  # noqa: PLC0415 - rare

    run = read_run(paths)
    found = explained(run, SlurmAnswer(None, {}))
    then = [step for step in found.seen.then if not step.is_start]  # the last line has it
    for line in found._replace(seen=found.seen._replace(then=then)).lines:
        _say(line, is_plain=True)


def _title(paths: RunPaths) -> str:
    """Return the workers' command, or the run where only its agents know the command."""
    from hpc_elastic.slurm.job.worker_launcher import title_of  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.run_jobs.run_files import stored_spec  # noqa: PLC0415 - rare

    spec = stored_spec(paths)
    module = str(spec.get("module") or "")
    if module.startswith("hpc_elastic."):  # ours, which runs a function of the user's
        return str(spec.get("name") or paths.name)
    command = spec.get("command")
    return module or (title_of(command) if command else paths.name)


def _say_how_to_go_on(start: Start) -> None:
    from hpc_elastic.slurm.run_jobs.job_start import resume_command, to_go_on  # noqa: PLC0415 - rare

    aim = "to start it again" if start.is_script else to_go_on(start.paths)  # its checkpoints are its own
    _say(f"  {aim}: {resume_command(start)}", is_plain=True)
