"""Probes on this machine, by themselves and in whole agents."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.probe import Probe, ProbedNode, ProbingAgent, count_files, measure, run_program
from hpc_elastic.node.probe_rules import ProbeOptions, judge
from hpc_elastic.record.journal import Cause, Drained, NodeUnfit, RoundEnded
from hpc_elastic.record.state import RunState
from hpc_elastic.store.node_events import Fault
from hpc_elastic.store.node_ledger import place_for, read_ledger
from tests.node.agents import SLEEP, MakeAgents, slurm, wait_for


@pytest.fixture
def place(tmp_path: Path) -> ProbedNode:
    """Return this machine as a node below Slurm."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    where = str(tmp_path)
    return ProbedNode("n1", where, where, where, 2, environ, below_slurm=True, gpus=None, is_first=True)


@pytest.fixture
def said() -> list[str]:
    """Return what the agent has said."""
    return []


@pytest.fixture
def agent(said: list[str]) -> Iterator[ProbingAgent]:
    """Return the agent around a probe."""
    loop = EventLoop(SystemClock())
    yield ProbingAgent(loop, SystemClock(), said.append, lambda: None)
    loop.close()


def test_measuring_a_node(place: ProbedNode, tmp_path: Path) -> None:
    """GPU files are counted, disks measured, CPUs of this process told."""
    for name in ("gpu0", "gpu1", "other"):
        (tmp_path / name).touch()
    place = place._replace(environ={**place.environ, "SLURM_CPUS_ON_NODE": "1"}, gpus=2)
    found = measure(place, ProbeOptions(gpu_devices=f"{tmp_path}/gpu*"), SystemClock())
    assert (2, 2) == (found.gpus_promised, found.gpu_files)
    assert [str(tmp_path)] * 2 == [disk.path for disk in found.disks]
    assert [True, False] == [disk.is_shared for disk in found.disks]
    assert (len(os.sched_getaffinity(0)), 1) == (found.cpus, found.cpus_asked)


class Stalling(SystemClock):
    """A clock by which some listings of the run directory take half a minute."""

    def __init__(self, *seconds: float) -> None:
        self._times = [time for second in seconds for time in (0.0, second)]

    def monotonic(self) -> float:
        """Return the next time."""
        return self._times.pop(0)


@pytest.mark.parametrize(("seconds", "is_fatal"), [((30.0, 0.1), False), ((30.0, 30.0), True)])
def test_an_outage_that_is_over_is_no_fault_of_the_node(
    place: ProbedNode, seconds: tuple[float, ...], is_fatal: bool
) -> None:
    """All nodes have waited for the file system then; what goes on waiting stays out."""
    found = measure(place._replace(below_slurm=False), ProbeOptions(), Stalling(*seconds))
    (finding,) = [one for one in judge(found, ProbeOptions()) if "a listing took" in one.text]
    assert ("a listing took 30.0 s" in finding.text, is_fatal) == (True, finding.is_fatal)


def test_counting_device_files(tmp_path: Path) -> None:
    """A directory that is not there has none of them."""
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert 1 == count_files(f"{tmp_path}/nvidia[0-9]*")
    assert 0 == count_files(f"{tmp_path}/none/nvidia*")


def test_a_program_runs_to_its_end(place: ProbedNode, agent: ProbingAgent) -> None:
    """Its exit code and its last line are known, and it knows the node."""
    script = 'echo "$HPC_ELASTIC_NODE is slow"; echo; exit 3'
    said = run_program(("/bin/sh", "-c", script), 30, place, agent)
    assert (3, "n1 is slow") == (said.exit_code, said.last_line)


def test_what_a_check_prints_is_shown_if_it_fails(
    place: ProbedNode, agent: ProbingAgent, said: list[str]
) -> None:
    """The last lines go to the log, the very last one is the reason."""
    probe = Probe(ProbeOptions(command="seq 30; false"), place, agent)
    assert probe(RunState()).endswith("ended with 1 (0 is needed): 30")
    assert [f"health command: {number}" for number in range(21, 30)] == said


