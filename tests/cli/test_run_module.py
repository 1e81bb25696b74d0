"""``hpc_elastic.run`` as a module: the functions of torch.distributed.run."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from hpc_elastic import run
from hpc_elastic.launcher import LaunchConfig
from hpc_elastic.multiprocessing import DefaultLogsSpecs
from hpc_elastic.multiprocessing.errors import ChildFailedError
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.processes.numa import AffinityMode, NumaOptions
from tests.cli.lines import REPORT, Line


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start there, with a script, and bring the environment back that a launch changes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.py").write_text(REPORT + "sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)")
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE"):
        monkeypatch.setenv(name, "1")
        monkeypatch.delenv(name)


def config(*words: str) -> tuple[LaunchConfig, object, list[str]]:
    """Return what a line becomes."""
    return run.config_from_args(run.parse_args([*words]))


def test_the_smallest_line() -> None:
    """The defaults of torchrun."""
    found, command, args = config("--master-port=29500", "w.py", "-x")
    assert isinstance(found, LaunchConfig)
    assert (1, 1, 1) == (found.min_nodes, found.max_nodes, found.nproc_per_node)
    assert ("none", "default", "static") == (found.run_id, found.role, found.rdzv_backend)
    assert "127.0.0.1:29500" == found.rdzv_endpoint
    assert {"rank": 0}.items() <= found.rdzv_configs.items()
    assert (0, 0.1, "spawn") == (found.max_restarts, found.monitor_interval, found.start_method)
    assert (sys.executable, ["-u", "w.py", "-x"]) == (command, args)


def test_a_line_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag has its place in the configuration."""
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${rank}>")
    monkeypatch.setenv("PYTHON_EXEC", "/python")
    found, command, args = config(
        *("--nnodes=2:4", "--nproc-per-node=3", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400"),
        *("--rdzv-id=7", "--rdzv-conf=join_timeout=5,is_host=1", "--max-restarts=2", "--role=trainer"),
        *("--monitor-interval=4", "--start-method=fork", "--event-log-handler=console", "--local-addr=n2"),
        *("-r", "0:1", "-t", "3", "--log-dir=logs", "--local-ranks-filter=0,1", "--numa-binding=node"),
        *("--signals-to-handle=SIGTERM", "--shutdown-timeout=7", "--virtual-local-rank", "--lease=9"),
        *("--duplicate-stdout-filters=a,,b,c", "--duplicate-stderr-filters=d", "-m", "w", "-x"),
    )
    specs = DefaultLogsSpecs("logs", {0: Std.OUT}, Std.ALL, {0, 1})
    assert (
        LaunchConfig(
            min_nodes=2,
            max_nodes=4,
            nproc_per_node=3,
            logs_specs=specs,
            run_id="7",
            role="trainer",
            rdzv_endpoint="n1:29400",
            rdzv_backend="c10d",
            rdzv_configs={"join_timeout": "5", "is_host": "1", "lease": 9.0, "timeout": 900},
            max_restarts=2,
            monitor_interval=4.0,
            start_method="fork",
            log_line_prefix_template="${rank}>",
            local_addr="n2",
            event_log_handler="console",
            numa_options=NumaOptions(AffinityMode.NODE),
            signals_to_handle="SIGTERM",
            duplicate_stdout_filters=["a,b", "c"],
            duplicate_stderr_filters=["d"],
            virtual_local_rank=True,
            shutdown_timeout=7.0,  # type: ignore[arg-type]
        )
        == found
    )
    assert ("/python", ["-u", "-m", "w", "-x"]) == (command, args)


@pytest.mark.parametrize(
    ("words", "command", "args"),
    [
        (("--no-python", "prog", "-x"), "prog", ["-x"]),
        (("--run-path", "w.py", "-x"), run.run_script_path, ["w.py", "-x"]),
    ],
    ids=["program", "run path"],
)
def test_what_a_worker_is(words: tuple[str, ...], command: object, args: list[str]) -> None:
    """A program, or a function that runs the script."""
    assert (command, args) == config("--master-port=1", *words)[1:]


def test_a_line_of_the_older_launcher() -> None:
    """Its namespace says that scripts want ``--local-rank``."""
    args = run.parse_args(["w.py", "-x"])
    assert run.get_use_env(args)
    args.use_env = False
    assert not run.get_use_env(args)
    _, _, words = run.config_from_args(args)
    assert ["-u", "w.py", "--local-rank=${local_rank}", "-x"] == words


def test_small_functions() -> None:
    """As in torch."""
    assert (1, 1) == run.parse_min_max_nnodes("1")
    assert (2, 20) == run.parse_min_max_nnodes("2:20")
    with pytest.raises(RuntimeError, match='nnodes=2:20:30 is not in "MIN:MAX" format'):
        run.parse_min_max_nnodes("2:20:30")
    assert 4 == run.determine_local_world_size("4")
    assert len(os.sched_getaffinity(0)) == run.determine_local_world_size("cpu")
    place = Namespace(rdzv_backend="static", rdzv_endpoint="", master_addr="n1", master_port=1)
    assert "n1:1" == run.get_rdzv_endpoint(place)
    place.rdzv_endpoint = "n2:2"
    assert "n2:2" == run.get_rdzv_endpoint(place)


@pytest.mark.parametrize(
    "words",
    [
        ("--nnodes=3:2", "w.py"),
        ("--nnodes=0", "w.py"),
        ("--nproc-per-node=unknown", "w.py"),
        ("--no-python", "--module", "w.py"),
        ("--local-ranks-filter=a", "w.py"),
        ("--logs-specs=nix", "w.py"),
        ("-r", "9", "w.py"),
        ("--signals-to-handle=SIGFOO", "w.py"),
        ("--rdzv-conf=x", "w.py"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_used(words: tuple[str, ...]) -> None:
    """It is an error of the kinds that torch raises, before anything is started."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each has a text of its own
        run.main(list(words))
    assert str(caught.value)
    assert not Path("hpc_elastic_runs").exists()


def workers() -> list[str]:
    """Return the ranks that have left something here."""
    return sorted(path.suffix[1:] for path in Path().glob("facts.*"))


def test_main_runs_a_line_and_returns_nothing() -> None:
    """In a run directory of its own, as the command does."""
    assert run.main(["--nproc-per-node=2", "w.py"]) is None  # type: ignore[func-returns-value]
    assert ["0", "1"] == workers()
    assert 1 == len(list(Path("hpc_elastic_runs").glob("run-*/logs/attempt_1")))


def test_main_raises_what_the_workers_have_died_of() -> None:
    """With the failure of each of this node's."""
    with pytest.raises(ChildFailedError) as caught:
        run.main(["--standalone", "w.py", "7"])
    assert [7] == [failure.exitcode for failure in caught.value.failures.values()]


def test_two_lines_with_one_id_one_after_the_other() -> None:
    """The second is another run."""
    words = ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400", "--rdzv-id=100"]
    conf = "--rdzv-conf='join_timeout=5,last_call_timeout=0.1,timeout=5'"
    for number in (1, 2):
        run.main([*words, conf, "w.py"])
        assert number == len(list(Path("hpc_elastic_runs").iterdir()))
    assert ["0"] == workers()


def test_a_fixed_master() -> None:
    """The static rendezvous."""
    run.main(
        ["--nproc-per-node=2", "--master-addr=localhost", "--master-port=29511", "--node-rank=0", "w.py"]
    )
    assert ["0", "1"] == workers()


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m hpc_elastic.run``."""
    line = Line(tmp_path, "sys.exit(7)")
    line.launcher = ("hpc_elastic.run",)
    ended = line.run("w.py")
    assert 7 == ended.code
    assert "Traceback" not in ended.err
    wrong = line.run("w.py", env={"PET_STANDALONE": "maybe"})
    assert (2, "error: PET_STANDALONE: 'maybe' is neither 1 nor 0") == (wrong.code, wrong.err.splitlines()[0])


PLUGIN = """
from hpc_elastic.errors import RendezvousTimeoutError
from hpc_elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

class Mine(StaticTCPRendezvous):
    def get_backend(self):
        return "mine"

    def next_rendezvous(self):
        if "late" in self.run_id:
            raise RendezvousTimeoutError("nobody came")
        return super().next_rendezvous()

def creator():
    return lambda params: Mine("127.0.0.1", 29512, 0, 1, params.run_id)
"""


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("7", 7)])
def test_a_plug_in_brings_the_nodes_together(tmp_path: Path, code: str, expected: int) -> None:
    """The command that knows no such backend names the one that does."""
    (tmp_path / "theirs.py").write_text(PLUGIN)
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchrun.handlers]\nmine = theirs:creator\n")
    both_there = "while not all(os.path.exists(f'facts.{rank}') for rank in '01'): pass\n"
    line = Line(tmp_path, f"{both_there}sys.exit(int(sys.argv[1]))")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    refused = line.run("--rdzv-backend=mine", "w.py", code, env=env)
    assert (2, []) == (refused.code, refused.workers)
    assert "the same line after python -m hpc_elastic.run" in refused.err
    line.launcher = ("hpc_elastic.run",)
    ended = line.run("--rdzv-backend=mine", "--nproc-per-node=2", "w.py", code, env=env)
    assert expected == ended.code, ended.err
    assert ["0", "1"] == ended.env("RANK")
    assert "Traceback" not in ended.err
    late = line.run("--rdzv-backend=mine", "--rdzv-id=late", "w.py", code, env=env)
    assert (76, "error: nobody came\n") == (late.code, late.err)
    unknown = line.run("--rdzv-backend=nobodys", "w.py", code, env=env)
    assert 2 == unknown.code
    assert unknown.err.startswith("error: The rendezvous backend 'nobodys' is not registered.")


def test_a_worker_of_run_path_imports_little() -> None:
    """The function's module is on each worker's path to its script."""
    code = "import sys, hpc_elastic.run; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"hpc_elastic.start.agent", "hpc_elastic.launcher", "hpc_elastic.cli.run.options"} & loaded


def test_what_torchs_older_launcher_is_called_here_says_what_to_use() -> None:
    """It neither runs nothing in silence nor reports success."""
    done = subprocess.run(
        [sys.executable, "-m", "hpc_elastic.start.agent", "train.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "fix: hpc-elastic run" in done.stderr
