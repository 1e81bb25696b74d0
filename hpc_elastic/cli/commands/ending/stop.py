"""``hpc-elastic stop`` and ``cancel``: end a run, with and without saving."""

from __future__ import annotations

from hpc_elastic.cli.run_argument import RunArgument, find_one_run
from hpc_elastic.cli.say import say
from hpc_elastic.cli.status.facts import drain_facts
from hpc_elastic.clock import SystemClock
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.end_run import EndRun
from hpc_elastic.text import for_shell


def stop(run: RunArgument) -> int:
    """Have the workers save and stop at the same step; the job ends and is not requeued."""
    paths = find_one_run(run)
    EndRun(paths, Slurm(), SystemClock(), say).stop()
    for label, text in drain_facts(paths):
        say(f"{label}: {text}")
    say(f"to see how it goes: hpc-elastic status {for_shell(paths.root)}")
    return 0


def cancel(run: RunArgument) -> int:
    """End a run at once; the work since its last checkpoint is lost."""
    EndRun(find_one_run(run), Slurm(), SystemClock(), say).cancel()
    return 0
