"""Values of single flags of `hpc-elastic run`."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc_elastic.cli.run import values as run_values
from hpc_elastic.cli.run.flags import parser
from hpc_elastic.cli.run.options import logs_of, prefix_of, work_of
from hpc_elastic.errors import InputError
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.paths import RunPaths
from hpc_elastic.processes.numa import AffinityMode
from hpc_elastic.settings.of_commands import RUN
from hpc_elastic.slurm.client.environment import SlurmEnv

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
TERM, INT, HUP, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT
USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


@pytest.fixture(autouse=True)
def _without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have no GPU, whatever it has."""
    monkeypatch.setattr(run_values, "_names", lambda _directory: [])


@pytest.mark.parametrize(
    ("text", "env", "count"),
    [
        ("3", {}, 3),
        (None, {}, 1),
        (None, {"CUDA_VISIBLE_DEVICES": "0,1"}, 1),
        ("gpu", {"CUDA_VISIBLE_DEVICES": "0,2,5"}, 3),
        ("auto", {"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ("gpu", {"CUDA_VISIBLE_DEVICES": "GPU-1a,MIG-2b"}, 2),
        ("gpu", {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        ("gpu", {"ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ("gpu", {**STEP, "SLURM_GPUS_ON_NODE": "4"}, 4),
        (None, {**STEP, "SLURM_GPUS_ON_NODE": "4"}, 4),
        (None, STEP, 1),
        ("1", {**STEP, "SLURM_GPUS_ON_NODE": "4"}, 1),
        ("gpu", {**STEP, "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_workers_per_node(text: str | None, env: Mapping[str, str], count: int) -> None:
    """What is visible to the agent goes before what the node has."""
    assert count == run_values.slots(text, SlurmEnv.from_environ(env), env)


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_no_gpu(visible: str) -> None:
    """``auto`` takes the CPUs, ``gpu`` is an error."""
    env = {"CUDA_VISIBLE_DEVICES": visible}
    cpus = len(os.sched_getaffinity(0))
    assert cpus == run_values.slots("auto", None, env) == run_values.slots("cpu", None, env)
    with pytest.raises(InputError, match="gpu: no GPU is visible on this node"):
        run_values.slots("gpu", None, env)


def test_gpus_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device files of NVIDIA; of AMD nodes of the driver that have compute units."""
    monkeypatch.setattr(run_values, "_names", lambda _directory: ["nvidia0", "nvidia1", "nvidiactl", "null"])
    assert 2 == run_values.gpus(None, {})
    monkeypatch.setattr(run_values, "_names", os.listdir)
    for node, units in enumerate((0, 304, 304)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\n")
    assert 2 == run_values._amd_gpus(str(tmp_path))


@pytest.mark.parametrize(
    ("handled", "drain", "interrupt", "warning"),
    [
        (None, {TERM, HUP, QUIT}, {INT}, {USR1, USR2}),
        ("SIGTERM,SIGINT,SIGHUP,SIGQUIT", {TERM, HUP, QUIT}, {INT}, {USR1, USR2}),
        ("SIGTERM", {TERM}, set(), {USR1, USR2}),
        ("SIGTERM,SIGINT,SIGUSR1", {TERM}, {INT}, {USR1, USR2}),
        ("TERM, winch", {TERM, signal.SIGWINCH}, set(), {USR1, USR2}),
        ("", set(), set(), {USR1, USR2}),
    ],
)
def test_which_signals_end_the_run(
    handled: str | None, drain: set[int], interrupt: set[int], warning: set[int]
) -> None:
    """Ours keep their meaning, others in the list mean to leave; torchrun's that are not are left alone."""
    found = run_values.meanings(("TERM", "HUP"), ("USR1", "USR2"), handled)
    assert (drain, interrupt, warning) == (set(found.drain), set(found.interrupt), set(found.warning))


@pytest.mark.parametrize(("handled", "drain"), [(None, {TERM, QUIT}), ("SIGTERM,SIGHUP", {TERM, HUP})])
def test_a_signal_that_is_ignored_stays_so(handled: str | None, drain: set[int]) -> None:
    """Unless somebody says that it is to be handled."""
    assert drain == {*run_values.meanings(("TERM", "HUP"), ("USR1",), handled, [HUP]).drain}


def test_a_signal_that_is_given_another_meaning() -> None:
    """As a warning it does not end the run at once."""
    found = run_values.meanings(("USR1",), ("TERM",), None)
    assert ({USR1, HUP, QUIT}, (TERM,)) == (set(found.drain), found.warning)


def test_names_of_ways_are_those_of_the_parts() -> None:
    """They are written out here to keep the start light."""
    kinds = {row.name: row.kind for row in RUN}
    assert [mode.value for mode in AffinityMode] == list(kinds["numa_binding"].choices)
    assert ("spawn", "fork", "forkserver") == kinds["start_method"].choices


def work(*words: str) -> tuple[str, ...]:
    """Return the command of a worker."""
    return work_of(parser().parse_args([*words])).argv


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the interpreter of this process, or the one that the environment names."""
    monkeypatch.setenv("PYTHON_EXEC", "/py")
    assert ("/py", "-u", "a.py", "-x") == work("a.py", "-x")
    assert ("/py", "-u", "-m", "a", "-x") == work("-m", "a", "-x")
    assert ("a", "-x") == work("--no-python", "a", "-x")
    assert ("box", "--rw", "/py", "-u", "a.py") == work("--container=box --rw", "a.py")
    assert ("a.py", "-x") == work_of(parser().parse_args(["--run-path", "--no-python", "a.py", "-x"])).args


def test_where_logs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is given holds one per run; whoever changes directory finds it again."""
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(tmp_path / "run")

    def logs(*words: str) -> object:
        return logs_of(parser().parse_args([*words, "a.py"]), paths)

    assert DefaultLogsSpecs(paths.logs, is_of_run=True) == logs()
    expected = DefaultLogsSpecs(str(tmp_path / "x" / "run"), Std.OUT, {1: Std.ERR}, {0, 2}, is_of_run=True)
    assert expected == logs("--log-dir=x", "-r", "1", "-t", "1:2", "--local-ranks-filter=0,2")
    assert DefaultLogsSpecs(os.devnull) == logs("--log-dir=/dev/null")


def test_prefixes() -> None:
    """The flag goes before the variable."""
    args = parser().parse_args(["a.py"])
    assert "[rank ${rank}] " == prefix_of(args, {})
    assert "x" == prefix_of(args, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "x"})
    args = parser().parse_args(["--log-line-prefix-template=", "a.py"])
    assert "" == prefix_of(args, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "x"})
