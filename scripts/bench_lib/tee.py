"""The measure of output: workers that print much, to files and to a piped console at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench_lib.group import GroupError, environment
from bench_lib.launchers import Launcher

WORKERS = 4
LINES = 200_000
PACKAGES = {
    "torchrun": "torch.distributed.elastic.multiprocessing",
    "hpc_elastic": "hpc_elastic.multiprocessing",
}
LIMIT_S = 120.0
_CONSOLE_LINE = re.compile(rb"\[job(\d)\]:rank (\d) step \d{6} loss 0.123456 lr 1.0e-04 tokens/s 12345")


class Printed(NamedTuple):
    """One run of the printing workers.

    Attributes:
        took_s: start of the workers until all is in its place [s].
        broken: lines on the console that are not one whole line of one rank with its header.
        lost: lines that are not on the console.
    """

    took_s: float
    broken: int
    lost: int


def output(launcher: Launcher, repetitions: int) -> dict[str, list[float]]:
    """4 workers print 200,000 lines each: until all is in files [s], and on the console too [s]."""
    teed = [_print(launcher, "tee") for _ in range(repetitions)]
    redirected = [_print(launcher, "redirects") for _ in range(repetitions)]
    return {
        "tee_s": [run.took_s for run in teed],
        "tee_broken_lines": [float(run.broken + run.lost) for run in teed],
        "redirect_s": [run.took_s for run in redirected],
    }


def _print(launcher: Launcher, mode: str) -> Printed:
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-bench-") as folder:
        texts = _write_texts(folder)
        result, console = Path(folder, "result"), Path(folder, "console")
        job = str(Path(__file__).with_name("tee_job.py"))
        argv = [sys.executable, job, PACKAGES[launcher.name], mode, os.path.join(folder, "logs"), str(result)]
        with console.open("wb") as file:
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
            try:
                ended = subprocess.run(
                    [*argv, *texts],
                    stdout=reader.stdin,
                    stderr=subprocess.PIPE,
                    env=environment(Path(os.devnull)),
                    timeout=LIMIT_S,
                    check=False,
                )
            finally:
                reader.communicate()
        if ended.returncode != 0:
            raise GroupError(f"{mode}: {ended.stderr.decode(errors='replace')}")
        found = json.loads(result.read_text())
        _check_files(found["logs"], texts)
        lines = console.read_bytes().split(b"\n") if mode == "tee" else []
    whole = [line for line in lines if (match := _CONSOLE_LINE.fullmatch(line)) and match[1] == match[2]]
    lost = WORKERS * LINES - len(whole) if lines else 0
    return Printed(found["took_s"], max(0, len(lines) - 1 - len(whole)), lost)


def _write_texts(folder: str) -> list[str]:
    """Write what each worker is to print, and return the files."""
    texts = [os.path.join(folder, f"text.{rank}") for rank in range(WORKERS)]
    for rank, path in enumerate(texts):
        lines = (
            f"rank {rank} step {number:06d} loss 0.123456 lr 1.0e-04 tokens/s 12345\n"
            for number in range(LINES)
        )
        Path(path).write_text("".join(lines))
    return texts


def _check_files(logs: dict[str, str], texts: list[str]) -> None:
    """Check that each log has what was printed, and nothing else."""
    for rank, path in logs.items():
        if Path(path).read_bytes() != Path(texts[int(rank)]).read_bytes():
            raise GroupError(f"the log of rank {rank} is not what was printed: {path}")
