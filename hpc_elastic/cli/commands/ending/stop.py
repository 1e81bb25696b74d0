"""``hpc-elastic stop``, ``cancel`` and ``scale``: end a run, with and without saving; change its size."""

from __future__ import annotations

from hpc_elastic.cli.run_argument import find_one_run
from hpc_elastic.cli.say import hand_out, say, say_aside
from hpc_elastic.cli.status.facts import drain_facts
from hpc_elastic.clock import SystemClock
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause
from hpc_elastic.report.timeline import span_text
from hpc_elastic.settings.table import in_force
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.end_run import EndRun, end_tasks
from hpc_elastic.slurm.operate.scale import scale as change_size
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, read_run
from hpc_elastic.text import for_shell


def stop(run: str, *, json: bool = False) -> int:
    """Have the workers save and stop at the same step; the job ends and is not requeued."""
    paths, tell = find_one_run(run), say_aside if json else say
    end_tasks(paths, Slurm(), lambda task: EndRun(task, Slurm(), SystemClock(), tell).stop(), tell)
    EndRun(paths, Slurm(), SystemClock(), tell).stop()
    if json:
        return hand_out_status(paths)
    for text in _never_asks(read_run(paths)):
        say(text)
    for label, text in drain_facts(paths):
        say(f"{label}: {text}")
    say(f"to see how it goes: hpc-elastic status {for_shell(paths.root)}")
    return 0


def _never_asks(run: RunFiles) -> list[str]:
    """Return the fate of workers that never ask whether to stop, if there may be some."""
    state = run.state
    cancel_text = f"to end them now: hpc-elastic cancel {for_shell(run.paths.root)}"
    if state.drain is None or state.drain.cause is not Cause.STOP or state.ending is not None:
        return []
    if state.never_asked is not None:
        runs_on_s = state.never_asked.runs_on_s
        ends = (
            "they are ended at once" if runs_on_s is None else f"they run on for up to {span_text(runs_on_s)}"
        )
        return [f"the workers do not ask whether to stop: {ends}", *([cancel_text] if runs_on_s else [])]
    unasked = in_force(run.spec, "unasked") if run.spec else "term"
    if unasked == "term":
        return []
    asked = f"workers that do not ask whether to stop run on until their time is up (--unasked {unasked})"
    return [f"{asked}; hpc-elastic status tells how long that is", cancel_text]


def cancel(run: str, *, json: bool = False) -> int:
    """End a run at once; the work since its last checkpoint is lost."""
    paths, tell = find_one_run(run), say_aside if json else say
    end_tasks(paths, Slurm(), lambda task: EndRun(task, Slurm(), SystemClock(), tell).cancel(), tell)
    EndRun(paths, Slurm(), SystemClock(), tell).cancel()
    return hand_out_status(paths) if json else 0


def hand_out_status(paths: RunPaths) -> int:
    """Print the document of ``status --json`` about a run that was changed just now."""
    from hpc_elastic.cli.commands.looking.status import status_document  # noqa: PLC0415 - rare

    hand_out(status_document(paths))
    return 0


def scale(run: str, nodes: int, *, keep_spares: bool = False, json: bool = False) -> int:
    """Change how many nodes a running run uses."""
    paths = find_one_run(run)
    change_size(paths, nodes, say_aside if json else say, slurm=Slurm(), keep_spares=keep_spares)
    return hand_out_status(paths) if json else 0
