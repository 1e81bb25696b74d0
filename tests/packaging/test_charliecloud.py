"""Workers in an image, by a real Charliecloud: Debian's packages of it, unpacked for this test alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.slow]

PACKAGES = ("charliecloud-runtime", "libsquashfuse0", "libfuse3-3", "liblzo2-2")
PYTHON = "/usr/bin/python3"
TRAIN = """
import os, sys, hpc_elastic.worker
hpc_elastic.worker.tick(1)
hpc_elastic.worker.checkpoint_saved(1)
print("ran", sys.executable, os.path.exists("/usr/bin/dpkg"), os.environ["MINE"], os.getcwd(), flush=True)
"""


@pytest.fixture(scope="module")
def ch_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a `ch-run`: the installed one, or Debian's."""
    installed = shutil.which("ch-run")
    if installed:
        return Path(installed).parent
    place = tmp_path_factory.mktemp("charliecloud")
    for name in PACKAGES:
        subprocess.run(["apt-get", "download", "-q", name], cwd=place, check=True, capture_output=True)
    for package in place.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, place / "root"], check=True)
    libraries = ":".join({str(path.parent) for path in (place / "root").rglob("*.so.*")})
    program = place / "bin" / "ch-run"
    program.parent.mkdir()
    real = place / "root" / "usr" / "bin" / "ch-run"
    program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {real} "$@"\n')
    program.chmod(0o755)
    return program.parent


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that is an image: the system's Python with its libraries, a shell, and no more."""
    place = tmp_path_factory.mktemp("image")
    for name in ("usr/bin", "usr/lib", "etc", "dev", "proc", "sys", "tmp", "var/tmp", "home", "mnt", "run"):
        (place / name).mkdir(parents=True)
    real = os.path.realpath(PYTHON)
    library = Path(real).parents[1] / "lib" / Path(real).name
    left_out = shutil.ignore_patterns("test", "config-*", "__pycache__", "idlelib", "*-packages")
    shutil.copytree(library, place / "usr/lib" / library.name, symlinks=True, ignore=left_out)
    wanted = [real, "/bin/sh", *map(str, library.glob("lib-dynload/*.so"))]
    linked = subprocess.run(["ldd", *wanted], capture_output=True, text=True, check=True).stdout
    for file in {*re.findall(r"(/\S+\.so\S*) \(", linked), real, "/bin/sh"}:
        copy = place / re.sub("^/(bin|lib)", r"usr/\1", file).removeprefix("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    for name in ("bin", "lib", "lib64"):
        (place / "usr" / name).mkdir(exist_ok=True)
        (place / name).symlink_to(f"usr/{name}")
    (place / "usr/bin/python3").symlink_to(Path(real).name)
    for name in ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf"):
        (place / "etc" / name).touch()
    return place


def submit(cwd: Path, ch_run: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a training of one local node."""
    environ = {**os.environ, "PATH": f"{ch_run}:{os.environ['PATH']}", "USER": os.environ.get("USER", "root")}
    argv = [sys.executable, "-m", "hpc_elastic", "submit", "--local=1", "--max-restarts=0", *words]
    return subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False)


def test_workers_run_with_the_python_of_an_image(tmp_path: Path, ch_run: Path, image: Path) -> None:
    """They see their script, the run directory and this package at the same places, and mark a checkpoint."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = submit(tmp_path, ch_run, f"--container={image}", "--worker-env=MINE=yes", "--", "train.py")
    assert f"ran {PYTHON} False yes {tmp_path}" in done.stdout, done.stdout + done.stderr
    assert 0 == done.returncode
    status = [sys.executable, "-m", "hpc_elastic", "checkpoints"]
    shown = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.search(r"\b1\b", shown)


def test_an_image_without_python_is_told(tmp_path: Path, ch_run: Path, image: Path) -> None:
    """By the name of the node and of the runtime; it is no fault of the script."""
    (tmp_path / "train.py").write_text(TRAIN)
    bare = tmp_path / "bare"
    shutil.copytree(image, bare, symlinks=True, ignore=shutil.ignore_patterns("python3*"))
    done = submit(tmp_path, ch_run, f"--container={bare}", "--", "train.py")
    assert 1 == done.returncode, done.stdout + done.stderr
    assert re.search(
        r"rank 0 on local1: exit code \d+: command not\s+found: python3 in the image that ch-run", done.stdout
    )
