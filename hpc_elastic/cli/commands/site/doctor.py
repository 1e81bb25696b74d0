"""``hpc-elastic doctor``: is this machine, and a directory, fit for runs?"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess  # noqa: TID251 - asks the driver of the GPUs
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from importlib.machinery import PathFinder

from hpc_elastic import __version__
from hpc_elastic.cli.say import hand_out, say, say_in_colour
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.workers.worker_env import RunEnv, worker_env
from hpc_elastic.processes import nvidia_smi
from hpc_elastic.processes.linux import adopt_orphans, adopts_orphans
from hpc_elastic.processes.preload.preloader import Preloaded, Preloader, PreloadPhase
from hpc_elastic.processes.preload.rules import AUTO
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, spawn
from hpc_elastic.record.journal import Epoch, Member, RoundFormed
from hpc_elastic.slurm.client import answers, parse
from hpc_elastic.slurm.client.commands import Slurm, hint_for, is_unreachable, unreachable_hint
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.store.check.findings import Finding, Level
from hpc_elastic.text import line_for_shell

_COLOURS = {"ok": None, "info": None, "warning": "yellow", "PROBLEM": "red"}
_STEP_MINUTES = 10  # far more than the waits for silent nodes
_STEP = "HPC_ELASTIC_DOCTOR_STEP"  # set where srun was started by `doctor --nodes`
_FOUND = 3  # exit code of nodes with problems there; srun's own failures end with 1
DISTRIBUTION = "hpc-elastic"
CONTROLLER = "slurm controller"
_COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
_SLOW_S = 5.0
_PRELOAD = "preload"
_LARGE = ("torch", "tensorflow", "jax", "lightning", "transformers")  # names of packages and of modules
_POLL_S = 0.02
_IMPORTS_S = 600.0
_PORT = 29_500  # no worker connects to it
_GPUS = nvidia_smi.question("name", "driver_version")
_DRIVER_S = 20.0  # for its answer
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*?>=([\d.]+)")


class DoctorGroup(NamedTuple):
    """The nodes that try a directory together, as Slurm told this process."""

    rank: int
    node: str
    names: tuple[str, ...]
    meeting: str  # the same for all of them, and for no other process


def doctor(
    srun_options: tuple[str, ...] = (),
    *,
    directory: str | None = None,
    nodes: int | None = None,
    preload: tuple[str, ...] | None = None,
    json: bool = False,
) -> int:
    """Check Python, Slurm and a directory before runs depend on them."""
    environ = os.environ  # noqa: TID251 - Slurm's variables of this process
    if directory is not None and not directory.strip():
        raise InputError("the name of the directory is empty", where="DIR", fix="name a directory")
    path = os.path.abspath(os.path.expanduser(directory or RUNS_FOLDER))
    _check_words(srun_options, nodes)
    if json and nodes is not None:
        raise InputError(
            "the nodes of --nodes print for themselves", where="--json", fix="leave out --json or --nodes"
        )
    if json:
        return _hand_out(path, preload)
    if preload is not None:
        return _preload(preload)
    group = group_of(environ)
    if group is not None and nodes is None:
        code = 0 if environ.get("SLURM_LOCALID", "0") != "0" else _together(path, group)
        return _FOUND if code and environ.get(_STEP) else code
    return _here(path, nodes, srun_options)


def _preload(modules: tuple[str, ...]) -> int:
    """Preload modules here, and print the time that it saves."""
    return _print(preload_findings(modules, SystemClock()))


def _hand_out(path: str, preload: tuple[str, ...] | None) -> int:
    """Print the findings of this machine as a document; return the exit code."""
    from hpc_elastic.report.explain.as_json import document  # noqa: PLC0415
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415
    from hpc_elastic.store.check.findings import Level, worst  # noqa: PLC0415

    clock = SystemClock()
    if preload is not None:
        findings = preload_findings(preload, clock)
    else:
        findings = [*machine_findings(Slurm(), clock), *_directory(path, is_alone=True)]
    checks = [{**each._asdict(), "level": each.level.value.lower()} for each in findings]
    hand_out(document("doctor", {"directory": path if preload is None else None, "checks": checks}))
    return int(worst(findings) is Level.PROBLEM)


def _check_words(words: Sequence[str], nodes: int | None) -> None:
    if words and nodes is None:
        raise InputError(
            f"options of srun are given ({' '.join(words)}), but srun is not asked for",
            where="--",
            fix="add --nodes 2",
        )


def group_of(environ: Mapping[str, str]) -> DoctorGroup | None:
    """Return the nodes of this job step; None outside a step of several nodes.

    Raises:
        InputError: a variable of Slurm's has a value that Slurm never writes.
    """
    slurm = SlurmEnv.from_environ(environ)
    if slurm is None or not slurm.in_step or len(slurm.node_names) < 2:  # noqa: PLR2004 - alone
        return None
    node = slurm.node_name or os.uname().nodename
    meeting = f"{slurm.job_id}.{environ.get('SLURM_STEP_ID', '0')}.{slurm.restart_count}"
    return DoctorGroup(slurm.node_index, node, slurm.node_names, meeting)


def _here(path: str, nodes: int | None, words: Sequence[str]) -> int:
    """Check this machine, then let Slurm start the same on several nodes if that is wanted."""
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415
    from hpc_elastic.store.check.findings import Level, verdict  # noqa: PLC0415

    slurm = Slurm()
    if nodes is not None and not slurm.has("srun"):
        raise SlurmNotFoundError("srun")
    findings = [*machine_findings(slurm, SystemClock()), *_directory(path, is_alone=nodes is None)]
    code = _print(findings)
    said = ""
    if nodes is not None and (CONTROLLER, Level.PROBLEM) in [(each.what, each.level) for each in findings]:
        say(f"Slurm is not asked for {nodes} nodes: its controller does not answer")
    elif nodes is not None:
        say(f"\nasking Slurm for {nodes} nodes, then trying {path} from them")
        say("  (may take half a minute once they are there) ...")
        ended, failed = _start(path, nodes, words)
        said = "the nodes have found problems: runs will not work here" if ended == _FOUND else ""
        if failed is not None:
            findings.append(failed)
            _print(findings[-1:])
        elif ended == 0:
            refused = _refused(path)
            _print(refused)
            findings += refused
        code = max(code, int(ended != 0))
    say(f"\n{said or verdict(findings)}")
    return code


def _start(path: str, nodes: int, words: Sequence[str]) -> tuple[int, Finding | None]:
    """Have srun start this command on several nodes; return its exit code, and the failure of srun itself."""
    from hpc_elastic.isolated.lookup import argv_here  # noqa: PLC0415 - rare command
    from hpc_elastic.slurm.client.commands import Slurm, hint_for  # noqa: PLC0415
    from hpc_elastic.store.check.findings import Finding, Level  # noqa: PLC0415

    sys.stdout.flush()
    shape = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--time={_STEP_MINUTES}")
    program = (*argv_here(), "doctor", path)
    environ = {**os.environ, _STEP: "1"}  # noqa: TID251 - srun takes it along
    slurm, asked = Slurm(environ), [*shape, "--job-name=hpc-elastic-doctor", *words, *program]
    refusal = None if "SLURM_JOB_ID" in environ else slurm.srun_refusal(asked)  # a job has its nodes
    if refusal is not None:
        why = " ".join(refusal.stderr.split())
        return refusal.exit_code, Finding(
            "srun", f"Slurm has no {nodes} nodes for that: {why}", Level.PROBLEM, hint_for(refusal)
        )
    code = slurm.srun(asked)
    return code, None if code in (0, _FOUND) else _srun_failed(code, words)


def _srun_failed(code: int, words: Sequence[str]) -> Finding:
    from hpc_elastic.store.check.findings import Finding, Level  # noqa: PLC0415 - rare command

    look = 'the partitions of the cluster: sinfo -o "%P %D %c %m %G"'
    return Finding(
        "srun",
        f"ended with exit code {code}; its output is above",
        Level.PROBLEM,
        f"compare its options ({line_for_shell(words)}) with {look}"
        if words
        else f"see {look}; a partition is named by: -- -p NAME",
    )


def _together(path: str, group: DoctorGroup) -> int:
    """Try the directory as one of several nodes; only the first one prints passed checks."""
    from hpc_elastic.store.check.findings import (  # noqa: PLC0415 - rare command
        Level,
        pair_findings,
        verdict,
    )
    from hpc_elastic.store.check.pair import PairMember, probe_pair  # noqa: PLC0415
    from hpc_elastic.store.check.probe import nearest  # noqa: PLC0415

    me = PairMember(group.rank, group.node)
    pair = probe_pair(nearest(path), me, len(group.names), group.meeting)
    findings = [*_directory(path, is_alone=False), *pair_findings(pair, group.names)]
    if group.rank:
        findings = [each for each in findings if each.level is Level.PROBLEM]
    code = _print([each._replace(what=f"{group.node}: {each.what}") for each in findings])
    if not group.rank:
        say(f"\n{group.node}: {verdict(findings)}")
    return code


def _directory(path: str, *, is_alone: bool) -> list[Finding]:
    """Try a directory, or the nearest one above it if it is not there yet."""
    from hpc_elastic.settings.setting import usual  # noqa: PLC0415
    from hpc_elastic.settings.table import JobSettings  # noqa: PLC0415
    from hpc_elastic.store.check.findings import (  # noqa: PLC0415  # noqa: PLC0415
        Finding,
        Level,
        directory_findings,
        sharing_findings,
        trust_findings,
    )
    from hpc_elastic.store.check.probe import nearest, probe_directory  # noqa: PLC0415

    place = nearest(path)
    found = []
    if _is_hidden(path):
        value = f"{path} cannot be seen: no permission on {place}"
        return [Finding("directory", value, Level.PROBLEM, "ask its owner, or name another directory")]
    if place != path:
        found.append(Finding("directory", f"{path} is not there yet; looking at {place}", Level.INFO))
    if not os.path.isdir(place):
        return [Finding("directory", f"{place} is not a directory", Level.PROBLEM, "name a directory")]
    try:
        probed = probe_directory(place)
    except OSError as error:
        return [*found, Finding("directory", str(error), Level.PROBLEM, "name a directory you may write to")]
    found += directory_findings(
        probed, heartbeat_s=usual(JobSettings.heartbeat_interval), lease_s=usual(JobSettings.lease)
    )
    found += trust_findings(path)
    return [*found, *sharing_findings(probed.path, probed.mount)] if is_alone else found


def _refused(path: str) -> list[Finding]:
    """Return the objections of `submit` on this machine to a directory that all nodes passed."""
    from hpc_elastic.store.check.findings import refusal_findings  # noqa: PLC0415
    from hpc_elastic.store.mount import mount_at  # noqa: PLC0415 - rare command

    return refusal_findings(os.path.realpath(path), mount_at(path))


def _is_hidden(path: str) -> bool:
    """Tell whether a directory above a path cannot be entered."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        pass  # told by others
    return False


