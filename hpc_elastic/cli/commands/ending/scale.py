"""``hpc-elastic scale``: change how many nodes a run uses while it runs."""

from __future__ import annotations

from typing import Annotated

from hpc_elastic.cli.commands.ending.stop import hand_out_status
from hpc_elastic.cli.parameters import Flag
from hpc_elastic.cli.run_argument import JsonOfStatus, RunArgument, find_one_run
from hpc_elastic.cli.say import say, say_aside
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.scale import scale as change_size

KeepSpares = Annotated[
    bool,
    Flag(("--keep-spares",), "Array mode: nodes beyond that stand by, instead of being given back."),
]


def scale(
    run: RunArgument,
    nodes: Annotated[int, Flag(("--nodes", "-N"), "How many nodes the run is to use from now on.", "N")],
    keep_spares: KeepSpares = False,  # noqa: FBT002 - a flag of the command line
    json: JsonOfStatus = False,  # noqa: FBT002 - as above
) -> int:
    """Change how many nodes a running run uses.

    A run that is one job keeps its nodes: those beyond N stand by. In array mode they are given back,
    and N may be more than the run was submitted for.
    """
    paths = find_one_run(run)
    change_size(paths, nodes, say_aside if json else say, slurm=Slurm(), keep_spares=keep_spares)
    return hand_out_status(paths) if json else 0
