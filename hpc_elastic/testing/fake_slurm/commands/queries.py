"""The output of squeue, sacct and sinfo of a fake Slurm. Pure but for the time zone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client import parse
from hpc_elastic.testing.fake_slurm.cluster import endings, job_environ
from hpc_elastic.testing.fake_slurm.cluster.endings import Turn
from hpc_elastic.testing.fake_slurm.cluster.model import (
    BATCH,
    CLUSTER,
    EXPEDITING,
    REQUEUE_HOLD,
    Job,
    JobRequest,
    Node,
    SacctRow,
    State,
    World,
)
from hpc_elastic.testing.fake_slurm.cluster.schedule import find_jobs
from hpc_elastic.testing.fake_slurm.commands.options import (
    INVALID_ID,
    Answer,
    Call,
    Refusal,
    Reply,
    jobs_named,
    split,
)
from hpc_elastic.testing.fake_slurm.commands.shown import (
    node_word,
    nodes_of,
    priority,
    run_time,
    short_span,
    span,
    stamp,
)

SQUEUE_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
SQUEUE_STEPS = "%.15i %.8j %.9P %.8u %.9M %N"
SACCT_DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
SINFO_DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
SHORT_STATES = {
    "PENDING": "PD",
    EXPEDITING: "EX",
    REQUEUE_HOLD: "RH",
    "RUNNING": "R",
    "COMPLETING": "CG",
    "COMPLETED": "CD",
    "FAILED": "F",
    "CANCELLED": "CA",
    "TIMEOUT": "TO",
    "PREEMPTED": "PR",
    "NODE_FAIL": "NF",
    "REQUEUED": "RQ",
    "RESIZING": "RS",
}
Fields = Mapping[str, Callable[[], str]]
_SUBFORMAT = re.compile(r"%(\.?)(\d*)([a-zA-Z])")


class SeenBy(NamedTuple):
    """A job at the time of a look."""

    world: World
    job: Job
    user: Mapping[str, str]
    now: float


def fill(format_text: str, fields: Mapping[str, Callable[[], str]]) -> str:
    """Fill ``%.10i %j`` in; a width cuts, a point aligns to the right."""

    def value(match: re.Match[str]) -> str:
        make = fields.get(match[3])
        text = make() if make is not None else "?"
        width = int(match[2] or 0)
        if not width:
            return text
        return text[:width].rjust(width) if match[1] else text[:width].ljust(width)

    return _SUBFORMAT.sub(value, format_text)


def why_or_where(seen: SeenBy) -> str:
    """Return the nodes of a job, or in brackets why it waits."""
    where = job_environ.compress(nodes_of(seen.job))
    return where if seen.job.state.holds_nodes else f"({seen.job.reason})"


def time_left(seen: SeenBy) -> str:
    """Return the time that a job has left, as squeue writes it."""
    job = seen.job
    limit = job.request.limit_s
    if job.state is State.RUNNING:
        return short_span(None if job.end_s is None else job.end_s - seen.now)
    return short_span(limit)


def job_fields(seen: SeenBy) -> dict[str, Callable[[], str]]:
    """Return the fields of squeue by their letters."""
    job, request = seen.job, seen.job.request
    return {
        "A": lambda: str(job.id),
        "B": lambda: job.nodes[0] if job.nodes else "n/a",
        "C": lambda: str(
            sum(s.cpus for s in job.shares.values()) or request.cpus_per_node * request.min_nodes
        ),
        "D": lambda: str(len(nodes_of(job)) or request.min_nodes),
        "E": lambda: request.dependency or "(null)",
        "F": lambda: str(job.array or job.id),
        "K": lambda: "N/A" if job.task is None else str(job.task),
        "L": lambda: time_left(seen),
        "M": lambda: short_span(run_time(job, seen.now)),
        "N": lambda: job_environ.compress(nodes_of(job)),
        "P": lambda: request.partition,
        "Q": lambda: str(priority(job)),
        "R": lambda: why_or_where(seen),
        "S": lambda: stamp(job.start_s, "N/A"),
        "T": lambda: job.word,
        "U": lambda: seen.user["UID"],
        "V": lambda: stamp(job.submit_s),
        "Z": lambda: request.directory,
        "a": lambda: CLUSTER,
        "b": lambda: f"gres:gpu:{request.gpus_per_node}" if request.gpus_per_node else "N/A",
        "e": lambda: stamp(job.end_s, "N/A"),
        "f": lambda: "(null)",
        "i": lambda: job.ref,
        "j": lambda: request.name,
        "k": lambda: request.comment or "(null)",
        "l": lambda: short_span(request.limit_s),
        "n": lambda: job_environ.compress(request.nodelist),
        "o": lambda: request.script_name,
        "q": lambda: "normal",
        "r": lambda: job.reason,
        "t": lambda: SHORT_STATES[job.word],
        "u": lambda: seen.user["USER"],
        "x": lambda: job_environ.compress(request.exclude),
    }


def step_fields(seen: SeenBy) -> Iterator[dict[str, Callable[[], str]]]:
    """Yield the fields of ``squeue --steps`` for each step of a job that has processes, the script's too."""
    usual = job_fields(seen)
    for name in sorted({place.step for place in seen.job.live}):
        nodes = [place.node for place in sorted(seen.job.live) if place.step == name]
        yield {
            **usual,
            "i": lambda name=name: f"{seen.job.ref}.{name}",  # type: ignore[misc]
            "j": lambda name=name: "batch" if name == BATCH else seen.job.request.name,  # type: ignore[misc]
            "N": lambda nodes=nodes: job_environ.compress(nodes),  # type: ignore[misc]
        }


