"""Whether a changed job script would do the same as now; otherwise the true reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.adopt.facts import (
    SIGNALS,
    AskedOptions,
    OwnTraps,
    assigned,
    filled,
    flag,
    handed_in,
    requeues_elsewhere,
    split_options,
    words_of,
)
from hpc_elastic.slurm.adopt.launch import JobText, Kind, LaunchLine, NotShownError
from hpc_elastic.slurm.adopt.launchers import (
    NotReadError,
    Translated,
    of_accelerate,
    of_deepspeed,
    of_torchrun,
)
from hpc_elastic.slurm.job.shell_text import COMMENT, keywords
from hpc_elastic.slurm.job.traps import signal_name, trap_of

CONTAINER = re.compile(r"(?<!\S)(?:\S*/)?(singularity|apptainer)[\s\\]+(?:-\S+[\s\\]+)*(?:exec|run)[\s\\]")
_OTHER_CONTAINERS = re.compile(r"(?<!\S)(?:\S*/)?(docker|podman|enroot|nerdctl|ch-run|shifter|udocker)(?=\s)")
_CLEAN = re.compile(
    r"(?<!\S)(--cleanenv|-e|--containall|-C|--contain|-c|--ipc|-i|--pid|-p|--net|-n|--userns)(?!\S)"
)
_PYXIS = re.compile(r"(?<![\w-])--container-(?:image|name)(?![\w-])")
_OTHER_STARTERS = re.compile(
    r"(?<![\w./-])(?:\S*/)?(mpirun|mpiexec(?:\.hydra)?|ssh|pdsh|clush|parallel|xargs|timeout|horovodrun|jsrun|ray|"
    r"sudo|salloc|torchx|tune|watch|script|screen|tmux|strace|gdb)(?=\s)"
)
_SLURM_TASKS = re.compile(r"SLURM_(?:NTASKS|NPROCS|TASKS_PER_NODE|NTASKS_PER_NODE|STEP_NUM_TASKS)\b")
_KNOWS_ITS_RANK = re.compile(
    r"SLURM_PROCID|SLURM_LOCALID|init_process_group|pytorch_lightning|\blightning\b|jax\.distributed|"
    r"\baccelerate\b|\btransformers\b"
)
_USUAL_LEAD_S = 60  # of --signal without a time
_MPI = re.compile(
    r"mpi4py|horovod|MPI\.COMM_WORLD|\bPMI_|PMIX_|OMPI_COMM|--mpi[= ]|kungfu|bagua", re.IGNORECASE
)


class AgentPlan(NamedTuple):
    """How agents start the workers of a training.

    Attributes:
        nodes: of the step, as a word of the shell.
        nnodes: for ``--nnodes``; empty: as the launcher's own flags say.
        workers: for ``--nproc-per-node``; empty as well.
        flags: further flags of an agent.
        notes: facts for the user, each with its reason.
        environment: assignments for the workers.
        script: the training script and all behind it, where the words ahead of it change; else empty.
    """

    nodes: str = '"$SLURM_JOB_NUM_NODES"'
    nnodes: str = ""
    workers: str = ""
    flags: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()
    script: str = ""


Program = Callable[[str], str | None]
"""Returns the text of a program in Python by the word of the script that names it; None if not known."""


def plan_of(
    script: JobText, launch: LaunchLine, facts: AskedOptions, traps: OwnTraps, program: Program
) -> AgentPlan:
    """Return how agents are to start the workers of a launch.

    Raises:
        NotShownError: the changed script could do something other than now.
    """
    _check_around(script, launch, facts, traps)
    if launch.kind in (Kind.TORCHRUN, Kind.LAUNCH):
        return _of_torchrun(script, launch, facts)
    if launch.kind is Kind.PYTHON:
        return _of_python(script, launch, facts, traps, program)
    return _of_other_launcher(script, launch, facts, program)


def _check_around(script: JobText, launch: LaunchLine, facts: AskedOptions, traps: OwnTraps) -> None:
    """Check the surroundings of any launcher: other starters, containers, traps and requeues."""
    elsewhere = next(requeues_elsewhere(script, traps), None)
    trouble = (
        _starter(launch)
        or _container(launch)
        or _kind_of_job(script, launch, facts)
        or traps.trouble
        or (
            elsewhere
            and f"line {elsewhere} queues the job again, or another one, by a rule of the script's own"
        )
        or (
            launch.variables
            and re.search(r"--export(?:=|\s+)(?!\S*ALL)", _spoken(script))
            and "the launcher is in a variable, and --export keeps those of the batch script from the tasks"
        )
    )
    if trouble:
        raise NotShownError(trouble)


def _what(launch: LaunchLine) -> str:
    return f"{launch.kind.value} in line {launch.number}"


def _starter(launch: LaunchLine) -> str:
    """Return why another program ahead of a launcher keeps agents from its place; empty for none."""
    before = f"{launch.head} {launch.options}"
    other, container = _OTHER_STARTERS.search(before), _OTHER_CONTAINERS.search(before)
    if container is not None:
        return (
            f"{_what(launch)} is in a container of `{container[1]}`: adopt does not know whether it passes "
            "the environment on, by which workers learn their rank"
        )
    if other is not None:
        return (
            f"{_what(launch)} is started by `{other[1]}`, which starts, ends or places it in a way of its own"
        )
    return ""


def _container(launch: LaunchLine) -> str:
    """Return why workers cannot be in the container of a launcher; empty if they can, or there is none."""
    inside = CONTAINER.search(launch.options)
    if inside is None:
        return ""
    if "'" in launch.options and not launch.quote:
        return f"{_what(launch)} is in a container whose words have single quotes"
    clean = _CLEAN.search(_outside_shell(launch.options[inside.end() :]))
    if clean is not None:
        return f"the container of line {launch.number} has {clean[1]}, which hides the ranks from workers"
    return ""


def _kind_of_job(script: JobText, launch: LaunchLine, facts: AskedOptions) -> str:
    """Return why the job is none of agents: in a container of Slurm's, or of several components."""
    if any(name == "container" or name.startswith("container-") for name, _ in facts.given):
        return "the whole job script runs in a container (#SBATCH --container-...), where Slurm is not"
    if _PYXIS.search(_spoken(script)):
        return (
            f"srun runs {_what(launch)} in a container (--container-image), and adopt cannot see whether the "
            "image has Python 3.10 or later for our agent, nor whether the run directory is mounted in it"
        )
    if re.search(r"^#SBATCH\s+(?:hetjob|packjob)\b", script.text, re.MULTILINE):
        return "the job is a heterogeneous one, whose components are jobs of their own"
    return ""


