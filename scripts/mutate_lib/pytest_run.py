"""One run of pytest in a tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mutate_lib.tree import end_all_in

FAST = "not (slow or slurm or shared_fs or chaos or packaging or browser)"
NOTHING_RAN = 5
_TEST_S = 30  # the most that a fast test may take
_MEMORY_KB = 8 << 20  # of address space: a fault may ask for memory without end
_PLUGINS_OFF = ("randomly", "cacheprovider", "xdist", "anyio", "hydra_pytest")  # the last two cost time only


class Ended(NamedTuple):
    """How a test has ended.

    Attributes:
        test: its name.
        how: ``passed``, ``failed`` or ``skipped``.
        took_s: with its fixtures.
    """

    test: str
    how: str
    took_s: float


class PytestRun(NamedTuple):
    """How a run of pytest has ended.

    Attributes:
        exit_code: of pytest; None if it had to be killed.
        ended: each end of a test, in order.
        printed: what pytest has printed.
    """

    exit_code: int | None
    ended: list[Ended]
    printed: str

    def failed(self) -> str | None:
        """Return the first test that has failed."""
        return next((one.test for one in self.ended if one.how == "failed"), None)


def run_tests(
    tree: Path, tests: Sequence[str], timeout_s: float, *, lines: Path | None = None, more: Sequence[str] = ()
) -> PytestRun:
    """Run tests in a tree, in the order given, up to the first that fails.

    Args:
        tree: made by `tree.make_base` or `tree.make_copy`.
        tests: their names; with `lines` the files whose fast tests are run, all of them.
        timeout_s: after this time all is killed.
        lines: file for the lines that each test has run.
        more: options of pytest.
    """
    scratch = tree.with_name(f"{tree.name}-scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        argv = [str(tree / ".venv/bin/python"), "-m", "pytest", *more, *_options(tests, scratch, lines)]
        code, printed = _run(argv, tree, scratch, timeout_s)
        return PytestRun(code, _read(scratch / "ended"), printed)
    finally:
        end_all_in(tree)
        shutil.rmtree(scratch, ignore_errors=True)


def _options(tests: Sequence[str], scratch: Path, lines: Path | None) -> list[str]:
    options = ["-q", "-m", FAST, "-o", f"timeout={_TEST_S}", "--tb=line", "--basetemp", str(scratch / "b")]
    for plugin in _PLUGINS_OFF:
        options += ["-p", f"no:{plugin}"]
    options += ["-p", "mutate_plugin", "--mutate-ended", str(scratch / "ended")]
    if lines is not None:
        return [*options, "--mutate-lines", str(lines), *tests]
    (scratch / "tests").write_text(json.dumps(list(tests)), encoding="utf-8")
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    return [*options, "-x", "--mutate-tests", str(scratch / "tests"), *files]


def _run(argv: list[str], tree: Path, scratch: Path, timeout_s: float) -> tuple[int | None, str]:
    limited = ["sh", "-c", f'ulimit -v {_MEMORY_KB}; exec "$@"', "sh", *argv]
    with (scratch / "printed").open("w+b") as printed:
        process = subprocess.Popen(
            limited,
            cwd=tree,
            env=_environment(os.environ, scratch),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        return code, printed.read().decode(errors="replace")


def _environment(environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))
    }
    one_thread = {"OMP_NUM_THREADS": "1"}  # of torch: several tests run at once, each in a fork
    return {**kept, **one_thread, "TMPDIR": str(scratch)}


def _read(path: Path) -> list[Ended]:
    if not path.exists():
        return []
    found: dict[str, Ended] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        one = Ended(**json.loads(line))
        if one.test not in found or one.how == "failed":
            found[one.test] = one
    return list(found.values())


def interpreter() -> str:
    """Return what tells results of one interpreter from those of another."""
    return f"{sys.version} {sys.prefix}"
