"""squeue, sacct and sinfo of a fake Slurm: options to lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.slurm.client import hostlist
from hpc_elastic.testing.fake_slurm.cluster import hosts
from hpc_elastic.testing.fake_slurm.cluster.model import Job
from hpc_elastic.testing.fake_slurm.commands import queries
from hpc_elastic.testing.fake_slurm.commands.call import INVALID_ID, Answer, Call, Reply, jobs_named, split
from hpc_elastic.testing.fake_slurm.commands.options import Refusal
from hpc_elastic.testing.fake_slurm.commands.shown import node_word
from hpc_elastic.testing.fake_slurm.schedule.schedule import find_jobs
from hpc_elastic.testing.fake_slurm.schedule.turn import Turn


def squeue(turn: Turn, call: Call) -> Answer:
    """List jobs."""
    wants = (
        "j:jobs u:user t:states o:format O:Format n:name p:partition w:nodelist S:sort M:clusters A:account"
    )
    flags, _ = split(call.words, wants)
    if "V" in flags or "version" in flags:
        return Reply(f"slurm {turn.world.settings.full_version}\n")
    if "json" in flags:
        raise Refusal("squeue: error: the fake Slurm has no --json\n")
    try:
        jobs = _queued(turn, call, flags)
    except Refusal:
        raise Refusal(f"slurm_load_jobs error: {INVALID_ID}\n") from None
    seen = [queries.Seen(turn.world, job, call.user, turn.now) for job in jobs]
    if "s" in flags or "steps" in flags:
        return Reply(_steps(seen, flags))
    if "Format" in flags:
        return Reply("".join(queries.long_fields(flags["Format"], one).rstrip("\n") + "\n" for one in seen))
    form = flags.get("format", queries.SQUEUE_DEFAULT)
    head = "" if "h" in flags or "noheader" in flags else queries.fill(form, _HEADINGS) + "\n"
    return Reply(head + "".join(queries.fill(form, queries.job_fields(one)) + "\n" for one in seen))


def _steps(seen: list[queries.Seen], flags: Mapping[str, str]) -> str:
    form = flags.get("format", queries.SQUEUE_STEPS)
    head = "" if "h" in flags or "noheader" in flags else queries.fill(form, _STEP_HEADINGS) + "\n"
    lines = [queries.fill(form, fields) for one in seen for fields in queries.step_fields(one)]
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
    return bool(states & {"ALL", word, queries.SHORT_STATES[word]}) if states else not job.state.is_final


def _is_wanted(job: Job, flags: Mapping[str, str]) -> bool:
    right_name = flags.get("name", job.request.name) == job.request.name
    right_partition = flags.get("partition", job.request.partition) == job.request.partition
    nodes = set(hostlist.expand(flags.get("nodelist", "")))
    right_node = not nodes or (job.state.holds_nodes and bool(nodes & set(job.nodes)))
    return right_name and right_partition and right_node


def sacct(turn: Turn, call: Call) -> Answer:
    """List what is accounted."""
    wants = (
        "j:jobs o:format u:user s:state S:starttime E:endtime r:partition M:clusters A:accounts N:nodelist"
    )
    flags, _ = split(call.words, wants)
    if "V" in flags or "version" in flags:
        return Reply(f"slurm {turn.world.settings.full_version}\n")
    duplicates, no_steps = bool({"D", "duplicates"} & set(flags)), bool({"X", "allocations"} & set(flags))
    jobs = [job for text in _all_values(call.words, "jobs") for job in _known(turn, text)]
    if "jobs" not in flags:
        jobs = list(turn.world.jobs.values())
    records = queries.records(jobs, duplicates=duplicates, steps=not no_steps)
    names = flags.get("format", queries.SACCT_DEFAULT).split(",")
    bare = [name.partition("%")[0].strip() for name in names]
    table = [queries.account_fields(record, call.user, turn.now) for record in records]
    unknown = [name for name in bare if name.lower() not in queries.ACCOUNT_NAMES]
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
    if "V" in flags or "version" in flags:
        return Reply(f"slurm {turn.world.settings.full_version}\n")
    if "json" in flags:
        raise Refusal("sinfo: error: the fake Slurm has no --json\n")
    form = flags.get("format", queries.SINFO_DEFAULT)
    each = "N" in flags or "Node" in flags
    names = hostlist.expand(flags["nodes"]) if "nodes" in flags else tuple(turn.world.nodes)
    partitions = [name for name in turn.world.partitions if flags.get("partition", name) == name]
    states = set(filter(None, flags.get("states", "").lower().split(",")))
    groups: dict[str, list[str]] = {}
    for partition in partitions:
        for name in names:
            node = turn.world.nodes.get(name)
            if node is None:
                continue
            fields = queries.node_fields(turn.world, node, partition)
            if states and not states & {fields["T"]().rstrip("*"), fields["t"]().rstrip("*")}:
                continue
            hidden = {} if each else {"N": lambda: "\0N", "n": lambda: "\0N", "D": lambda: "\0D"}
            shown = _node_text(flags, {**fields, **hidden}, node_word(turn.world, node))
            groups.setdefault(shown, []).append(name)
    is_bare = bool({"h", "noheader", "Format"} & set(flags))
    head = "" if is_bare else queries.fill(form, _SINFO_HEADINGS) + "\n"
    lines = [_sinfo_line(text, found, each=each) for text, found in groups.items()]
    return Reply(head + "".join(lines))


def _node_text(flags: Mapping[str, str], fields: queries.Fields, word: str) -> str:
    if "Format" in flags:
        return queries.fill_long(flags["Format"], queries.long_node_fields(fields, word))
    return queries.fill(flags.get("format", queries.SINFO_DEFAULT), fields)


_SINFO_TITLES = {
    "P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "T": "STATE",
    "N": "NODELIST", "c": "CPUS", "m": "MEMORY", "G": "GRES", "E": "REASON", "n": "HOSTNAMES",
    "R": "PARTITION", "f": "AVAIL_FEATURES",
}  # fmt: skip
_SINFO_HEADINGS = {letter: (lambda title=title: title) for letter, title in _SINFO_TITLES.items()}


def _sinfo_line(text: str, names: list[str], *, each: bool) -> str:
    if each:
        return "".join(f"{text}\n" for _ in dict.fromkeys(names))
    return text.replace("\0N", hosts.compress(names)).replace("\0D", str(len(names))) + "\n"
