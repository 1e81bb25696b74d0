"""``hpc-elastic doctor``: is this machine, and a directory, fit for runs?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.cli.say import hand_out, say, say_in_colour
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, SlurmNotFoundError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.text import line_for_shell

if TYPE_CHECKING:
    from hpc_elastic.store.check.findings import Finding

_COLOURS = {"ok": None, "info": None, "warning": "yellow", "PROBLEM": "red"}
_STEP_MINUTES = 10  # far more than the waits for silent nodes
_STEP = "HPC_ELASTIC_DOCTOR_STEP"  # set where srun was started by `doctor --nodes`
_FOUND = 3  # exit code of nodes with problems there; srun's own failures end with 1


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
    preload: str | None = None,
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


def _preload(text: str) -> int:
    """Preload modules here, and print the time that it saves."""
    from hpc_elastic.cli.commands.site.doctor_checks import preload_findings  # noqa: PLC0415 - rare command

    return _print(preload_findings(text, SystemClock()))


def _hand_out(path: str, preload: str | None) -> int:
    """Print the findings of this machine as a document; return the exit code."""
    from hpc_elastic.cli.commands.site.doctor_checks import machine_findings, preload_findings  # noqa: PLC0415
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
    from hpc_elastic.cli.commands.site.doctor_checks import CONTROLLER, machine_findings  # noqa: PLC0415 - rare command
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
