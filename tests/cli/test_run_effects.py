"""What the flags of `hpc-elastic run` do to real workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.testing.waiting import wait_until
from tests.cli.lines import LIMIT_S, Line
from tests.node.agents import is_running

SLEEP = "threading.Event().wait(600)\n"
FAIL = "raise ValueError('no such thing')\n"


def test_names_numbers_and_addresses(tmp_path: Path) -> None:
    """What is given reaches the workers; CPUs are shared out."""
    ended = Line(tmp_path).run(
        *("--nproc-per-node=2", "--rdzv-id=77", "--role=trainer", "--max-restarts=4"),
        *("--local-addr=localhost", "--monitor-interval=5", "w.py", "--lr", "1"),
        env={"OMP_NUM_THREADS": "3"},
    )
    assert 0 == ended.code, ended.err
    assert ["trainer"] * 2 == ended.env("ROLE_NAME")
    assert ["77"] * 2 == ended.env("TORCHELASTIC_RUN_ID")
    assert ["4"] * 2 == ended.env("TORCHELASTIC_MAX_RESTARTS")
    assert ["localhost"] * 2 == ended.env("MASTER_ADDR")
    assert ["3"] * 2 == ended.env("OMP_NUM_THREADS")
    assert [["--lr", "1"]] * 2 == [worker["args"] for worker in ended.workers]


def test_workers_are_tasks_of_their_own(tmp_path: Path) -> None:
    """What srun has told the agent of its place is no worker's; in MPI a worker has none."""
    of_agent = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "8"}
    mpi = {"PMI_RANK": "0", "PMI2_SIZE": "1", "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
    ended = Line(tmp_path).run("--nproc-per-node=2", "w.py", env={**of_agent, **mpi})
    assert 0 == ended.code, ended.err
    assert ["0", "1"] == ended.env("SLURM_PROCID") == ended.env("SLURM_LOCALID")
    assert ["2"] * 2 == ended.env("SLURM_NTASKS")
    assert ["4"] * 2 == ended.env("SLURM_CPUS_PER_TASK")
    assert [None] * 8 == [found for name in mpi for found in ended.env(name)]
    assert [f"{ended.env('MASTER_ADDR')[0]}:{ended.env('MASTER_PORT')[0]}"] * 2 == ended.env(
        "JAX_COORDINATOR_ADDRESS"
    )


@pytest.mark.parametrize(
    ("of_agent", "of_worker"),
    [
        ({"SLURM_CPUS_ON_NODE": "32"}, "16"),
        (
            {"SLURM_CPUS_PER_TASK": "8", "SLURM_CPUS_ON_NODE": "32", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            "4",
        ),
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_CPUS_ON_NODE": "32"}, "16"),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "all"}, None),
    ],
    ids=["whole node", "one of several agents", "more than was asked for", "not known"],
)
def test_workers_share_the_cpus_of_their_agent(
    tmp_path: Path, of_agent: dict[str, str], of_worker: str | None
) -> None:
    """A job script has unset what sbatch said of a task, so that the agent got its whole node."""
    ended = Line(tmp_path).run("--nproc-per-node=2", "w.py", env={"SLURM_PROCID": "0", **of_agent})
    seen = ended.env("SLURM_CPUS_PER_TASK")
    assert [of_worker] * 2 == seen if of_worker else not any(one and one.isdecimal() for one in seen)


def test_what_a_program_prints_is_seen_at_once(tmp_path: Path) -> None:
    """Unless somebody has said otherwise, also in the empty form that means so."""
    assert ["1"] == Line(tmp_path).run("w.py").env("PYTHONUNBUFFERED")
    assert [""] == Line(tmp_path).run("w.py", env={"PYTHONUNBUFFERED": ""}).env("PYTHONUNBUFFERED")


def test_a_fixed_master(tmp_path: Path) -> None:
    """Address and port come from the flags, with the default backend as with torchrun's."""
    with socket.socket() as kept:  # no other test gets the port meanwhile; who reuses addresses does
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("", 0))
        port = kept.getsockname()[1]
        ended = Line(tmp_path).run("--master-addr=127.0.0.1", f"--master-port={port}", "w.py")
    assert (["127.0.0.1"], [str(port)]) == (ended.env("MASTER_ADDR"), ended.env("MASTER_PORT")), ended.err


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """It is told before anything is started."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ended = Line(tmp_path).run(f"--master-port={port}", "w.py")
    assert 2 == ended.code
    assert ended.err.startswith(f"error: --master-port: port {port} cannot be had on {os.uname().nodename}: ")
    assert "\n  fix: choose another, or leave it out" in ended.err
    assert not ended.workers
    assert not Line(tmp_path).run_dirs()


def test_what_is_not_needed_is_told_in_one_line_each(tmp_path: Path) -> None:
    """As with torchrun, c10d has its own master."""
    ended = Line(tmp_path).run(
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-conf=is_host=1,read_timeout=60"),
        *("--master-addr=other", "--use-env", "w.py"),
    )
    assert 0 == ended.code
    assert [
        "note: --rdzv-conf: not needed here, without effect: is_host, read_timeout",
        "note: --use-env is not needed: LOCAL_RANK is always in the environment of a worker",
        "note: --master-addr is not used with --rdzv-backend c10d: each round has its own",
    ] == [line for line in ended.err.splitlines() if line.startswith("note:")]
    assert ["127.0.0.1"] == ended.env("MASTER_ADDR")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-m", "package.module"], 0),
        (["--no-python", "./program", "x"], 0),
        (["--run-path", "w.py", "x"], 0),
        (["--run-path", "--start-method=fork", "w.py"], 0),
        (["--run-path", "--start-method=forkserver", "w.py"], 0),
    ],
    ids=["module", "program", "run path", "fork", "forkserver"],
)
def test_what_a_worker_is(tmp_path: Path, words: list[str], code: int) -> None:
    """A module, a program of its own, or a script run by an interpreter that is there already."""
    line = Line(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text((tmp_path / "w.py").read_text())
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nexec "$PYTHON" w.py "$@"\n')
    program.chmod(0o755)
    ended = line.run("--nproc-per-node=2", *words, env={"PYTHON": sys.executable})
    assert code == ended.code, ended.err
    assert ["0", "1"] == ended.env("RANK")
    assert {"__main__"} == {worker["name"] for worker in ended.workers}


def test_a_script_by_run_path_leaves_its_traceback(tmp_path: Path) -> None:
    """Without a decorator in it."""
    ended = Line(tmp_path, FAIL).run("--run-path", "w.py")
    assert 1 == ended.code
    assert "error     : ValueError: no such thing" in ended.err
    assert "Traceback (most recent call last)" in ended.err


def test_the_exit_code_is_the_workers_own(tmp_path: Path) -> None:
    """Without a traceback of ours."""
    ended = Line(tmp_path, "sys.exit(7)").run("w.py")
    assert 7 == ended.code
    assert "hpc_elastic/" not in ended.err.replace("hpc_elastic_runs/", "")


def test_logs(tmp_path: Path) -> None:
    """Files per rank below the given directory, chosen ranks and lines, and a prefix as torchrun's."""
    ended = Line(tmp_path, "print('apple', flush=True); print('a,b'); print('pear')").run(
        *("--nproc-per-node=2", "--rdzv-id=5", "-t", "3", "--redirects=0:2", "--log-dir=logs"),
        *("--local-ranks-filter=1", "--duplicate-stdout-filters=apple,a,,b", "w.py"),
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}${local_rank}>"},
    )
    assert 0 == ended.code, ended.err
    assert ["<default1>apple", "<default1>a,b", "<default1>pear"] == ended.out.splitlines()
    (attempt,) = (tmp_path / "logs").glob("5_*/attempt_1")
    assert "apple\na,b\npear\n" == (attempt / "0" / "stdout.log").read_text()
    filtered = (attempt / "filtered_stdout.log").read_text()
    assert "<default1>apple\n" in filtered
    assert "<default1>a,b\n" in filtered
    assert "pear" not in filtered
    assert ended.env("TORCHELASTIC_ERROR_FILE") == [str(attempt / rank / "error.json") for rank in ("0", "1")]


