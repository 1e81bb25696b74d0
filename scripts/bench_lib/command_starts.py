"""The CPU time of commands that people type, as times that of ``python -c pass``; in turns."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_lib.group import environment
from bench_lib.launchers import HPC_ELASTIC, Effort, Launcher, Samples

STARTS = {
    "status": ("status",),
    "help": ("--help",),
    "submit_help": ("submit", "--help"),
    "dry_run": ("submit", "--dry-run", "--skip-sbatch-test", "--allow-local-run-dir", "--", "train.py"),
}
_TURNS = 3  # for each repetition of a measure that takes longer


def command_starts(launcher: Launcher, effort: Effort) -> Samples:
    """Each command of `STARTS` where there are no runs and no Slurm; of ours alone."""
    if launcher.name != HPC_ELASTIC.name:
        return {}
    samples: Samples = {f"{name}_times_python": [] for name in STARTS}
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        Path(place, "train.py").touch()
        ours = {name: [sys.executable, "-m", "hpc_elastic", *words] for name, words in STARTS.items()}
        for argv in ours.values():
            _cpu_s(argv, place)  # compiles the modules
        for _ in range(_TURNS * effort.repetitions):
            bare_s = _cpu_s([sys.executable, "-c", "pass"], place)
            for name, argv in ours.items():
                samples[f"{name}_times_python"].append(_cpu_s(argv, place) / bare_s)
    return samples


def _cpu_s(argv: Sequence[str], place: str) -> float:
    """Return the CPU time of a process and of those that it has waited for [s]."""
    environ = {**environment(Path(os.devnull)), "PATH": "/no/such/place"}  # Slurm is not asked
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, cwd=place, env=environ, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
