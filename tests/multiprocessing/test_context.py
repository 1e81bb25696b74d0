"""A group of real processes: how they end, how they are ended, what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.multiprocessing.context import StartSettings, SubprocessContext
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, Std
from hpc_elastic.multiprocessing.process import WorkerStartError
from tests.multiprocessing.waiting import MakeContext, wait_gone, wait_line, wait_readable

FOR_EVER = "import signal; signal.pause()"
READY = "open({fifo!r}, 'w').write('ready\\n'); "
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {READY}\nwhile True: signal.pause()"
ESCAPED = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {before}
        open({fifo!r}, "w").write(f"{{os.getpid()}}\\n")
        while True: signal.pause()
    os._exit(0)
os.wait()
{after}
"""


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """Give a named pipe by which a worker says that it is ready."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


def test_success_gives_a_return_value_per_rank(make_context: MakeContext) -> None:
    """All ranks that exit 0 are in the result, without failures."""
    context = make_context("pass", "import sys; sys.exit(0)")
    context.start()
    result = context.wait(20)
    assert result is not None
    assert (result.return_values, result.failures, result.is_failed()) == ({0: None, 1: None}, {}, False)


def test_exit_code_and_signal_are_told_apart(make_context: MakeContext) -> None:
    """An exit code n is n, a death by signal n is -n."""
    context = make_context("import sys; sys.exit(7)")
    context.start()
    result = context.wait(20)
    assert result is not None
    assert result.failures[0].exitcode == 7
    context = make_context("import os; os.kill(os.getpid(), 11)")
    context.start()
    result = context.wait(20)
    assert result is not None
    assert (result.failures[0].exitcode, result.failures[0].signal_name()) == (-11, "SIGSEGV")


def test_poll_reports_every_rank_that_has_failed(make_context: MakeContext) -> None:
    """Looking reports all failures of the moment and stops nobody."""
    context = make_context("raise SystemExit(3)", FOR_EVER, "raise SystemExit(4)")
    context.start()
    for pidfd in (context.exit_fds()[0], context.exit_fds()[2]):
        wait_readable(pidfd)
    result = context.wait(0)
    assert result is not None
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 3, 2: 4}
    assert context.exit_codes() == {0: 3, 2: 4}
    context.close()


def test_wait_zero_is_none_while_all_run(make_context: MakeContext) -> None:
    """Looking at running processes returns None at once, and exit_fds has one entry each."""
    context = make_context(FOR_EVER, FOR_EVER)
    context.start()
    assert context.wait(0) is None
    assert len(context.exit_fds()) == len(context.pids()) == 2


def test_siblings_that_we_stopped_are_no_failures(make_context: MakeContext) -> None:
    """Only the rank that failed by itself is reported, not those ended by our SIGTERM."""
    context = make_context("raise SystemExit(5)", FOR_EVER, FOR_EVER)
    context.start()
    result = context.wait(20)
    assert result is not None
    assert set(result.failures) == {0}
    assert context.exit_codes() == {0: 5, 1: -15, 2: -15}
    again = context.wait(0)
    assert again is not None
    assert set(again.failures) == {0}


def test_sigterm_ignored_ends_by_sigkill(make_context: MakeContext, fifo: str) -> None:
    """A worker that ignores SIGTERM is killed when the timeout is over."""
    context = make_context(DEAF.format(fifo=fifo))
    context.start()
    assert wait_line(fifo) == "ready"
    context.close(timeout=0.2)
    assert context.exit_codes() == {0: -signal.SIGKILL}


def test_stop_can_be_driven_without_blocking(make_context: MakeContext, fifo: str) -> None:
    """begin_stop and poll_stopped never wait, and the deadline escalates by itself."""
    context = make_context(DEAF.format(fifo=fifo))
    context.start()
    assert wait_line(fifo) == "ready"
    now = SystemClock().monotonic()
    context.begin_stop(signal.SIGTERM, kill_at=now + 100)
    assert not context.poll_stopped(now)
    assert context.next_deadline() == now + 100
    while not context.poll_stopped(now + 100):
        for fd in context.exit_fds():
            wait_readable(fd)
    assert (context.exit_codes(), context.exit_fds(), context.unkillable()) == ({0: -9}, [], [])


def test_an_exit_during_the_stop_stays_visible_until_acted_on(make_context: MakeContext) -> None:
    """Looking while a stop is on does not take the wake-up away from poll_stopped."""
    context = make_context(FOR_EVER)
    context.start()
    context.begin_stop(signal.SIGTERM)
    wait_readable(context.exit_fds()[0])
    context.wait(0)
    assert len(context.exit_fds()) == 1
    assert context.poll_stopped(SystemClock().monotonic())


def test_kill_after_begin_stop_ends_at_once(make_context: MakeContext, fifo: str) -> None:
    """kill() does not wait for the deadline of the stop."""
    context = make_context(DEAF.format(fifo=fifo))
    context.start()
    wait_line(fifo)
    context.begin_stop()
    context.kill()
    context.close(timeout=1000)
    assert context.exit_codes() == {0: -9}


def test_a_stopped_process_is_woken_to_end(make_context: MakeContext) -> None:
    """A worker in SIGSTOP gets to act on SIGTERM."""
    context = make_context(FOR_EVER)
    context.start()
    os.kill(context.pids()[0], signal.SIGSTOP)
    context.close(timeout=1000)
    assert context.exit_codes() == {0: -signal.SIGTERM}


def test_close_is_harmless_before_start_and_twice(make_context: MakeContext) -> None:
    """close() may come at any time and again."""
    context = make_context(FOR_EVER)
    context.close()
    context.start()
    context.close()
    context.close()
    context.kill()
    assert context.poll_stopped(0.0)
    assert context.exit_codes() == {0: -15}


def test_start_twice_is_refused(make_context: MakeContext) -> None:
    """A context runs once."""
    context = make_context("pass")
    context.start()
    with pytest.raises(ValueError, match="already initialized"):
        context.start()


def test_member_that_ended_already_does_not_hinder_the_stop(make_context: MakeContext) -> None:
    """Stopping a group of which one has ended stops the others."""
    context = make_context("pass", FOR_EVER)
    context.start()
    wait_readable(context.exit_fds()[0])
    assert context.wait(0) is None
    assert len(context.exit_fds()) == 1
    context.close()
    assert context.exit_codes() == {0: 0, 1: -15}


def test_close_leaves_no_zombie(make_context: MakeContext) -> None:
    """All pids are given back by close()."""
    context = make_context("pass", FOR_EVER)
    context.start()
    pids = context.pids().values()
    context.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_group_member_gets_time_to_end_after_its_leader(make_context: MakeContext, fifo: str) -> None:
    """A wrapper that dies of SIGTERM does not take the time to save from the program inside it."""
    inner = (
        "import os, signal, sys\n"
        f"def save(*_): open({fifo!r}, 'w').write('saved\\n'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({fifo!r}, 'w').write('ready\\n')\n"
        "while True: signal.pause()"
    )
    wrapper = f"import os, signal\nif os.fork() == 0: exec({inner!r})\nwhile True: signal.pause()"
    context = make_context(wrapper)
    context.start()
    keep = os.open(fifo, os.O_RDWR)
    wait_readable(keep)
    assert os.read(keep, 100) == b"ready\n"
    context.close(timeout=1000)
    assert os.read(keep, 100) == b"saved\n"
    os.close(keep)


@pytest.mark.parametrize("owns_process", [False, True])
def test_escaped_grandchild_is_swept(make_context: MakeContext, fifo: str, *, owns_process: bool) -> None:
    """A grandchild in its own session, whose parent has ended, is gone after close()."""
    program = ESCAPED.format(fifo=fifo, before="pass", after="while True: signal.pause()")
    context = make_context(program, settings=StartSettings(owns_process=owns_process))
    context.start()
    pid = int(wait_line(fifo))
    context.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_escaped_grandchild_without_mark_is_swept_by_an_agent(make_context: MakeContext, fifo: str) -> None:
    """An agent that owns its process also finds who left the session and cleared the environment."""
    code = (
        "import os, signal; os.setsid()\n"
        f"open({fifo!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "while True: signal.pause()"
    )
    program = (
        "import os, signal, sys\n"
        f"if os.fork() == 0: os.execve(sys.executable, [sys.executable, '-S', '-c', {code!r}], {{}})\n"
        "while True: signal.pause()"
    )
    context = make_context(program, settings=StartSettings(owns_process=True))
    context.start()
    pid = int(wait_line(fifo))
    context.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_left_over_of_a_successful_worker_is_swept(make_context: MakeContext, fifo: str) -> None:
    """What a worker that exited 0 leaves behind does not outlive close()."""
    context = make_context(ESCAPED.format(fifo=fifo, before="pass", after=""))
    context.start()
    pid = int(wait_line(fifo))
    result = context.wait(20)
    assert result is not None
    assert not result.is_failed()
    assert not os.path.exists(f"/proc/{pid}")


def test_foreign_children_are_left_alone(make_context: MakeContext) -> None:
    """close() does not touch children that this process started elsewhere."""
    foreign = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, setsid=True)
    context = make_context(FOR_EVER)
    context.start()
    context.close()
    assert os.waitid(os.P_PID, foreign, os.WEXITED | os.WNOHANG) is None
    os.kill(foreign, signal.SIGKILL)
    os.waitpid(foreign, 0)


def test_missing_binary_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """A binary that does not exist gives an error with its name and what to do."""
    context = SubprocessContext("t", "no-such-trainer", {0: ()}, {0: {}}, DefaultLogsSpecs(str(tmp_path)))
    with pytest.raises(WorkerStartError, match="no-such-trainer") as caught:
        context.start()
    assert "fix: check the spelling" in str(caught.value)
    assert context.exit_fds() == []


def test_file_that_is_not_executable_is_explained(tmp_path: Path) -> None:
    """A script without the executable bit gives an error that says how to start it."""
    script = tmp_path / "train.py"
    script.write_text("pass")
    context = SubprocessContext("t", str(script), {0: ()}, {0: {}}, DefaultLogsSpecs(str(tmp_path / "logs")))
    with pytest.raises(WorkerStartError, match="chmod"):
        context.start()


def test_args_and_envs_must_have_the_same_ranks(tmp_path: Path) -> None:
    """Missing ranks are refused as torch refuses them."""
    with pytest.raises(RuntimeError, match="envs, local rank mapping mismatch"):
        SubprocessContext("t", "true", {0: (), 1: ()}, {0: {}}, DefaultLogsSpecs(str(tmp_path)))


def test_twelve_ranks_have_their_own_logs(make_context: MakeContext, tmp_path: Path) -> None:
    """Local ranks of two digits work, each with its own files."""
    context = make_context(*["import os; os.write(1, os.environ['RANK'].encode())"] * 12)
    context.start()
    result = context.wait(60)
    assert result is not None
    assert len(result.return_values) == 12
    written = [(tmp_path / "attempt_0" / str(rank) / "stdout.log").read_text() for rank in range(12)]
    assert written == [str(rank) for rank in range(12)]


def test_logs_of_two_attempts_are_appended(make_context: MakeContext, tmp_path: Path) -> None:
    """A second start in the same directory keeps the first one's log and error file."""
    program = (
        "import os; os.write(2, b'attempt\\n'); open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{}')"
    )
    for _ in range(2):
        context = make_context(program)
        context.start()
        assert context.wait(20) is not None
    folder = tmp_path / "attempt_0" / "0"
    assert (folder / "stderr.log").read_text() == "attempt\n" * 2
    assert sorted(path.name for path in folder.glob("error*")) == ["error.1.json", "error.json"]


