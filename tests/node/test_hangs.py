"""Real workers that make no progress, and real ones that only look so."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import Cause, HangSuspected, RoundEnded
from tests.node.agents import QUICK as FAST_BEATS
from tests.node.agents import Agents, MakeAgents, wait_for

pytestmark = pytest.mark.slow

TWO = ("--nnodes", "2", "--lease", "30")  # no node is lost here, however busy the machine is
QUICK = ("--hang-timeout", "1.5", *TWO)
TRAIN = """
import signal, sys, threading, time
from hpc_elastic import worker
rank, number = int(os.environ["RANK"]), int(os.environ["HPC_ELASTIC_ROUND"])

def train(steps, pause_s=0.02):
    for step in range(steps):
        time.sleep(pause_s)
        worker.tick(step + 1)

def meet(step):
    there = f"{place}/there.{number}"
    os.makedirs(there, exist_ok=True)
    open(f"{there}/{rank}", "w").close()
    while len(os.listdir(there)) < 4:
        worker.tick(step)
        time.sleep(0.02)

def wait_for_peers():
    time.sleep(600)

def load_batch():
    time.sleep(600)
"""
"""Start of every worker here."""

STUCK = "load_batch()"
SPIN = "exec('while True: pass')"
BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); load_batch()"
SECTION = "worker.section('eval', timeout=1).__enter__(); train(10000)"

LOCKSTEP = """
def of_rank_3():
    try:
        return int(open(place + "/worker.1.3.step").read())
    except FileNotFoundError:
        return 0

step = 0
is_over = lambda: os.path.exists(place + "/end")
while not is_over():
    step += 1
    if rank == 3:
        open(file + ".tmp", "w").write(str(step))
        os.rename(file + ".tmp", file + ".step")
    while of_rank_3() < step and not is_over():
        time.sleep(0.01)
    worker.tick(step)
"""
"""No rank is ahead of rank 3."""


def hang(code: str, rounds: str = "1") -> str:
    """Return a worker whose rank 3 runs `code` after five steps in some rounds; the others wait for it."""
    return f"""{TRAIN}
if str(number) in {rounds!r}.split():
    train(5 if rank == 3 else 6, 0.1)
    meet(5 if rank == 3 else 6)  # so that none is behind only because it has started late
    if rank == 3:
        {code}
    wait_for_peers()
train(5)
"""


def run_two(agents: Agents, *flags: str) -> list[str]:
    """Run the agents of two nodes and return what they print."""
    for node in (0, 1):
        agents.start(node, *QUICK, *flags)
    return [agents.output(node) for node in (0, 1)]


def stacks(agents: Agents, number: int = 1) -> dict[str, str]:
    """Return the files with the stacks of a round's ranks."""
    directory = Path(agents.paths.hang_logs(number, 1))
    return {file.stem: file.read_text() for file in directory.glob("rank*.txt")}


@pytest.mark.parametrize(
    ("code", "frame"),
    [(STUCK, "load_batch"), (SPIN, "<module>")],
    ids=["asleep-in-c", "busy"],
)
def test_a_rank_that_hangs_is_named_and_all_start_again(make: MakeAgents, code: str, frame: str) -> None:
    """The stacks of all ranks of both nodes are written before anybody is ended; the odd one is told."""
    agents = make(hang(code))
    outputs = run_two(agents)
    assert [0, 0] == [agents.code(0), agents.code(1)]
    (ended,) = agents.entries(RoundEnded)
    assert Cause.HANG is ended.cause
    counts = [
        {worker["TORCHELASTIC_RESTART_COUNT"] for worker in agents.workers(number)} for number in (1, 2)
    ]
    assert [{"0"}, {"1"}] == counts, "a hang is a restart, as in torch, where a watchdog kills the worker"
    assert (3, 5) == (ended.failure["rank"], ended.failure["step"])
    assert ended.nodes == (ended.failure["node"],)
    assert ended.failure["stands_out"]
    assert ended.failure["silent_s"] >= 1.5
    message = ended.failure["message"]
    assert re.search(r"rank 3 \(\S+\): step 5, in " + re.escape(frame), message)
    assert "the 3 others: step 6, in wait_for_peers" in message
    found = stacks(agents)
    assert {"rank0", "rank1", "rank2", "rank3"} == set(found)
    assert "in wait_for_peers" in found["rank0"]
    assert f"in {frame}" in found["rank3"]
    states = ("busy", "running") if code == SPIN else ("asleep",)
    assert any(f": {state}" in found["rank3"] for state in states)
    assert any("the workers hang: no progress for" in output for output in outputs)