def _spoken(script: JobText) -> str:
    """Return the text of a script without its comments."""
    marks = zip(script.text, script.code, strict=False)
    return "".join(" " if mark == COMMENT else char for char, mark in marks)


def _outside_shell(options: str) -> str:
    """Return the options of a container without the words of a shell in it."""
    return re.split(r"(?<!\S)(?:\S*/)?(?:bash|sh)\s+-\w*c(?!\S)", options)[0]


def _of_torchrun(script: JobText, launch: LaunchLine, facts: AskedOptions) -> AgentPlan:
    values = assigned(script)
    words = words_of(launch, values)
    for edit in launch.kept_at:
        words = f"{filled(script.text[edit.end : script.code.find(chr(10), edit.end)], values)} {words}"
    what = f"torchrun in line {launch.number}"
    asked = _asked_nodes(launch, facts, values)
    many = _check_nodes(launch, words, values, asked)
    inside = CONTAINER.search(launch.options)
    uses_env = re.search(r"(?<!\S)--use[-_]env(?!\S)", words) is not None
    if launch.kind is Kind.LAUNCH and inside is not None and not uses_env:
        raise NotShownError(
            f"torch.distributed.launch in line {launch.number} gives its script a flag that depends on the "
            "version of torch in the container"
        )
    _check_tasks(launch, facts, words, values)
    workers = flag(words, "nproc-per-node")
    environment = () if workers is not None else ("PET_NPROC_PER_NODE=${PET_NPROC_PER_NODE:-1}",)
    plan = _on_its_nodes(launch, many, asked)._replace(environment=environment)
    return _in_shell_of_container(launch, what, plan) if inside is not None and launch.quote else plan


