"""A call of one of the programs of a fake Slurm: its options and its answer. Pure.

All options of Slurm 22.05 are known, so that a misspelt one is refused as Slurm refuses it. Those that
mean nothing on one machine (accounts, memory, mail, binding) are taken and have no effect.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client import parse
from hpc_elastic.testing.fake_slurm.cluster import schedule
from hpc_elastic.testing.fake_slurm.cluster.endings import Turn
from hpc_elastic.testing.fake_slurm.cluster.model import Job, JobRequest, Warning_, World
from hpc_elastic.testing.fake_slurm.cluster.schedule import find_jobs

INVALID_ID = "Invalid job id specified"
LOST = "Unable to contact slurm controller (connect failure)"

_COMMON = """
A:account= acctg-freq= B:extra-node-info= bb= bbf= b:begin= c:cpus-per-task= clusters= comment=
constraint= container= contiguous core-spec= cores-per-socket= cpu-freq= cpus-per-gpu= C:constraint=
D:chdir= d:dependency= deadline= delay-boot= distribution= e:error= exclude= x:exclude= exclusive?
export= export-file= F:nodefile= get-user-env? gid= gpu-bind= gpu-freq= G:gpus= gpus= gpus-per-node=
gpus-per-socket= gpus-per-task= gres= gres-flags= H:hold hint= i:input= J:job-name= k:no-kill
K:kill-on-bad-exit? L:licenses= m:distribution= M:clusters= mail-type= mail-user= mcs-label= mem=
mem-bind= mem-per-cpu= mem-per-gpu= mincpus= n:ntasks= N:nodes= network= nice? nodefile= nodelist=
w:nodelist= ntasks-per-core= ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= o:output=
open-mode= overcommit O:overcommit s:oversubscribe oversubscribe p:partition= power= prefer=
priority= profile= propagate? q:qos= qos= Q:quiet quiet reboot reservation= S:core-spec= signal=
sockets-per-node= spread-job switches= t:time= thread-spec= threads-per-core= time-min= tmp= uid=
use-min-nodes V:version version v:verbose verbose W:wait? wckey= h:help help
"""
_SBATCH = """
a:array= batch= cluster-constraint= ignore-pbs kill-on-invalid-dep= no-requeue parsable requeue
test-only tres-per-task= usage wait-all-nodes= wrap=
"""
_SRUN = """
accel-bind= bcast? cpu-bind= compress? debugger-test disable-status E:preserve-env epilog= exact
het-group= I:immediate? immediate? interactive jobid= l:label label mpi= msg-timeout= multi-prog
no-allocate Z:no-allocate overlap preserve-env prolog= pty relative= r:relative= resv-ports?
send-libs? slurmd-debug= T:threads= task-epilog= task-prolog= tasks-per-node= threads=
tres-per-task= u:unbuffered unbuffered W:wait= wait= X:disable-status treewidth= gpus-per-step=
"""


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of this program
    """A command that Slurm would refuse; the text is Slurm's message."""


class Table(NamedTuple):
    """The options of one program."""

    letters: Mapping[str, str]
    kinds: Mapping[str, str]  # name to "=" (takes a value), "?" (may have one after "=") or ""


def table(*texts: str) -> Table:
    """Read a table of options: ``letter:name=``."""
    letters, kinds = {}, {}
    for word in " ".join(texts).split():
        letter, colon, name = word.rpartition(":")
        kind = name[-1] if name[-1] in "=?" else ""
        bare = name.rstrip("=?")
        kinds[bare] = kind
        if colon:
            letters[letter] = bare
    return Table(letters, kinds)


SBATCH = table(_COMMON, _SBATCH)
NEWER_SBATCH = table(_COMMON, _SBATCH, "requeue?")  # since 25.11
SRUN = table(_COMMON, _SRUN)