def test_a_rank_whose_stack_cannot_be_had_is_named_all_the_same(make: MakeAgents) -> None:
    """A process that blocks all signals tells nothing itself; step and state are known from outside."""
    agents = make(hang(BLOCKED))
    run_two(agents, "--shutdown-timeout", "1")  # SIGTERM is blocked, too
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.HANG, 3) == (ended.cause, ended.failure["rank"])
    assert "step 5, asleep" in ended.failure["message"]
    text = stacks(agents)["rank3"]
    assert "all threads of this process block signals" in text
    assert "/status:" in text


def test_a_section_that_takes_too_long_is_a_hang(make: MakeAgents) -> None:
    """Its own limit counts, though the worker ticks in it."""
    agents = make(hang(SECTION).replace("train(6)", "train(60000)"))
    run_two(agents, "--hang-timeout", "600")
    (ended,) = agents.entries(RoundEnded)
    assert Cause.HANG is ended.cause
    assert re.search(r"in section eval for [\d.]+ s \(limit 1.0 s\): rank 3 \(", ended.failure["message"])


def test_who_is_slow_but_alive_is_left_alone(make: MakeAgents) -> None:
    """Steps, sections and critical sections of ever another length, none of them longer than allowed."""
    slow = f"""{TRAIN}
for step in range(2):
    train(5)
    with worker.section("eval", timeout=30):
        time.sleep(0.5)
    with worker.section("outer"), worker.section("inner"):
        time.sleep(0.5)
    with worker.critical("saving"):
        time.sleep(0.5)
    time.sleep(0.5)
"""
    agents = make(slow)
    run_two(agents, "--hang-timeout", "60")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert [] == agents.entries(HangSuspected)
    assert [] == agents.entries(RoundEnded)


@pytest.mark.parametrize("code", ["if rank == 1: worker.latest_checkpoint()", "if rank == 0: worker.tick(1)"])
def test_who_never_ticks_is_left_alone(make: MakeAgents, code: str) -> None:
    """Only ticking makes a worker one that is watched; here rank 0 ends well before its time is up."""
    agents = make(f"{TRAIN}\n{code}\nif rank: time.sleep(3)\n")
    run_two(agents)
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert [] == agents.entries(HangSuspected)


def test_it_can_be_switched_off(make: MakeAgents) -> None:
    """Then no silence is too long, nor is any section."""
    agents = make(f"{TRAIN}\ntrain(3)\nwith worker.section('eval', timeout=1):\n    time.sleep(2)\n")
    run_two(agents, "--hang-timeout", "off")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert [] == agents.entries(HangSuspected)


def test_a_first_step_that_does_not_come_is_a_hang_where_that_was_asked_for(make: MakeAgents) -> None:
    """With a time for the first step every worker has to tick, whether it has called anything or not."""
    agents = make("import time\nif os.environ['HPC_ELASTIC_ROUND'] == '1':\n    time.sleep(600)\n")
    run_two(agents, "--first-step-timeout", "3")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    (ended,) = agents.entries(RoundEnded)
    assert ended.failure["message"].startswith("no first step for ")
    assert "has not called hpc_elastic.worker" in stacks(agents)["rank0"]


def test_a_stopped_worker_is_waited_for(make: MakeAgents) -> None:
    """Who was stopped by somebody cannot make progress: nobody is ended for it, on any node."""
    agents = make(TRAIN + LOCKSTEP)
    for node in (0, 1):
        agents.start(node, "--hang-timeout", "4", *TWO)
    stopped = agents.wait_workers(1, 4)[3]["pid"]
    steps = Path(agents.paths.logs, "worker.1.3.step")
    wait_for(lambda: steps.exists() and int(steps.read_text()) > 20, "steps")
    os.kill(stopped, signal.SIGSTOP)
    wait_for(lambda: "stopped (SIGSTOP)" in logs(agents), "a word of the stopped rank")
    os.kill(stopped, signal.SIGCONT)
    before = int(steps.read_text())
    wait_for(lambda: int(steps.read_text()) > before + 20, "more steps")
    Path(agents.paths.logs, "end").touch()
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert [] == agents.entries(RoundEnded)