def _on_its_nodes(launch: LaunchLine, many: int | None, asked: int | None) -> AgentPlan:
    """Return the plan for as many nodes as torchrun uses.

    Raises:
        NotShownError: it is for one node, and srun starts it on several.
    """
    if many != 1 or (asked == 1 and launch.has_srun):
        return AgentPlan()
    if launch.has_srun:
        if asked is not None:
            what = f"torchrun in line {launch.number}"
            raise NotShownError(
                f"{what} is for one node, and srun starts it on each of {asked}: as many trainings"
            )
        return AgentPlan()
    others = f"torchrun uses one node; the other {(asked or 1) - 1} of the job stand by unused, as before"
    return AgentPlan("1", notes=(("--nodes=1", others),) if asked is not None and asked > 1 else ())


def _check_nodes(launch: LaunchLine, words: str, values: dict[str, str], asked: int | None) -> int | None:
    """Return for how many nodes torchrun is; None if that is not told by a number.

    Raises:
        NotShownError: its nodes are not those of the job, or their ranks are not Slurm's.
    """
    what = f"torchrun in line {launch.number}"
    nodes, rank = flag(words, "nnodes"), flag(words, "node-rank")
    many = int(nodes) if nodes is not None and nodes.isdecimal() else None
    if re.search(r"(?<!\S)--?standalone(?!\S)", words) or (nodes is None and not _hides_flags(words)):
        many = 1
    if rank is not None and (handed_in(rank, values) or (rank.isdecimal() and many != 1)):
        raise NotShownError(
            f"{what} gets its --node-rank from outside of the job ({rank}): one job for each node, and "
            "agents meet within one job"
        )
    if nodes is not None and (handed_in(nodes, values) or "$#" in nodes):
        raise NotShownError(f"the number of nodes of {what} ({nodes}) comes from outside of the script")
    if many is not None and many > (asked or (many if launch.has_srun else 1)):
        raise NotShownError(f"{what} is for {many} nodes, and the script asks for {asked or 1}")
    return many


def _hides_flags(words: str) -> bool:
    """Tell whether a variable among the flags of a launcher may hold further ones."""
    before = ""
    for word in words.split():
        if word.startswith(("$", '"$')) and (not before.startswith("-") or "=" in before):
            return True
        if re.search(r"\.py\b", word) or re.fullmatch("--?m(?:odule)?", word):
            return False
        before = word
    return False


def _in_shell_of_container(launch: LaunchLine, what: str, plan: AgentPlan) -> AgentPlan:
    """Return the plan for torchrun in the words of a shell in a container: its flags go to the agent."""
    try:
        flags, script = of_torchrun(launch.tail)
    except NotReadError as error:
        raise NotShownError(f"adopt does not know for {what} what {error} has it do") from None
    if re.search(r"[$\\\"']", flags):
        raise NotShownError(
            f"{what} is in the words of a shell within a container, and its flags have variables"
        )
    flags += "" if flag(flags, "nproc-per-node") else " --nproc-per-node=1"
    return plan._replace(flags=(flags,), script=script, environment=())


def _asked_nodes(launch: LaunchLine, facts: AskedOptions, values: dict[str, str]) -> int | None:
    """Return on how many nodes a launcher is started; None if only the command line of sbatch tells."""
    own = _nodes_of(filled(launch.options, values), facts) if launch.has_srun else facts.nodes
    is_told = {name for name, _ in facts.given} & {"nodes", "ntasks"} or own != facts.nodes
    return own if is_told else None


def _check_tasks(launch: LaunchLine, facts: AskedOptions, words: str, values: dict[str, str]) -> None:
    """Refuse several launchers on a node whose workers make one training together."""
    what = f"torchrun in line {launch.number}"
    options = filled(launch.options, values) if launch.has_srun else ""
    own = flag(options, "ntasks-per-node")
    total = flag(options, "ntasks") or flag(options, "n")
    joined = re.search(r"(?<!\S)-n(\d+)", options)
    total = joined[1] if joined else total
    tasks = int(own) if own is not None and own.isdecimal() else facts.tasks
    if total is not None and total.isdecimal() and (facts.nodes or int(total)) < int(total):
        raise NotShownError(
            f"srun starts {what} {total} times on {facts.nodes} nodes: a launcher for each task"
        )
    if not launch.has_srun or tasks == 1 or (total is not None and own is None):
        return
    nodes, workers = flag(words, "nnodes") or "", flag(words, "nproc-per-node")
    if workers in (None, "1") or _SLURM_TASKS.search(nodes):
        raise NotShownError(
            f"srun starts {what} {tasks} times on each node, with {workers or 1} worker each, and agents are "
            "one on each node"
            if tasks
            else f"adopt cannot see how often srun starts {what} on each node"
        )
    if launch.quote == "'" and _SLURM_TASKS.search(words):
        raise NotShownError(
            f"{what} reads the number of tasks of its step, which is one on each node below agents"
        )