def test_a_program_that_takes_too_long_is_killed(place: ProbedNode, agent: ProbingAgent) -> None:
    """It and its children are gone after its time."""
    said = run_program(("/bin/sh", "-c", "echo begun; sleep 600 & sleep 600"), 0.3, place, agent)
    assert (None, "begun", False) == (said.exit_code, said.last_line, said.was_interrupted)


def test_a_signal_to_the_agent_ends_the_program(place: ProbedNode, agent: ProbingAgent) -> None:
    """The agent has something else to do; nothing is held against the node."""
    agent.loop.signals.append(signal.SIGTERM)
    probe = Probe(ProbeOptions(command="sleep 600"), place, agent)
    assert "" == probe(RunState())


def test_a_program_that_does_not_exist(place: ProbedNode, agent: ProbingAgent) -> None:
    """It counts as failed."""
    said = run_program(("/no/such/program",), 30, place, agent)
    assert 127 == said.exit_code


def failed(cause: Cause, node: str) -> RunState:
    """Return the state after a round that ended for a failure on a node."""
    return RunState(ended=RoundEnded(1, cause, (node,), None))


def test_a_node_is_asked_again_after_a_failure_on_it(
    place: ProbedNode, agent: ProbingAgent, tmp_path: Path
) -> None:
    """It is looked at before the first round, and before another one if workers failed there."""
    log = tmp_path / "asked"
    probe = Probe(ProbeOptions(command=f"echo >> {log}"), place, agent)
    states = [
        RunState(),
        RunState(),
        failed(Cause.CRASH, "n2"),
        failed(Cause.MEMBERSHIP, "n1"),
        failed(Cause.CRASH, "n1"),
        failed(Cause.HANG, "n1"),
    ]
    counts = []
    for state in states:
        assert "" == probe(state)
        counts.append(len(log.read_text().splitlines()))
    assert [1, 1, 1, 1, 2, 3] == counts


@pytest.mark.parametrize(("is_first", "lines"), [(True, 1), (False, 0)])
def test_one_node_tells_what_all_find(
    place: ProbedNode, agent: ProbingAgent, said: list[str], is_first: bool, lines: int
) -> None:
    """Too few CPUs for the workers are told by the first node alone, once: a failure changes nothing."""
    probe = Probe(ProbeOptions(), place._replace(workers=10_000, is_first=is_first), agent)
    for state in (RunState(), RunState(ended=RoundEnded(1, Cause.CRASH, ("n1",), {}))):
        probe(state)
    assert lines == len([line for line in said if "10000 workers share" in line])


def test_a_closer_look_writes_into_the_run_directory(
    place: ProbedNode, agent: ProbingAgent, tmp_path: Path
) -> None:
    """In the full mode a run directory in which nothing can be written keeps the node out."""
    options = ProbeOptions(mode="full")
    assert "" == Probe(options, place, agent)(RunState())
    gone = str(tmp_path / "gone")
    assert "run directory: writing" in Probe(options, place._replace(run_dir=gone), agent)(RunState())


def test_nothing_is_looked_at_where_it_is_switched_off(place: ProbedNode, agent: ProbingAgent) -> None:
    """With mode `off` a node without space joins."""
    options = ProbeOptions(min_space=1 << 60)
    assert "free" in Probe(options, place, agent)(RunState())
    assert "" == Probe(options._replace(mode="off"), place, agent)(RunState())


NVIDIA_SMI = """#!/bin/sh
case "$*" in
*compute-apps*) echo "GPU-aaaa, $HOLDER, /opt/their/python" ;;
*mig.mode*)
    echo asked >> "$ASKED"
    used=70000
    test "$(wc -l < "$ASKED")" -lt "$FREE_AT" || used=3
    test "$HPC_ELASTIC_NODE" = n1 || used=3
    echo "0, GPU-aaaa, $used, 81920, Disabled" ;;
*) echo "0, GPU-aaaa, 0" ;;
esac
"""
NEVER = 10**9


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """Return a function that puts a driver's program there; it says from which look on the GPU of n1 is free.

    This process holds the memory until then.
    """

    def put(free_at: int) -> dict[str, str]:
        folder = tmp_path / "driver"
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(NVIDIA_SMI)
        program.chmod(0o755)
        own = {"HOLDER": str(os.getpid()), "ASKED": str(tmp_path / "asked"), "FREE_AT": str(free_at)}
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **own}

    return put


