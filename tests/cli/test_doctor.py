"""``hpc-elastic doctor`` as it is typed, and as srun starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from hpc_elastic import __version__
from hpc_elastic.cli.commands.site.doctor import (
    DoctorGroup,
    _directory,
    gain_findings,
    gpu_findings,
    group_of,
    package_finding,
    slurm_findings,
)
from hpc_elastic.cli.main import main
from hpc_elastic.clock import SystemClock
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.store import mount
from hpc_elastic.store.check.findings import Finding, Level, verdict
from hpc_elastic.store.mount import Mount
from hpc_elastic.testing.clock import FakeClock

_PROGRAMS = {
    "sbatch": 'echo "slurm 23.02.4"',
    "squeue": "true",
    "scancel": "true",
    "scontrol": 'printf "Slurmctld(primary) at ctl is ${CTL:-UP}\\nSlurmctld(backup) at ctl2 is DOWN\\n"',
    "srun": '[ "$1" = --test-only ] && exit 0; echo "srun $*" && exit ${SRUN_CODE:-0}',
}


class Programs:
    """Stand-ins for Slurm's commands on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, body in _PROGRAMS.items():
            self.write(name, body)

    def write(self, name: str, body: str) -> None:
        """Make a command do something else."""
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        """An environment in which only these are found, and a shell's own."""
        return {"PATH": f"{self.folder}:/no/such/place", "LANG": "C"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put stand-ins for Slurm's commands first on PATH."""
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_packages_that_are_worth_preloading_are_named() -> None:
    """With the command that measures the gain on this machine."""
    (found,) = gain_findings(("no_such_package", "psutil", "filelock"))
    assert found.value.startswith("psutil ")
    assert ", filelock " in found.value
    assert found.value.endswith("measure it here by doctor --preload psutil")
    assert [] == gain_findings(("no_such_package",))


def test_a_good_machine_and_directory_are_told_line_by_line(
    place: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0, and no litter."""
    assert 0 == main(["doctor", str(place)])
    shown = capsys.readouterr().out
    assert "PROBLEM" not in shown
    for what in (
        "python",
        "hpc_elastic",
        "packages",
        "free space",
        "exclusive link",
        "lock, processes",
        "others",
    ):
        assert f"ok       {what} " in shown
    assert __version__ in shown
    assert f"filelock {metadata.version('filelock')}" in shown
    assert "ctl answers in" in shown
    assert "(slurm 23.02.4)" in shown
    assert f"{place} (owner uid {os.geteuid()}" in shown
    assert shown.splitlines()[-1].startswith("no problems")
    assert [] == list(place.iterdir())
    assert 0 == main(["doctor", str(place), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (1, "doctor", str(place)) == (found["format"], found["kind"], found["directory"])
    assert {"what": "python", "level": "ok", "fix": ""}.items() <= found["checks"][0].items()


def test_a_directory_that_is_not_there_yet_is_judged_by_the_one_above(
    place: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    """As submit will make it; by default the one in which it keeps runs."""
    assert 0 == main(["doctor"])
    assert f"{place}/hpc_elastic_runs is not there yet; looking at {place}\n" in capsys.readouterr().out
    assert [] == list(place.iterdir())


@pytest.mark.parametrize(
    ("directory", "said"),
    [("/proc/self", "PROBLEM  writing "), ("/dev/null", "PROBLEM  directory         /dev/null is not a dir")],
)
def test_a_directory_that_will_not_do_is_a_problem(
    programs: Programs, capsys: pytest.CaptureFixture[str], directory: str, said: str
) -> None:
    """Exit code 1 and what to do."""
    assert 1 == main(["doctor", directory])
    shown = capsys.readouterr().out
    assert said in shown
    assert "fix: " in shown


# Slurm


def _controller(programs: Programs, **environ: str) -> tuple[Level, str]:
    found = slurm_findings(Slurm({**programs.environ, **environ}), FakeClock())
    return found[1].level, found[1].value


def test_the_controller_is_asked(programs: Programs) -> None:
    """One that is up is enough."""
    assert (Level.OK, "ctl answers in 0.00 s (slurm 23.02.4)") == _controller(programs)
    down = "slurmctld at ctl is DOWN; slurmctld at ctl2 is DOWN"
    assert (Level.PROBLEM, down) == _controller(programs, CTL="DOWN")


@pytest.mark.parametrize(
    ("version", "limit", "told"),
    [
        (
            "24.11.5",
            "5",
            [(Level.OK, "24.11: hpc_elastic is tested with it"), (Level.OK, "MaxBatchRequeue 5: Slurm")],
        ),
        (
            "23.11.10",
            "5",
            [(Level.OK, "23.11: between the releases that hpc_elastic is tested with: 20.11, 22.05, 24")],
        ),
        (
            "27.05.1",
            "",
            [
                (Level.OK, "27.05: newer than the releases that hpc_elastic is tested with: 20.11, 22.05, "),
                (Level.OK, "not allowed here (enable_expedited_requeue)"),
            ],
        ),
        ("20.11.4", "5", [(Level.OK, "20.11: hpc_elastic is tested with it")]),
        ("19.05.5", "5", [(Level.WARNING, "19.05: older than the releases that hpc_elastic is tested with")]),
        ("unknown", "5", []),
    ],
)
def test_the_release_of_slurm_is_told(
    programs: Programs, version: str, limit: str, told: list[tuple[Level, str]]
) -> None:
    """And how often Slurm itself requeues a job before it holds it, where it does."""
    programs.write("sbatch", f'echo "slurm {version}"')
    answers = f'[ $1 = ping ] && {_PROGRAMS["scontrol"]} || echo "MaxBatchRequeue         = {limit}"'
    programs.write("scontrol", answers)
    found = slurm_findings(Slurm(programs.environ), SystemClock())[2:]
    assert [level for level, _ in told] == [each.level for each in found]
    for (_, text), each in zip(told, found, strict=True):
        assert each.value.startswith(text)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--requeue[=expedite]", (Level.OK, "allowed: a requeued run starts again at once")),
        ("--requeue", (Level.WARNING, "the site allows it, but sbatch here is older")),
    ],
)
def test_an_expedited_requeue_is_told(programs: Programs, option: str, told: tuple[Level, str]) -> None:
    """Of a release that has it, by the site's settings and by the sbatch of this host."""
    programs.write("sbatch", f'[ $1 = --help ] && echo "  {option}  words" || echo "slurm 26.05.5"')
    answers = (
        f'[ $1 = ping ] && {_PROGRAMS["scontrol"]} || echo "SlurmctldParameters = enable_expedited_requeue"'
    )
    programs.write("scontrol", answers)
    found = slurm_findings(Slurm(programs.environ), SystemClock())[-1]
    assert (told[0], "expedited requeue") == (found.level, found.what)
    assert found.value.startswith(told[1])


def test_slurm_that_does_not_answer_is_a_problem(programs: Programs) -> None:
    """In its own words."""
    programs.write("scontrol", "echo 'slurm_load: Unable to contact slurm controller' >&2; exit 1")
    (_, found) = slurm_findings(Slurm(programs.environ), SystemClock())
    assert (Level.PROBLEM, "slurm_load: Unable to contact slurm controller") == (found.level, found.value)
    assert "is this a login node?" in found.fix


@pytest.mark.parametrize(
    ("program", "said", "fix"),
    [
        (
            "echo 'Slurmctld(primary) at ctl is DOWN'; echo 'Slurmctld(backup) at two is DOWN'; exit 1",
            "Slurmctld(primary) at ctl is DOWN; Slurmctld(backup) at two is DOWN",
            "scontrol cannot reach a Slurm controller: is this a login node?",
        ),
        ("exit 1", "scontrol failed with exit code 1", "see the answer of scontrol ping"),
        (
            "echo 'rpc: Rate limit exceeded' >&2; exit 1",
            "rpc: Rate limit exceeded",
            "look with sinfo whether",
        ),
    ],
    ids=["down", "silent", "busy"],
)
def test_a_controller_that_is_down_has_nothing_to_do_with_nodes(
    programs: Programs, program: str, said: str, fix: str
) -> None:
    """What scontrol ping finds it tells on its standard output, and fails."""
    programs.write("scontrol", program)
    (_, found) = slurm_findings(Slurm(programs.environ), SystemClock())
    assert (Level.PROBLEM, said) == (found.level, found.value)
    assert found.fix.startswith(fix)


def test_a_missing_command_is_a_problem_and_no_slurm_a_warning(programs: Programs) -> None:
    """Without any Slurm runs can be tried locally."""
    (programs.folder / "scancel").unlink()
    found = slurm_findings(Slurm(programs.environ), SystemClock())
    assert (Level.PROBLEM, "scancel not on PATH") == (found[0].level, found[0].value)
    (none,) = slurm_findings(Slurm({"PATH": "/no/such/place"}), SystemClock())
    assert Level.WARNING is none.level
    assert "--local N" in none.fix


def test_packages_that_are_missing_or_too_old_are_a_problem() -> None:
    """With the command that installs them."""

    def wanted() -> Iterator[tuple[str, str]]:
        yield "filelock", "4.1"
        yield "psutil", "999.0"
        yield "no-such-package", "1.2"

    found = package_finding(wanted())
    assert Level.PROBLEM is found.level
    assert f"{sys.executable} -m pip install 'psutil>=999.0' 'no-such-package>=1.2'" == found.fix


@pytest.mark.parametrize(
    ("body", "level", "words"),
    [
        (
            'printf "0, GPU-a, H100, 580.1\\n1, GPU-b, H100, 580.1\\n2, GPU-c, L4, 580.1\\n"',
            Level.OK,
            "2 x H100, driver 580.1; 1 x L4, driver 580.1",
        ),
        ("echo no driver >&2; exit 9", Level.WARNING, "failed with exit code 9: no driver"),
    ],
)
def test_gpus_are_named_in_the_words_of_their_driver(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, body: str, level: Level, words: str
) -> None:
    """Without its program there is no line."""
    monkeypatch.setenv("PATH", "/no/such/place")
    assert not gpu_findings()
    program = programs.folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs.folder))
    (found,) = gpu_findings()
    assert level is found.level
    assert words in found.value