def test_log_specs_of_another_package(tmp_path: Path) -> None:
    """They are found by their entry point and get what the flags say."""
    place = tmp_path / "packages"
    place.mkdir()
    (place / "theirs.py").write_text(
        "from hpc_elastic.multiprocessing import DefaultLogsSpecs\n"
        "class Specs(DefaultLogsSpecs):\n"
        "    def reify(self, envs):\n"
        "        open('specs', 'w').write(repr(self))\n"
        "        return super().reify(envs)\n"
    )
    info = place / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nmine = theirs:Specs\n")
    line = Line(tmp_path)
    path = os.pathsep.join([str(place), *sys.path])
    ended = line.run("--logs-specs=mine", "--log-dir=logs", "-r", "1", "w.py", env={"PYTHONPATH": path})
    assert 0 == ended.code, ended.err
    assert f"root_log_dir={tmp_path / 'logs'}" in (tmp_path / "specs").read_text()


@pytest.mark.parametrize("words", [["--shutdown-timeout=0.2"], []], ids=["flag", "variable"])
def test_workers_that_do_not_end_are_killed_in_time(tmp_path: Path, words: list[str]) -> None:
    """The time of the flag goes before that of the variable, 30 s."""
    script = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
others = lambda: os.path.exists("facts.0")
if os.environ["RANK"] == "1":
    while not others(): pass
    sys.exit(5)
{SLEEP}"""
    variable = "600" if words else "0.2"
    ended = Line(tmp_path, script).run(
        "--nproc-per-node=2", *words, "w.py", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": variable}
    )
    assert 5 == ended.code, ended.err


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        ([], signal.SIGQUIT, 131),
        ([], signal.SIGINT, 130),
        (["--signals-to-handle=SIGTERM,SIGQUIT"], signal.SIGQUIT, 131),
        (["--signals-to-handle=SIGTERM,SIGWINCH"], signal.SIGWINCH, 128 + signal.SIGWINCH),
        (["--signals-to-handle=SIGTERM"], signal.SIGHUP, -signal.SIGHUP),
        (["--signals-to-handle=SIGTERM"], signal.SIGINT, 130),  # Python's own action
    ],
    ids=["QUIT", "INT", "QUIT named", "another", "HUP left out", "INT left out"],
)
def test_signals(tmp_path: Path, words: list[str], number: int, code: int) -> None:
    """Those to handle end the run in order; one left out has the system's action. No worker stays."""
    line = Line(tmp_path, SLEEP)
    agent = line.start(*words, "w.py")
    wait_until(lambda: bool(line.workers()), "the worker", timeout_s=LIMIT_S)
    agent.send_signal(number)
    ended = line.end(agent)
    assert code == ended.code, ended.err
    wait_until(lambda: not is_running(ended.workers[0]["pid"]), "the worker's end")


