"""``hpc-elastic scale``: change how many nodes a run uses while it runs."""

from __future__ import annotations

from hpc_elastic.cli.commands.ending.stop import hand_out_status
from hpc_elastic.cli.run_argument import find_one_run
from hpc_elastic.cli.say import say, say_aside
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.scale import scale as change_size


def scale(run: str, nodes: int, *, keep_spares: bool = False, json: bool = False) -> int:
    """Change how many nodes a running run uses."""
    paths = find_one_run(run)
    change_size(paths, nodes, say_aside if json else say, slurm=Slurm(), keep_spares=keep_spares)
    return hand_out_status(paths) if json else 0
