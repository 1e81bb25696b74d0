"""The screen of ``watch``: its lines, what it sends to a terminal, and what it prints elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.cli.live_terminal import LiveTerminal
from hpc_elastic.meet.member_names import MemberName, Phase, steps_text
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, encode_mark, encode_name
from hpc_elastic.record.journal import Decision, RoundFormed, RunEnded
from hpc_elastic.report.watch_screen import Pacer, ScreenFacts, WatchedNode, bar_text, screen_lines
from hpc_elastic.store.shared_dir import record_name, segment_name
from tests.cli.recorded_runs import EPOCH, MEMBERS, STARTED, paths, preempted, write, write_facts

__all__ = ["paths"]

END = "Ctrl-C ends this screen; the run goes on"


def screen(nodes: tuple[WatchedNode, ...], width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of a screen of some nodes, as texts."""
    facts = ScreenFacts("toy: running", "green", ("step 7",), nodes, ("10:00:00 started",))
    return [line.text for line in screen_lines(facts, width, height)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60), (1, 1)])
def test_a_screen_of_512_nodes_fits(width: int, height: int) -> None:
    """Whatever the size of the terminal, no line is longer and there are no more lines."""
    lines = screen(tuple(WatchedNode(f"n{i}", 8 * i, "running", (7,) * 8) for i in range(512)), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_a_terminal_without_a_size_is_taken_for_a_usual_one() -> None:
    """As that of a container or of a serial line: it says 0 for both."""
    leader, follower = pty.openpty()
    try:
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert (80, 24) == LiveTerminal(follower).size
    finally:
        for fd in (leader, follower):
            os.close(fd)


def test_the_use_of_gpus_has_a_column_where_it_is_sampled() -> None:
    """Other runs have no such column."""
    node = WatchedNode("n1", 8, "running", (7,), 3.25)
    assert "node  ranks  state    step  ahead  rate" in screen((node,))
    lines = screen((node._replace(gpus="12-98 % 71.2G"), WatchedNode("n2", 9, "running", (7,))))
    assert "n1    8      running  7     0      3.25/s  12-98 % 71.2G" in lines


def test_a_narrow_screen_keeps_what_matters() -> None:
    """Long lines are folded, and the table leaves out how far ranks are ahead, which they are, and rates."""
    nodes = tuple(WatchedNode(f"node{i}", 8 * i, "running", (7, 7), 3.25, is_slow=i == 1) for i in range(3))
    events = ("10:00:00 round 1 ended: node2 was lost, and 2 nodes start again",)
    facts = ScreenFacts(
        "toy: running, round 2 with 3 nodes and 24 workers", "green", ("step 7",), nodes, events
    )
    lines = [line.text for line in screen_lines(facts, 40, 24)]
    assert max(map(len, lines)) <= 40
    assert not any("~" in line for line in lines[:-1])
    assert ["toy: running, round 2 with 3 nodes and", "  24 workers"] == lines[:2]
    rows = [line for line in lines if line.startswith(("node ", "node0"))]
    assert ["node   state          step  rate", "node0  running        7     3.25/s"] == rows


def test_the_cause_of_the_newest_event_is_whole() -> None:
    """On a usual terminal with room below the nodes, long events are folded, and none is cut."""
    nodes = tuple(WatchedNode(f"n{i}", 2 * i, "running", (7, 7), 3.25) for i in range(4))
    cause = "RuntimeError: CUDA error: an illegal memory access was encountered"
    event = (
        f"10:00:00 round {{}} ended after 2 h 5 min: rank 3 on n2: exit code 1: {cause}; nothing was saved"
    )
    facts = ScreenFacts("toy: running", "green", ("step 7",), nodes, tuple(map(event.format, range(5))))
    lines = [line.text for line in screen_lines(facts, 80, 24)]
    assert len(lines) <= 24
    assert [] == [line for line in lines if "~" in line]
    assert cause in " ".join(" ".join(lines).split())
    assert all(f"round {number} ended" in " ".join(lines) for number in (1, 4))
    few = [line.text for line in screen_lines(facts, 80, 14)]  # the oldest give way
    assert "round 4 ended" in " ".join(few)
    assert "round 1 ended" not in " ".join(few)
    assert [] == [line for line in few if "~" in line]


def test_the_log_of_a_rank_gives_way_to_the_events() -> None:
    """Its newest lines and the last line of the screen are there on a usual terminal."""
    nodes = tuple(WatchedNode(f"n{i}", 2 * i, "running", (7, 7), 3.25) for i in range(4))
    events = tuple(f"10:00:0{number} round {number}" for number in range(5))
    log = tuple(f"loss {number}" for number in range(20))
    long = "word " * 30
    for summary in (("step 7",), (long, long)):
        facts = ScreenFacts("toy: running", "green", summary, nodes, events, "rank 0 in round 2", log)
        lines = [line.text for line in screen_lines(facts, 80, 24)]
        assert len(lines) <= 24
        assert ["  loss 17", "  loss 18", "  loss 19", END] == lines[-4:]
        assert "  10:00:04 round 4" in lines
        assert {f"n{i}" for i in range(4)} <= {line.split(" ")[0] for line in lines}


def test_a_share_is_a_bar() -> None:
    """It has ten parts, and its number."""
    assert "[###-------] 30 %" == bar_text(0.301)
    assert "[##########] 100 %" == bar_text(1.2)


def test_noteworthy_nodes_come_first_where_there_is_no_room_for_all() -> None:
    """Slow, silent and lost nodes are named; the others share the last line of the table."""
    nodes = [WatchedNode(f"n{i}", 2 * i, "running", (100 + i % 2, 101)) for i in range(512)]
    nodes[300] = nodes[300]._replace(is_slow=True)
    nodes[400] = nodes[400]._replace(silent_s=75.0)
    nodes[500] = WatchedNode("n500", None, "lost", is_well=False)
    lines = screen(tuple(nodes))
    first = lines.index(next(line for line in lines if line.startswith("node "))) + 1
    assert ["n300", "n400", "n500"] == [line.split()[0] for line in lines[first : first + 3]]
    assert "silent for 1 min 15 s" in lines[first + 1]
    assert "running, slow" in lines[first]
    rest = next(line for line in lines if line.startswith("and "))
    assert re.fullmatch(r"and \d+ nodes more: running, step 100 to 101", rest)
    assert END == lines[-1]


def test_each_rank_of_a_node_is_shown() -> None:
    """How far each rank is ahead of the slowest one of its node, or that it has done no step."""
    (line,) = [line for line in screen((WatchedNode("n1", 8, "running", (41, 40, None)),)) if "n1" in line]
    assert ["n1", "8-10", "running", "10_"] == line.split()


def test_a_node_that_is_behind_most_of_the_time_is_slow() -> None:
    """A node whose heartbeat is a second older than that of the others is not."""
    pacer = Pacer()
    for look in range(30):
        pacer.note(2.0 * look, {"a": 20 * look, "b": 20 * look - 10, "c": max(20 * look - 25, 0)})
    assert {"c"} == pacer.slow()
    assert 10.0 == pacer.rate("a")
    pacer.note(60.0, {"a": 3, "b": 3, "c": 3})
    assert (frozenset(), None) == (pacer.slow(), pacer.rate("a"))


def beat(paths: RunPaths, counter: int, *steps: int) -> None:
    """Write the heartbeat of both nodes."""
    for old in Path(paths.members).iterdir():
        old.unlink()
    for member in MEMBERS:
        name = MemberName(member.node_id, EPOCH, Phase.RUNNING, 1, counter, 2, steps_text(steps))
        (Path(paths.members) / name.text()).touch()


_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from hpc_elastic.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
# A shell with job control: Ctrl-Z stops the command only in a process group that has one.
_BY_A_SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from hpc_elastic.cli.main import main
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    os._exit(main(sys.argv[1:]))
while os.WIFSTOPPED(ended := os.waitpid(child, os.WUNTRACED)[1]):
    print("it has stopped", flush=True)
    os.kill(child, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(ended))
"""


class Screen:
    """A command on a terminal of 24 lines.

    Args:
        words: of the command.
        environ: more variables.
        program: calls the command.
    """

    def __init__(self, words: list[str], environ: dict[str, str], program: str = _ON_TERMINAL) -> None:
        self._leader, follower = pty.openpty()
        self.resize(80, 24)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        )
        os.close(follower)
        self.data = ""

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the kernel tells the command."""
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, text: str) -> str:
        """Read until a text has come, and return what was read.

        Raises:
            AssertionError: the command has ended before; it names the exit code and what was read.
        """
        read = ""
        while text not in read:
            try:
                read += os.read(self._leader, 65536).decode()
            except OSError as error:  # no process has the terminal any more
                code = self._process.wait(timeout=150)
                said = f"exit code {code} before {text!r}; read {read!r} after {self.data!r}"
                raise AssertionError(said) from error
        self.data += read
        return read

    def signal(self, number: int) -> None:
        """Send the command a signal."""
        os.kill(self._process.pid, number)

    def type(self, text: str) -> None:
        """Type on the terminal."""
        os.write(self._leader, text.encode())

    def wait(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        try:
            return self._process.wait(timeout=150)
        finally:
            os.close(self._leader)

    def end(self) -> int:
        """Type Ctrl-C and return the exit code."""
        self.type("\x03")
        self.until("\x1b[?1049l")
        return self.wait()


@contextmanager
def watching(*words: str, **environ: str) -> Iterator[Screen]:
    """Watch on a terminal; Ctrl-C ends it with code 0, no traceback, and the terminal as it was."""
    shown = Screen(["watch", *words], environ)
    yield shown
    assert 0 == shown.end()
    assert "Traceback" not in shown.data
    assert shown.data.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_only_lines_that_change_are_sent_again(paths: RunPaths) -> None:
    """A second look sends the two lines of the nodes, in less bytes than one line of the terminal each."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    beat(paths, 1, 40, 41)
    with watching(paths.root, "--every", "1") as shown:
        first = shown.until(END)
        assert "n1    0-1    running  40    01" in first
        beat(paths, 2, 42, 42)
        again = shown.until("n2    2-3    running  42    00")
        assert "toy:" not in again
        assert len(again) < 2 * 80


def test_another_size_draws_the_screen_anew(paths: RunPaths) -> None:
    """A terminal that gets smaller has shorter lines at once, without waiting for the next look."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    with watching(paths.root, "--every", "3600") as shown:
        shown.until(END)
        shown.resize(30, 24)
        assert "\x1b[2J" in shown.until("Ctrl-C ends this screen; the ~")


def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(paths: RunPaths) -> None:
    """SIGTERM ends it as a signal does, on the first screen of the terminal and with a cursor."""
    write(paths, (0.0, STARTED))
    shown = Screen(["watch", paths.root], {})
    shown.until(END)
    shown.signal(signal.SIGTERM)
    shown.until("\x1b[?25h\x1b[?1049l")
    assert -signal.SIGTERM == shown.wait()


def test_ctrl_z_leaves_the_screen_until_it_goes_on(paths: RunPaths) -> None:
    """The shell has its own screen while the command is stopped; then all lines are drawn again."""
    write(paths, (0.0, STARTED))
    shown = Screen(["watch", paths.root, "--every", "3600"], {}, _BY_A_SHELL)
    shown.until(END)
    shown.type("\x1a")
    before, _, after = shown.until("it has stopped").partition("it has stopped")
    after += "" if END in after else shown.until(END)
    assert "\x1b[?25h\x1b[?1049l" in before
    assert "\x1b[?1049h" in after
    assert 0 == shown.end()


def test_a_look_that_fails_is_made_again(paths: RunPaths) -> None:
    """The screen says that the directory cannot be read, and goes on when it can."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    beat(paths, 1, 40, 41)
    members, away = Path(paths.members), Path(f"{paths.members}.away")
    with watching(paths.root, "--every", "1") as shown:
        shown.until(END)
        members.rename(away)
        members.touch()
        shown.until("cannot be read now, and is read again: ")
        members.unlink()
        away.rename(members)
        shown.until("step 40")


def test_no_color_sends_no_colour(paths: RunPaths) -> None:
    """With NO_COLOR the screen has moves of the cursor, and no colours."""
    write(paths, (0.0, STARTED))
    with watching(paths.root) as coloured:
        coloured.until(END)
    with watching(paths.root, NO_COLOR="1") as plain:
        plain.until(END)
    assert re.search(r"\x1b\[[0-9;]*m", coloured.data)
    assert not re.search(r"\x1b\[[0-9;]*m", plain.data)


def test_the_newest_lines_of_a_rank_are_shown(paths: RunPaths) -> None:
    """With --rank the end of its log in the newest round is below the events."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    log = Path(paths.attempt_logs(1)) / "3" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"loss {number}\n" for number in range(1000)))
    with watching(paths.root, "--rank", "3") as shown:
        text = shown.until(END)
    assert "rank 3 in round 1:" in text
    assert "loss 999" in text
    assert "loss 900" not in text


@pytest.mark.parametrize(
    ("rank", "text"), [("3", "no output yet"), ("99", "the round has no log of this rank")]
)
def test_a_rank_without_lines_is_named(paths: RunPaths, rank: str, text: str) -> None:
    """With --rank the screen says whether the rank has written nothing, or is none of the round."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    log = Path(paths.attempt_logs(1)) / "3" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.touch()
    with watching(paths.root, "--rank", rank) as shown:
        lines = re.split(r"\x1b\[K(?:\x1b\[\d+;1H)?", shown.until(END))
    assert f"  {text}" == lines[lines.index(f"rank {rank} in round 1:") + 1]


@pytest.mark.parametrize("words", [("--rank", "-1"), ("--every", "-1"), ("--every", "0")])
def test_numbers_that_mean_nothing_are_refused(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    """A rank is 0 or more, and the time between two looks one second or more."""
    assert 2 == app.run(["watch", paths.root, *words])
    least = 0 if words[0] == "--rank" else 1
    assert f"error: {words[0]}: '{words[1]}' is less than {least}\n" in capfd.readouterr().err


def test_the_summary_has_the_newest_step_of_the_heartbeats(paths: RunPaths) -> None:
    """The line above the nodes is no older than the lines of the nodes."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    write_facts(paths, (1, 40.0, 2, 7))
    beat(paths, 1, 40, 41)
    with watching(paths.root) as shown:
        assert "step 40, goodput" in shown.until(END)


def test_all_runs_of_a_folder_have_a_line(paths: RunPaths) -> None:
    """A folder in place of a run shows each run with its state."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    with watching(os.path.dirname(paths.root)) as shown:
        text = shown.until("the runs go on")
    assert "1 run below" in text
    assert "toy-1  requeued" in text


def test_a_folder_is_read_again_when_its_names_change(paths: RunPaths) -> None:
    """A new run has a line, also beside a directory that is no run."""
    write(paths, (0.0, STARTED))
    folder = Path(paths.root).parent
    with watching(str(folder), "--every", "1") as shown:
        shown.until("the runs go on")
        (folder / "notes").mkdir()
        shutil.copytree(paths.root, folder / "toy-2")
        shown.until("toy-2")


def test_a_run_that_gets_damaged_costs_its_line(paths: RunPaths) -> None:
    """The screen of a folder goes on with the other runs."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    with watching(os.path.dirname(paths.root), "--every", "1") as shown:
        shown.until("the runs go on")
        (Path(paths.journal) / segment_name(3) / record_name(3)).write_text("{")
        beat(paths, 1, 40, 41)
        shown.until("toy-1  cannot be read: ")


def test_without_a_terminal_a_run_that_is_not_there_is_an_error_alone(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed before it."""
    assert 2 == app.run(["watch", "nosuch"])
    assert "" == (said := capfd.readouterr()).out
    assert "'nosuch' is neither a directory nor a run id" in said.err


def test_without_a_terminal_the_status_is_printed(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """As often as asked, until the run has ended; without any escape."""
    write(paths, *preempted(0), (720.0, RunEnded(Decision.DONE, 0, "", None)))
    assert 0 == app.run(["watch", paths.root])
    out = capfd.readouterr().out
    assert re.match(r"--- \d\d:\d\d:\d\d\ntoy: done", out)
    assert "\x1b" not in out


def test_the_age_of_the_checkpoint_and_the_budgets_are_shown(paths: RunPaths) -> None:
    """Below the step and the time left, with a bar of the steps."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    write_facts(paths, (1, 40.0, 2, 1), (1, 190.0, 2, 301), total=1000)
    mark = MarkName(200, 1, 0, 1)
    (Path(paths.checkpoints) / encode_name(mark)).write_bytes(encode_mark(mark, None, 4))
    beat(paths, 1, 520, 521)  # newer than the account
    with watching(paths.root, "--every", "3600") as shown:
        text = shown.until(END)
    assert re.search(
        r"\[#####-----\] 52 %, saved step 200 \S+ s ago, 0 of 3 restarts, 0 of 500 requeues\x1b", text
    )
