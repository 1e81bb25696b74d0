"""The answers of squeue, sinfo and scontrol, in the words of ``scontrol show``. Pure.

A job's name, comment, constraint and paths are any text, and so are the reasons that administrators give:
they may hold blanks, newlines, separators, and words that look like a field.

squeue and sinfo print tables. Each question makes up a mark at random, and Slurm prints it behind each cell;
the author of an older text cannot know it.

scontrol prints ``Name=value`` one after the other and quotes nothing, so that a value may look like more
fields. Only fields whose values hold no blank are read, and an answer in which one of them stands twice, or
out of Slurm's order, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpc_elastic.errors import InputError, SlurmCommandError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.parse import JobState, job_state
from hpc_elastic.typed_json import whole_number

_COLUMNS = {
    "JobId": "jobid",
    "ArrayJobId": "arrayjobid",
    "ArrayTaskId": "arraytaskid",
    "JobState": "state",
    "Reason": "reason",
    "Dependency": "dependency",
    "Requeue": "requeue",
    "Restarts": "restartcnt",
    "ExitCode": "exit_code",
    "SubmitTime": "submittime",
    "EligibleTime": "eligibletime",
    "StartTime": "starttime",
    "EndTime": "endtime",
    "PreemptTime": "preempttime",
    "Priority": "prioritylong",
    "Partition": "partition",
    "QOS": "qos",
    "ReqNodeList": "reqnodes",
    "NodeList": "nodelist",
    "NumNodes": "numnodes",
    "Features": "feature",
    "Comment": "comment",
}
_FEATURE = re.compile(r"[\w.-]+")
_RUNNING = (JobState.RUNNING, JobState.SUSPENDED)
_WAITING = (JobState.PENDING, JobState.REQUEUED)
_JOB = (
    "JobId", "Priority", "QOS", "JobState", "Reason", "Dependency", "Requeue",
    "Restarts", "ExitCode", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "PreemptTime", "Partition",
    "ReqNodeList", "ExcNodeList", "NodeList", "NumNodes", "Features",
)  # fmt: skip
_OF_EVERY_JOB = ("JobId", "JobState", "Reason", "Requeue", "Restarts")
_SHOW_JOB = ("scontrol", "show", "job")
_MEND_JOB = "give the job a name without words that look like a field, such as JobState=..."
_PARTITION = (
    "PartitionName", "Default", "GraceTime", "MaxNodes", "MaxTime", "OverSubscribe", "OverTimeLimit",
    "PreemptMode", "TotalCPUs",
)  # fmt: skip
_NODE = ("NodeName", "State", "BootTime", "SlurmdStartTime")
_SHOW_NODE = ("scontrol", "show", "node")
_SHOW_PARTITION = ("scontrol", "show", "partition")


class UnclearAnswerError(SlurmCommandError):
    """A Slurm command has printed something that cannot be read for sure."""

    def __init__(self, argv: tuple[str, ...], why: str, fix: str = "") -> None:
        super().__init__(argv, 0, why)
        self.fix = (
            fix or f"compare with the output of {argv[0]} here; a site may have put a program in its place"
        )

    def __str__(self) -> str:
        return f"what {argv_text(self.argv)} tells cannot be read for sure: {self.stderr}\n  fix: {self.fix}"


def argv_text(argv: tuple[str, ...]) -> str:
    """Return the first words of a command, without its options."""
    return " ".join(word for word in argv[:3] if not word.startswith("-"))


class Form(NamedTuple):
    """The columns of a table.

    Attributes:
        columns: letters of ``--format``, or names of ``--Format``. The first one holds no free text.
        is_long: whether they are names.
    """

    columns: tuple[str, ...]
    is_long: bool = False

    def option(self, mark: str) -> str:
        """Return the option that asks for this table; no column is cut off."""
        if self.is_long:
            return "--Format=" + ",".join(f"{name}:0{mark}" for name in self.columns)
        return "--format=" + "".join(f"%{letter}{mark}" for letter in self.columns)

    def rows(self, text: str, mark: str, argv: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the cells of each row of the table.

        Lines between the rows, such as the name of a cluster, are left out.

        Args:
            text: the output.
            mark: that of this question.
            argv: the command, for the error.

        Raises:
            UnclearAnswerError: cells are missing.
        """
        *cells, _behind = text.split(mark)
        width = len(self.columns)
        if len(cells) % width:
            raise UnclearAnswerError(argv, f"{len(cells)} cells in rows of {width}")
        rows = (cells[start : start + width] for start in range(0, len(cells), width))
        return [(first.rpartition("\n")[2], *others) for first, *others in rows]


