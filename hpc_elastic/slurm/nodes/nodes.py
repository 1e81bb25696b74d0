"""Bad nodes of runs: remembered in the ledger, left out of a job that is requeued.

Nothing here keeps a job from being submitted or requeued: a fact that cannot be had is named
in a line, and the job goes without.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, NodeTaken, Record
from hpc_elastic.record.node_faults import Blamed, node_faults
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.settings.table import in_force
from hpc_elastic.settings.values import parse_nodes
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.answers import features_of, taken_away
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.nodes import ledger_rules
from hpc_elastic.slurm.nodes.ledger_rules import RULES, Exclusion, WantedNodes
from hpc_elastic.slurm.run_jobs.job_start import Say
from hpc_elastic.slurm.run_jobs.run_files import stored_spec
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.node_ledger import foreign_folder, place_for, read_ledger, remember
from hpc_elastic.text import MOST_NAMES, few_text
from hpc_elastic.typed_json import whole_number

if TYPE_CHECKING:
    from hpc_elastic.slurm.submit.request import SubmitRequest  # loads the job spec

_HARD = (Fault.UNFIT, Fault.NODE_LOSS, Fault.ABSENT, Fault.WEDGE)  # within a run one of these is enough
NOT_LOOKED_AFTER = "bad nodes are not looked after"
_NOTHING = ("", "(null)")


def ledger_of(root: str, spec: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the directory in which the nodes of a run are remembered.

    Args:
        root: the run directory.
        spec: the job spec of the run, as far as there is one.
        environ: of this process.
    """
    return os.path.abspath(spec.get("ledger") or environ.get(Env.LEDGER) or place_for(root))


class RequeueExclusion(NamedTuple):
    """The change of a job's excluded nodes when it is requeued."""

    job_ref: str
    nodes: tuple[str, ...] | None = None  # all that are to be excluded; None: leave the job as it is
    said: tuple[str, ...] = ()  # sentences about it, for people
    kept: tuple[str, ...] = ()  # all that are excluded already; another job in its place knows nothing of it

    def of(self, job_ref: str) -> RequeueExclusion:
        """Return the same for a job that goes on in the place of this one."""
        if job_ref == self.job_ref:
            return self
        return RequeueExclusion(job_ref, (self.kept or None) if self.nodes is None else self.nodes, self.said)


def look_after(
    paths: RunPaths, blamed: Sequence[Blamed], job_ref: str, slurm: Slurm, clock: Clock, say: Say
) -> RequeueExclusion:
    """Remember the faults of nodes, and choose those that the job does without if it is requeued.

    Call it before the job is handed back, for a script that has requeued its job has little time left.
    Never raises.

    Args:
        paths: the run.
        blamed: the faults of nodes in its journal.
        job_ref: its job.
        slurm: Slurm's commands; its environment may name the ledger.
        clock: for the age of events.
        say: prints a line.
    """
    try:
        return _look_after(paths, blamed, job_ref, slurm, clock, say)
    except (HpcElasticError, OSError) as error:
        say(f"{NOT_LOOKED_AFTER}: {one_line(error)}")
        return RequeueExclusion(job_ref)


def keep_off(requeue: RequeueExclusion, slurm: Slurm, say: Say) -> None:
    """Have a job that has been requeued do without its bad nodes; never raises.

    Slurm takes this from the job's owner as soon as the job is requeued, though its processes are still
    ending, and not before.
    """
    for line in requeue.said:
        say(line)
    if requeue.nodes is None:
        return
    names = ",".join(requeue.nodes)
    try:
        slurm.update(requeue.job_ref, f"ExcNodeList={names}")
    except HpcElasticError as error:
        say(f"the job may get its bad nodes again ({names}): {one_line(error)}")


def remember_run(
    paths: RunPaths, records: Iterable[Record], environ: Mapping[str, str], say: Say
) -> list[NodeEvent]:
    """Write down the faults of the nodes of a run; return those that are new.

    Raises:
        RunDirError: the ledger is not this user's alone.
        OSError: it cannot be written.
    """
    events = [blamed.event for blamed in node_faults(records, paths.name)]
    place = ledger_of(paths.root, stored_spec(paths), environ)
    new = remember(place, events)
    if new and (note := foreign_folder(place)):
        say(note)
    return new


