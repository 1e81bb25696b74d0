"""What was measured, against what was promised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        metric: key of the samples.
        text: what is measured, with its unit.
        target: the most it may be for us; None if nothing is promised.
        digits: decimals shown.
        times: how many times the other launcher's must be at least ours; None if nothing is promised.
    """

    metric: str
    text: str
    target: float | None
    digits: int
    times: float | None = None


ROWS = (
    Row("first_line_s", "agent started -> worker's first line [s]", 0.10, 3),
    Row("rss_mb", "agent memory, RSS [MB]", 24, 1),
    Row("pss_mb", "agent memory, PSS [MB]", 16, 1),
    Row("all_rss_mb", "  with its guard, RSS [MB]", 33, 1),
    Row("all_pss_mb", "  with its guard, PSS [MB]", 22, 1),
    Row("idle_cpu_ms_per_s", "idle agent, CPU [ms/s]", 0.5, 2),
    Row("idle_wakeups_per_s", "idle agent, wakeups [1/s]", 2, 1),
    Row("metadata_calls", "metadata calls to start an agent", 1500, 0),
    Row("opened_files", "  of these: files opened", None, 0),
    Row(
        "installed_s",
        "agent started -> first line, in turns: installed package [s]",
        None,
        3,
    ),
    Row("one_file_s", "  from one file [s]", None, 3),
    Row("floor_s", "  a bare Python in place of the agent [s]", None, 3),
    Row("times_floor", "  from one file, times the bare Python", 2.0, 2),
    Row("one_file_calls", "metadata calls to start an agent from one file", 400, 0),
    Row("one_file_opened", "  of these: files opened", None, 0),
    Row("four_agents_cold_s", "4 agents started -> all workers run [s]", None, 3),
    Row("four_imports_s", "  of this: imports alone [s]", None, 3),
    Row("four_agents_s", "  imports done -> all workers run [s]", 0.12, 3),
    Row("replaced_s", "worker dies -> 2 x 4 workers replaced [s]", 0.15, 3),
    Row("orphans", "workers left of 2 after SIGKILL of the agent", 0, 0),
    Row("tee_s", "4 x 200,000 lines: launcher started -> in files and on the console [s]", None, 3, times=3),
    Row("tee_broken_lines", "  lines broken or lost on the console", 0, 0),
    Row("redirect_s", "  the same, files only [s]", None, 3, times=3),
    Row("tee_alone_s", "  start_processes alone: in files and on the console [s]", None, 3, times=3),
    Row("redirect_alone_s", "  start_processes alone: files only [s]", None, 3),
    Row("next_step_s", "one of 2 DDP workers killed -> next step of both [s]", None, 2),
    Row("next_step_cpu_s", "  CPU time of a new worker until then [s]", None, 2),
    Row("warm_next_step_s", "  the same with --preload [s]", 0.5, 2),
    Row("warm_next_step_cpu_s", "  CPU time of a new worker until then, with --preload [s]", 0.1, 2),
    Row("kills_lost_share", "one of 2 DDP workers killed every 20 s: share of the time lost", None, 3),
    Row("kills_warm_lost_share", "  the same with --preload", 0.07, 3),
    Row("kills_rescue_lost_share", "  the same with --preload and the state of the survivor", 0.03, 3),
    *(
        Row(f"{name}_answer_s", f"{text} of a run of 1,000 rounds on 512 nodes: answered after [s]", 1.0, 2)
        for name, text in (
            ("status", "status"),
            ("status_json", "status --json"),
            ("explain", "explain"),
            ("report", "report, as a page"),
            ("report_json", "report, as JSON"),
            ("timeline", "timeline"),
            ("logs", "logs -n 100 of 10 GB"),
            ("logs_rank", "logs --rank 4000 -n 100 of 10 GB"),
        )
    ),
    Row("status_times_python", "status, no run there: CPU time, times that of python -c pass", 7.0, 1),
    Row("help_times_python", "  --help", 10.0, 1),
    Row("submit_help_times_python", "  submit --help", 10.0, 1),
    Row("dry_run_times_python", "  submit --dry-run", 10, 1),
    Row("first_start_cpu_s", "8 workers import PyTorch: CPU time of all processes [s]", None, 1),
    Row("warm_first_start_cpu_s", "  the same with --preload [s]", None, 1),
    Row("first_start_cpu_s_share", "  with --preload, times that without", 0.4, 2),
    Row("first_start_calls", "  file-system calls below Python's paths", None, 0),
    Row("warm_first_start_calls", "  the same with --preload", None, 0),
    Row("first_start_calls_share", "  with --preload, times that without", 0.25, 2),
    Row("ended_s", "worker dies, no restarts left -> both agents ended [s]", 1, 3),
    Row("joined_s", "third agent starts -> world of 3 runs [s]", 0.3, 3),
    Row("quorum_s", "2 agents of 1:3 in a job of 2 nodes -> world of 2 runs [s]", 0.3, 3),
    Row("node_lost_s", "agent of 3 and its workers killed -> world of 2 runs [s]", 6, 2),
)

Results = Mapping[str, Mapping[str, list[float]]]  # launcher -> metric -> samples


def medians(results: Results) -> dict[str, dict[str, float]]:
    """Return the median of each metric of each launcher."""
    return {
        launcher: {metric: statistics.median(samples) for metric, samples in metrics.items()}
        for launcher, metrics in results.items()
    }


def missed(results: Results, launcher: str) -> list[str]:
    """Return the metrics in which a launcher misses its target."""
    found = medians(results)
    ours = found.pop(launcher, {})
    return [row.metric for row in ROWS if ours.get(row.metric, 0) > _limit(row, found)]


def _limit(row: Row, others: Mapping[str, Mapping[str, float]]) -> float:
    """Return the most that ours may be, given the medians of the others."""
    limits = [math.inf] if row.target is None else [row.target]
    if row.times is not None:
        limits += [found[row.metric] / row.times for found in others.values() if row.metric in found]
    return min(limits)


def render(results: Results, judged: str) -> str:
    """Return the table: one line per metric, median (min-max) per launcher, the target, the verdict."""
    names = list(results)
    misses = missed(results, judged)
    lines = [["median (min - max)", *names, "target", ""]]
    for row in ROWS:
        cells = [_cell(results[name].get(row.metric), row.digits) for name in names]
        if not any(cells):
            continue
        target = "" if row.target is None else f"<= {row.target:g}"
        if row.times is not None:
            target = f"1/{row.times:g}"
        verdict = "" if not target else "MISSED" if row.metric in misses else "ok"
        cells = [cell or "no result" for cell in cells]
        lines.append([row.text, *cells, target, verdict if results[judged].get(row.metric) else ""])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(samples: list[float] | None, digits: int) -> str:
    if not samples:
        return ""
    low, middle, high = (f"{pick(samples):.{digits}f}" for pick in (min, statistics.median, max))
    return middle if low == high else f"{middle} ({low} - {high})"
