"""Whole agents in a drain: who asks for it, what workers are told, and what must not be cut short."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Drained,
    DrainRequested,
    FailedLeaving,
    NeverAsked,
    RoundEnded,
    RoundFormed,
    StopAgreed,
)
from hpc_elastic.record.run_log import open_log, read_records
from tests.node.agents import STEPS, Agents, MakeAgents, gone, wait_for

WAIT = """
import time
from hpc_elastic import worker
rank = os.environ["RANK"]
def wait(name):
    while not os.path.exists(os.path.join(place, name)): time.sleep(0.01)
def say(name, text=""):
    with open(file + ".tmp2", "w") as out: out.write(text)
    os.rename(file + ".tmp2", file + "." + name)
"""
IN_SECTION = (
    WAIT
    + """
if os.environ["HPC_ELASTIC_ROUND"] != "1": sys.exit(0)
if rank == "0":
    with worker.critical("saving"):
        say("in")
        wait("go")
        say("saved")
    time.sleep(600)
"""
)


def said(agents: Agents, name: str) -> list[Path]:
    """Return the files by which workers have said something."""
    return sorted(Path(agents.paths.logs).glob(f"worker.*.{name}"))


def wait_said(agents: Agents, name: str, count: int = 1) -> None:
    """Wait until so many workers have said it."""
    wait_for(lambda: len(said(agents, name)) == count, f"{count} workers to say {name}")


def is_held(agents: Agents) -> bool:
    """Tell whether an agent shows that the end of its workers waits for somebody."""
    return any(name.endswith(".held") for name in os.listdir(agents.paths.nodes))


def go(agents: Agents) -> None:
    """Let the workers that wait for it go on."""
    Path(agents.paths.logs, "go").touch()


def test_a_file_in_the_run_directory_stops_all_ranks(make: MakeAgents) -> None:
    """A plain `touch` is enough: one step for all, and the file is taken away."""
    agents = make(STEPS)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2")
    wait_said(agents, "asks", 4)
    Path(agents.paths.drain).touch()
    assert {agents.code(0), agents.code(1)} <= {ExitCode.OK, ExitCode.REQUEUE}
    assert [Cause.STOP] == [entry.cause for entry in agents.entries(Drained)]
    assert 1 == len({path.read_text() for path in said(agents, "stopped")})
    assert not Path(agents.paths.drain).exists()


def test_nobody_waits_for_the_step_of_a_node_that_is_done(
    make: MakeAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers have ended well, and cannot tell at which step they could stop."""
    monkeypatch.setenv(Env.STOP_WAIT_S, "1e6")
    agents = make(WAIT + "if int(rank) >= 2: sys.exit(0)\n" + STEPS)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2")
    wait_said(agents, "asks", 2)
    wait_for(lambda: one_is_done(agents), "a node to be done")
    Path(agents.paths.drain).touch()
    assert {agents.code(0), agents.code(1)} <= {ExitCode.OK, ExitCode.REQUEUE}
    assert 1 == len({path.read_text() for path in said(agents, "stopped")})


def one_is_done(agents: Agents) -> bool:
    """Tell whether a node shows that its workers have ended well."""
    return any("+succeeded+" in name for name in os.listdir(agents.paths.members))


def test_a_pause_is_no_part_of_a_later_drain(make: MakeAgents) -> None:
    """What a drain has taken says how early the next one has to begin: hours between the two do not count."""
    agents = make(STEPS)
    agents.start(0)
    agents.wait_workers(1, 2)
    pause = DrainRequested(Cause.MEMBERSHIP, "", AfterDrain.REJOIN, "scale")
    open_log(agents.paths, "login").commit(lambda _: pause)
    agents.wait_workers(2, 2)
    Path(agents.paths.drain).touch()
    agents.code(0)
    at = {type(record.entry): record for record in read_records(agents.paths)}  # the newest of each kind
    drained = at[Drained].entry
    assert isinstance(drained, Drained)
    assert drained.took_s is not None
    assert drained.took_s < at[Drained].at - at[RoundFormed].at


def test_a_worker_that_fails_instead_of_saving_is_named(make: MakeAgents) -> None:
    """The others stop as agreed; the record names it with how it failed, and it is no crash of the round."""
    if_told = "    if stop:\n"
    fails = STEPS.replace(if_told, f"    if stop and os.environ['RANK'] == '3': sys.exit(7)\n{if_told}")
    agents = make(fails)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2")
    wait_said(agents, "asks", 4)
    Path(agents.paths.drain).touch()
    assert {agents.code(0), agents.code(1)} <= {ExitCode.OK, ExitCode.REQUEUE}
    (failed,) = agents.entries(FailedLeaving)
    assert (3, 7) == (failed.failure["rank"], failed.failure["exitcode"])
    assert failed.node == failed.failure["node"]
    assert [] == agents.entries(RoundEnded)
    assert 1 == len(agents.entries(Drained))