def _print(findings: Sequence[Finding]) -> int:
    """Print a table in one piece; return the exit code."""
    from hpc_elastic.store.check.findings import Level, lines, width_of, worst  # noqa: PLC0415

    width = width_of(findings)
    for finding in findings:
        say_in_colour("\n".join(lines(finding, width)), _COLOURS[finding.level.value])
    return int(worst(findings) is Level.PROBLEM)


def machine_findings(slurm: Slurm, clock: Clock) -> list[Finding]:
    """Return the findings on this machine that need no directory."""
    return [
        Finding("python", f"{platform.python_version()} in {sys.executable}"),
        Finding("hpc_elastic", __version__),
        package_finding(_requirements()),
        *gain_findings(),
        *gpu_findings(),
        *slurm_findings(slurm, clock),
    ]


def gain_findings(names: Sequence[str] = _LARGE) -> list[Finding]:
    """Return which of some packages are installed whose import takes each worker seconds.

    Args:
        names: of the packages, which are those of their modules.
    """
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    if not found:
        return []
    name = found[0].partition(" ")[0]
    gain = f"submit --preload auto saves imports; measure it here by doctor --preload {name}"
    return [Finding(_PRELOAD, f"{', '.join(found)}: {gain}")]


def gpu_findings() -> list[Finding]:
    """Return the GPUs of this machine by the words of nvidia-smi; none where there is no such program."""
    if shutil.which(_GPUS[0]) is None:
        return []
    try:
        said = subprocess.run(
            _GPUS, capture_output=True, text=True, errors="replace", timeout=_DRIVER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("GPUs", str(error), Level.WARNING, "tell the admins: the driver needs a look")]
    gpus = nvidia_smi.gpus_of(said.stdout, 2)
    if said.returncode or not gpus:
        value = nvidia_smi.failure_text(said.returncode, said.stderr + said.stdout)
        return [Finding("GPUs", value, Level.WARNING, "fine on a login node; else tell the admins")]
    kinds = Counter(", driver ".join(gpu.values) for gpu in gpus)
    return [Finding("GPUs", "; ".join(f"{count} x {kind}" for kind, count in kinds.items()))]


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield the name and the least version of each package that is needed always."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a source tree
        lines = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match and ";" not in line:
            yield match[1], match[2]


