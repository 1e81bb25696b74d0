"""Checks before anything is queued: interpreter, worker file, options, and the partition of the job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess  # noqa: TID251 - asks an interpreter for this package
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.isolated import lookup
from hpc_elastic.paths import absence_of, closed_above
from hpc_elastic.settings.values import has_control
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import seconds
from hpc_elastic.slurm.job import notice, options, script
from hpc_elastic.slurm.job.environment import has_own_python
from hpc_elastic.slurm.job.spec import JobSpec, heartbeat_and_lease_s, refuse_local, spec_warnings
from hpc_elastic.slurm.job.worker_launcher import check_words, launcher_in_text, refuse_launcher, script_of
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.find_python import check_python, or_for_workers
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.store.mount import mount_at, safe_lease
from hpc_elastic.store.plain_file import absence_fix, read_plain
from hpc_elastic.text import for_shell

_IMPORT_TIMEOUT_S = 30.0
_OF_A_SHELL = frozenset({">", ">>", "2>", "2>&1", "&>", "<", "|", "|&", "&&", "||", ";", "&"})
_LONGEST_SCRIPT = 1 << 20
_MOST_AGENTS = 64  # for each CPU; more give each other up for want of time
_LONGEST_FIRST_LINE = 256  # of which the kernel reads an interpreter


def check(
    request: SubmitRequest, known_options: Collection[str] | None, *, is_local: bool = False
) -> list[str]:
    """Refuse a request that cannot work.

    Args:
        request: the submission to come.
        known_options: the options of the installed sbatch, None to use the built-in list.
        is_local: the run stays on this machine, so its directory need not be shared.

    Returns:
        Warnings.

    Raises:
        InputError: the field that cannot work, its source and the fix.
    """
    spec = request.spec
    if is_local:
        refuse_local(spec)
    options.check_known(spec.option_names(), known_options)
    found = [] if is_local else spec_warnings(spec)
    _check_workdir(spec.workdir or ".")
    _check_setup(spec.setup)
    found += _check_python(request)
    if spec.mode != "script":
        found += _check_worker(request)
        check_python(spec, starts_python=request.starts_python and request.starts_workers_python)
    found += _check_command("health", spec.health_command, "a node without it counts as unfit, and stays out")
    found += _check_messages(spec)
    times = heartbeat_and_lease_s(spec)
    found += run_dir.check(request.paths.root, allow_local=is_local or spec.allow_local_run_dir)
    # agents use the longer lease anyway
    lease_s, reason = safe_lease(mount_at(request.paths.root), *times)
    if reason:
        fix = f"choose another run directory, or set lease to {lease_s:g}, which the agents use here anyway"
        found.append(f"{reason}\n  fix: {fix}")
    return found


def missing_again(request: SubmitRequest) -> list[str]:
    """Return warnings of the things that a run was submitted with and does not find when queued again.

    Nothing is refused: its ``job.sbatch`` may have been changed by hand, and need that no more.
    """
    try:
        _check_workdir(request.spec.workdir or request.directory or ".")
        if request.spec.mode != "script":  # a copy of it is in the run directory
            _check_worker(request)
    except InputError as error:
        return [f"{error.message}, and the run was submitted with it\n  fix: {error.fix}"]
    return []


def check_local_nodes(spec: JobSpec, nodes: int) -> None:
    """Refuse a run that this machine cannot play with so many nodes.

    Raises:
        InputError: the run is an array, is to have more or fewer nodes, or more than can live here.
    """
    refuse_local(spec)
    cpus = len(os.sched_getaffinity(0))
    if nodes > cpus * _MOST_AGENTS:
        raise InputError(
            f"{nodes} nodes are too many for the {cpus} CPUs of this machine, which are at most "
            f"{cpus * _MOST_AGENTS}: each has an agent and workers of its own here",
            where="--local",
            fix="give a smaller number, for example --local 2",
        )
    low, high = spec.node_range
    if not low <= nodes <= high:
        raise InputError(
            f"--local {nodes} is outside nodes = {spec.nodes}", where="--local", fix="change one of them"
        )


def _check_workdir(workdir: str) -> None:
    if has_control(workdir):
        raise InputError(
            f"the working directory {workdir!r} has a line break or another control character in its name",
            where="workdir",
            fix="rename the directory, or give another one: sbatch cannot read it",
        )
    if not os.path.isdir(workdir):
        what = "is not a directory" if os.path.exists(workdir) else absence_of(workdir)
        raise InputError(
            f"the working directory {workdir} {what}",
            where="workdir",
            fix=absence_fix(workdir, _near_file(workdir) or "create it"),
        )


def _check_setup(lines: Sequence[str]) -> None:
    """Have bash read the setup lines without running them, if it is here."""
    bash = shutil.which("bash") if lines else None
    if bash is None:
        return
    done = subprocess.run(
        [bash, "-O", "extglob", "-n"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=_IMPORT_TIMEOUT_S,
        check=False,
        env={"LC_ALL": "C"},
    )
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["syntax error"])[0].removeprefix(f"{bash}: ")
        at = re.search(r"line (\d+):", words)
        bad = f" in {lines[int(at[1]) - 1]!r}" if at is not None and int(at[1]) <= len(lines) else ""
        raise InputError(
            f"bash cannot make out the setup lines{bad}: {words}", where="setup", fix="mend that line"
        )


def _check_messages(spec: JobSpec) -> list[str]:
    """Read all that a message of the run needs, as the end of the job will."""
    notice.check_events(spec.notify_on)
    if spec.notify_webhook:
        notice.read_webhook(spec.notify_webhook)
    if spec.notify_template:
        notice.read_template(spec.notify_template)
        if not spec.notify_webhook:
            raise InputError(
                f"notify_template = {spec.notify_template!r} is for a webhook, and there is none",
                where="notify_template",
                fix="name the file with its URL: notify_webhook",
            )
    return _check_command("notify", spec.notify_command, "without it no message is sent")


def _check_command(kind: str, command: str | None, without: str) -> list[str]:
    """Have sh read a command of the user's without running it, and look for the program that it begins with.

    Args:
        kind: the command; its setting is called so.
        command: the command; None if there is none.
        without: the consequence on a node that has no such program.

    Returns:
        A warning if the program is not here; the nodes may have it.
    """
    shell = shutil.which("sh") if command else None
    if command is None or shell is None:
        return []
    done = _sh(shell, "-n", "-c", command)
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["syntax error"])[0].removeprefix(f"{shell}: ")
        raise InputError(
            f"sh cannot make out {command!r}: {words}", where=f"{kind}_command", fix="mend the command"
        )
    program = command.split()[0] if command.split() else ""
    if (
        not re.fullmatch(r"[\w./+-]+", program)
        or _sh(shell, "-c", 'command -v -- "$1"', "sh", program).returncode == 0
    ):
        return []
    fix = f"check the name; {without}"
    return [f"the {kind} command begins with {program}, which is not on this machine\n  fix: {fix}"]


def _sh(shell: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shell, *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_IMPORT_TIMEOUT_S,
        check=False,
    )


def _check_python(request: SubmitRequest) -> list[str]:
    """Check the interpreter of the agents, and that it has this package."""
    python = request.spec.python or sys.executable
    if python == sys.executable:
        return []
    program = shutil.which(python)
    if program is None:
        if request.spec.setup or request.spec.modules:
            return []
        raise InputError(
            f"the Python interpreter {python} does not exist or is not executable",
            where="python",
            fix=_near_file(python) or "name another",
        )
    if not request.starts_python:
        fix = f"name it yourself: --python {for_shell(python)}"
        return [f"{python} is not asked for hpc_elastic: another user may have named it\n  fix: {fix}"]
    found = lookup.ask(program)
    if found.trouble:
        raise InputError(
            f"the Python interpreter {python} does not run: {found.trouble}",
            where="python",
            fix="name another",
        )
    if found.is_installed:
        return []
    if request.spec.setup or request.spec.modules:
        return [f"{python} cannot import hpc_elastic here\n  fix: install it there, or load it in setup"]
    fix = f"{for_shell(python)} -m pip install hpc_elastic{or_for_workers(program)}"
    raise InputError(f"{python} cannot import hpc_elastic", where="python", fix=fix)


def _check_worker(request: SubmitRequest) -> list[str]:
    """Check that the program and the training script exist; not those inside a container."""
    spec = request.spec
    workdir = spec.workdir or "."
    if _has_many(spec):
        refuse_launcher(script.worker_command(spec, spec.python or sys.executable), "command")
    if not spec.module and not os.path.exists(os.path.join(workdir, spec.command[0])):
        check_words(spec.command)
    found = _shell_words(spec.command)
    if spec.container:
        _check_program(spec.container[0], workdir, "container", is_certain=not (spec.setup or spec.modules))
        return found
    command = script.worker_command(spec, spec.python or sys.executable)
    is_certain = not (spec.setup or spec.modules or has_own_python(spec))
    _check_program(command[0], workdir, "command", is_certain=is_certain)
    if spec.module:
        return found
    worker = script_of(command)
    path = os.path.join(workdir, worker) if worker else None
    if path and not os.path.isfile(path):
        raise _unfit_worker(path, worker or "", workdir)
    if path and not os.access(path, os.R_OK):
        raise InputError(
            f"the worker file {path} is not readable", where="command", fix=f"chmod u+r {for_shell(path)}"
        )
    return found + (
        _launcher_in_script(os.path.join(workdir, worker or command[0])) if _has_many(spec) else []
    )


def _shell_words(command: Sequence[str]) -> list[str]:
    """Warn of a word that means something to a shell only: no shell reads the command of a worker."""
    word = next((word for word in command if word in _OF_A_SHELL), None)
    if word is None:
        return []
    fix = f"leave it out, as the output of workers is in the run's logs; or write bash -c '... {word} ...'"
    return [f"the program gets {word} as an argument, as no shell reads the command\n  fix: {fix}"]


def _has_many(spec: JobSpec) -> bool:
    """Tell whether the run has more than one worker, or may have."""
    return spec.workers_per_node != 1 or spec.node_range.high != 1


def _launcher_in_script(path: str) -> list[str]:
    """Warn of a shell script that starts a launcher, though perhaps not on every way through it."""
    try:
        data = read_plain(path, own=False, alone=False, limit=_LONGEST_SCRIPT)  # the user has chosen it
        text = data.decode(errors="replace")
    except OSError:
        return []
    if not re.match(r"#!.*sh\b", text) and not path.endswith(".sh"):
        return []
    found, line = launcher_in_text(text)
    if found is None:
        return []
    what = f"{path} starts {found.name} in line {line}, and each worker runs it"
    fix = f"write the training script in the place of {found.name} there: exec python train.py"
    return [f"{what}: every worker would be a whole training of its own\n  fix: {fix}"]


def _unfit_worker(path: str, worker: str, workdir: str) -> InputError:
    """Return the error of a worker file that is no file."""
    fix = "check the name, or set workdir"
    if os.path.isdir(path):
        return InputError(f"the worker file {path} is a directory", where="command", fix=fix)
    if os.path.exists(path):
        return InputError(f"the worker file {path} is no plain file", where="command", fix=fix)
    in_workdir = "" if closed_above(path) else f" in {workdir}"
    what = f"the worker file {worker} {absence_of(path)}{in_workdir}"
    if worker.startswith("~"):
        return InputError(
            what, where="command", fix="take the quotes away, in which a shell leaves ~ as it is"
        )
    return InputError(what, where="command", fix=absence_fix(path, _near_file(path) or fix))


def _check_program(program: str, workdir: str, where: str, *, is_certain: bool) -> None:
    """Check a program; `is_certain` is false where setup lines may still change PATH."""
    if "/" in program:
        path = os.path.join(workdir, os.path.expanduser(program))
        if os.path.isdir(path):
            raise InputError(
                f"the program {program} is a directory",
                where=where,
                fix=f"name the script in it{_script_in(path)}",
            )
        if not os.path.isfile(path):
            is_there = os.path.exists(path)
            what = f"the program {program} {'is no plain file' if is_there else absence_of(path)}"
            near = "" if is_there else _near_file(path)
            raise InputError(what, where=where, fix=absence_fix(path, near or "check the path"))
        if not os.access(path, os.X_OK):
            raise InputError(
                f"the program {program} is not executable",
                where=where,
                fix=f"chmod u+x {for_shell(program)}",
            )
        _check_first_line(path, program, where)
    elif is_certain and shutil.which(program) is None:
        raise InputError(
            f"the program {program} is not on PATH", where=where, fix=_name_fix(program, workdir)
        )


def _name_fix(program: str, workdir: str) -> str:
    """Return how a file of the working directory is started that is named as a program on PATH is."""
    path = os.path.join(workdir, program)
    if not os.path.isfile(path):
        return "check the name, or load it in setup"
    here = for_shell(f"./{program}")
    if os.access(path, os.X_OK):
        return f"write {here}: it is in the working directory"
    return f"bash {here}" if program.endswith((".sh", ".bash")) else f"python {here}"


def _check_first_line(path: str, program: str, where: str) -> None:
    """Refuse a script whose first line ends as on Windows: the kernel takes that for the interpreter."""
    try:
        with open(path, "rb") as file:
            first = file.readline(_LONGEST_FIRST_LINE)
    except OSError:
        return
    if first.startswith(b"#!") and first.endswith(b"\r\n"):
        interpreter = first[2:].strip().decode(errors="replace")
        raise InputError(
            f"the program {program} has line ends of Windows: its interpreter is {interpreter + chr(13)!r}",
            where=where,
            fix=f"take the \\r away: sed -i 's/\\r$//' {for_shell(program)}",
        )


def _script_in(directory: str) -> str:
    """Return the first Python script of a directory as an example, or nothing."""
    try:
        scripts = sorted(name for name in os.listdir(directory) if name.endswith(".py"))
    except OSError:
        return ""
    best = "train.py" if "train.py" in scripts else next(iter(scripts), "")
    return f", e.g. {os.path.join(directory, best)}" if best else ""


def _near_file(path: str) -> str:
    """Return a hint with similar names in the same directory, or nothing."""
    directory, name = os.path.split(path.rstrip("/"))
    try:
        names = os.listdir(directory or ".")
    except OSError:
        return ""
    return options.near_file(name, names)


def check_time(spec: JobSpec, slurm: Slurm) -> list[str]:
    """Refuse a time limit that none of the job's partitions allows; accept it without an answer of Slurm.

    Slurm queues such a job unless ``EnforcePartLimits`` is set, and it waits for ever.

    Returns:
        A warning instead, if the job names a QOS: that may lift the limit.

    Raises:
        InputError: with the limit.
    """
    wanted_s = spec.time_limit_s
    if wanted_s is None or spec.sbatch.get("time-min") is not None:
        return []
    asked = spec.partition or slurm.environ.get("SBATCH_PARTITION") or ""
    names = asked.split(",")
    try:
        known = [slurm.show_partition(name) for name in names]
    except (SlurmCommandError, SlurmNotFoundError):
        return []
    longest = longest_limit(known)
    if longest is None or wanted_s <= longest[0]:
        return []
    where = f"partition {asked}" if asked else "the default partition"
    told = f"time = {spec.time} is more than {where} allows ({longest[1]}), so the job would never start"
    if spec.qos:
        return [
            f"{told} unless QOS {spec.qos} lifts that\n  fix: ask for {longest[1]} or less if it does not"
        ]
    raise InputError(
        told,
        where="time",
        fix=f"ask for {longest[1]} or less: the run is requeued and goes on; sinfo -o '%P %l' shows "
        "the limits of others (--skip-sbatch-test: do not look)",
    )


def longest_limit(partitions: Iterable[Mapping[str, str]]) -> tuple[float, str] | None:
    """Return the longest time limit [s] that a job may have, and how Slurm writes it. Pure.

    Args:
        partitions: the fields of ``scontrol show partition`` for each.

    Returns:
        None if one has no limit, or none that is known.
    """
    found = []
    for fields in partitions:
        text = fields.get("MaxTime", "")
        limit_s = seconds(text)
        if limit_s is None:
            return None
        found.append((limit_s, text))
    return max(found, default=None)


def check_size(spec: JobSpec, slurm: Slurm) -> None:
    """Refuse an array that Slurm would refuse; accept it without an answer of Slurm.

    Raises:
        InputError: it has too many tasks.
    """
    if spec.mode != "array":
        return
    _check_partition(spec, slurm)
    try:
        most = slurm.max_array_size()
    except (SlurmCommandError, SlurmNotFoundError):
        return
    if most is not None and spec.tasks > most:
        raise InputError(
            f"nodes = {spec.nodes}"
            + (f" and spares = {spec.spares}" if spec.spares else "")
            + f" make an array of {spec.tasks} tasks, and this cluster allows {most} (MaxArraySize)",
            where="nodes",
            fix=f'ask for at most {most}, or set mode = "step"',
        )


def _check_partition(spec: JobSpec, slurm: Slurm) -> None:
    """Refuse an array of whole nodes that the partition cannot hold at once: Slurm takes it, task by task.

    The tasks that start would wait for the others on nodes that stay idle.
    """
    if not spec.exclusive:
        return
    try:
        nodes = slurm.nodes(spec.partition)
    except (SlurmCommandError, SlurmNotFoundError):
        return
    least = spec.node_range.low
    if nodes and least > len(nodes):  # of a partition that is not there Slurm itself tells
        where = f"partition {spec.partition}" if spec.partition else "the default partition"
        raise InputError(
            f"nodes = {spec.nodes} needs {least} whole nodes at once, and {where} has {len(nodes)}",
            where="nodes",
            fix=f"let fewer be enough, e.g. --nodes {min(2, len(nodes))}:{len(nodes)}",
        )