def _look_after(
    paths: RunPaths, blamed: Sequence[Blamed], job_ref: str, slurm: Slurm, clock: Clock, say: Say
) -> RequeueExclusion:
    spec, now = stored_spec(paths), clock.wall()
    since = RULES.oldest(now)
    place = ledger_of(paths.root, spec, slurm.environ)
    events = [one.event for one in blamed]
    try:
        if remember(place, events) and (note := foreign_folder(place)):
            say(note)
        events = [*read_ledger(place, since=since).events]
    except (HpcElasticError, OSError) as error:
        say(f"nodes are not remembered beyond this run: {one_line(error)}")
    if not events:
        return RequeueExclusion(job_ref)
    bad = bad_nodes(blamed, events, now) if in_force(spec, "exclude_suspects") else {}
    job = slurm.show_job(job_ref) or {}
    before = hosts(slurm.excluded_by(job_ref))
    mine = hosts(spec.get("exclude")) or (before if spec.get("exclude") or not spec else ())
    chosen = _choose_for_requeue(bad, mine, spec, job, slurm=slurm, say=say) if bad else Exclusion()
    nodes = (*mine, *chosen.nodes)
    back = "they come back by hpc-elastic nodes forgive; older failures, as their scores fall"
    said = told(chosen, bad, back)
    return RequeueExclusion(job_ref, None if set(nodes) == set(before) else nodes, said, before)


def bad_nodes(blamed: Sequence[Blamed], events: Sequence[NodeEvent], now: float) -> dict[str, str]:
    """Return the nodes that a requeued job is to do without, and why, the surest first. Pure.

    A fault of the run itself counts at any score of the node, unless it was forgiven.

    Args:
        blamed: by the run's journal.
        events: of the ledger, or the same again without one.
        now: wall time [s since the epoch].
    """
    newest = max((one.epoch.submission for one in blamed), default=0)
    own = [one.event for one in blamed if one.epoch.submission == newest and one.event.fault in _HARD]
    of_host: dict[str, list[NodeEvent]] = {}
    for event in sorted({*events, *own}, key=lambda event: event.at):
        of_host.setdefault(event.host, []).append(event)
    found = {
        event.host: event.detail
        for event in reversed(own)
        if event in ledger_rules.counted(of_host[event.host])
    }
    for one in ledger_rules.standings(events, now):
        if one.is_suspect:
            found.setdefault(one.host, f"{one.last.fault.value}: {one.last.detail}")
    return found


def _choose_for_requeue(
    bad: Mapping[str, str],
    mine: Sequence[str],
    spec: Mapping[str, Any],
    job: Mapping[str, str],
    *,
    slurm: Slurm,
    say: Say,
) -> Exclusion:
    least = parse_nodes(spec["nodes"]).low if "nodes" in spec else _number(job.get("NumNodes", "1"))
    gpus = str(spec.get("gpus_per_node") or 0).rpartition(":")[2]
    need = WantedNodes(
        least,
        whole_number(gpus) or 0,
        features_of(job.get("Features")),
        never=(*mine, *hosts(job.get("ReqNodeList"))),
    )
    return choose(list(bad), job.get("Partition") or spec.get("partition"), need, slurm, say)


def choose(bad: list[str], partition: str | None, need: WantedNodes, slurm: Slurm, say: Say) -> Exclusion:
    """Return which of the bad nodes, the worst first, a job does without; none if Slurm does not answer."""
    try:
        nodes = slurm.nodes(partition)
    except HpcElasticError as error:
        say(
            f"bad nodes ({few_text(bad)}) are not left out, sinfo does not tell the others: {one_line(error)}"
        )
        return Exclusion()
    return ledger_rules.exclude(bad, nodes, need)