class Leaping(SystemClock):
    """A clock that leaps to the end of all waits when something is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def monotonic(self) -> float:
        """Return the time with all leaps."""
        return super().monotonic() + 1e6 * len(self.said)


def test_gpu_memory_that_others_hold_keeps_a_node_out(
    place: ProbedNode, agent: ProbingAgent, tmp_path: Path, nvidia_smi: Callable[[int], dict[str, str]]
) -> None:
    """After a failure there, or before the first round in the full mode; its holder is named."""
    place = place._replace(gpus=1, environ={**place.environ, **nvidia_smi(NEVER)})
    options, clock = ProbeOptions(gpu_devices=str(tmp_path / "*")), Leaping()
    agent = agent._replace(clock=clock, say=clock.said.append)
    probe = Probe(options, place, agent)
    assert "" == probe(RunState())
    assert not (tmp_path / "asked").exists()
    text = probe(failed(Cause.CRASH, "n1"))
    user = pwd.getpwuid(os.getuid()).pw_name
    holder = f"process {os.getpid()} (python of {user})"
    assert text.startswith(f"GPU 0 (GPU-aaaa): 68.4 of 80.0 GiB are in use by {holder}, not by this run")
    assert [f"{text.partition(', after')[0]}; waiting for up to 60 s"] == clock.said
    full = options._replace(mode="full")
    assert "" == Probe(full, place._replace(node="n2"), agent)(RunState())
    assert text == Probe(full, place, agent)(RunState())


def test_gpu_memory_that_is_let_go_of_is_waited_for(
    place: ProbedNode, agent: ProbingAgent, tmp_path: Path, nvidia_smi: Callable[[int], dict[str, str]]
) -> None:
    """A driver frees the memory of processes that have ended a little later."""
    place = place._replace(gpus=1, environ={**place.environ, **nvidia_smi(2)})
    probe = Probe(ProbeOptions(gpu_devices=str(tmp_path / "*")), place, agent)
    assert "" == probe(failed(Cause.CRASH, "n1"))
    assert 2 == len((tmp_path / "asked").read_text().splitlines())


@pytest.mark.slow
def test_a_node_whose_gpu_another_process_holds_is_left_out_of_a_run(
    make: MakeAgents, nvidia_smi: Callable[[int], dict[str, str]]
) -> None:
    """After its first failure: the others go on, and the reason has the process in it."""
    agents = make(
        "if os.environ['HPC_ELASTIC_NODE'] == 'n1':\n    raise RuntimeError('CUDA out of memory')\n"
        "if os.environ['WORLD_SIZE'] == '6':\n    import time; time.sleep(600)\n"
    ).submitted()
    driver = nvidia_smi(NEVER)
    for node in range(3):
        flags = ("--nnodes=2:3", "--max-restarts=9", "--health-timeout=8")
        gpus = {"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
        agents.start(node, *flags, env={**slurm(f"n{node}", "n[0-2]"), **gpus, **driver})
    assert [0, ExitCode.UNFIT, 0] == [agents.code(node) for node in range(3)]
    (unfit,) = agents.entries(NodeUnfit)
    assert ("n1", False) == (unfit.node, unfit.by_failures)
    assert f"in use by process {os.getpid()}" in unfit.reason
    assert [3, 2] == [len(formed.members) for formed in agents.rounds()]


CHECK = 'test "$HPC_ELASTIC_NODE" != n2 || { echo "the disk is on fire"; exit 1; }'


def start_all(start: Callable[..., object], *flags: str) -> None:
    """Start agents on three nodes of a job."""
    for node in range(3):
        start(node, *flags, "--health-command", CHECK, env=slurm(f"n{node}", "n[0-2]"))


def test_an_unfit_node_stays_out_of_a_run(make: MakeAgents) -> None:
    """The two others form the round at once, without waiting for the last call."""
    agents = make("").submitted()
    start_all(agents.start, "--nnodes", "2:3", "--last-call-timeout", "600")
    assert [0, 0, ExitCode.UNFIT] == [agents.code(node) for node in (0, 1, 2)]
    (unfit,) = agents.entries(NodeUnfit)
    assert ("n2", True) == (unfit.node, "the disk is on fire" in unfit.reason)
    assert [["n0", "n1"]] == [[member.node for member in formed.members] for formed in agents.rounds()]
    assert "n2 is unfit and stays out: health command ended with 1" in agents.output(2)


def test_the_batch_script_of_an_unfit_node_goes_on(make: MakeAgents) -> None:
    """The node on which the batch script runs is unfit: the others do not take it for lost."""
    agents = make("").submitted()
    for node in range(3):
        agents.start(
            *(node, "--nnodes", "2:3", "--health-command", CHECK.replace("n2", "n0")),
            env=slurm(f"n{node}", "n[0-2]"),
        )
    assert [ExitCode.UNFIT, 0, 0] == [agents.code(node) for node in (0, 1, 2)]
    assert "batch host" not in agents.output(1)


def test_a_job_with_too_few_fit_nodes_is_handed_back(make: MakeAgents) -> None:
    """If all nodes are needed, the fit ones leave at once, to come back with another node."""
    agents = make("").submitted()
    start_all(agents.start, "--nnodes", "3")
    codes = [agents.code(node) for node in (0, 1, 2)]
    assert ([ExitCode.REQUEUE, ExitCode.REQUEUE], ExitCode.UNFIT) == (codes[:2], codes[2])
    (drained,) = agents.entries(Drained)
    assert Cause.NODE_LOSS is drained.cause
    assert not agents.rounds()


def test_a_node_that_became_unfit_does_not_come_back(make: MakeAgents, tmp_path: Path) -> None:
    """Workers fail on a node whose check then fails, too: the next round goes without it."""
    broken = tmp_path / "broken"
    check = f'test "$HPC_ELASTIC_NODE" != n1 -o ! -e {broken}'
    agents = make(
        f"import time\nif os.environ['RANK'] == '2':\n"
        f"    open({str(broken)!r}, 'w').close()\n    sys.exit(5)\n"
        "if os.environ['WORLD_SIZE'] == '4': time.sleep(600)\n"
    ).submitted()
    for node in (0, 1):
        flags = ("--nnodes", "1:2", "--max-restarts", "3", "--health-command", check)
        agents.start(node, *flags, env=slurm(f"n{node}", "n[0-1]"))
    assert [0, ExitCode.UNFIT] == [agents.code(0), agents.code(1)]
    assert [["n0", "n1"], ["n0"]] == [[one.node for one in formed.members] for formed in agents.rounds()]


def test_an_agent_that_is_told_to_leave_ends_its_check(make: MakeAgents, tmp_path: Path) -> None:
    """A signal while the check runs: the agent leaves at once, and the node is not unfit."""
    begun = tmp_path / "begun"
    agents = make(SLEEP)
    agent = agents.start(0, "--nnodes", "2", "--health-command", f"touch {begun}; sleep 600")
    wait_for(begun.exists, "the check")
    agent.send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert [] == agents.entries(NodeUnfit)


def test_a_run_of_ones_own_script_remembers_its_nodes(make: MakeAgents) -> None:
    """Without a batch script of ours the agents themselves write into the ledger."""
    agents = make("")
    own = {name: value for name, value in slurm("n2", "n[1-2]").items() if name != "HPC_ELASTIC_SUBMISSION"}
    agents.start(0, "--nnodes", "1:2", "--health-command", CHECK, env=own)
    assert ExitCode.UNFIT == agents.code(0)
    (event,) = read_ledger(place_for(agents.paths.root)).events
    assert ("n2", Fault.UNFIT, agents.paths.name) == (event.host, event.fault, event.run)