LONG_NAMES = {
    "jobid": "A", "jobarrayid": "i", "arrayjobid": "F", "arraytaskid": "K", "name": "j", "comment": "k",
    "state": "T", "statecompact": "t", "reason": "r", "reasonlist": "R", "timeleft": "L", "timeused": "M",
    "timelimit": "l", "starttime": "S", "endtime": "e", "submittime": "V", "nodelist": "N", "numnodes": "D",
    "batchhost": "B", "partition": "P", "username": "u", "userid": "U", "workdir": "Z", "dependency": "E",
    "account": "a", "qos": "q", "command": "o", "numcpus": "C", "prioritylong": "Q", "reqnodes": "n",
    "feature": "f",
}  # fmt: skip


def long_fields(names: str, seen: SeenBy) -> str:
    """Return ``squeue -O``."""
    letters, request = job_fields(seen), seen.job.request
    extra: dict[str, Callable[[], str]] = {
        "restartcnt": lambda: str(seen.job.restarts),
        "preempttime": lambda: stamp(seen.job.preempt_s, "N/A"),
        "eligibletime": lambda: stamp(seen.job.eligible_s, "N/A"),
        "exit_code": lambda: str(seen.job.exit_code),
        "requeue": lambda: str(int(request.requeue)),
    }
    return fill_long(names, {**{name: letters[letter] for name, letter in LONG_NAMES.items()}, **extra})


def fill_long(names: str, fields: Mapping[str, Callable[[], str]]) -> str:
    """Fill ``name,name:12,name:0suffix`` in: 20 characters wide, or as wide as they say; 0: as needed."""
    text = ""
    for word in names.split(","):
        name, colon, form = word.partition(":")
        make = fields.get(name.lower())
        if make is None:
            raise Refusal(f"squeue: error: Invalid job format specification: {name}\n")
        digits = "" if (found := re.match(r"\d+", form)) is None else found[0]
        width = int(digits or 0) if colon else 20
        text += (make()[:width].ljust(width) if width else make()) + form.removeprefix(digits)
    return text


# sacct


class AccountRecord(NamedTuple):
    """A line of sacct: a job's start, or a step of it."""

    job: Job
    row: SacctRow
    step: str = ""


def current_row(job: Job) -> SacctRow:
    """Return the line of sacct for a job that has not ended."""
    if job.state is State.PENDING:
        return SacctRow(job.row, "PENDING", "0:0", job.submit_s, None, None, (), job.reason)
    row = endings.row_of(job, "RUNNING")
    return row._replace(end_s=None, exit_code="0:0")


def rows_of(job: Job, *, duplicates: bool) -> list[SacctRow]:
    """Return the lines of a job, the oldest first; without `duplicates` only the last."""
    rows = list(job.rows)
    if not job.state.is_final:
        rows.append(current_row(job))
    return rows if duplicates else rows[-1:]


def records(jobs: Iterable[Job], *, duplicates: bool, steps: bool) -> list[AccountRecord]:
    """Return all lines about some jobs."""
    found = []
    for job in jobs:
        for row in rows_of(job, duplicates=duplicates):
            found.append(AccountRecord(job, row))
            if steps:
                found += [
                    AccountRecord(job, row._replace(state=state, exit_code=code, nodes=nodes), name)
                    for name, state, code, nodes in row.steps
                ]
    return found