def told(chosen: Exclusion, why: Mapping[str, str], more: str) -> tuple[str, ...]:
    """Return lines that say which nodes are left out and why, and which ones cannot be."""
    lines = []
    if chosen.nodes:
        reasons = "; ".join(f"{host} ({why[host]})" for host in chosen.nodes[:MOST_NAMES])
        others = len(chosen.nodes) - MOST_NAMES
        lines.append(f"left out: {reasons}{f' and {others} more' if others > 0 else ''}; {more}")
    if chosen.kept:
        few = f"suspect, but too few nodes would be left without them ({chosen.left})"
        lines.append(f"{few}: {few_text(chosen.kept)}")
    return tuple(lines)


def hosts(text: str | None) -> tuple[str, ...]:
    """Return the hosts of a host list; a file name or another text that is none names no host here."""
    if text is None or text in _NOTHING or "/" in text:
        return ()
    try:
        return parse.expand(text)
    except InputError:
        return ()


def _number(text: str) -> int:
    number = whole_number(text.partition("-")[0])
    return 1 if number is None else number


def one_line(error: Exception) -> str:
    """Return the words of an error, in one line."""
    return " ".join(str(error).split())


def without_suspects(wanted: SubmitRequest, slurm: Slurm, clock: Clock, say: Say) -> SubmitRequest:
    """Return the request with the suspect nodes left out, and tell of it in a line.

    Where nodes are remembered is kept with the request, for the job has an environment of its own.
    """
    spec = wanted.spec
    now = clock.wall()
    since = RULES.oldest(now)
    place = ledger_of(wanted.paths.root, {"ledger": spec.ledger}, slurm.environ)
    if place != place_for(wanted.paths.root):
        wanted = wanted._replace(spec=spec.replaced(ledger=place))
    if note := foreign_folder(place):
        say(f"warning: {note}")
    if not spec.exclude_suspects:
        return wanted
    try:
        known = ledger_rules.standings(read_ledger(place, since=since).events, now)
    except (HpcElasticError, OSError) as error:
        say(f"warning: {one_line(error)}; no node is left out for earlier failures")
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
    return wanted._replace(excluded=(*mine, *chosen.nodes)) if chosen.nodes else wanted


def note_taken(
    log: RunLog, blamed: Iterable[Blamed], epoch: Epoch, job_ref: str | None, slurm: Slurm, say: Say
) -> bool:
    """Write into the records which nodes of a start were taken by a command to Slurm.

    Slurm is asked only if nodes were lost. Never raises: a loss without an answer counts against the node.

    Args:
        log: the journal of the run, as it was read; the answer is written into it.
        blamed: the faults of nodes in it.
        epoch: the start of its job.
        job_ref: the job, while Slurm still knows the nodes of that start; else None.
        slurm: Slurm's commands.
        say: prints a line.

    Returns:
        Whether anything may have been written.
    """
    lost = _lost(blamed, epoch)
    try:
        if lost:
            _note_those_taken(log, lost, job_ref, slurm, say)
    except (HpcElasticError, OSError) as error:
        say(f"whether an administrator took the lost nodes is not known: {one_line(error)}")
    return bool(lost)


def _lost(blamed: Iterable[Blamed], epoch: Epoch) -> list[Blamed]:
    """Return the losses of nodes in a start of the job, of each relaunch."""
    return [one for one in blamed if one.event.fault is Fault.NODE_LOSS and one.epoch.script == epoch.script]


def _note_those_taken(
    log: RunLog, lost: Iterable[Blamed], job_ref: str | None, slurm: Slurm, say: Say
) -> None:
    states = slurm.node_states(sorted({one.event.host for one in lost}), job_ref)
    for one in lost:
        state = states.get(one.event.host)
        reason = None if state is None else taken_away(state, one.event.at)
        if reason is not None:
            _write(log, NodeTaken(one.epoch, one.event.host, reason, one.record))
            say(f"nothing is held against {one.event.host}: {reason}")


def _write(log: RunLog, entry: NodeTaken) -> None:
    log.commit(lambda _state: entry)