def package_finding(wanted: Iterator[tuple[str, str]]) -> Finding:
    """Return which of some packages there are; those that are missing or too old are problems.

    Args:
        wanted: name and least version of each.
    """
    there, bad = [], []
    for name, least in wanted:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            bad.append(f"{name}>={least}")
            continue
        there.append(f"{name} {version}")
        if _numbers(version) < _numbers(least):
            bad.append(f"{name}>={least}")
    value = ", ".join(sorted(there)) or "none"
    if not bad:
        return Finding("packages", value)
    words = " ".join(f"'{each}'" for each in bad)
    return Finding("packages", value, Level.PROBLEM, f"{sys.executable} -m pip install {words}")


def _numbers(version: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", version)]


def slurm_findings(slurm: Slurm, clock: Clock) -> list[Finding]:
    """Return which of Slurm's commands there are, and whether the controller answers."""
    missing = [name for name in _COMMANDS if not slurm.has(name)]
    if len(missing) == len(_COMMANDS):
        fix = "log in to the cluster (module load slurm on some sites), or try a run with submit --local N"
        return [Finding("slurm", "there is no Slurm on this machine", Level.WARNING, fix)]
    present = [name for name in _COMMANDS if name not in missing]
    commands = Finding("slurm commands", ", ".join(present))
    if missing:
        value = f"{', '.join(missing)} not on PATH"
        commands = Finding("slurm commands", value, Level.PROBLEM, "install Slurm's client commands here")
    controller = _controller(slurm, clock)
    return (
        [commands, controller]
        if controller.level is Level.PROBLEM
        else [commands, controller, *_release(slurm)]
    )


def _release(slurm: Slurm) -> list[Finding]:
    """Return the known facts about the release of Slurm, and how often it requeues a job by itself."""
    try:
        release, config = parse.release(slurm.version()), answers.config(slurm.show_config())
    except (SlurmNotFoundError, SlurmCommandError):
        return []
    if release is None:
        return []
    level = Level.WARNING if release < parse.TESTED[0] else Level.OK
    fix = (
        "use a newer Slurm, or try each drill before a long run: hpc-elastic drill"
        if level is Level.WARNING
        else ""
    )
    found = [
        Finding("slurm release", f"{parse.release_text(release)}: {parse.tested_text(release)}", level, fix)
    ]
    found += _expedited(slurm, release, config)
    most = parse.requeue_limit(release, config)
    if most is None:
        return found
    value = (
        f"MaxBatchRequeue {most}: Slurm itself requeues a preempted job whose script just ends within its "
        f"grace time, and holds it after {most} times; a run requeues itself, which does not count"
    )
    return [*found, Finding("slurm requeues", value)]


def _expedited(slurm: Slurm, release: tuple[int, int], config: Mapping[str, str]) -> list[Finding]:
    """Return whether a run starts again at once after a requeue; nothing for a release without that."""
    if release < parse.EXPEDITES:
        return []
    what = "expedited requeue"
    if not parse.allows_expedited(config):
        value = "not allowed here (enable_expedited_requeue): a requeued run waits for about two minutes"
        return [Finding(what, value)]
    try:
        is_known = slurm.knows_expedited()
    except (SlurmNotFoundError, SlurmCommandError):
        return []
    if not is_known:
        value = "the site allows it, but sbatch here is older and does not know --requeue=expedite"
        return [Finding(what, value, Level.WARNING, "install here the release of Slurm that slurmctld has")]
    return [Finding(what, "allowed: a requeued run starts again at once (expedite = false: it waits)")]


def _controller(slurm: Slurm, clock: Clock) -> Finding:
    what = CONTROLLER
    before = clock.monotonic()
    try:
        controllers, version = slurm.controllers(), slurm.version()
    except SlurmNotFoundError as error:
        return Finding(what, f"{error.command} is missing", Level.PROBLEM, "install Slurm's client commands")
    except SlurmCommandError as error:
        fix = (
            hint_for(error)
            if is_unreachable(error)
            else "see the answer of scontrol ping; ask the administrators"
        )
        return Finding(what, _words_of(error), Level.PROBLEM, fix)
    taken_s = clock.monotonic() - before
    up = [name for name, is_up in controllers if is_up]
    if not up:
        down = "; ".join(f"slurmctld at {name} is DOWN" for name, _ in controllers) or "it is down"
        return Finding(what, down, Level.PROBLEM, unreachable_hint("scontrol"))
    value = f"{', '.join(up)} answers in {taken_s:.2f} s ({version})"
    if taken_s > _SLOW_S:
        return Finding(what, value, Level.WARNING, "it is busy: submit and requeue may take their time")
    return Finding(what, value)


def _words_of(error: SlurmCommandError) -> str:
    """Return Slurm's words in one line: of all controllers where it names them, else its last ones."""
    said = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    named = [line for line in said if line.startswith("Slurmctld(")]
    failed = f"{error.argv[0]} failed with exit code {error.exit_code}"
    return "; ".join(named) or (said[-1] if said else failed)


def preload_findings(modules: tuple[str, ...], clock: Clock) -> list[Finding]:
    """Return which modules can be preloaded, and how long a worker takes to import them, without it and with.

    Args:
        modules: their names.
        clock: of this process.

    Raises:
        InputError: there is none, or the learned ones are meant.
    """
    if AUTO in modules:
        raise InputError(
            f"{AUTO} is learned by the workers of a run",
            where="--preload",
            fix="name modules here: --preload torch",
        )
    if not modules:
        raise InputError("no module is named", where="--preload", fix="write --preload torch")
    own = _own_variables()
    environ = {name: value for name, value in os.environ.items() if name not in own}  # noqa: TID251 - of a worker
    with tempfile.TemporaryDirectory() as scratch:
        said: list[str] = []
        argv = _importing(modules)
        wanted = Preloaded(modules, argv, environ, os.getcwd(), scratch)
        preloader = Preloader(wanted, clock, said.append)
        out = os.path.join(scratch, "worker.out")
        spec = ProcessSpec(argv, {**environ, **own}, out, out, os.getcwd())
        had = adopts_orphans()
        adopt_orphans()
        try:
            preloader.start()
            gain = _gain(preloader, modules, spec, clock)
            found = [
                Finding(_PRELOAD, f"{name} {why}", Level.WARNING, _fix_of(name))
                for name, why in preloader.blamed.items()
            ]
            if gain is not None:
                return [*found, Finding(_PRELOAD, said[-1]), gain]
            return found or [Finding(_PRELOAD, said[-1], Level.WARNING)]
        finally:
            preloader.close()
            adopt_orphans(wanted=had)


def _own_variables() -> dict[str, str]:
    """Return the variables that each worker of a run has for itself."""
    node = Member(_PRELOAD, "localhost", 1)
    formed = RoundFormed(1, Epoch(0, 0, 0, 0), (node,), node.node, _PORT, None)
    run = RunEnv(_PRELOAD, "", node.node, max_restarts=0)
    return worker_env(formed, node.node_id, 0, run, restarts=0)


def _fix_of(name: str) -> str:
    """Return the remedy for a module that is not preloaded."""
    if not _is_there(name):
        return f"correct the name, or install it for {sys.executable}; your own are searched in {os.getcwd()}"
    return "leave it out: workers import it themselves"


def _is_there(name: str) -> bool:
    """Tell whether a module has a file, without an import of its packages."""
    places: Sequence[str] = (os.getcwd(), *sys.path)
    parts = name.split(".")
    for end in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: end + 1]), places)
        if spec is None:
            return False
        places = spec.submodule_search_locations or ()
    return True