def account_fields(record: AccountRecord, user: Mapping[str, str], now: float) -> dict[str, str]:
    """Return the fields of sacct by their names in small letters."""
    job, row = record.job, record.row
    suffix = f".{record.step}" if record.step else ""
    until = now if row.end_s is None else row.end_s
    cpus = job.request.cpus_per_node * max(1, len(row.nodes))
    return {
        "jobid": job.ref + suffix,
        "jobidraw": f"{job.id}{suffix}",
        "jobname": record.step if record.step == "batch" else job.request.name,
        "partition": "" if suffix else job.request.partition,
        "account": CLUSTER,
        "user": "" if suffix else user["USER"],
        "uid": user["UID"],
        "alloccpus": str(cpus),
        "ncpus": str(cpus),
        "allocnodes": str(len(row.nodes)),
        "nnodes": str(len(row.nodes) or job.request.min_nodes),
        "state": row.state,
        "exitcode": row.exit_code,
        "derivedexitcode": "" if suffix else "0:0",
        "submit": stamp(row.submit_s),
        "eligible": stamp(job.eligible_s),
        "start": stamp(row.start_s, "None" if row.end_s is not None else "Unknown"),
        "end": stamp(row.end_s),
        "elapsed": span(0.0 if row.start_s is None else until - row.start_s),
        "elapsedraw": str(int(0.0 if row.start_s is None else until - row.start_s)),
        "timelimit": span(job.request.limit_s),
        "nodelist": job_environ.compress(row.nodes) or "None assigned",
        "reason": "" if suffix else row.reason,
        "dbindex": str(row.number),
        "comment": job.request.comment,
        "workdir": "" if suffix else job.request.directory,
        "qos": "normal",
        "cluster": CLUSTER,
    }


_NOBODY = {"USER": "", "UID": "", "GID": ""}
_EMPTY = AccountRecord(Job(0, JobRequest(), 0.0, 0.0, 0), SacctRow(0, "", "", 0.0, None, None, (), ""))
ACCOUNT_NAMES = frozenset(account_fields(_EMPTY, _NOBODY, 0.0))

# sinfo


def node_fields(world: World, node: Node, partition: str) -> dict[str, Callable[[], str]]:
    """Return the fields of sinfo by their letters, for one node."""
    word = node_word(world, node)
    return {
        "N": lambda: node.name,
        "n": lambda: node.name,
        "P": lambda: f"{partition}*" if partition == "low" else partition,
        "R": lambda: partition,
        "a": lambda: "up" if world.partitions[partition].up else "down",
        "l": lambda: "infinite",
        "D": lambda: "1",
        "T": lambda: long_state(word),
        "t": lambda: short_state(word),
        "c": lambda: str(world.settings.cpus),
        "m": lambda: "4000",
        "G": lambda: f"gpu:{world.settings.gpus}" if world.settings.gpus else "(null)",
        "E": lambda: node.reason or "none",
        "f": lambda: "(null)",
        "v": lambda: world.settings.full_version,
    }


LONG_NODE_NAMES = {
    "nodelist": "N", "nodehost": "n", "partition": "P", "available": "a", "time": "l", "nodes": "D",
    "statelong": "T", "statecompact": "t", "cpus": "c", "memory": "m", "gres": "G", "reason": "E",
    "features": "f",
}  # fmt: skip


def long_node_fields(letters: Mapping[str, Callable[[], str]], word: str) -> dict[str, Callable[[], str]]:
    """Return the fields of ``sinfo -O`` by their names, from those by letters and the state with flags."""
    named = {name: letters[letter] for name, letter in LONG_NODE_NAMES.items()}
    return {**named, "statecomplete": word.lower}


def long_state(word: str) -> str:
    """Return a node's state as ``sinfo %T`` writes it."""
    silent = "*" if "NOT_RESPONDING" in word else ""
    base = word.split("+", maxsplit=1)[0].lower()
    if "DRAIN" in word and base != "down":
        return ("drained" if base == "idle" else "draining") + silent
    if "COMPLETING" in word and base != "down":
        return "completing" + silent
    return base + silent


def short_state(word: str) -> str:
    """Return a node's state as ``sinfo %t`` writes it."""
    text = long_state(word)
    short = {
        "allocated": "alloc",
        "mixed": "mix",
        "drained": "drain",
        "draining": "drng",
        "completing": "comp",
    }
    return short.get(text.rstrip("*"), text.rstrip("*")) + ("*" if text.endswith("*") else "")


