"""``hpc-elastic checkpoints``: those that a run has saved, and from which it goes on."""

from __future__ import annotations

from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.clock import date_text
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import failed_save_texts, failed_saves
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.saved import ListedCheckpoint, SavedState, saved_checkpoints
from hpc_elastic.slurm.run_jobs.run_files import read_run
from hpc_elastic.text import bytes_text, for_shell, visible

_HEAD = ("STEP", "SAVED", "SIZE", "RANKS", "STATE", "SOURCE", "PATH")


def checkpoints(run: str | None = None, *, json: bool = False) -> int:
    """Show the checkpoints of a run, and from which of them it goes on."""
    paths = find_run(run)
    found, failed = saved_checkpoints(paths), failed_saves(paths)
    if json:
        from hpc_elastic.report.explain.as_json import document  # noqa: PLC0415 - rare

        rows = [{**one._asdict(), "state": one.state.value} for one in found]
        wrong = [{"name": name, **one._asdict()} for name, one in failed.items()]
        hand_out(document("checkpoints", {"run": paths.root, "checkpoints": rows, "failed": wrong}))
        return 0
    if not found:
        say("none is marked (hpc_elastic.worker.checkpoint_saved)")
    else:
        _print_table(found)
    for text in failed_save_texts(failed):
        say(visible(text))
    others = [one for one in found if one.state in (SavedState.WHOLE, SavedState.LEFT)]
    if others and (way := _way_back(paths, others[0].step)):
        say(way)
    return 0


def _way_back(paths: RunPaths, step: int) -> str:
    """Return how a run goes back to a step; empty if it is over for good, or `submit` has not started it."""
    run = read_run(paths)
    ending = run.state.ending if run.state.epoch.submission >= run.submission else None
    if not run.has_script or (ending is not None and ending.decision is Decision.DONE):
        return ""
    when = "to go back" if ending is not None else "to go back, once the run has ended"
    return f"{when}: hpc-elastic submit --resume {for_shell(paths.root)} --from-step {step}"


def _print_table(found: list[ListedCheckpoint]) -> None:
    rows = [_HEAD, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(one: ListedCheckpoint) -> tuple[str, ...]:
    state = one.state.value
    if one.state is SavedState.HALF:
        state = f"half: {one.ranks} of {one.shards} ranks"
    return (
        str(one.step),
        "-" if one.at is None else date_text(one.at),
        "-" if one.size is None else bytes_text(one.size),
        "-" if one.world_size is None else str(one.world_size),
        state,
        f"{one.source}{f' {one.name}' if one.name else ''}, round {one.round}",
        visible(one.path or "-"),
    )
