"""Four workers print bytes of every kind at once, with one package's start_processes.

Usage: bytes_job.py PACKAGE KIND FOLDER   (kind: program or function; logs and what was printed go there)
"""

from __future__ import annotations

import os
import random
import sys
from importlib import import_module
from pathlib import Path

WORKERS = 4
LONG = 10_000_000


def text_of(rank: int) -> bytes:
    """Return what a rank prints: no line end at its end, no UTF-8, one line of ten megabytes.

    A progress bar, which begins its line anew with a carriage return, is shown while it grows: nothing
    here looks like one.
    """
    chance = random.Random(rank)
    no_ends = bytes.maketrans(b"\r\n", b"\xfe\xff")
    lines = [chance.randbytes(chance.randrange(200)).translate(no_ends) for _ in range(3000)]
    lines[700] = bytes(range(32, 256)) * (LONG // 224) if rank == 1 else b""
    lines[900] = "säße \N{SNOWMAN} \r\n".encode()
    return b"\n".join([*lines, b"\x00no end \xc3"])


def write_pieces(rank: int) -> None:
    """Print that in pieces that end anywhere, to both streams."""
    chance, text = random.Random(-rank), text_of(rank)
    at = 0
    while at < len(text):
        size = min(chance.randrange(1, 60_000), len(text) - at)
        for fd in (1, 2):
            left = text[at : at + size]
            while left:
                left = left[os.write(fd, left) :]
        at += size


def main(package: str, kind: str, folder: str) -> None:
    """Run the workers and link their logs to ``<stream>.<rank>``."""
    base = import_module(package)
    specs = base.DefaultLogsSpecs(log_dir=os.path.join(folder, "logs"), tee=base.Std.ALL)
    args: dict[int, tuple[object, ...]] = {rank: (rank,) for rank in range(WORKERS)}
    if kind == "program":
        args = {rank: (__file__, rank) for rank in range(WORKERS)}
    entrypoint = sys.executable if kind == "program" else write_pieces
    envs: dict[int, dict[str, str]] = {rank: {} for rank in range(WORKERS)}
    result = base.start_processes("job", entrypoint, args, envs, specs, start_method="fork").wait(60)
    for rank in range(WORKERS):
        for name, files in (("stdout", result.stdouts), ("stderr", result.stderrs)):
            os.link(files[rank], os.path.join(folder, f"{name}.{rank}"))
    Path(folder, "failed").write_text(str(result.failures))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write_pieces(int(sys.argv[1]))
    else:
        main(*sys.argv[1:])