def _importing(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a worker that imports modules and ends."""
    code = "\n".join(f"import {name}" for name in modules)
    return (sys.executable, "-u", "-c", code)


def _gain(preloader: Preloader, modules: Sequence[str], worker: ProcessSpec, clock: Clock) -> Finding | None:
    """Return how long a worker takes, forked and not; None if no module can be preloaded.

    A module that is to blame when the worker is forked is left out, and the others are imported anew.
    """
    until = clock.monotonic() + _IMPORTS_S
    while True:
        while preloader.is_importing() and clock.monotonic() < until:
            clock.sleep(_POLL_S)
        if preloader.phase is not PreloadPhase.READY:
            return None
        spec = worker._replace(argv=_importing([name for name in modules if name not in preloader.blamed]))
        preloader.begin_round(1)
        began_s = clock.monotonic()
        forked = preloader.fork(spec)
        if forked is not None:
            break
    _end_worker(forked, clock)
    warm_s = clock.monotonic() - began_s
    began_s = clock.monotonic()
    _end_worker(spawn(spec), clock)
    cold_s = clock.monotonic() - began_s
    return Finding(
        _PRELOAD, f"a worker imports them in {cold_s:.2f} s, a forked one has them in {warm_s:.2f} s"
    )


def _end_worker(worker: ChildProcess, clock: Clock) -> None:
    until = clock.monotonic() + _IMPORTS_S
    while worker.poll() is None and clock.monotonic() < until:
        clock.sleep(_POLL_S / 10)
    worker.signal_group(9)
    worker.reap()