def _of_other_launcher(
    script: JobText, launch: LaunchLine, facts: AskedOptions, program: Program
) -> AgentPlan:
    """Return the plan for ``accelerate launch`` and ``deepspeed`` with flags that are known here."""
    what = _what(launch)
    if launch.variables or launch.quote or launch.needs_exec:
        raise NotShownError(
            f"the words of {what} are in a variable or in quotes, and its flags mean other ones to agents"
        )
    if CONTAINER.search(launch.options):
        raise NotShownError(
            f"{what} is in a container, and adopt cannot see the configuration that it reads there"
        )
    try:
        found = (of_accelerate if launch.kind is Kind.ACCELERATE else of_deepspeed)(launch.tail)
    except NotReadError as error:
        raise NotShownError(f"adopt does not know for {what} what {error} has it do") from None
    if launch.kind is Kind.ACCELERATE:
        _check_default_config(script, what, program)
    many = _nodes_of_launcher(script, launch, facts, found)
    script_words = found.script
    if found.has_local_rank:
        word = re.match(r"(?:\"[^\"]*\"|\S)+", script_words)
        at = word.end() if word else 0
        script_words = f'{script_words[:at]} "--local_rank=\\${{local_rank}}"{script_words[at:]}'
    on = "1" if many == 1 else '"$SLURM_JOB_NUM_NODES"'
    workers = _workers_per_node(found.workers, found.nodes, many)
    return AgentPlan(on, on, workers, found.flags, (), found.environment, script_words)


def _nodes_of_launcher(
    script: JobText, launch: LaunchLine, facts: AskedOptions, found: Translated
) -> int | None:
    """Return for how many nodes a launcher is; None if that is the number of the job's, as a variable.

    Raises:
        NotShownError: they are not the nodes of the job.
    """
    values, what, asked = assigned(script), _what(launch), facts.nodes
    nodes, rank = filled(found.nodes, values).strip("\"'"), filled(found.rank, values).strip("\"'\\")
    if handed_in(rank, values) or handed_in(nodes, values) or (rank.isdecimal() and nodes not in ("", "1")):
        raise NotShownError(f"the number or the rank of nodes of {what} comes from outside of the script")
    if launch.has_srun:
        options = filled(launch.options, values)
        asked = _nodes_of(options, facts)
        if _tasks_of(options, facts) != 1:
            raise NotShownError(f"adopt cannot see that srun starts {what} once on each node")
    many = int(nodes) if nodes.isdecimal() else None if nodes else 1
    if many == 1 and asked != 1:
        raise NotShownError(
            f"{what} uses one of {asked or 'the'} nodes; adopt does not know the use of the others"
        )
    if launch.kind is Kind.DEEPSPEED and many != 1:
        raise NotShownError(f"{what} starts its workers on other nodes by ssh")
    if asked is None or many not in (None, asked):
        of_job = asked or "an unknown number"
        raise NotShownError(f"{what} is for {nodes or 1} nodes, and the script asks for {of_job}")
    return many


