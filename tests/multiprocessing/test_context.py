"""A group of real processes: how they end, how they are ended, what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing.context import StartSettings, SubprocessContext
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.processes.process import WorkerStartError
from tests.multiprocessing.waiting import ESCAPED, FOR_EVER, MakeContext, wait_gone, wait_line, wait_readable


def test_success_gives_a_return_value_per_rank(make_context: MakeContext) -> None:
    """All ranks that exit 0 are in the result, without failures."""
    context = make_context("pass", "import sys; sys.exit(0)")
    context.start()
    result = context.wait(120)
    assert result is not None
    assert (result.return_values, result.failures, result.is_failed()) == ({0: None, 1: None}, {}, False)


def test_exit_code_and_signal_are_told_apart(make_context: MakeContext) -> None:
    """An exit code n is n, a death by signal n is -n."""
    context = make_context("import sys; sys.exit(7)")
    context.start()
    result = context.wait(120)
    assert result is not None
    assert result.failures[0].exitcode == 7
    context = make_context("import os; os.kill(os.getpid(), 11)")
    context.start()
    result = context.wait(120)
    assert result is not None
    assert (result.failures[0].exitcode, result.failures[0].signal_name()) == (-11, "SIGSEGV")


def test_poll_reports_every_rank_that_has_failed(make_context: MakeContext) -> None:
    """Looking reports all failures of the moment and stops nobody."""
    context = make_context("raise SystemExit(3)", FOR_EVER, "raise SystemExit(4)")
    context.start()
    for pidfd in (context.exit_fds()[0], context.exit_fds()[2]):
        wait_readable(pidfd)
    result = context.look()
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
    result = context.wait(120)
    assert result is not None
    assert set(result.failures) == {0}
    assert context.exit_codes() == {0: 5, 1: -15, 2: -15}
    again = context.wait(0)
    assert again is not None
    assert set(again.failures) == {0}


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
    """A second start in the same round keeps the first one's log and error file."""
    program = (
        "import os; os.write(2, b'attempt\\n'); open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{}')"
    )
    for _ in range(2):
        context = make_context(program, env={"HPC_ELASTIC_ROUND": "0"})
        context.start()
        assert context.wait(120) is not None
    folder = tmp_path / "attempt_0" / "0"
    assert (folder / "stderr.log").read_text() == "attempt\n" * 2
    assert sorted(path.name for path in folder.glob("error*")) == ["error.1.json", "error.json"]


def test_round_names_the_directory(make_context: MakeContext, tmp_path: Path) -> None:
    """The round of the run, not the restart count, names the attempt."""
    context = make_context("pass", env={"HPC_ELASTIC_ROUND": "7", "TORCHELASTIC_RESTART_COUNT": "2"})
    context.start()
    context.wait(120)
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
    result = context.wait(120)
    assert result is not None
    failure = result.failures[0]
    assert (failure.text, failure.traceback, failure.timestamp) == ("ValueError: bad", "TB", 17)
    assert failure.message == {"message": "ValueError: bad", "extraInfo": extra}


def test_tee_copies_lines_with_prefix(make_context: MakeContext, capfd: pytest.CaptureFixture[str]) -> None:
    """Teed output is on the console with a prefix per line, the unfinished last line too."""
    context = make_context(
        "import os; os.write(1, b'one\\ntwo')", "import os; os.write(1, b'x\\n')", tee=Std.OUT
    )
    context.start()
    context.wait(120)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] one", "[rank 0] two", "[rank 1] x"]


def test_second_attempt_does_not_repeat_the_first_on_the_console(
    make_context: MakeContext, capfd: pytest.CaptureFixture[str]
) -> None:
    """Following an appended log begins where the attempt begins."""
    for word in ("first", "second"):
        env = {"HPC_ELASTIC_ROUND": "0"}
        context = make_context(f"import os; os.write(1, b'{word}\\n')", tee=Std.OUT, env=env)
        context.start()
        context.wait(120)
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
from hpc_elastic.processes.guard import Guard
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
guard = Guard.start() if {guard} else None
context = SubprocessContext("t", sys.executable, {{0: ("-S", "-c", {program!r})}}, {{0: {{}}}},
    DefaultLogsSpecs({str(tmp_path / "logs")!r}), settings=StartSettings(guard=guard, owns_process=True))
context.start()
open({fifo!r}, "w").write(f"{{context.pids()[0]}} {{guard.pid if guard else ''}}\\n".replace(" \\n", "\\n"))
signal.pause()
"""
