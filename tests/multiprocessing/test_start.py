"""start_processes: programs, both spellings, checks, tees, filters and the files' places."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic.multiprocessing as ours
from hpc_elastic.multiprocessing import (
    DefaultLogsSpecs,
    LogsDest,
    LogsSpecs,
    MultiprocessContext,
    RunProcsResult,
    Std,
    SubprocessContext,
    load_logs_specs,
    logs,
    start_processes,
)
from tests.multiprocessing import workers
from tests.multiprocessing.waiting import DEAF, wait_gone, wait_line

Run = Callable[..., RunProcsResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Give a function that runs one Python program per rank and returns how that ended."""

    def start(*programs: str, **more: Any) -> RunProcsResult:
        args = {rank: ("-S", "-c", program) for rank, program in enumerate(programs)}
        if "logs_specs" not in more:
            more["log_dir"] = str(tmp_path)
        context = start_processes("job", sys.executable, args, **more)
        result = context.wait(50)
        context.close()
        assert result is not None
        return result

    return start


def test_program_and_function_give_their_context(tmp_path: Path) -> None:
    """A text is a program, anything else a function."""
    program = start_processes("t", "true", {0: ()}, log_dir=str(tmp_path))
    function = start_processes("t", workers.add, {0: ()}, start_method="fork", log_dir=str(tmp_path))
    assert (type(program), type(function)) == (SubprocessContext, MultiprocessContext)
    assert (program.wait(120) or RunProcsResult()).return_values == {0: None}
    assert (function.wait(120) or RunProcsResult()).return_values == {0: 0}


def test_arguments_of_programs_become_texts(tmp_path: Path) -> None:
    """Numbers and lists are printed; a text alone is one argument."""
    args: dict[int, Any] = {0: (1, 2, 3), 1: ([1, 2],), 2: "hello you"}
    context = start_processes("t", "echo", args, log_dir=str(tmp_path), redirects=Std.OUT)
    result = context.wait(120)
    assert result is not None
    assert [Path(result.stdouts[rank]).read_text() for rank in range(3)] == [
        "1 2 3\n",
        "[1, 2]\n",
        "hello you\n",
    ]


@pytest.mark.parametrize("what", ["args", "envs"])
def test_ranks_have_no_gaps(what: str) -> None:
    """A missing local rank is refused before anything starts."""
    args: dict[int, Any] = {0: (), (2 if what == "args" else 1): ()}
    with pytest.raises(
        RuntimeError, match=f"{what}, local rank mapping mismatch, expected: {{0, 1}}, actual"
    ):
        start_processes("t", "true", args, {0: {}}, log_dir="/nowhere")


def test_both_spellings_at_once_are_refused(tmp_path: Path) -> None:
    """Log specs and the older arguments would contradict each other."""
    with pytest.raises(TypeError, match="not both"):
        start_processes("t", "true", {0: ()}, {0: {}}, DefaultLogsSpecs(str(tmp_path)), tee=Std.OUT)


def test_log_dir_can_stand_where_older_versions_had_it(tmp_path: Path) -> None:
    """The fifth argument may be a path."""
    context = start_processes("t", "true", {0: ()}, {0: {}}, str(tmp_path), redirects=Std.ALL)
    assert context.stdouts == {0: str(tmp_path / "attempt_0" / "0" / "stdout.log")}
    context.wait(120)


def test_missing_program_is_a_file_not_found(tmp_path: Path) -> None:
    """Who expects the error of subprocess gets it, with words."""
    with pytest.raises(FileNotFoundError, match="no-such-trainer"):
        start_processes("t", "no-such-trainer", {0: ()}, log_dir=str(tmp_path))


def test_log_dir_that_is_a_file_is_not_a_directory(tmp_path: Path) -> None:
    """Who expects the error of the original gets it, with words."""
    (tmp_path / "logs").touch()
    with pytest.raises(NotADirectoryError, match=r"log_dir: .*logs is a file"):
        DefaultLogsSpecs(str(tmp_path / "logs"))


def test_files_are_named_by_run_attempt_and_rank(run: Run, tmp_path: Path) -> None:
    """A restart has its own directory; what was written before stays."""
    for count in ("0", "1"):
        env = {"TORCHELASTIC_RUN_ID": "r/1", "TORCHELASTIC_RESTART_COUNT": count, "RANK": "12"}
        run(f"print({count})", envs={0: env}, redirects=Std.OUT)
    found = [tmp_path / "r_1" / f"attempt_{count}" / "12" / "stdout.log" for count in (0, 1)]
    assert [path.read_text() for path in found] == ["0\n", "1\n"]


def test_membership_restart_keeps_logs_and_error_files(run: Run, tmp_path: Path) -> None:
    """The same count again, as after a change of members, renames what is there."""
    program = "import os; print({!r}); open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({!r})"
    for word in ("first", "second"):
        run(program.format(word, word), redirects=Std.OUT)
    folder = tmp_path / "attempt_0" / "0"
    assert [(folder / name).read_text() for name in ("stdout.1.log", "stdout.log")] == ["first\n", "second\n"]
    assert [(folder / name).read_text() for name in ("error.1.json", "error.json")] == ["first", "second"]