STATES = Form(("nodelist", "statecomplete", "reason"), is_long=True)
OLD_STATES = Form(("nodelist", "statelong", "reason"), is_long=True)  # Slurm before 21.08: `down*`
OFFERS = Form(("N", "P", "T", "f", "G"))  # name, partition, state, features, generic resources
PARTITIONS = Form(("P", "a", "l", "D", "c", "G"))  # name, whether it is up, limit, nodes, CPUs, resources
JOBS = Form(tuple(_COLUMNS.values()), is_long=True)
COMMENTS = Form(("F", "k"))
TASKS = Form(("F", "K", "T", "N", "r", "k"))  # array, index, state, nodes, reason, comment
EXCLUDED = Form(("i", "x"))


def plain_environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment for questions: a user's own settings of these commands change no answer.

    Filters (``SQUEUE_PARTITION``) would hide jobs, and other formats of dates could not be read.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SQUEUE_", "SINFO_", "SCONTROL_"))
    }
    return {**kept, "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}


"""Fields of scontrol, and the columns of squeue that tell the same."""


_NO_TIME = ("N/A", "NONE", "NOT_SET")


_TIMES = ("SubmitTime", "EligibleTime", "StartTime", "EndTime")


_LIVELIEST_FIRST = (
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
    JobState.REQUEUED,
    JobState.PENDING,
    JobState.UNKNOWN,
    JobState.ENDED,
)


def read_jobs(rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """Return the fields of each job, with the values that scontrol prints.

    `ArrayJobId` and `ArrayTaskId` are missing for a job that is no array, `Comment` for one without. squeue
    shows the nodes that a job does not get, `ExcNodeList`, in another table only: `EXCLUDED`.

    Raises:
        UnclearAnswerError: this squeue does not print that table.
    """
    return [_fields(row) for row in rows]


def _fields(row: Sequence[str]) -> dict[str, str]:
    found = dict(zip(_COLUMNS, row, strict=True))
    if not re.fullmatch("[0-9]{1,18}", found["JobId"]) or not re.fullmatch("[A-Z_]+", found["JobState"]):
        told = f"a job {found['JobId']!r} in state {found['JobState']!r}"
        raise UnclearAnswerError(("squeue",), told)
    found["Reason"] = reason_word(found["Reason"])
    found["ExitCode"] = exit_text(found["ExitCode"])
    found["ReqNodeList"] = found["ReqNodeList"] or "(null)"
    for name in _TIMES:
        found[name] = "Unknown" if found[name] in _NO_TIME else found[name]
    if found["PreemptTime"] in _NO_TIME:
        found["PreemptTime"] = "None"
    if found["ArrayTaskId"] in ("", "N/A"):
        del found["ArrayTaskId"], found["ArrayJobId"]
    if found["Comment"] == "(null)":
        del found["Comment"]
    return found


def reason_word(reason: str) -> str:
    """Return a reason of Slurm's as scontrol writes it, in one word."""
    return re.sub(r"\s", "_", reason)


def exit_text(text: str) -> str:
    """Return an exit code and a signal, ``1:0``, which squeue prints so, or before Slurm 24 as one number."""
    if not re.fullmatch("[0-9]{1,9}", text):
        return text if re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", text) else "0:0"
    status = int(text)
    return f"0:{status & 127}" if status & 127 else f"{status >> 8 & 255}:0"


def liveliest(jobs: Iterable[dict[str, str]]) -> dict[str, str] | None:
    """Return that of some jobs which may do most; of an array its liveliest task. None of none."""
    return min(jobs, key=lambda job: _LIVELIEST_FIRST.index(job_state(job.get("JobState", ""))), default=None)


def with_comment(rows: Iterable[Sequence[str]], token: str) -> list[str]:
    """Return the ids of the jobs whose comment starts with a token, from rows of `COMMENTS`.

    A token is one word or several.
    """
    found = (job_id for job_id, comment in rows if f"{comment} ".startswith(f"{token} "))
    return [*dict.fromkeys(found)]


def has_states(rows: Iterable[Sequence[str]]) -> bool:
    """Return whether rows of `STATES` have states: sinfo leaves out a column that it does not know.

    Without it the cells of three lines, which begin with a newline, make two rows.
    """
    return not any("\n" in state for _, state, _ in rows)


def draining(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the reasons of the nodes that take no more jobs, by name, from rows of `STATES`."""
    return {name: "" if reason == "none" else reason for name, state, reason in rows if "drain" in state}


def down_nodes(rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the nodes that Slurm has given up or that do not answer, from rows of `STATES`."""
    found = (name for name, state, _ in rows if "down" in state or "not_responding" in state or "*" in state)
    return tuple(dict.fromkeys(found))


class LostNodeState(NamedTuple):
    """Slurm's answer about a node that a job has lost.

    Attributes:
        words: its state in sinfo's words, such as ``idle`` or ``down+not_responding``.
        reason: for which it is down or drained, empty without.
        up_since: since when it and its slurmd are up [s since the epoch]; None if Slurm does not know.
        in_job: whether the job has it still.
    """

    words: str
    reason: str
    up_since: float | None
    in_job: bool


def taken_away(state: LostNodeState, lost_at: float) -> str | None:
    """Return by which command a node was taken away, None if it was lost by itself.

    The node has answered all the time, and nevertheless Slurm runs nothing of the job there any more: it was
    set down by hand, or given up by the job (``scontrol update NumNodes=``). A node that fails does not
    answer, or has started anew since.

    Args:
        state: in Slurm's words.
        lost_at: when its agent was found to be gone [s since the epoch].
    """
    words = state.words.lower()
    if _is_silent(words) or state.up_since is None or state.up_since >= lost_at:
        return None
    if "down" in words or "power" in words:
        return f"it was set down in Slurm ({state.reason})" if state.reason else "it was set down in Slurm"
    return None if state.in_job else "Slurm took it from the job though it was up"


def has_failed(state: LostNodeState, since: float) -> bool:
    """Tell whether a node is down, or has started anew.

    Args:
        state: in Slurm's words.
        since: after this time [s since the epoch].
    """
    words = state.words.lower()
    is_down = _is_silent(words) or "down" in words
    return is_down or (state.up_since is not None and state.up_since >= since)


def _is_silent(words: str) -> bool:
    return "not_responding" in words or "unknown" in words or "*" in words


def states_of(rows: Iterable[Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of each node by name, from rows of `STATES`."""
    return {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}


class ListedNode(NamedTuple):
    """A node as Slurm lists it."""

    name: str
    state: str  # ``idle``, ``down*``, ``drained``, ...
    features: frozenset[str] = frozenset()
    gpus: int = 0

    @property
    def is_up(self) -> bool:
        """Whether jobs can run on it, now or when others have ended."""
        word = self.state.rstrip("*~#!%$@^-+").lower()
        return "*" not in self.state and not word.startswith(("down", "drain", "fail", "unk", "maint"))


def features_of(constraint: str | None) -> frozenset[str] | None:
    """Return the features that a constraint asks for; None if it says more than ``a&b``."""
    text = (constraint or "").replace(",", "&")
    if text in ("", "(null)"):
        return frozenset()
    names = frozenset(name.strip() for name in text.split("&"))
    return names if all(_FEATURE.fullmatch(name) for name in names) else None


def gpus_in(gres: str) -> int:
    """Return the GPUs in the features of a node: ``gpu:a100:4(S:0-1),nvme:1``."""
    total = 0
    for part in _parts(gres):
        words = part.partition("(")[0].split(":")
        if words[0] == "gpu":
            count = whole_number(words[-1])
            total += 1 if count is None else count
    return total


def _parts(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def parse_nodes(rows: Iterable[Sequence[str]]) -> list[tuple[ListedNode, str, bool]]:
    """Return the nodes in rows of sinfo's table `client.nodes.OFFERS`.

    Returns:
        Each node with the name of a partition it is in, and whether that is the default one.
    """
    found = []
    for name, partition, state, features, gres in rows:
        known = frozenset(features.split(",")) - {"(null)"}
        is_default = partition.endswith("*")
        found.append((ListedNode(name, state, known, gpus_in(gres)), partition.rstrip("*"), is_default))
    return found


def in_partitions(listed: Iterable[tuple[ListedNode, str, bool]], partitions: str | None) -> list[ListedNode]:
    """Return the nodes of some partitions, given as ``a,b``; of the default one if none is named."""
    names = set(partitions.split(",")) if partitions else set()
    chosen = (node for node, name, is_default in listed if (name in names if names else is_default))
    return list({node.name: node for node in chosen}.values())


class OfferedPartition(NamedTuple):
    """The limit and the nodes of a partition.

    Attributes:
        name: of the partition.
        is_default: whether jobs go there that name none.
        limit: the longest time limit as Slurm writes it, such as ``infinite``.
        nodes: how many nodes of one kind it has; the kind with the most GPUs, then the most nodes.
        cpus: of each of them.
        gpus: of each of them.
    """

    name: str
    is_default: bool
    limit: str
    nodes: int
    cpus: int
    gpus: int


def parse_partitions(rows: Iterable[Sequence[str]]) -> list[OfferedPartition]:
    """Return the partitions that are up, in rows of sinfo's table `PARTITIONS`, in Slurm's order."""
    found: dict[str, OfferedPartition] = {}
    for partition, up, limit, nodes, cpus, gres in rows:
        name = partition.rstrip("*")
        count = whole_number(nodes) or 0
        one = OfferedPartition(
            name, partition.endswith("*"), limit, count, whole_number(cpus.rstrip("+")) or 0, gpus_in(gres)
        )
        had = found.get(name)
        if up == "up" and count and (had is None or (one.gpus, one.nodes) > (had.gpus, had.nodes)):
            found[name] = one
    return list(found.values())


def parse_accounts(text: str) -> tuple[str, ...]:
    """Return the accounts of a user, the default one first.

    Args:
        text: of ``sacctmgr show user withassoc``: the default account and one that may be used in each line.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 1]
    return tuple(filter(None, dict.fromkeys([*(row[0] for row in rows), *(row[1] for row in rows)])))


class SlurmTask(NamedTuple):
    """One task of an array."""

    array: str
    number: int  # index in the array
    state: JobState
    node: str = ""
    reason: str = "None"  # why it waits

    @property
    def name(self) -> str:
        """How Slurm's commands name it."""
        return f"{self.array}_{self.number}"

    @property
    def is_running(self) -> bool:
        """Whether it has a node and is not about to end."""
        return self.state in _RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the queue."""
        return self.state in _WAITING


def parse_tasks(rows: Iterable[Sequence[str]], *, token: str, array: str) -> list[SlurmTask]:
    """Return the tasks of a submission.

    Args:
        rows: of squeue's table `client.jobs.TASKS`, one per task.
        token: the beginning of the comment of its jobs; empty if it is not known.
        array: the id of the run's first array, whose tasks count with any comment.
    """
    found = []
    for of_array, number, word, node, reason, comment in rows:
        if not re.fullmatch("[0-9]{1,18}", of_array) or not re.fullmatch("[0-9]{1,18}", number):
            continue
        is_ours = bool(token) and comment.partition(" ")[0] == token
        if is_ours or of_array == array:
            found.append(SlurmTask(of_array, int(number), job_state(word), node, reason_word(reason)))
    return found


def arrays_of(tasks: Iterable[SlurmTask]) -> tuple[str, ...]:
    """Return the ids of the arrays, the oldest first."""
    return tuple(sorted({task.array for task in tasks}, key=int))


def max_array_size(text: str) -> int | None:
    """Return the number of tasks an array may have, from ``scontrol show config``; None if it is not told.

    Slurm's MaxArraySize is one more than the highest index.
    """
    most = config(text).get("MaxArraySize", "")
    return int(most) if most.isdecimal() else None


def job(text: str, name: str) -> dict[str, str]:
    """Return the fields of one job in the output of ``scontrol show job -o``; empty if there is none.

    Args:
        text: the output, of one job, or of several where they are tasks of an array.
        name: of the job in Slurm's commands, of several.

    Raises:
        UnclearAnswerError: a text in it looks like a field, or the job is not among several.
    """
    found = [_job(record) for record in re.split(r"\n(?=JobId=)", text.strip()) if record]
    if not found:
        return {}
    if len(found) == 1:
        (only,) = found
        return only
    chosen = [
        one for one in found if name in (one["JobId"], f"{one.get('ArrayJobId')}_{one.get('ArrayTaskId')}")
    ]
    if len(chosen) != 1:
        raise UnclearAnswerError(_SHOW_JOB, f"{len(chosen)} of {len(found)} jobs are {name}", _MEND_JOB)
    (job_named,) = chosen
    return job_named


def _job(record: str) -> dict[str, str]:
    fields = _once(record, _JOB, _SHOW_JOB, _MEND_JOB)
    missing = [name for name in _OF_EVERY_JOB if name not in fields]
    if missing or not record.startswith("JobId="):
        raise UnclearAnswerError(_SHOW_JOB, f"{'= and '.join(missing) or 'JobId'}= is missing", _MEND_JOB)
    array = re.match(r"JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=(\S+) ", record)
    return {**fields, **({"ArrayJobId": array[1], "ArrayTaskId": array[2]} if array else {})}


def gpus_on_nodes(text: str) -> dict[str, int]:
    """Return how many GPUs a job has on each of its nodes, from ``scontrol show job -d``.

    Each group of nodes that are alike has a line, such as
    ``Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1)``.

    Raises:
        UnclearAnswerError: a node occurs twice: a text of the job's owner looks like such a line.
    """
    found: dict[str, int] = {}
    for names, gres in re.findall(r"^ +Nodes=(\S+) .*?GRES=(\S*) *$", text, re.MULTILINE):
        gpus = sum(int(count) for count in re.findall(r"(?:^|[,)])gpu(?::[^:(,]+)?:(\d+)", gres))
        for name in parse.expand(names):
            if name in found:
                raise UnclearAnswerError(_SHOW_JOB, f"node {name} occurs twice", _MEND_JOB)
            found[name] = gpus
    return found


def node(text: str) -> dict[str, str]:
    """Return the state of one node and since when it is up, from ``scontrol show node -o``.

    Raises:
        UnclearAnswerError: a text in it looks like a field.
    """
    return _once(text.strip(), _NODE, _SHOW_NODE)


def partition(text: str, name: str) -> dict[str, str]:
    """Return the limits of a partition, from ``scontrol show partition -o``; nothing if it is not there.

    Args:
        text: the output.
        name: of the partition; empty for the default one, of all that there are.

    Raises:
        UnclearAnswerError: a text in it looks like a field.
    """
    records = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    found = [_once(record, _PARTITION, _SHOW_PARTITION) for record in records]
    chosen = found if name else [one for one in found if one.get("Default") == "YES"]
    return chosen[0] if chosen else {}


def config(text: str) -> dict[str, str]:
    """Return the settings in the output of ``scontrol show config``, one a line; of two the first."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE):
        found.setdefault(name, value)
    return found


def _once(record: str, names: Sequence[str], argv: tuple[str, ...], fix: str = "") -> dict[str, str]:
    """Return the fields of these names, which stand once and in this order."""
    found = re.findall(rf"(?:^|\s)({'|'.join(names)})=(\S*)", record)
    twice = next((name for name in names if [one for one, _ in found].count(name) > 1), None)
    if twice is not None:
        raise UnclearAnswerError(argv, f"{twice}= stands there more than once", fix)
    places = [names.index(name) for name, _ in found]
    if places != sorted(places):
        raise UnclearAnswerError(argv, "its fields are not in Slurm's order", fix)
    return dict(found)


class PastStart(NamedTuple):
    """One start of a job in Slurm's accounting."""

    state: str  # the first word of it
    nodes: tuple[str, ...]


def read_past_starts(output: str) -> list[PastStart]:
    """Return the starts that sacct has printed; a job that lost a node and ran on has a row for each size."""
    rows = (line.split("|") for line in output.splitlines() if line.count("|") == 1)
    found = []
    for words, names in rows:
        state = (words.split() or [""])[0]
        if state == "RESIZING":
            continue
        try:
            nodes = parse.expand(names)
        except InputError:
            nodes = ()
        found.append(PastStart(state, nodes))
    return found