def test_round_names_the_directory(make_context: MakeContext, tmp_path: Path) -> None:
    """The round of the run, not the restart count, names the attempt."""
    context = make_context("pass", env={"HPC_ELASTIC_ROUND": "7", "TORCHELASTIC_RESTART_COUNT": "2"})
    context.start()
    context.wait(20)
    assert (tmp_path / "attempt_7" / "0" / "stdout.log").exists()


def test_output_flood_is_complete(make_context: MakeContext, tmp_path: Path) -> None:
    """Megabytes of output reach the log without anybody reading along."""
    context = make_context("import os\nfor _ in range(200): os.write(1, b'x' * 99999 + b'\\n')")
    context.start()
    result = context.wait(60)
    assert result is not None
    assert not result.is_failed()
    assert (tmp_path / "attempt_0" / "0" / "stdout.log").stat().st_size == 200 * 100_000


def test_ignored_signals_are_ignored_in_the_worker(make_context: MakeContext, fifo: str) -> None:
    """Signals named in the settings start ignored; the others have their default action."""
    program = (
        "import signal; g = signal.getsignal; "
        f"open({fifo!r}, 'w').write(f'{{g(10) == 1}} {{g(15) == 1}} {{g(12) == 0}}\\n')"
    )
    context = make_context(program, settings=StartSettings(ignore_signals=(signal.SIGUSR1, signal.SIGTERM)))
    context.start()
    assert wait_line(fifo) == "True True True"


