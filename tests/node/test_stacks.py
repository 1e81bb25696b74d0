"""The stacks of real processes, and what is said where there are none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.ids import Env
from hpc_elastic.node.hangs import look as hang_verdict
from hpc_elastic.node.hangs.groups import RankLook, frames_of, main_stack
from hpc_elastic.node.hangs.hangs import read_lengths, write_lengths
from hpc_elastic.node.hangs.look import Look, LookPlace, StackRequest, Stacks, Subject, read_looks
from hpc_elastic.node.hangs.watch import Sign
from hpc_elastic.node.setup.hang_times import Length
from hpc_elastic.node.workers import process_facts
from hpc_elastic.processes.control_group import Memory
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.worker.channel import Channel

ATTACHED = "from hpc_elastic import worker; worker.tick(7)\n"
SLEEPER = """
import time
def fetch():
    print("ready", flush=True); time.sleep(600)
fetch()
"""
SPINNER = """
def spin():
    print("ready", flush=True)
    while True:
        pass
spin()
"""
UPLOAD = """
import subprocess
print("ready", flush=True)
subprocess.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=1M"], stderr=subprocess.DEVNULL)
"""
BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
SPY = """#!/bin/sh
test "$1 $2" = "dump --pid" || exit 2
echo "Process $3: python x.py"
echo
echo 'Thread 1 (idle): "MainThread"'
echo "    fetch (x.py:3)"
"""


class Worker:
    """A process with a channel."""

    def __init__(self, directory: Path) -> None:
        self.channel = Channel.create(str(directory / "channel"))
        self.process: subprocess.Popen[str] | None = None

    def start(self, code: str) -> int:
        """Start it and wait until it is where it stays; return its pid."""
        env = {**os.environ, Env.CHANNEL: self.channel.path}
        argv = [sys.executable, "-c", code]
        self.process = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        assert "ready\n" == self.process.stdout.readline()
        return self.process.pid


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker that is ended afterwards."""
    made = Worker(tmp_path)
    yield made
    if made.process is not None:
        with suppress(ProcessLookupError):
            os.killpg(made.process.pid, signal.SIGKILL)  # its children, too
        made.process.communicate()


def stacks_of(worker: Worker, pid: int, scratch: Path, path: str = "/nowhere") -> Stacks:
    """Return the stacks of a worker."""
    clock = SystemClock()
    request = StackRequest(worker.channel, pid, str(scratch), {"PATH": path}, clock.monotonic())
    wait_until(lambda: request.is_complete(clock.monotonic()), "the stacks")
    return request.take()


@pytest.mark.parametrize(("code", "name"), [(SLEEPER, "fetch"), (SPINNER, "spin")], ids=["asleep", "busy"])
def test_who_has_attached_tells_itself(worker: Worker, tmp_path: Path, code: str, name: str) -> None:
    """Whatever it does; more than once, and each time only what is new."""
    pid = worker.start(ATTACHED + code)
    for _ in range(2):
        stacks = stacks_of(worker, pid, tmp_path)
        assert [name, "<module>"] == [frame.name for frame in frames_of(main_stack(stacks.text))]
        assert "" == stacks.why_not


def test_a_child_in_a_shell_tells_too(worker: Worker, tmp_path: Path) -> None:
    """The process that calls is the one that is asked, not the one that was started."""
    inner = repr(ATTACHED + SLEEPER)
    pid = worker.start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner}])")
    stacks = stacks_of(worker, pid, tmp_path)
    assert pid != worker.channel.pid
    assert "in fetch" in stacks.text
    os.kill(worker.channel.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "why"),
    [(SLEEPER, "has not called hpc_elastic.worker"), (ATTACHED + BLOCKED + SLEEPER, "block signals")],
    ids=["stranger", "blocked"],
)
def test_why_there_are_none(worker: Worker, tmp_path: Path, code: str, why: str) -> None:
    """And py-spy is not there to help."""
    pid = worker.start(code)
    stacks = stacks_of(worker, pid, tmp_path)
    assert "" == stacks.text
    assert why in stacks.why_not


@pytest.mark.parametrize("code", [SLEEPER, ATTACHED + BLOCKED + SLEEPER], ids=["stranger", "blocked"])
def test_py_spy_tells_where_it_is_installed(worker: Worker, tmp_path: Path, code: str) -> None:
    """For everybody who does not tell by itself; its output is not left behind."""
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(SPY)
    spy.chmod(0o755)
    pid = worker.start(code)
    stacks = stacks_of(worker, pid, tmp_path, f"{spy.parent}:{os.environ['PATH']}")
    assert ["fetch"] == [frame.name for frame in frames_of(main_stack(stacks.text))]
    assert [] == list(tmp_path.glob("py-spy*"))


def test_a_py_spy_that_may_not_is_quoted(worker: Worker, tmp_path: Path) -> None:
    """What it says is what the user has to know."""
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text("#!/bin/sh\necho 'Permission Denied: try again with sudo'\nexit 1\n")
    spy.chmod(0o755)
    pid = worker.start(SLEEPER)
    stacks = stacks_of(worker, pid, tmp_path, f"{spy.parent}:{os.environ['PATH']}")
    assert "py-spy failed: Permission Denied" in stacks.why_not


def test_a_gone_worker_is_no_trouble(worker: Worker, tmp_path: Path) -> None:
    """It ended a moment before."""
    pid = worker.start(ATTACHED + SLEEPER)
    os.kill(pid, signal.SIGKILL)
    assert worker.process is not None
    worker.process.wait()
    assert "" == stacks_of(worker, pid, tmp_path).text
    assert "gone" == process_facts.doing(process_facts.facts_of(pid), None, None)


