"""``hpc-elastic nodes``: which nodes have failed of late, and which of them later jobs exclude."""

from __future__ import annotations

import os
import secrets

from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import InputError, SlurmError
from hpc_elastic.ids import RUNS_FOLDER, Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import absence_of
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.nodes.ledger_rules import RULES, NodeStanding, standings
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.node_ledger import place_for, read_ledger, remember
from hpc_elastic.store.plain_file import absence_fix
from hpc_elastic.text import for_shell, visible

_ACTIONS = {"forgive": Fault.FORGIVEN, "suspect": Fault.SUSPECTED}
_HEAD = ("NODE", "SCORE", "STATE", "LAST", "WHEN", "RUN", "WHY")


def nodes(
    words: list[str] | None = None, project: str | None = None, reason: str = "", *, json: bool = False
) -> int:
    """Show the nodes on which runs have failed; forgive some, or have jobs do without some."""
    place = place_of(project, Slurm().environ.get(Env.LEDGER))
    if words:
        return _change(place, words, reason)
    now = SystemClock().wall()
    ledger = read_ledger(place, since=RULES.oldest(now))
    known = standings(ledger.events, now)
    left_out = _left_out()
    if json:
        from hpc_elastic.report.explain.as_json import document  # noqa: PLC0415 - rare

        found = {"place": place, "nodes": [_fields(one, left_out) for one in known]}
        hand_out(document("nodes", {**found, "damaged": list(ledger.damaged)}))
        return 0
    if known:
        _print_table(known, left_out)
    else:
        say("no node has failed of late")
    say(f"remembered in {place}")
    if ledger.damaged:
        say(f"damaged: {', '.join(map(visible, ledger.damaged))}; they do not count and may be removed")
    suspects = [one.host for one in known if one.is_suspect]
    if suspects:
        host = for_shell(suspects[0])
        say(f"next: hpc-elastic nodes forgive {host}{_where(project)}, once it has been mended")
    return 0


def place_of(project: str | None, from_environ: str | None) -> str:
    """Return the ledger's directory.

    Raises:
        InputError: the directory that was given does not exist.
    """
    if project is None:
        if from_environ:
            return os.path.abspath(from_environ)
        project = RUNS_FOLDER if os.path.isdir(RUNS_FOLDER) else "."
    where = os.path.abspath(os.path.expanduser(project))
    if not os.path.isdir(where):
        what = f"{project} is not a directory"
        raise InputError(
            what if os.path.lexists(where) else f"the directory {project} {absence_of(where)}",
            where="--project",
            fix=absence_fix(where, "give the one that holds the runs"),
        )
    is_run = os.path.isdir(os.path.join(where, "journal"))
    is_above = os.path.isdir(os.path.join(where, RUNS_FOLDER)) and not os.path.isdir(
        os.path.dirname(place_for(os.path.join(where, "a-run")))
    )
    return place_for(where if is_run else os.path.join(where, *([RUNS_FOLDER] if is_above else []), "a-run"))


def _where(project: str | None) -> str:
    return f" --project {for_shell(project)}" if project else ""


def _change(place: str, words: list[str], reason: str) -> int:
    action, texts = words[0], words[1:]
    if action not in _ACTIONS:
        raise InputError(
            f"{action!r} is neither forgive nor suspect",
            where="nodes",
            fix="hpc-elastic nodes forgive HOST, or hpc-elastic nodes suspect HOST --reason TEXT",
        )
    hosts = [host for text in texts for host in parse.expand(text)]
    if not hosts:
        raise InputError("no node is named", where=f"nodes {action}", fix=f"hpc-elastic nodes {action} HOST")
    if any("/" in host or host != host.strip() for host in hosts):
        raise InputError(
            f"{' '.join(texts)!r} names no nodes", where=f"nodes {action}", fix="write node[1-3]"
        )
    if action == "suspect" and not reason:
        raise InputError("it has no reason", where="nodes suspect", fix='add --reason "its symptom"')
    now = SystemClock().wall()
    if action == "forgive":
        hosts = _known(place, hosts, now)
    key = secrets.token_hex(4)
    said = reason or "by the user"
    remember(place, [NodeEvent(host, _ACTIONS[action], now, key, "", said) for host in hosts])
    for host in hosts:
        after = "counts as sound from now on" if action == "forgive" else "is left out from now on"
        say(f"{host} {after}")
    return 0


def _known(place: str, hosts: list[str], now: float) -> list[str]:
    """Return those of the hosts that something is held against, and say which are not among them.

    Raises:
        InputError: none is.
    """
    known = {event.host for event in read_ledger(place, since=RULES.oldest(now)).events}
    strangers = [host for host in hosts if host not in known]
    if len(strangers) == len(hosts):
        raise InputError(
            f"nothing is held against {', '.join(strangers)} in {place}",
            where="nodes forgive",
            fix="see hpc-elastic nodes for those that are known; --project names another directory",
        )
    if strangers:
        say(f"nothing is held against {', '.join(strangers)}")
    return [host for host in hosts if host in known]


def _left_out() -> dict[str, list[str]]:
    """Return the jobs of this user that leave a node out, by node; none where there is no Slurm."""
    found: dict[str, list[str]] = {}
    try:
        excluded = Slurm().excluded_nodes()
    except SlurmError:
        return found
    for job_id, names in excluded.items():
        for host in parse.expand(names):
            found.setdefault(host, []).append(job_id)
    return found


class NodeRow(NamedTuple):
    """A line of the table."""

    node: str
    score: str
    state: str
    last: str
    when: str
    run: str
    why: str


def row_of(one: NodeStanding, jobs: list[str]) -> NodeRow:
    """Return the line of a node."""
    last = one.last
    return NodeRow(
        one.host,
        f"{one.score:.2f}",
        _state(one, jobs),
        last.fault.value,
        date_text(last.at),
        last.run or "-",
        " ".join(last.detail.split()),
    )


def _state(one: NodeStanding, jobs: list[str]) -> str:
    if jobs:
        return "excluded"
    return "suspect" if one.is_suspect else "ok"


def _print_table(known: tuple[NodeStanding, ...], left_out: dict[str, list[str]]) -> None:
    rows = [_HEAD, *(row_of(one, left_out.get(one.host, [])) for one in known)]
    widths = [max(len(visible(row[column])) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = (f"{visible(cell):<{width}}" for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())


def _fields(one: NodeStanding, left_out: dict[str, list[str]]) -> dict[str, object]:
    jobs = left_out.get(one.host, [])
    return {
        "node": one.host,
        "score": round(one.score, 4),
        "state": _state(one, jobs),
        "suspect_until": one.until,
        "excluded_by": jobs,
        "events": one.events,
        "last": {
            "event": one.last.fault.value,
            "at": one.last.at,
            "run": one.last.run,
            "why": one.last.detail,
        },
    }
