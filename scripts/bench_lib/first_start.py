"""What the first start of a node with eight workers costs: CPU time, and calls for files of Python's."""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import sysconfig
import tempfile
from pathlib import Path

from bench_lib.group import Group
from bench_lib.launchers import HPC_ELASTIC, Effort, Launcher, Samples, Shape
from bench_lib.recovery import training

SCRIPT = Path(__file__).with_name("importing_worker.py")
WORKERS = 8
LIMIT_S = 600.0  # on a busy machine, traced
_NAMED = re.compile(r'^(?:\d+ +)?\w+\([^"\n]*"(/[^"\n]*)"', re.MULTILINE)


def first_start(launcher: Launcher, effort: Effort) -> Samples:
    """Eight workers that import PyTorch start and end: CPU time of all processes [s], file-system calls.

    Ours also with preloaded modules. Calls count that name a file in Python's own paths or below them.
    """
    samples = _samples("", training(launcher, SCRIPT), effort)
    if launcher.name == HPC_ELASTIC.name:
        warm = _samples("warm_", training(launcher, SCRIPT, ("--preload", "torch")), effort)
        for name in list(samples):
            cold_median, warm_median = map(statistics.median, (samples[name], warm[f"warm_{name}"]))
            samples[f"{name}_share"] = [warm_median / cold_median]
        samples.update(warm)
    return samples


def _samples(prefix: str, launcher: Launcher, effort: Effort) -> Samples:
    samples = {f"{prefix}first_start_cpu_s": [_cpu_s(launcher) for _ in range(effort.long_repetitions)]}
    if shutil.which("strace"):
        samples[f"{prefix}first_start_calls"] = [float(_calls(launcher))]
    return samples


def _cpu_s(launcher: Launcher) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Group(launcher, Shape(agents=1, workers=WORKERS)) as group:
        group.wait_for_workers(limit_s=LIMIT_S)
        group.wait_for_end(limit_s=LIMIT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _calls(launcher: Launcher) -> int:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots = tuple({*paths, *map(os.path.realpath, paths)})
    with tempfile.NamedTemporaryFile(mode="r") as trace:
        wrap = ("strace", "-f", "-qq", "-e", "trace=%file", "-o", trace.name)
        with Group(launcher, Shape(agents=1, workers=WORKERS), wrap=wrap) as group:
            group.wait_for_workers(limit_s=LIMIT_S)
            group.wait_for_end(limit_s=LIMIT_S)
        return sum(path.startswith(roots) for path in _NAMED.findall(trace.read()))