def squeue(turn: Turn, call: Call) -> Answer:
    """List jobs."""
    wants = (
        "j:jobs u:user t:states o:format O:Format n:name p:partition w:nodelist S:sort M:clusters A:account"
    )
    flags, _ = split(call.words, wants)
    if "json" in flags:
        raise Refusal("squeue: error: the fake Slurm has no --json\n")
    try:
        jobs = _queued(turn, call, flags)
    except Refusal:
        raise Refusal(f"slurm_load_jobs error: {INVALID_ID}\n") from None
    seen = [SeenBy(turn.world, job, call.user, turn.now) for job in jobs]
    if "s" in flags or "steps" in flags:
        return Reply(_steps(seen, flags))
    if "Format" in flags:
        return Reply("".join(long_fields(flags["Format"], one).rstrip("\n") + "\n" for one in seen))
    form = flags.get("format", SQUEUE_DEFAULT)
    head = "" if "h" in flags or "noheader" in flags else fill(form, _HEADINGS) + "\n"
    return Reply(head + "".join(fill(form, job_fields(one)) + "\n" for one in seen))


def _steps(seen: list[SeenBy], flags: Mapping[str, str]) -> str:
    form = flags.get("format", SQUEUE_STEPS)
    head = "" if "h" in flags or "noheader" in flags else fill(form, _STEP_HEADINGS) + "\n"
    lines = [fill(form, fields) for one in seen for fields in step_fields(one)]
    return head + "".join(f"{line}\n" for line in lines)


_STEP_TITLES = {"i": "STEPID", "j": "NAME", "P": "PARTITION", "u": "USER", "M": "TIME", "N": "NODELIST"}


_STEP_HEADINGS = {letter: (lambda title=title: title) for letter, title in _STEP_TITLES.items()}


_TITLES = {
    "A": "JOBID", "B": "EXEC_HOST", "C": "CPUS", "D": "NODES", "E": "DEPENDENCY", "F": "ARRAY_JOB_ID",
    "K": "ARRAY_TASK_ID", "L": "TIME_LEFT", "M": "TIME", "N": "NODELIST", "P": "PARTITION",
    "R": "NODELIST(REASON)",
    "S": "START_TIME", "T": "STATE", "U": "USER", "V": "SUBMIT_TIME", "Z": "WORK_DIR", "a": "ACCOUNT",
    "e": "END_TIME", "i": "JOBID", "j": "NAME", "k": "COMMENT", "l": "TIME_LIMIT", "r": "REASON", "t": "ST",
    "u": "USER", "x": "EXC_NODES",
}  # fmt: skip


_HEADINGS = {letter: (lambda title=title: title) for letter, title in _TITLES.items()}


def _queued(turn: Turn, call: Call, flags: Mapping[str, str]) -> list[Job]:
    named = jobs_named(turn.world, flags["jobs"]) if flags.get("jobs") else list(turn.world.jobs.values())
    mine = (call.user["USER"], call.user["UID"])
    if flags.get("user") and not any(one in mine for one in flags["user"].split(",")):
        return []
    return [job for job in named if _in_state(job, flags) and _is_wanted(job, flags)]


def _in_state(job: Job, flags: Mapping[str, str]) -> bool:
    states = set(filter(None, flags.get("states", "").upper().split(",")))
    word = job.state.value
    return bool(states & {"ALL", word, SHORT_STATES[word]}) if states else not job.state.is_final


def _is_wanted(job: Job, flags: Mapping[str, str]) -> bool:
    right_name = flags.get("name", job.request.name) == job.request.name
    right_partition = flags.get("partition", job.request.partition) == job.request.partition
    nodes = set(parse.expand(flags.get("nodelist", "")))
    right_node = not nodes or (job.state.holds_nodes and bool(nodes & set(job.nodes)))
    return right_name and right_partition and right_node


