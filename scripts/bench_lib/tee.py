"""The measure of output: workers that print much, to files and to a piped console at once.

Taken twice: of whole launchers, from their start to their end, as a user waits for them; and of their
packages' start_processes alone, in an interpreter that has imported everything, for what copying costs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
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
MEETING = {
    "torchrun": ("torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
    "hpc_elastic": ("hpc_elastic.run", "--rdzv-backend", "shared_fs", "--rdzv-endpoint", "{folder}/runs"),
}
LIMIT_S = 120.0
_CONSOLE_LINE = re.compile(
    rb"\[(?:job|default|rank )(\d)\]:? ?rank (\d) step \d{6} loss 0.123456 lr 1.0e-04 tokens/s 12345"
)
_GAP = re.compile(rb"\.\.\. ([\d,]+) bytes were left out here; they are in ")


class Printed(NamedTuple):
    """One run of the printing workers.

    Attributes:
        took_s: start of the workers, or of their launcher, until all is in its place [s].
        broken: lines on the console that are not one whole line of one rank with its header.
        lost: lines that are not on the console, and that no line there says to be left out, as one does for a
            reader that is starved at the end.
    """

    took_s: float
    broken: int
    lost: int


def output(launcher: Launcher, repetitions: int) -> dict[str, list[float]]:
    """4 workers print 200,000 lines each: until all is in files [s], and on the console too [s]."""
    found: dict[str, list[float]] = {"tee_broken_lines": []}
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-bench-") as folder:
        texts = _write_texts(folder)
        for metric, mode, is_whole in (
            ("tee_s", "tee", True),
            ("redirect_s", "redirects", True),
            ("tee_alone_s", "tee", False),
            ("redirect_alone_s", "redirects", False),
        ):
            runs = [_print(launcher, mode, texts, is_whole=is_whole) for _ in range(repetitions)]
            found[metric] = [run.took_s for run in runs]
            if mode == "tee":
                found["tee_broken_lines"] += [float(run.broken + run.lost) for run in runs]
    return found


def _print(launcher: Launcher, mode: str, texts: list[str], *, is_whole: bool) -> Printed:
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-bench-") as folder:
        argv = _launch_argv(launcher, mode, folder, texts) if is_whole else _job_argv(launcher, mode, folder)
        console, began_s = Path(folder, "console"), time.monotonic()
        with console.open("wb") as file:
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
            try:
                ended = subprocess.run(
                    argv if is_whole else [*argv, *texts],
                    stdout=reader.stdin,
                    stderr=subprocess.PIPE,
                    env=environment(Path(os.devnull)),
                    timeout=LIMIT_S,
                    check=False,
                )
            finally:
                reader.communicate()
        took_s = time.monotonic() - began_s
        if ended.returncode != 0:
            raise GroupError(f"{mode}: {ended.stderr.decode(errors='replace')}")
        if not is_whole:
            took_s = json.loads(Path(folder, "result").read_text())["took_s"]
        _check_files(Path(folder, "logs"), texts)
        lines = console.read_bytes().split(b"\n") if mode == "tee" else []
    whole = [line for line in lines if (match := _CONSOLE_LINE.fullmatch(line)) and match[1] == match[2]]
    gaps = [int(match[1].replace(b",", b"")) for line in lines if (match := _GAP.search(line))]
    told = sum(gaps) // len(_text_line(0, 0))
    lost = WORKERS * LINES - len(whole) - told if lines else 0
    return Printed(took_s, max(0, len(lines) - 1 - len(whole) - len(gaps)), lost)


def _launch_argv(launcher: Launcher, mode: str, folder: str, texts: list[str]) -> list[str]:
    """Return the command line of a launcher whose workers print the texts."""
    module, *meeting = (word.format(folder=folder) for word in MEETING[launcher.name])
    return [
        *(sys.executable, "-m", module, *meeting, "--rdzv-id", "bench"),
        *("--nnodes", "1", "--nproc-per-node", str(WORKERS), "--log-dir", os.path.join(folder, "logs")),
        *(f"--{mode}", "1", "--no-python", "cat", texts[0].removesuffix("0") + "${local_rank}"),
    ]


def _job_argv(launcher: Launcher, mode: str, folder: str) -> list[str]:
    """Return the command line that starts workers and tells how long that took; texts are to follow."""
    job = str(Path(__file__).with_name("tee_job.py"))
    logs, result = (os.path.join(folder, name) for name in ("logs", "result"))
    return [sys.executable, job, PACKAGES[launcher.name], mode, logs, result]


def _write_texts(folder: str) -> list[str]:
    """Write what each worker is to print, and return the files."""
    texts = [os.path.join(folder, f"text.{rank}") for rank in range(WORKERS)]
    for rank, path in enumerate(texts):
        Path(path).write_text("".join(_text_line(rank, number) for number in range(LINES)))
    return texts


def _text_line(rank: int, number: int) -> str:
    return f"rank {rank} step {number:06d} loss 0.123456 lr 1.0e-04 tokens/s 12345\n"  # all are equally long


def _check_files(logs: Path, texts: list[str]) -> None:
    """Check that each rank's log has what it printed, and nothing else."""
    found: Mapping[str, Path] = {path.parent.name: path for path in logs.rglob("stdout.log")}
    if set(found) != {str(rank) for rank in range(len(texts))}:
        raise GroupError(f"there are logs of ranks {sorted(found)}")
    for rank, path in found.items():
        if path.read_bytes() != Path(texts[int(rank)]).read_bytes():
            raise GroupError(f"the log of rank {rank} is not what was printed: {path}")
