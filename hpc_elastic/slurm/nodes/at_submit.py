"""Suspect nodes are left out of a job that is submitted."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.nodes import features_of
from hpc_elastic.slurm.nodes import ledger_rules
from hpc_elastic.slurm.nodes.ledger_rules import RULES, WantedNodes
from hpc_elastic.slurm.nodes.nodes import Say, choose, hosts, ledger_of, one_line, told
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.store.node_ledger import foreign_folder, place_for, read_ledger


def without_suspects(wanted: SubmitRequest, slurm: Slurm, clock: Clock, say: Say) -> SubmitRequest:
    """Return the request with the suspect nodes left out, and tell of it in a line.

    Where nodes are remembered is kept with the request, for the job has an environment of its own.
    """
    spec = wanted.spec
    place = ledger_of(wanted.paths.root, {"ledger": spec.ledger}, slurm.environ)
    if place != place_for(wanted.paths.root):
        wanted = replace(wanted, spec=spec.model_copy(update={"ledger": place}))
    if note := foreign_folder(place):
        say(f"warning: {note}")
    if not spec.exclude_suspects:
        return wanted
    now = clock.wall()
    try:
        known = ledger_rules.standings(read_ledger(place, since=RULES.oldest(now)).events, now)
    except (HpcElasticError, OSError) as error:
        say(f"warning: {one_line(error)}; no node is left out for what happened before")
        return wanted
    suspects = {one.host: f"{one.last.fault.value}: {one.last.detail}" for one in known if one.is_suspect}
    if not suspects:
        return wanted
    mine, asked = hosts(spec.exclude), hosts(spec.nodelist)
    if bool(spec.exclude) > bool(mine) or bool(spec.nodelist) > bool(asked):
        say(f"not left out, as exclude or nodelist is no list of nodes: {', '.join(suspects)}")
        return wanted
    need = WantedNodes(
        spec.node_range.high,
        spec.gpus or 0,
        features_of(spec.constraint),
        never=(*mine, *asked),
    )
    chosen = choose(list(suspects), spec.partition, need, slurm, say)
    # a run that is resumed takes no flags
    how = "hpc-elastic nodes forgive" if wanted.submission else "--no-exclude-suspects"
    for line in told(chosen, suspects, f"{how} takes them in"):
        say(line)
    return replace(wanted, excluded=(*mine, *chosen.nodes)) if chosen.nodes else wanted