def sacct(turn: Turn, call: Call) -> Answer:
    """List the accounted jobs."""
    wants = (
        "j:jobs o:format u:user s:state S:starttime E:endtime r:partition M:clusters A:accounts N:nodelist"
    )
    flags, _ = split(call.words, wants)
    duplicates, no_steps = bool({"D", "duplicates"} & set(flags)), bool({"X", "allocations"} & set(flags))
    jobs = [job for text in _all_values(call.words, "jobs") for job in _known(turn, text)]
    if "jobs" not in flags:
        jobs = list(turn.world.jobs.values())
    shown = records(jobs, duplicates=duplicates, steps=not no_steps)
    names = flags.get("format", SACCT_DEFAULT).split(",")
    bare = [name.partition("%")[0].strip() for name in names]
    table = [account_fields(record, call.user, turn.now) for record in shown]
    unknown = [name for name in bare if name.lower() not in ACCOUNT_NAMES]
    if unknown:
        raise Refusal(f'sacct: error: Invalid field requested: "{unknown[0]}"\n')
    lines = [[row[name.lower()] for name in bare] for row in table]
    if "n" not in flags and "noheader" not in flags:
        lines.insert(0, bare)
    return Reply("".join(f"{_account_line(line, flags)}\n" for line in lines))


def _account_line(cells: list[str], flags: Mapping[str, str]) -> str:
    if "P" in flags or "parsable2" in flags:
        return "|".join(cells)
    if "p" in flags or "parsable" in flags:
        return "|".join(cells) + "|"
    return " ".join(cell[:12].rjust(12) for cell in cells)


def _all_values(words: tuple[str, ...], name: str) -> list[str]:
    """Return the values of an option that may come several times, as submitit writes ``-j 1 -j 2``."""
    found = []
    for place, word in enumerate(words):
        if word in ("-j", f"--{name}") and place + 1 < len(words):
            found.append(words[place + 1])
        elif word.startswith(f"--{name}="):
            found.append(word.partition("=")[2])
        elif word.startswith("-j") and len(word) > 2:  # noqa: PLR2004 - the option itself
            found.append(word[2:])
    return found


def _known(turn: Turn, text: str) -> list[Job]:
    return [job for word in text.split(",") for job in find_jobs(turn.world, word.partition(".")[0])]


def sacctmgr(_turn: Turn, _call: Call) -> Answer:
    """Refuse: there is no database."""
    raise Refusal("sacctmgr: error: the fake Slurm has no accounting database\n")


def sinfo(turn: Turn, call: Call) -> Answer:
    """List nodes."""
    flags, _ = split(call.words, "o:format p:partition n:nodes t:states O:Format S:sort M:clusters")
    if "json" in flags:
        raise Refusal("sinfo: error: the fake Slurm has no --json\n")
    form = flags.get("format", SINFO_DEFAULT)
    each = "N" in flags or "Node" in flags
    names = parse.expand(flags["nodes"]) if "nodes" in flags else tuple(turn.world.nodes)
    partitions = [name for name in turn.world.partitions if flags.get("partition", name) == name]
    states = set(filter(None, flags.get("states", "").lower().split(",")))
    groups: dict[str, list[str]] = {}
    for partition in partitions:
        for name in names:
            node = turn.world.nodes.get(name)
            if node is None:
                continue
            fields = node_fields(turn.world, node, partition)
            if states and not states & {fields["T"]().rstrip("*"), fields["t"]().rstrip("*")}:
                continue
            hidden = {} if each else {"N": lambda: "\0N", "n": lambda: "\0N", "D": lambda: "\0D"}
            shown = _node_text(flags, {**fields, **hidden}, node_word(turn.world, node))
            groups.setdefault(shown, []).append(name)
    is_bare = bool({"h", "noheader", "Format"} & set(flags))
    head = "" if is_bare else fill(form, _SINFO_HEADINGS) + "\n"
    lines = [_sinfo_line(text, found, each=each) for text, found in groups.items()]
    return Reply(head + "".join(lines))


def _node_text(flags: Mapping[str, str], fields: Fields, word: str) -> str:
    if "Format" in flags:
        return fill_long(flags["Format"], long_node_fields(fields, word))
    return fill(flags.get("format", SINFO_DEFAULT), fields)


_SINFO_TITLES = {
    "P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "T": "STATE",
    "N": "NODELIST", "c": "CPUS", "m": "MEMORY", "G": "GRES", "E": "REASON", "n": "HOSTNAMES",
    "R": "PARTITION", "f": "AVAIL_FEATURES",
}  # fmt: skip


_SINFO_HEADINGS = {letter: (lambda title=title: title) for letter, title in _SINFO_TITLES.items()}


def _sinfo_line(text: str, names: list[str], *, each: bool) -> str:
    if each:
        return "".join(f"{text}\n" for _ in dict.fromkeys(names))
    return text.replace("\0N", job_environ.compress(names)).replace("\0D", str(len(names))) + "\n"