def read(program: str, known: Table, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options, and the words from the first that is none.

    Raises:
        Refusal: an option is not known or lacks its value.
    """
    found: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _full_name(program, known, name)
            if known.kinds[name] == "=" and not equals:
                value = _value(program, word, left)
            if equals and not known.kinds[name]:
                raise Refusal(f"{program}: option '--{name}' doesn't allow an argument\n{_hint(program)}")
            found[name] = value
        else:
            _read_letters(program, known, word[1:], left, found)
    return found, left


def _full_name(program: str, known: Table, name: str) -> str:
    if name in known.kinds:
        return name
    like = [one for one in known.kinds if one.startswith(name)]
    if len(like) == 1:
        return like[0]
    what = "is ambiguous" if like else ""
    text = f"{program}: option '--{name}' {what}" if like else f"{program}: unrecognized option '--{name}'"
    raise Refusal(f"{text}\n{_hint(program)}")


def _hint(program: str) -> str:
    return f'Try "{program} --help" for more information\n'


def _value(program: str, word: str, left: list[str]) -> str:
    if not left:
        raise Refusal(f"{program}: option '{word}' requires an argument\n{_hint(program)}")
    return left.pop(0)


def _read_letters(program: str, known: Table, word: str, left: list[str], found: dict[str, str]) -> None:
    """Read ``-N2``, ``-N 2`` or ``-kN2``."""
    while word:
        letter, word = word[0], word[1:]
        name = known.letters.get(letter)
        if name is None:
            raise Refusal(
                f"{program}: invalid option -- '{letter}'\nTry \"{program} --help\" for more information\n"
            )
        if known.kinds[name] == "=":
            found[name] = word or _value(program, f"-{letter}", left)
            return
        if known.kinds[name] == "?" and word:
            found[name] = word.removeprefix("=")
            return
        found[name] = ""


def of_script(text: str, known: Table = SBATCH) -> dict[str, str]:
    """Return the options in the ``#SBATCH`` lines of a script."""
    words: list[str] = []
    for line in text.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            break
    return read("sbatch", known, words)[0]


def of_environ(prefix: str, known: Table, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that variables such as ``SBATCH_PARTITION`` set."""
    special = {"TIMELIMIT": "time", "JOB_NAME": "job-name", "ARRAY_INX": "array"}
    found = {}
    for name, value in environ.items():
        if name.startswith(prefix):
            bare = name[len(prefix) :]
            option = special.get(bare, bare.lower().replace("_", "-"))
            if option in known.kinds:
                found[option] = value
    return found


def minutes(text: str) -> float | None:
    """Return a time limit [s], in whole minutes; None without a limit.

    Raises:
        Refusal: it is no time.
    """
    if text.upper() in ("INFINITE", "UNLIMITED", "-1"):
        return None
    days, dash, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            hours, mins, secs = (*parts, 0, 0, 0)[:3]
        else:
            hours, mins, secs = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
        seconds = (int(days or 0) * 24 + hours) * 3600 + mins * 60 + secs
    except (ValueError, KeyError):
        raise Refusal("sbatch: error: Invalid --time specification\n") from None
    return float(-(-seconds // 60) * 60)


def warning(text: str) -> Warning_:
    """Read ``[B][R:]USR1[@60]``.

    Raises:
        Refusal: there is no such signal.
    """
    match = re.fullmatch(r"(?:([BR]{1,2}):)?(\w+)(?:@(\d+))?", text)
    name = match[2].upper().removeprefix("SIG") if match else ""
    number = int(name) if name.isdigit() else getattr(signal, f"SIG{name}", None)
    if match is None or number is None:
        raise Refusal(f"sbatch: error: Invalid --signal specification {text}\n")
    return Warning_(int(number), float(match[3] or 60), "B" in (match[1] or ""))


def nodes(text: str) -> tuple[int, int]:
    """Read ``2`` or ``1-4``.

    Raises:
        Refusal: it is no such number.
    """
    least, dash, most = text.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()) or int(least) < 1:
        raise Refusal(f"sbatch: error: invalid number of nodes: {text}\n")
    return int(least), int(most) if dash else int(least)


def gpus_per_node(options: Mapping[str, str], least: int) -> int:
    """Return how many GPUs of each node are asked for."""
    if "gpus-per-node" in options:
        return count(options["gpus-per-node"])
    for part in options.get("gres", "").split(","):
        if part.partition(":")[0] == "gpu":
            return count(part.partition(":")[2] or "1")
    if "gpus" in options:
        return -(-count(options["gpus"]) // least)
    if "gpus-per-task" in options:
        tasks = _number(options, "ntasks-per-node") or -(-(_number(options, "ntasks") or least) // least)
        return count(options["gpus-per-task"]) * tasks
    return 0


def count(text: str) -> int:
    """Read a count that may carry a type: ``a100:4``.

    Raises:
        Refusal: it is none.
    """
    number = text.rpartition(":")[2]
    if not number.isdigit():
        raise Refusal(f"sbatch: error: Invalid GPU specification: {text}\n")
    return int(number)


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise Refusal(f'sbatch: error: Invalid numeric value "{text}" for --{name}.\n')
    return int(text)


def array(text: str) -> tuple[tuple[int, ...], int]:
    """Read ``0-7%2``: the tasks and how many may run at a time (0: all).

    Raises:
        Refusal: it is no such list.
    """
    tasks, _, limit = text.partition("%")
    try:
        return tuple(sorted(set(schedule.numbers(tasks)))), int(limit or 0)
    except ValueError:
        raise Refusal(
            "sbatch: error: Batch job submission failed: Invalid job array specification\n"
        ) from None


def request(options: Mapping[str, str], base: JobRequest) -> JobRequest:
    """Return the request.

    Args:
        options: long names and values.
        base: further facts: script, directories, environment.

    Raises:
        Refusal: a value cannot be read.
    """
    ntasks, per_node = _number(options, "ntasks"), _number(options, "ntasks-per-node")
    default = str(-(-(ntasks or 1) // (per_node or (ntasks or 1))))
    least, most = nodes(options.get("nodes", default))
    tasks, throttle = array(options["array"]) if "array" in options else ((), 0)
    return base._replace(
        name=options.get("job-name", base.name),
        partition=options.get("partition", "low"),
        min_nodes=least,
        max_nodes=most,
        ntasks=ntasks,
        tasks_per_node=per_node,
        cpus_per_task=_number(options, "cpus-per-task"),
        gpus_per_node=gpus_per_node(options, least),
        gpus_per_task=count(options["gpus-per-task"]) if "gpus-per-task" in options else 0,
        exclusive="exclusive" in options,
        limit_s=minutes(options["time"]) if "time" in options else None,
        requeue="no-requeue" not in options,
        expedite=options.get("requeue") == "expedite",
        no_kill="no-kill" in options,
        hold="hold" in options,
        warning=warning(options["signal"]) if "signal" in options else None,
        output=options.get("output", ""),
        error=options.get("error", ""),
        stdin=options.get("input", "/dev/null"),
        append=options.get("open-mode", "").startswith("a"),
        directory=options.get("chdir", base.submit_directory),
        comment=options.get("comment", ""),
        dependency=options.get("dependency", ""),
        nodelist=parse.expand(options.get("nodelist", "")),
        exclude=parse.expand(options.get("exclude", "")),
        begin_s=_begin(options.get("begin", "")),
        array=tasks,
        throttle=throttle,
    )


def _begin(text: str) -> float:
    match = re.fullmatch(r"now\+(\d+)(seconds?|minutes?|hours?|)", text)
    if not text or text == "now":
        return 0.0
    if match is None:
        raise Refusal(f"sbatch: error: the fake Slurm reads --begin=now+10minutes only, not {text}\n")
    unit = {"": 1, "s": 1, "m": 60, "h": 3600}[match[2][:1]]
    return float(int(match[1]) * unit)


def help_text(program: str, known: Table) -> str:
    """Return the text of ``--help``: the options, without words about them."""
    letters = {name: letter for letter, name in known.letters.items()}
    lines = [f"Usage: {program} [OPTIONS(0)...] script(0) [args(0)...]", ""]
    for name, kind in sorted(known.kinds.items()):
        short = f"-{letters[name]}, " if name in letters else "    "
        lines.append(f"  {short}--{name}" + {"=": "=value", "?": "[=value]", "": ""}[kind])
    return "\n".join(lines) + "\n"


class Call(NamedTuple):
    """A request to one of the programs."""

    program: str
    words: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str
    user: Mapping[str, str]  # USER, UID, GID
    stdin: str | None = None  # its content; None before it is read

    @property
    def uid(self) -> int:
        """The asking process."""
        return int(self.user["UID"])


class Reply(NamedTuple):
    """The output of the program, and its exit code."""

    out: str = ""
    err: str = ""
    code: int = 0


class NeedStdin(NamedTuple):
    """The program has to send its stdin first."""


Answer = Reply | NeedStdin


Command = Callable[[Turn, Call], Answer]


def split(words: Sequence[str], with_value: str) -> tuple[dict[str, str], list[str]]:
    """Split a query's words into options and the rest.

    Args:
        words: as people write them.
        with_value: options that take a value, as ``j:jobs o:format``; all others take none.

    Returns:
        Long names (or single letters) with their values, and the other words.
    """
    letters = dict(word.split(":") for word in with_value.split())
    names = set(letters.values())
    found: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = left.pop(0) if name in names and not equals and left else value
        elif word.startswith("-") and word != "-":
            _split_letters(word[1:], letters, left, found)
        else:
            rest.append(word)
    return found, rest


def _split_letters(word: str, letters: Mapping[str, str], left: list[str], found: dict[str, str]) -> None:
    while word:
        letter, word = word[0], word[1:]
        if letter in letters:
            found[letters[letter]] = word.removeprefix("=") if word else left.pop(0) if left else ""
            return
        found[letter] = ""


def jobs_named(world: World, text: str) -> list[Job]:
    """Return the jobs that a list such as ``12,13_1`` names.

    Raises:
        Refusal: one of them is not known.
    """
    found: list[Job] = []
    for word in _outside_brackets(text):
        jobs = find_jobs(world, word)
        if not jobs:
            raise Refusal(INVALID_ID)
        found += jobs
    return found


def _outside_brackets(text: str) -> list[str]:
    words, depth = [""], 0
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            words.append("")
        else:
            words[-1] += char
    return [word for word in words if word]