def test_busy_asleep_and_stopped(worker: Worker, tmp_path: Path) -> None:
    """By state and by the CPU time used meanwhile."""
    clock = SystemClock()
    pid = worker.start(SPINNER)
    before = process_facts.usage(pid, clock.monotonic())
    assert before is not None

    def used_s() -> float:
        now = process_facts.usage(pid, 0.0)
        return now.cpu_s - before.cpu_s if now else 0.0

    wait_until(lambda: used_s() > 0.2, "CPU time")
    span_s = used_s()
    after = process_facts.Usage(before.cpu_s + span_s, before.at + span_s)
    assert process_facts.doing(process_facts.facts_of(pid), before, after).startswith("busy (")
    idle = process_facts.Usage(before.cpu_s, before.at + 100)
    assert not process_facts.doing(process_facts.facts_of(pid), before, idle).startswith("busy")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process_facts.facts_of(pid).is_stopped, "state T")
    assert process_facts.doing(process_facts.facts_of(pid), None, None).startswith("stopped (SIGSTOP)")


def test_what_a_node_writes_down(worker: Worker, tmp_path: Path) -> None:
    """A text per rank for people, and one file for the node that puts all together."""
    clock = SystemClock()
    pid = worker.start(ATTACHED + SLEEPER)
    place = LookPlace("n1", str(tmp_path / "hang-1"), str(tmp_path), {}, Memory(0, 8 << 30))
    subject = Subject(5, 1, pid, worker.channel, Sign(7, 0, 7), 12.3, None, "/logs/5/stderr.log")
    look = Look(place, [subject], clock.monotonic())
    wait_until(lambda: look.is_complete(clock.monotonic()), "the look")
    look.write(clock.monotonic())
    text = (tmp_path / "hang-1" / "rank5.txt").read_text()
    assert text.startswith(
        "rank 5 (local rank 1) on n1\nstep 7, in fetch (<string>:5); no sign of life for 12.3 s\n"
    )
    assert "memory limit 8G" in text
    assert 0o700 == (tmp_path / "hang-1").stat().st_mode & 0o777
    found = read_looks(place.directory, ["n1", "n2"], 9)
    assert ["n1"] == list(found)
    (one,) = found["n1"]
    assert (5, "n1", 7, "/logs/5/stderr.log") == (one.rank, one.node, one.step, one.log)
    (tmp_path / "hang-1" / "n2.json").write_text("{")
    assert () == read_looks(place.directory, ["n2"], 9)["n2"]


def test_the_process_after_one_that_has_ended_tells(worker: Worker, tmp_path: Path) -> None:
    """A script that prepares something before it trains; a child of the one that trains is none of these."""
    argv = [sys.executable, "-c", ATTACHED]
    env = {**os.environ, Env.CHANNEL: worker.channel.path}
    subprocess.run(argv, env=env, check=True)
    assert worker.channel.pid
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ATTACHED!r}], check=True)\n"
    pid = worker.start(ATTACHED + child + SLEEPER)
    assert pid == worker.channel.pid
    assert "in fetch" in stacks_of(worker, pid, tmp_path).text


def test_who_moves_much_data_is_alive(worker: Worker) -> None:
    """An upload by a child, say, of which the stack of the worker shows only that it waits."""
    pid = worker.start(ATTACHED + UPLOAD)
    before = RankLook(3, "n1", moved=process_facts.moved_bytes(pid))
    wait_until(lambda: process_facts.moved_bytes(pid) > before.moved + (64 << 20), "64 MiB")
    now = before._replace(moved=process_facts.moved_bytes(pid))
    assert now == RankLook.from_json(now.to_json())
    first = {3: before}
    assert hang_verdict.has_moved(hang_verdict.Evidence("", (now,), ()), first, {3})
    little = before._replace(moved=before.moved + (1 << 20))
    assert not hang_verdict.has_moved(hang_verdict.Evidence("", (little,), ()), first, {3})
    assert not hang_verdict.has_moved(hang_verdict.Evidence("", (now,), ()), {}, {3})


def test_what_many_nodes_have_written_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that judges shows between two parts that it lives, and reads nothing twice."""
    monkeypatch.setattr(hang_verdict, "_MOST_AT_ONCE", 2)
    nodes = [f"n{number}" for number in range(1, 6)]
    for number, node in enumerate(nodes[:4]):
        looks = [RankLook(number, node).to_json()]
        (tmp_path / f"{node}.json").write_text(json.dumps({"ranks": looks}))
    known: dict[str, tuple[RankLook, ...]] = {}
    missing = [hang_verdict.gather(str(tmp_path), nodes, known).missing for _ in range(3)]
    assert [("n3", "n4", "n5"), ("n5",), ("n5",)] == missing
    (tmp_path / "n1.json").unlink()
    assert 4 == len(hang_verdict.gather(str(tmp_path), nodes, known).looks)
    assert 5 == len(hang_verdict.gather(str(tmp_path / "gone"), nodes, known).missing) + len(known)


def test_measurements_are_kept_per_node(tmp_path: Path) -> None:
    """A node that has none takes over another one's, but not which of its ranks tick."""
    directory = str(tmp_path / "timeouts")
    assert ({}, ()) == read_lengths(directory, "n1")
    lengths = {"step": Length(1.5, 20)}
    assert write_lengths(directory, "n1", lengths, (0, 1))
    assert (lengths, (0, 1)) == read_lengths(directory, "n1")
    assert (lengths, ()) == read_lengths(directory, "n2")
    (tmp_path / "timeouts" / "n1.json").write_text("no json")
    assert ({}, ()) == read_lengths(directory, "n1")
    assert not write_lengths(str(tmp_path / "timeouts" / "n1.json" / "x"), "n1", lengths, ())