def test_tee_prints_whole_lines_with_the_name(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Each line has its rank's header, and the files have the bytes alone."""
    program = "import os\nfor n in range(2000): os.write(1, b'%d x\\n' % n)\nos.write(1, b'end')"
    result = run(program, program, tee=Std.OUT)
    lines = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        expected = [*(f"[job{rank}]:{number} x" for number in range(2000)), f"[job{rank}]:end"]
        assert [line for line in lines if line.startswith(f"[job{rank}]")] == expected
        assert Path(result.stdouts[rank]).read_text().endswith("1999 x\nend")


def test_prefixes_and_ranks_can_be_chosen(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """The console shows the chosen ranks with their prefixes; other ranks print nothing there."""
    specs = {"tee": Std.ALL, "local_ranks_filter": {1}, "log_line_prefixes": {1: "<1> "}}
    result = run("print('a')", "import sys; print('b'); print('c', file=sys.stderr)", **specs)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("<1> b\n", "<1> c\n")
    assert Path(result.stdouts[0]).read_text() == "a\n"


def test_tee_writes_to_what_python_prints_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stdout is an object without a descriptor, as in a notebook, lines go there."""
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)
    run(r"import os; os.write(1, b'\xffa\n')", tee=Std.OUT)
    assert cell.getvalue() == "[job0]:\ufffda\n"


def test_tee_goes_to_a_cell_and_not_to_the_notebooks_server(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An object that stands in for stdout may name the descriptor of what was there before."""
    with (tmp_path / "server").open("w") as server:
        cell = io.StringIO()
        cell.fileno = server.fileno  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdout", cell)
        run("print('a')", tee=Std.OUT)
    assert ("[job0]:a\n", "") == (cell.getvalue(), (tmp_path / "server").read_text())


def test_tee_without_a_console_shows_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python has no stdout at all the file still has everything."""
    monkeypatch.setattr(sys, "stdout", None)
    result = run("import os; os.write(1, b'a\\n')", tee=Std.OUT)
    assert Path(result.stdouts[0]).read_text() == "a\n"


def test_tee_is_live(tmp_path: Path, capfd: pytest.CaptureFixture[str], fifo: str) -> None:
    """Lines are on the console while the worker runs and nobody waits."""
    program = f"import os, signal; os.write(1, b'line\\n'); open({fifo!r}, 'w').write('x\\n'); signal.pause()"
    context = start_processes("t", sys.executable, {0: ("-c", program)}, log_dir=str(tmp_path), tee=Std.OUT)
    wait_line(fifo)
    seen = ""
    while "line" not in seen:  # ended by the test's timeout
        seen += capfd.readouterr().out
    assert context.wait(0) is None
    context.close()
    assert seen == "[t0]:line\n"


def test_slow_reader_gets_every_line(tmp_path: Path) -> None:
    """Lines wait for a console that is slower than the workers; closing waits with them."""
    code = f"""
import sys
from hpc_elastic.multiprocessing import Std, start_processes
program = "import os; os.write(1, b'x' * 99 + b'\\\\n'); os.write(1, (b'y' * 99 + b'\\\\n') * 30_000)"
args = {{0: ("-S", "-c", program)}}
start_processes("t", sys.executable, args, log_dir={str(tmp_path)!r}, tee=Std.OUT).wait()
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        lines = 0
        for line in parent.stdout:
            assert line.startswith(b"[t0]:")
            lines += 1
    assert (lines, parent.returncode) == (30_001, 0)


def test_filters_copy_chosen_lines_to_one_file(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lines with one of the texts, of all teed ranks, go to one file, with their headers."""
    program = (
        "import sys\nfor word in ('loss 1', 'noise', 'acc 2'): print(word); print(word, file=sys.stderr)"
    )
    run(
        *(program, program),
        tee={0: Std.ALL, 1: Std.OUT},
        duplicate_stdout_filters=["loss", "acc"],
        duplicate_stderr_filters=["acc"],
    )
    folder = tmp_path / "attempt_0"
    lines = sorted((folder / "filtered_stdout.log").read_text().splitlines())
    assert lines == ["[job0]:acc 2", "[job0]:loss 1", "[job1]:acc 2", "[job1]:loss 1"]
    assert (folder / "filtered_stderr.log").read_text() == "[job0]:acc 2\n"
    assert capfd.readouterr().out.count("noise") == 2


def test_no_filters_make_no_files(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Filtered files exist only where filters are given."""
    run("print(1)", tee=Std.ALL)
    assert sorted(path.name for path in (tmp_path / "attempt_0").iterdir()) == ["0"]


def test_devnull_writes_no_files(run: Run) -> None:
    """With the null device as log directory nothing is written, and errors are not recorded."""
    result = run(
        "import os; print(os.environ['TORCHELASTIC_ERROR_FILE']); raise SystemExit(4)",
        logs_specs=DefaultLogsSpecs(os.devnull, Std.ALL),
    )
    assert (result.failures[0].exitcode, result.failures[0].error_file) == (4, "<N/A>")
    assert result.stdouts == {0: os.devnull}


def test_shutdown_timeout_holds_on_the_failure_path(tmp_path: Path, fifo: str) -> None:
    """When one worker fails, a deaf sibling has the given time, not the usual 30 seconds."""
    deaf = DEAF.format(fifo=fifo)
    late = f"open({fifo!r}).read(); raise SystemExit(3)"
    args = {0: ("-S", "-c", late), 1: ("-S", "-c", deaf)}
    context = start_processes("t", sys.executable, args, log_dir=str(tmp_path), shutdown_timeout=0.2)
    pids = context.pids()
    result = context.wait(120)
    assert result is not None
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 3}
    wait_gone(pids[1])


def test_other_children_do_not_disturb(tmp_path: Path) -> None:
    """A process that has children of its own starts workers, and asks again for their result."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        context = start_processes("t", "true", {0: ()}, log_dir=str(tmp_path))
        result = context.wait(120)
        assert result is not None
        assert context.wait(120) == context.wait(0) == result
        assert other.poll() is None
        other.kill()


class OneFile(LogsSpecs):
    """Puts everything of a rank into one file."""

    def reify(self, envs: Any) -> LogsDest:
        """Name the files."""
        folder = self._root_log_dir or ""
        paths = {rank: f"{folder}/{rank}.log" for rank in envs}
        return LogsDest(stdouts=paths, stderrs=paths, error_files=dict.fromkeys(envs, ""))

    @property
    def root_log_dir(self) -> str:
        """The directory."""
        return self._root_log_dir or ""


def test_own_log_specs_decide(run: Run, tmp_path: Path) -> None:
    """A class of the user's names the files."""
    run("import sys; print('o', flush=True); print('e', file=sys.stderr)", logs_specs=OneFile(str(tmp_path)))
    assert (tmp_path / "0.log").read_text() == "o\ne\n"


def test_log_specs_must_name_all_files(tmp_path: Path) -> None:
    """A class that forgets a rank is refused."""

    class Forgetful(OneFile):
        def reify(self, envs: Any) -> LogsDest:  # noqa: ARG002
            return LogsDest(stdouts={0: ""}, stderrs={})

    with pytest.raises(RuntimeError, match="stderrs, local rank mapping mismatch"):
        start_processes("t", "true", {0: ()}, {0: {}}, Forgetful(str(tmp_path)))


def test_log_specs_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points are looked up by name; an unknown one names those that are there."""
    point = EntryPoint("one", f"{__name__}:OneFile", "torchrun.logs_specs")
    bad = EntryPoint("bad", "os:path", "torchrun.logs_specs")
    monkeypatch.setattr(logs, "_entry_points", lambda: [point, bad])
    assert load_logs_specs("one").__name__ == "OneFile"
    with pytest.raises(ValueError, match=r"torchrun.logs_specs\[two\].*bad, one"):
        load_logs_specs("two")
    with pytest.raises(ValueError, match="no method reify"):
        load_logs_specs("bad")


def test_results_and_destinations_start_empty() -> None:
    """Each has its own mappings, and equal ones are equal."""
    RunProcsResult().failures[0] = None  # type: ignore[assignment]
    LogsDest().stdouts[0] = "x"
    assert RunProcsResult() == RunProcsResult(return_values={}, failures={}, stdouts={}, stderrs={})
    assert LogsDest() == LogsDest({}, {}, {}, {}, {}, "", "")
    assert "stdouts={}" in repr(LogsDest())
    assert DefaultLogsSpecs("/x", Std.OUT) == DefaultLogsSpecs("/x", Std.OUT) != DefaultLogsSpecs("/y")
    assert "root_log_dir=/x" in repr(DefaultLogsSpecs("/x"))


def test_every_public_name_is_there() -> None:
    """Names load when they are used, and the modules of the original have theirs."""
    assert all(getattr(ours, name) for name in ours.__all__)
    code = """
from hpc_elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest, LogsSpecs, MultiprocessContext
from hpc_elastic.multiprocessing.api import PContext
from hpc_elastic.multiprocessing.api import RunProcsResult, SignalException, Std, SubprocessContext, to_map
from hpc_elastic.multiprocessing.errors.error_handler import ErrorHandler
from hpc_elastic.multiprocessing.errors.handlers import get_error_handler
from hpc_elastic.multiprocessing.redirects import redirect, redirect_stderr, redirect_stdout
from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
from hpc_elastic.multiprocessing.tail_log import TailLog, tail_logfile
"""
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})