# Several nodes

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "2",
}


def test_a_step_of_several_nodes_is_recognized() -> None:
    """All its nodes meet under the same name."""
    one, two = [group_of({**STEP, "SLURMD_NODENAME": name}) for name in ("n1", "n2")]
    assert DoctorGroup(0, "n1", ("n1", "n2"), "17.0.0") == one
    assert DoctorGroup(1, "n2", ("n1", "n2"), "17.0.0") == two


@pytest.mark.parametrize(
    "environ",
    [{}, {**STEP, "SLURM_STEP_NODELIST": "n1"}, {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]"}],
    ids=["no job", "one node", "no step"],
)
def test_elsewhere_one_process_is_alone(environ: dict[str, str]) -> None:
    """On a login node, on one node, and in a batch script."""
    assert group_of(environ) is None


def _node(place: Path, name: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "doctor", str(place)],
        env={**os.environ, **STEP, "SLURMD_NODENAME": name, **environ},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_nodes_of_a_step_try_the_directory_together(place: Path) -> None:
    """The first one tells the result; the other, and a second task of a node, are quiet."""
    nodes = [_node(place, "n1"), _node(place, "n2"), _node(place, "n2", SLURM_LOCALID="1")]
    first, other, second_task = [node.communicate()[0] for node in nodes]
    assert [0, 0, 0] == [node.returncode for node in nodes]
    assert "n1, n2 see each other in it" in first
    assert "excludes between nodes" in first
    assert first.splitlines()[-1].startswith("n1: no problems")
    assert ["", ""] == [other, second_task]
    assert [] == list(place.iterdir())


def test_a_problem_of_another_node_is_told_by_itself() -> None:
    """With its name and exit code 1."""
    node = _node(Path("/proc/self"), "n2")
    shown, _ = node.communicate()
    assert 1 == node.returncode
    assert "PROBLEM  n2: writing" in shown
    assert "PROBLEM  n2: nodes together" in shown
    assert "\nok " not in shown


def test_slurm_is_asked_for_nodes(place: Path, programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    """With the user's own options of srun, after a look at this machine."""
    assert 0 == main(["doctor", str(place), "--nodes", "3", "--", "-p", "short"])
    shown = capfd.readouterr().out
    assert "free space" in shown
    assert "may take half a minute" in shown
    line = next(line for line in shown.splitlines() if line.startswith("srun "))
    assert line.startswith("srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --time=10 ")
    assert line.endswith(f" -p short {sys.executable} -I -m hpc_elastic doctor {place}")


@pytest.mark.parametrize(
    ("kind", "is_refused"), [("tmpfs", True), ("ext4", False), ("nfs4", False)], ids=["memory", "disk", "net"]
)
def test_a_directory_that_submit_refuses_is_told_of(
    place: Path,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    is_refused: bool,
) -> None:
    """The nodes see it, so runs work there with the flag that is named."""
    monkeypatch.setattr(mount, "_LOCAL_PLACES", ())
    monkeypatch.setattr(mount, "mount_at", lambda _path: Mount("/", kind, "src", ()))
    assert 0 == main(["doctor", str(place), "--nodes", "2"])
    shown = capfd.readouterr().out
    assert is_refused == (f"warning  submit  refuses it: {kind} on src is local to this machine" in shown)
    assert is_refused == ("fix: submit with --allow-local-run-dir" in shown)


def test_what_the_nodes_find_decides_the_exit_code(
    place: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever srun makes of it."""
    monkeypatch.setenv("SRUN_CODE", "3")
    assert 1 == main(["doctor", str(place), "--nodes", "2"])
    assert capfd.readouterr().out.endswith("\nthe nodes have found problems: runs will not work here\n")


def test_an_srun_that_fails_is_a_problem_with_a_fix(
    place: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own words stand above: a partition that is not there, for example."""
    monkeypatch.setenv("SRUN_CODE", "1")
    assert 1 == main(["doctor", str(place), "--nodes", "2", "--", "-p", "nosuch"])
    shown = capfd.readouterr().out
    assert "PROBLEM  srun  ended with exit code 1; its output is above" in shown
    assert "fix: compare its options (-p nosuch) with the partitions of the cluster: sinfo" in shown
    assert 1 == main(["doctor", str(place), "--nodes", "2"])
    again = capfd.readouterr().out
    assert (
        'fix: see the partitions of the cluster: sinfo -o "%P %D %c %m %G"; a partition is named by: --'
        in again
    )
    assert "1 problem" in shown.splitlines()[-1]
    assert shown.endswith(": runs will not work here\n")


def test_nodes_that_slurm_never_gives_are_not_waited_for(
    place: Path, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    """More than the partition has, for example: srun would wait for ever."""
    words = "allocation failure: Requested node configuration is not available"
    programs.write("srun", f'[ "$1" = --test-only ] || sleep 600; echo "{words}" >&2; exit 1')
    assert 1 == main(["doctor", str(place), "--nodes", "9", "--", "-p", "short"])
    shown = capfd.readouterr().out
    assert f"PROBLEM  srun  Slurm has no 9 nodes for that: {words}" in shown
    assert (
        'fix: compare with the partitions of the cluster: sinfo -o "%P %D %c %m %G"; nodes that are down'
        in shown
    )


def test_without_a_controller_no_nodes_are_asked_for(
    place: Path, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command srun would only say the same in raw lines, after a while."""
    programs.write("scontrol", "echo 'slurm_load: Unable to contact slurm controller' >&2; exit 1")
    assert 1 == main(["doctor", str(place), "--nodes", "2"])
    shown = capfd.readouterr().out
    assert "Slurm is not asked for 2 nodes" in shown
    assert "srun --nodes" not in shown
    assert "runs will not work here" in shown.splitlines()[-1]


@pytest.mark.parametrize("name", ["", " "], ids=repr)
def test_an_empty_name_is_not_the_default(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of an unset variable in a script."""
    assert 2 == main(["doctor", name])
    assert capsys.readouterr().err.startswith("error: DIR: the name of the directory is empty\n  fix: ")


def test_a_directory_that_cannot_be_seen_is_a_problem(place: Path) -> None:
    """Whether it is there nobody can tell; root needs another user's eyes for it."""
    closed = place / "closed"
    closed.mkdir(mode=0)
    before = _directory(str(place), is_alone=True)  # all that is needed is imported
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        (found,) = _directory(str(closed / "runs"), is_alone=True)
    finally:
        os.seteuid(user)
    assert Level.PROBLEM is found.level
    assert f"{closed}/runs cannot be seen: no permission on /" in found.value
    assert before


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([Level.OK, Level.INFO], "no problems"),
        ([Level.WARNING], "no problems, 1 warning"),
        (
            [Level.PROBLEM, Level.WARNING, Level.PROBLEM, Level.OK],
            "2 problems, 1 warning: runs will not work here",
        ),
    ],
)
def test_the_last_line_says_what_it_comes_to(levels: list[Level], said: str) -> None:
    """In one line."""
    assert said == verdict([Finding("a", "b", level) for level in levels])


def test_without_srun_no_nodes_can_be_asked(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear error, at once."""
    monkeypatch.setenv("PATH", "/no/such/place")
    assert 2 == main(["doctor", str(place), "--nodes", "2"])
    shown = capsys.readouterr()
    assert "" == shown.out
    assert shown.err.startswith("error: 'srun' is not on PATH")


def test_options_of_srun_need_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """They would be ignored."""
    assert 2 == main(["doctor", ".", "--", "-p", "short"])
    assert "options of srun are given (-p short)" in capsys.readouterr().err