def _workers_per_node(workers: str, nodes: str, many: int | None) -> str:
    """Return the workers on each node as a word of the shell."""
    if not workers:
        return "gpu"
    if workers.isdecimal() and many:
        return str(int(workers) // many)
    return workers if many == 1 else f'"$(( ({workers.strip(chr(34))}) / ({nodes.strip(chr(34))}) ))"'


def _check_default_config(script: JobText, what: str, program: Program) -> None:
    """Refuse where accelerate may read a file of the user's that its words do not name."""
    place = "~/.cache/huggingface/accelerate/default_config.yaml"
    if program(place) is not None:
        raise NotShownError(f"{what} reads {place}, which may set more than its flags")
    if re.search(r"\b(?:HF_HOME|XDG_CACHE_HOME)=", script.text):
        raise NotShownError(f"{what} may read a default_config.yaml below the HF_HOME that the script sets")


def _of_python(
    script: JobText, launch: LaunchLine, facts: AskedOptions, traps: OwnTraps, program: Program
) -> AgentPlan:
    what = f"{launch.named.split()[-1]} in line {launch.number}"
    options, _ = split_options(launch.options) if launch.has_srun else ("", launch.options)
    each, nodes = _checked_tasks(script, launch, facts, what)
    if (each, nodes) == (1, 1):
        _check_one_gpu(what, facts)
    else:
        _check_ranks(what, program(_script_word(launch)))
    if launch.variables and nodes != 1:
        raise NotShownError(f"the words of {what} are in a variable, which cannot hold those of agents")
    flags, notes = [], []
    if each > 1 and _binds_gpus(launch, options, facts):
        flags.append("--virtual-local-rank")
        notes.append(("--virtual-local-rank", "each worker sees one GPU, as each task does now"))
    signal, lead_s = _signal_of_program(launch, facts, traps)
    if signal:
        flags += [f"--unasked=signal:{signal}", f"--warn-timeout={lead_s}"]
        heard = "workers that do not ask whether to stop get the signal that the program hears now"
        notes += [(flags[-2], heard), (flags[-1], f"they have {lead_s} s after it, as --signal says")]
    on = '"$SLURM_JOB_NUM_NODES"' if nodes > 1 else "1"
    return AgentPlan(on, on, str(each), tuple(flags), tuple(notes))


def _checked_tasks(script: JobText, launch: LaunchLine, facts: AskedOptions, what: str) -> tuple[int, int]:
    """Return how often a program is started on each node, and on how many nodes.

    Raises:
        NotShownError: that is not told, or its ranks and its input are not those of workers.
    """
    options, _ = split_options(launch.options) if launch.has_srun else ("", launch.options)
    each, nodes = _tasks_of(options, facts), _nodes_of(options, facts)
    if not launch.has_srun and nodes == 1:
        each = 1  # without srun the program runs once, for any number of tasks
    if re.search(r"<(?!<)", launch.tail):
        raise NotShownError(f"{what} reads its input from the script, which workers do not have")
    if _MPI.search(f"{_spoken(script)} {launch.options}"):
        raise NotShownError(f"{what} may learn its rank from MPI, which workers of an agent do not have")
    if each is None or nodes is None:
        raise NotShownError(f"adopt cannot see on how many nodes, and how often on each, {what} is started")
    if not launch.has_srun and nodes != 1:
        raise NotShownError(f"{what} runs once, on the first of {nodes} nodes, and may start others itself")
    return each, nodes


def _check_one_gpu(what: str, facts: AskedOptions) -> None:
    """Refuse a single process unless it has one GPU: then it does the same as one worker of one."""
    if facts.gpus == 1:
        return
    if facts.gpus is None:
        raise NotShownError(f"adopt cannot see how many GPUs {what} has, which is one process")
    if facts.gpus == 0:
        raise NotShownError(
            f"no line of the script asks for a GPU for {what}: nothing tells that it is a training"
        )
    raise NotShownError(
        f"{what} is one process for {facts.gpus} GPUs: as the only worker of an agent it may use one of them"
    )


def _check_ranks(what: str, text: str | None) -> None:
    """Refuse a program of several tasks unless it learns its rank from variables that workers have.

    Args:
        what: the program.
        text: of it; None if it cannot be read.
    """
    if text is None:
        raise NotShownError(f"adopt cannot read {what} from here, so not how its tasks learn their ranks")
    if _MPI.search(text) or _KNOWS_ITS_RANK.search(text) is None:
        raise NotShownError(f"{what} does not learn its rank from Slurm or torch, as far as adopt can see")


def _binds_gpus(launch: LaunchLine, options: str, facts: AskedOptions) -> bool:
    """Tell whether each task sees one GPU alone.

    Raises:
        NotShownError: each sees several of its own.
    """
    own = flag(options, "gpus-per-task")
    bound = facts.gpus_per_task if own is None else int((re.findall(r"\d+", own) or ["2"])[-1])
    if bound is None and re.search(r"--gpu-bind=(?:single:1|per_task:1)\b", launch.options):
        bound = 1
    if bound is not None and bound != 1:
        raise NotShownError(f"Slurm gives each task of line {launch.number} {bound} GPUs of its own")
    return bound == 1


def _signal_of_program(launch: LaunchLine, facts: AskedOptions, traps: OwnTraps) -> tuple[str, int]:
    """Return the signal by which a program hears of its end now, and how long [s] before it; empty for none.

    Raises:
        NotShownError: agents take that signal for something else.
    """
    found = re.match(r"(?:([RB]{1,2}):)?(\w+)(?:@(\d+))?", facts.value("signal") or "")
    is_for_tasks = found is not None and "B" not in (found[1] or "") and launch.has_srun
    signal = traps.signal or (signal_name(found[2]) if found is not None and is_for_tasks else "")
    if signal in ("", "TERM"):
        return "", 0
    if signal not in ("USR1", "USR2"):
        raise NotShownError(
            f"the program hears of its end by SIG{signal}, which has another meaning for agents"
        )
    return signal, int(found[3] or _USUAL_LEAD_S) if found is not None else _USUAL_LEAD_S


def _script_word(launch: LaunchLine) -> str:
    return launch.named.split()[-1].strip("\"'")


def _tasks_of(options: str, facts: AskedOptions) -> int | None:
    """Return how many tasks srun starts on each node; one without srun's own or the job's options."""
    own, total = flag(options, "ntasks-per-node"), _total(options)
    if own is not None:
        return int(own) if own.isdecimal() else None
    if total is None:
        return facts.tasks
    nodes = _nodes_of(options, facts)
    if total.isdecimal() and nodes:
        return int(total) // nodes if int(total) % nodes == 0 else None
    is_all = total.strip('"{}$') in ("SLURM_NTASKS", "SLURM_NPROCS")
    is_per_node = total.strip('"{}$') in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    return facts.tasks if is_all else 1 if is_per_node else None


def _total(options: str) -> str | None:
    joined = re.search(r"(?<!\S)-n(\d+)", options)
    return joined[1] if joined else flag(options, "ntasks") or flag(options, "n")


def _nodes_of(options: str, facts: AskedOptions) -> int | None:
    joined = re.search(r"(?<!\S)-N(\d+)", options)
    own = joined[1] if joined else flag(options, "nodes") or flag(options, "N")
    if own is None or own.strip('"{}$') in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        total = _total(options)
        return 1 if own is None and total == "1" else facts.nodes
    return int(own) if own.isdecimal() else None


def _may_go(own: str, said: str) -> bool:
    """Tell whether a command between a training in the background and its `wait` is not missed."""
    trap = trap_of(said)
    if trap is not None:
        return trap.signals <= set(SIGNALS)
    return re.match(r"(?:echo|printf)\s", own) is not None


def end_of_wait(script: JobText, launch: LaunchLine) -> int:
    """Return where the wait for a launch in the background ends.

    Raises:
        NotShownError: the script does something else in between, or never waits.
    """
    what = f"{launch.kind.value} in line {launch.number}"
    end, names, waits = launch.end, [], 0
    place = next(
        at for at, part in enumerate(script.commands) if part.start > script.commands[launch.place].end
    )
    at = place
    while at < len(script.commands):
        part = script.commands[at]
        own, said = script.own_code(part).strip(f" \t\n{COMMENT}"), script.text[part.start : part.end].strip()
        held = re.fullmatch(r"(?:export\s+)?(\w+)=\"?\$!\"?", said.partition("#")[0].strip())
        if held is not None:
            names.append(held[1])
        elif re.match(r"wait\b", own):
            if part.after in ("&&", "||", "|", "&"):
                raise NotShownError(f"line {script.line_of(part.end)} decides by how `wait` ends")
            waits += 1
            end = part.end
        elif own and (waits or keywords(own) or not _may_go(own, said)):
            break
        at += 1
    if not waits:
        raise NotShownError(f"{what} runs in the background, and the script does other things meanwhile")
    rest = script.text[end:]
    used = next((name for name in names if re.search(rf"\$\{{?{name}\b", rest)), None)
    if used is not None:
        raise NotShownError(f"{what} runs in the background, and ${used} is used behind its end")
    return end