def test_worker_inherits_no_descriptor(make_context: MakeContext, fifo: str) -> None:
    """Only the standard streams are open in a worker, even if ours are inheritable."""
    extra = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(extra, True)
    context = make_context(
        f"import os; n = len(os.listdir('/proc/self/fd')); open({fifo!r}, 'w').write(f'{{n}}\\n')"
    )
    context.start()
    assert wait_line(fifo) == "4"  # the fourth is the listing's own
    os.close(extra)


def test_error_file_becomes_the_failure(make_context: MakeContext) -> None:
    """The worker's own words are in the failure, with its time."""
    extra = {"py_callstack": "TB", "timestamp": "17"}
    reply = json.dumps({"message": {"message": "ValueError: bad", "extraInfo": extra}})
    context = make_context(
        f"import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({reply!r})\nos._exit(1)"
    )
    context.start()
    result = context.wait(20)
    assert result is not None
    failure = result.failures[0]
    assert (failure.message, failure.traceback, failure.timestamp) == ("ValueError: bad", "TB", 17)


def test_tee_copies_lines_with_prefix(make_context: MakeContext, capfd: pytest.CaptureFixture[str]) -> None:
    """Teed output is on the console with a prefix per line, the unfinished last line too."""
    context = make_context(
        "import os; os.write(1, b'one\\ntwo')", "import os; os.write(1, b'x\\n')", tee=Std.OUT
    )
    context.start()
    context.wait(20)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] one", "[rank 0] two", "[rank 1] x"]