def test_below_nohup_the_end_of_the_terminal_ends_nothing(tmp_path: Path) -> None:
    """Whoever starts a run so wants it to go on."""
    line = Line(tmp_path, "while not os.path.exists('go'): pass\n")
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        agent = line.start("w.py")
    finally:
        signal.signal(signal.SIGHUP, earlier)
    wait_until(lambda: bool(line.workers()), "the worker", timeout_s=LIMIT_S)
    agent.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    ended = line.end(agent)
    assert 0 == ended.code, ended.err
    assert "SIGHUP" not in ended.err


def test_restarts_are_counted(tmp_path: Path) -> None:
    """As far as they are allowed."""
    script = "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    ended = Line(tmp_path, script).run("--max-restarts=1", "w.py")
    assert 0 == ended.code, ended.err
    assert ["1"] == ended.env("TORCHELASTIC_RESTART_COUNT")


def test_a_virtual_local_rank(tmp_path: Path) -> None:
    """Each worker is the first of its own device."""
    ended = Line(tmp_path).run(
        *("--nproc-per-node=gpu", "--virtual-local-rank", "w.py"), env={"CUDA_VISIBLE_DEVICES": "3,5"}
    )
    assert 0 == ended.code, ended.err
    assert ["0", "0"] == ended.env("LOCAL_RANK")
    assert ["3", "5"] == ended.env("CUDA_VISIBLE_DEVICES")


def test_events_go_where_they_are_wanted(tmp_path: Path) -> None:
    """As JSON on the agent's console."""
    ended = Line(tmp_path).run("--event-log-handler=console", "w.py")
    assert 0 == ended.code, ended.err
    assert '"torchelastic.worker.status.SUCCEEDED"' in ended.err


def test_a_binding_that_cannot_be_had(tmp_path: Path) -> None:
    """Without a GPU there is nothing to be near to."""
    ended = Line(tmp_path).run("--numa-binding=node", "w.py", env={"CUDA_VISIBLE_DEVICES": ""})
    assert 2 == ended.code
    assert "error: --numa-binding: no GPU is visible" in ended.err


def test_streams_that_are_closed(tmp_path: Path) -> None:
    """What workers print goes nowhere, and not into what the agent has opened."""
    script = "open('streams', 'w').write(' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)))\n"
    line = Line(tmp_path, script)
    command = [sys.executable, "-m", *line.launcher, "w.py"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    subprocess.run(closed, cwd=tmp_path, env=env, timeout=LIMIT_S, check=True)
    assert "/dev/null /dev/null /dev/null" == (tmp_path / "streams").read_text()


def test_a_console_that_is_full_keeps_nobody_from_running(tmp_path: Path) -> None:
    """A job whose output is on a full disk goes on; its logs may be elsewhere."""
    line = Line(tmp_path)
    command = [sys.executable, "-m", *line.launcher, "--use-env", "--tee=3", "w.py"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/full", "wb") as full:
        subprocess.run(command, cwd=tmp_path, env=env, stdout=full, stderr=full, timeout=LIMIT_S, check=True)
    assert 1 == len(line.workers())


def test_nodes_variable_and_cpus(tmp_path: Path) -> None:
    """One worker per CPU of this process."""
    ended = Line(tmp_path).run("w.py", env={"PET_NPROC_PER_NODE": "cpu", "PET_STANDALONE": "1"})
    assert 0 == ended.code, ended.err
    assert len(os.sched_getaffinity(0)) == len(ended.workers)
