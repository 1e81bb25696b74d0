"""What workers print arrives byte for byte: in the files, and below the headers on the console."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.multiprocessing.bytes_job import LONG, WORKERS, text_of

HEADER = re.compile(rb"(?m)^\[job(\d)\]:")


def run(package: str, kind: str, folder: Path) -> tuple[bytes, bytes]:
    """Run the printing workers and return what their parent's two streams got."""
    folder.mkdir()
    script = str(Path(__file__).with_name("bytes_job.py"))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, script, package, kind, str(folder)],
        env=env,
        capture_output=True,
        timeout=100,
        check=True,
    )
    assert "{}" == (folder / "failed").read_text()
    return ended.stdout, ended.stderr


def of_rank(console: bytes, rank: int) -> bytes:
    """Return a rank's lines without their headers."""
    start = f"[job{rank}]:".encode()
    lines = console.split(b"\n")
    return b"\n".join(line[len(start) :] for line in lines if line.startswith(start))


@pytest.mark.parametrize("kind", ["program", "function"])
def test_files_and_console_have_every_byte(kind: str, tmp_path: Path) -> None:
    """No text, a line of ten megabytes, pieces, four ranks at once, an end without a line end."""
    streams = run("hpc_elastic.multiprocessing", kind, tmp_path / "ours")
    for name, console in zip(("stdout", "stderr"), streams, strict=True):
        assert len(console) > LONG
        for rank in range(WORKERS):
            assert text_of(rank) == (tmp_path / "ours" / f"{name}.{rank}").read_bytes()
            assert text_of(rank) == of_rank(console, rank)
        lines = console.removesuffix(b"\n").split(b"\n")
        assert all(HEADER.match(line) for line in lines)


@pytest.mark.torch
@pytest.mark.slow
def test_files_are_those_of_torch(tmp_path: Path) -> None:
    """Both packages leave the same bytes in the files of each rank and stream."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    run("hpc_elastic.multiprocessing", "program", tmp_path / "ours")
    run("torch.distributed.elastic.multiprocessing", "program", tmp_path / "theirs")
    for name in (f"{stream}.{rank}" for stream in ("stdout", "stderr") for rank in range(WORKERS)):
        assert (tmp_path / "theirs" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()