def test_the_workers_are_told_how_long_they_have(make: MakeAgents) -> None:
    """On both nodes: the time of the signal, by each node's own clock."""
    agents = make(
        WAIT + "assert worker.time_left() is None\nsay('ready')\n"
        "while worker.time_left() is None: time.sleep(0.01)\nsay('left', str(worker.time_left()))"
    )
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--stop-timeout", "29")
    wait_said(agents, "ready", 4)
    agents._agents[0].send_signal(signal.SIGTERM)
    wait_said(agents, "left", 4)
    assert all(0 <= float(path.read_text()) <= 29 for path in said(agents, "left"))


def test_a_critical_section_outlives_a_failure_elsewhere(make: MakeAgents) -> None:
    """While rank 0 saves, rank 3's failure ends nobody on rank 0's node; it is shown who holds things up."""
    agents = make(IN_SECTION + "if rank == '3': wait('worker.1.0.in'); sys.exit(9)\ntime.sleep(600)")
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1")
    wait_said(agents, "in")
    wait_for(lambda: len(agents.entries(RoundEnded)) == 1, "the failure")
    wait_for(lambda: is_held(agents), "the hold")
    assert not gone(agents.workers(1)[:2])
    go(agents)
    assert [0, 0] == [agents.code(0), agents.code(1)]
    output = agents.output(0)
    assert 1 == len(said(agents, "saved"))
    assert not is_held(agents)
    assert "rank 0 is in 'saving' since" in output
    assert "the critical section was left after" in output


def test_a_critical_section_has_a_limit(make: MakeAgents) -> None:
    """One that is never left holds up a restart for --critical-timeout."""
    agents = make(IN_SECTION + "if rank == '3': wait('worker.1.0.in'); sys.exit(9)\ntime.sleep(600)")
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1", "--critical-timeout", "0.5")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert "its time is up, the workers are ended all the same" in agents.output(0)
    assert not said(agents, "saved")


def test_workers_that_never_ask_finish_their_critical_section(make: MakeAgents) -> None:
    """They are told to end by SIGTERM, but not while one of them is in a critical section."""
    agents = make(IN_SECTION + "time.sleep(600)")
    agents.start(0)
    wait_said(agents, "in")
    agents._agents[0].send_signal(signal.SIGTERM)
    wait_for(lambda: is_held(agents), "the hold")
    go(agents)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert 1 == len(said(agents, "saved"))


NEVER_ASKS = (
    WAIT
    + """
import signal
def saves(*_): say("saved"); sys.exit()
signal.signal(signal.SIGUSR1, saves)
say("ready")
wait("go")
say("saved")
"""
)


def test_workers_that_never_ask_may_run_on(make: MakeAgents) -> None:
    """They save by themselves within their time; the log, the journal and its readers say so once."""
    agents = make(NEVER_ASKS)
    agents.start(0, "--unasked", "run-on", "--stop-timeout", "1000")
    wait_said(agents, "ready", 2)
    agents._agents[0].send_signal(signal.SIGTERM)
    wait_for(lambda: bool(agents.entries(NeverAsked)), "the record")
    assert not gone(agents.workers(1))
    go(agents)
    assert 0 == agents.code(0)  # they have come to their end
    assert 2 == len(said(agents, "saved"))
    output = agents.output(0)
    assert 1 == output.count("do not ask whether to stop: a signal and hpc-elastic stop let them run on")
    assert 1 == output.count("the workers run on until their time is up, in ")
    assert "the workers get the signal to end" not in output


def test_workers_that_run_on_are_ended_when_their_time_is_up(make: MakeAgents) -> None:
    """The promise to Slurm holds."""
    agents = make(NEVER_ASKS)
    agents.start(0, "--unasked", "run-on", "--stop-timeout", "0.5")
    wait_said(agents, "ready", 2)
    agents._agents[0].send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert not said(agents, "saved")
    assert "the workers get the signal to end" in agents.output(0)


def test_workers_that_never_ask_may_have_a_signal_of_their_own(make: MakeAgents) -> None:
    """They get it at once; who saves and ends for it has not come to the end of its work."""
    agents = make(NEVER_ASKS)
    agents.start(0, "--unasked", "signal:USR1", "--stop-timeout", "1000")
    wait_said(agents, "ready", 2)
    agents._agents[0].send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert 2 == len(said(agents, "saved"))


def test_workers_that_ask_are_not_signalled(make: MakeAgents) -> None:
    """The setting is about those that do not."""
    agents = make(STEPS)
    agents.start(0, "--unasked", "signal:USR1")
    wait_said(agents, "asks", 2)
    agents._agents[0].send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert 2 == len(said(agents, "stopped"))
    assert [] == agents.entries(NeverAsked)
    assert "do not ask" not in agents.output(0)


def test_ctrl_c_twice_waits_for_nothing(make: MakeAgents) -> None:
    """Who asks again wants it now, whatever is being saved."""
    agents = make(IN_SECTION + "time.sleep(600)")
    agents.start(0)
    wait_said(agents, "in")
    agents._agents[0].send_signal(signal.SIGINT)
    wait_for(lambda: is_held(agents), "the hold")
    agents._agents[0].send_signal(signal.SIGINT)
    assert 128 + signal.SIGINT == agents.code(0)
    assert gone(agents.workers(1))
    assert not said(agents, "saved")


