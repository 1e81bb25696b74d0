"""Headers of job scripts on a fake Slurm, with a body that waits, each under a preemption."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision
from hpc_elastic.slurm.job.own_script import OwnScript
from hpc_elastic.slurm.job.own_script_file import read_own_script
from hpc_elastic.slurm.run_jobs.run_files import read_run
from hpc_elastic.slurm.run_jobs.script_tasks import begun_tasks
from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings

_NODES = 4
_PATIENCE_S = 60.0
_HERE = ("--partition=low", "--nodes=1", "--time=60")  # what the fake has
# what names things of another site, as an option of its own or with its value behind it
_OF_SITE = re.compile(
    r"(?:-[ACMqwxLpNt]\s*=?|--(?:account|constraint|clusters?|qos|nodelist|exclude|licenses|reservation|"
    r"partition|nodes|time|dependency|begin|mail-user|output|error|chdir|input|container-\w+|gres|gpus\S*|"
    r"workdir|switches|mem\S*|cpus-per-task|ntasks\S*|tasks\S*)(?:=|\s+))\S*|"
    r"-[noeDicdbJ]\s*\S+|--exclusive\S*"
)
_BODY = """
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
sleep 600
"""


class Outcome(NamedTuple):
    """What became of a script.

    Attributes:
        path: its file.
        is_well: it was requeued once, and ended well.
        told: the reason if not.
    """

    path: Path
    is_well: bool
    told: str = ""


def run_preempted(paths: Sequence[Path]) -> Iterator[Outcome]:
    """Run the headers of scripts one by one, and yield what becomes of each.

    Args:
        paths: the scripts, which `submit` accepts.
    """
    settings = Settings(nodes=_NODES, grace=30, kill_wait=30, speed=10)
    for path in paths:
        with tempfile.TemporaryDirectory() as place, FakeSlurm(place, settings) as slurm:
            yield _run(slurm, Path(place), path)


def _run(slurm: FakeSlurm, place: Path, path: Path) -> Outcome:
    own, root = read_own_script(str(path)), place / f"run-{path.name}"
    script = place / f"changed-{path.name}"
    script.write_text(_changed(own), encoding="utf-8", errors="surrogateescape")
    words = ("sbatch", "--parsable", "--allow-local-run-dir", "--run-dir", str(root), *_HERE, str(script))
    done = slurm.run([sys.executable, "-m", "hpc_elastic", *words], cwd=place, timeout=_PATIENCE_S)
    if done.returncode != 0:
        return Outcome(path, is_well=False, told=done.stderr.strip())
    job = done.stdout.strip()
    try:
        slurm.wait_state(job, "RUNNING")
        high = slurm.submit_high(_NODES)
        slurm.wait_state(high, "RUNNING")
        slurm.command("scancel", high)
        slurm.wait_for(lambda: _is_over(root), _PATIENCE_S, f"the end of {path.name}")
        runs = [read_run(task) for task in begun_tasks(RunPaths(root)) or [RunPaths(root)]]
    except (AssertionError, TimeoutError, HpcElasticError) as error:
        slurm.command("scancel", job)
        return Outcome(path, is_well=False, told=f"{error}\n{slurm.story()}")
    endings = [run.state.ending for run in runs]
    is_well = all(one is not None and one.decision is Decision.DONE for one in endings)
    is_well = is_well and any(run.state.requeues == 1 for run in runs)
    return Outcome(path, is_well=is_well, told=str([one and one.reason for one in endings]))


def _is_over(root: Path) -> bool:
    runs = begun_tasks(RunPaths(root)) or [RunPaths(root)]
    return all(read_run(one).state.ending is not None for one in runs)


def _changed(own: OwnScript) -> str:
    """Return a script with the same options as far as a fake of another site has them, and another body."""
    lines = [_OF_SITE.sub("", line).rstrip() for line in own.option_lines]
    lines = [re.sub(r"(--array[= ]|-a[= ]?)\S+", r"\g<1>0-1", line) for line in lines]
    kept = [line for line in lines if line.split()[1:] and not line.split()[1].startswith("#")]
    return "\n".join(("#!/bin/bash", *kept, _BODY))