def test_second_attempt_does_not_repeat_the_first_on_the_console(
    make_context: MakeContext, capfd: pytest.CaptureFixture[str]
) -> None:
    """Following an appended log begins where the attempt begins."""
    for word in ("first", "second"):
        context = make_context(f"import os; os.write(1, b'{word}\\n')", tee=Std.OUT)
        context.start()
        context.wait(20)
    assert capfd.readouterr().out.splitlines() == ["[rank 0] first", "[rank 0] second"]


def test_worker_dies_with_the_process_that_started_it(tmp_path: Path, fifo: str) -> None:
    """SIGKILL of the starter ends the worker even without a guard."""
    code = _agent(tmp_path, FOR_EVER, fifo, guard=False)
    agent = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    worker = int(wait_line(fifo))
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    wait_gone(worker)


@pytest.mark.parametrize("in_session", [True, False], ids=["same session", "escaped"])
def test_sigkill_of_the_agent_leaves_no_orphan(tmp_path: Path, fifo: str, *, in_session: bool) -> None:
    """SIGKILL of an agent with a guard ends workers and grandchildren, and the guard itself."""
    grandchildren = str(tmp_path / "grandchildren")
    os.mkfifo(grandchildren)
    program = ESCAPED.format(fifo=grandchildren, before="pass", after="while True: signal.pause()")
    if in_session:
        program = program.replace("os.setsid()", "pass")
    code = _agent(tmp_path, program, fifo, guard=True)
    agent = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    worker, guard = (int(word) for word in wait_line(fifo).split())
    grandchild = int(wait_line(grandchildren))
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    for pid in (worker, grandchild, guard):
        wait_gone(pid)


def _agent(tmp_path: Path, program: str, fifo: str, *, guard: bool) -> str:
    """Return the program of a small agent that tells the pids of its worker and guard."""
    return f"""
import signal, sys
from hpc_elastic.multiprocessing.context import StartSettings, SubprocessContext
from hpc_elastic.multiprocessing.guard import Guard
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
guard = Guard.start() if {guard} else None
context = SubprocessContext("t", sys.executable, {{0: ("-S", "-c", {program!r})}}, {{0: {{}}}},
    DefaultLogsSpecs({str(tmp_path / "logs")!r}), settings=StartSettings(guard=guard, owns_process=True))
context.start()
open({fifo!r}, "w").write(f"{{context.pids()[0]}} {{guard.pid if guard else ''}}\\n".replace(" \\n", "\\n"))
signal.pause()
"""