def test_an_agent_that_was_stopped_passes_no_verdict(make: MakeAgents) -> None:
    """A whole node is suspended for longer than a step may take, then goes on as if nothing were."""
    agents = make(TRAIN + LOCKSTEP.replace("rank == 3", "rank == 1").replace("1.3.step", "1.1.step"))
    agent = agents.start(0, "--nnodes", "1", "--hang-timeout", "3")
    (one, two) = (worker["pid"] for worker in agents.wait_workers(1, 2))
    steps = Path(agents.paths.logs, "worker.1.1.step")
    wait_for(lambda: steps.exists() and int(steps.read_text()) > 5, "steps")
    processes = (agent.pid, one, two)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    SystemClock().sleep(4)  # nothing else tells that more time than a step may take is over
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    before = int(steps.read_text())
    wait_for(lambda: int(steps.read_text()) > before + 50, "more steps, and with them more beats")
    Path(agents.paths.logs, "end").touch()
    assert 0 == agents.code(0)
    assert [] == agents.entries(HangSuspected)


def test_what_was_measured_outlives_the_agents(make: MakeAgents) -> None:
    """Steps and sections leave their longest times in the run directory, one file per node."""
    agents = make(
        f"{TRAIN}\ntrain(10, 0.1)\nwith worker.section('eval'):\n    time.sleep(0.5)\ntrain(6, 0.1)\n"
    )
    run_two(agents, "--hang-timeout", "auto")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    files = sorted(Path(agents.paths.timeouts).iterdir())
    assert 2 == len(files)
    for file in files:
        data = json.loads(file.read_text())
        assert {"start", "step", "section eval"} <= set(data["kinds"])
        assert data["kinds"]["section eval"][0] > 0.2
        assert [0, 1] == data["ticking"]


def test_hangs_have_a_budget_of_their_own(make: MakeAgents) -> None:
    """Out of it the run has failed, with an exit code and words that say so on every node."""
    agents = make(hang(STUCK, "1 2 3 4 5"))
    outputs = run_two(agents, "--max-restarts", "0", "--max-hangs", "1")
    assert [ExitCode.HUNG] * 2 == [agents.code(0), agents.code(1)], "\n".join(outputs)
    assert [Cause.HANG] * 2 == [ended.cause for ended in agents.entries(RoundEnded)]
    for output in outputs:
        assert "the workers hung and the 1 restart is used" in output
        assert "Root Cause" in output
        assert "in load_batch" in output


LEARNS_FAST = """
import sys
from hpc_elastic.node.setup.hang_times import HangOptions
HangOptions.of_settings = lambda settings: HangOptions(floor=1.5, samples=3, recheck=1.0)
from hpc_elastic.cli.main import main
sys.exit(main())
"""
"""An agent that learns in seconds what takes others half an hour."""


def start_learning(agents: Agents) -> None:
    """Start two agents that learn fast."""
    for node in (0, 1):
        where = ("--run-dir", agents.paths.root, "--node-rank", str(node), "--nproc-per-node", "2")
        argv = [sys.executable, "-c", LEARNS_FAST, "run", *where, *FAST_BEATS, *TWO]
        agents._run(node, [*argv, str(agents._script)], None)


def test_what_was_only_learned_needs_a_second_look(make: MakeAgents) -> None:
    """Who is in the same place then hangs."""
    agents = make(hang(STUCK))
    start_learning(agents)
    outputs = [agents.output(node) for node in (0, 1)]
    assert [0, 0] == [agents.code(0), agents.code(1)]
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.HANG, 3) == (ended.cause, ended.failure["rank"])
    assert 2 == max(entry.look for entry in agents.entries(HangSuspected))
    assert any("a second look follows in 1 s" in output for output in outputs)
    assert os.path.exists(os.path.join(agents.paths.hang_logs(1, 2), "rank3.txt"))


def test_who_is_somewhere_else_at_the_second_look_is_alive(make: MakeAgents) -> None:
    """A long evaluation that nobody has told of goes on, and ends."""
    evaluation = """
def evaluate(depth):
    time.sleep(0.2)
    if not os.path.exists(place + "/end"):
        evaluate(depth + 1)
train(5, 0.3)
evaluate(0)
train(5)
"""
    agents = make(TRAIN + evaluation)
    start_learning(agents)
    wait_for(lambda: "the workers go on: no hang" in logs(agents), "the verdict")
    Path(agents.paths.logs, "end").touch()
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert [] == agents.entries(RoundEnded)


def logs(agents: Agents) -> str:
    """Return what all agents have said."""
    return "".join(file.read_text() for file in Path(agents.paths.agent_logs).glob("*"))