def test_ranks_that_tell_no_step_stop_together(make: MakeAgents) -> None:
    """A loop that only asks is stopped by its questions, long before its time is up."""
    agents = make(
        WAIT + "asked = 0\nwhile not worker.should_stop():\n    asked += 1\n    time.sleep(0.01)\n"
        "    if asked == 5: say('asks')\nsay('stopped', str(asked))"
    )
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--stop-timeout", "1000")
    wait_said(agents, "asks", 4)
    agents._agents[0].send_signal(signal.SIGTERM)
    assert [128 + signal.SIGTERM, ExitCode.REQUEUE] == [agents.code(0), agents.code(1)]
    assert 1 == len({path.read_text() for path in said(agents, "stopped")})
    assert "tick() is not" in agents.output(0)


LEAVES_A_SAVER = (
    WAIT
    + """
step = 0
while True:
    time.sleep(0.01)
    step += 1
    worker.tick(step)
    if step == 5: say("runs")
    if worker.should_stop(): break
if rank == "0":
    worker.checkpoint_saved(step, shards=2)
elif os.fork() == 0:
    wait("go")
    worker.checkpoint_saved(step, shards=2)
    os._exit(0)
say("left")
"""
)


def test_the_end_waits_until_the_checkpoint_is_durable(make: MakeAgents) -> None:
    """A process that a worker has left behind writes the last part: it is let be until the mark is there."""
    agents = make(LEAVES_A_SAVER)
    agents.start(0)
    wait_said(agents, "runs", 2)
    agents._agents[0].send_signal(signal.SIGTERM)
    wait_said(agents, "left", 2)
    wait_for(lambda: gone(agents.workers(1)), "the workers to be gone")
    assert not agents.entries(Drained)
    go(agents)
    assert 128 + signal.SIGTERM == agents.code(0)
    (drained,), (stop,) = agents.entries(Drained), agents.entries(StopAgreed)
    assert stop.step == drained.step
    assert drained.took_s > 0


def test_a_checkpoint_that_never_becomes_whole_has_the_time_of_the_drain(make: MakeAgents) -> None:
    """Then what is left of the workers is ended, and the run goes on from an earlier one."""
    agents = make(LEAVES_A_SAVER)
    agents.start(0, "--stop-timeout", "1")
    wait_said(agents, "runs", 2)
    agents._agents[0].send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    (drained,) = agents.entries(Drained)
    assert drained.step is None


SLOW_SAVER = (
    WAIT
    + """
step = 0
while not worker.should_stop():
    time.sleep(0.01)
    step += 1
    worker.tick(step)
    if step == 5: say("runs")
if rank == "3": wait("go")
worker.checkpoint_saved(step, shards=4)
say("saved")
"""
)


def beats(agents: Agents) -> int:
    """Return how often the agent of node 0 has beaten."""
    names = [name for name in os.listdir(agents.paths.members) if name.startswith("0-")]
    return max((int(name.split("+")[4]) for name in names if name[0] != "."), default=0)


def test_nobody_s_exit_cuts_another_s_save_short(make: MakeAgents) -> None:
    """An agent whose workers are gone waits for the others' saves, beyond its own exit barrier's time."""
    agents = make(SLOW_SAVER)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--exit-barrier-timeout", "0.1", "--stop-timeout", "1000")
    wait_said(agents, "runs", 4)
    for node in (0, 1):
        agents._agents[node].send_signal(signal.SIGTERM)
    wait_said(agents, "saved", 3)
    before = beats(agents)
    wait_for(lambda: beats(agents) > before + 5, "the first agent to have waited")
    assert not agents.entries(Drained)
    go(agents)
    assert [128 + signal.SIGTERM] * 2 == [agents.code(0), agents.code(1)]
    (drained,), (stop,) = agents.entries(Drained), agents.entries(StopAgreed)
    assert stop.step == drained.step


def test_a_lost_node_ends_the_wait(make: MakeAgents) -> None:
    """Who waits for another one's save leaves when that node is gone, long before its time is up."""
    agents = make(SLOW_SAVER)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--stop-timeout", "1000")
    wait_said(agents, "runs", 4)
    for node in (0, 1):
        agents._agents[node].send_signal(signal.SIGTERM)
    wait_said(agents, "saved", 3)
    agents._agents[1].kill()
    assert 128 + signal.SIGTERM == agents.code(0)
    (drained,) = agents.entries(Drained)
    assert drained.step is None


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGUSR1])
def test_a_drain_is_asked_for_once(make: MakeAgents, again: signal.Signals) -> None:
    """Every agent is signalled, and again: one request is in the journal."""
    agents = make(STEPS)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2")
    wait_said(agents, "asks", 4)
    for number in (signal.SIGTERM, again):
        for node in (0, 1):
            agents._agents[node].send_signal(number)
    assert {agents.code(0), agents.code(1)} <= {128 + signal.SIGTERM, 128 + again, ExitCode.REQUEUE}
    assert 1 == len(agents.entries(DrainRequested))
    assert 1 == len({path.read_text() for path in said(agents, "stopped")})
