"""A copy of the repository with an environment of its own, in which a fault harms nobody.

What the tests start there starts with the tree's own interpreter, so it imports the tree's own package: also
with ``-I``, and without any variable of the environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from mutate_lib import codes, exchange, plugin, record
from mutate_lib.project import Project

TREE_OF_ENVIRONMENT = os.path.join(*[os.pardir] * 4)  # from .venv/lib/python3.X/site-packages to the tree


def make_base(project: Project, root: Path) -> None:
    """Copy what git knows of a repository, make an environment for it, and compile the package."""
    for name in project.files:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project.root / name, target, follow_symlinks=False)
    venv.create(root / ".venv", symlinks=True, with_pip=False)
    packages = next((root / ".venv" / "lib").glob("python*")) / "site-packages"
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    lines = [TREE_OF_ENVIRONMENT, *libraries, "import mutate_record"]
    (packages / "mutate.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for module in (codes, exchange, plugin, record):
        shutil.copy2(str(module.__file__), packages / f"mutate_{Path(str(module.__file__)).name}")
    argv = [str(root / ".venv/bin/python"), "-m", "compileall", "-q", str(root / project.package)]
    subprocess.run(argv, check=True)


def make_copy(base: Path, root: Path) -> None:
    """Make a tree that shares its files with another one, by hard links."""
    subprocess.run(["cp", "-al", str(base), str(root)], check=True)


def put_fault(root: Path, file: str, source: str) -> None:
    """Replace one file of a tree; files that it shares with other trees stay as they are."""
    path = root / file
    path.unlink()
    path.write_text(source, encoding="utf-8")
    stem = os.path.basename(importlib.util.cache_from_source(file)).split(".")[0]
    for compiled in (path.parent / "__pycache__").glob(f"{stem}.*"):
        compiled.unlink()


def begin_recording(project: Project, root: Path, lines: Path) -> None:
    """Let all that runs in a tree note its lines in a file of two bytes per line of the package.

    The first half is for what runs in the process of the tests, the other one for programs that they start.
    """
    firsts, first = {}, 0
    for name in project.sources:
        firsts[name] = first
        first += project.read(name).count("\n") + 2
    lines.write_bytes(bytes(2 * first))
    settings = {"map": str(lines), "firsts": firsts}
    (root / record.SETTINGS).write_text(json.dumps(settings), encoding="utf-8")


def end_all_in(root: Path) -> None:
    """Kill what a test has left behind: all processes that were started with the tree's interpreter."""
    mark = f"{root}{os.sep}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _mentions(entry, mark):
            try:
                os.kill(int(entry), 9)
            except ProcessLookupError:
                pass


def _mentions(pid: str, mark: bytes) -> bool:
    for name in ("cmdline", "environ"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if mark in file.read():
                    return True
        except OSError:
            pass
    return False


def remove(root: Path) -> None:
    """Remove a tree, also what a test has made unreadable in it."""
    subprocess.run(["chmod", "-R", "u+rwX", str(root)], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(root, ignore_errors=True)
