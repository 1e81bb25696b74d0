"""Boxes: another Debian with its Slurm on this machine, in namespaces of its own.

A box has the root tree of a suite (`suites`), users, processes, /tmp and network of its own, and sees the
repository where it lies. There is one for each version and repository; clusters are started in it as on any
machine. It lives as long as its PID 1 (`box_init`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from . import box_init, cgroups, state_file
from .addresses import MARK
from .errors import DevClusterError
from .processes import SYSTEM_PATH, ProcessId, kill_and_wait, let_go, next_line, said_process, start_helper
from .suites import SUITES, Suite

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = Path("/var/tmp/hpc_elastic-boxes")  # noqa: S108 - root's own, see `_prepare`
FORMAT = "hpc-elastic-box/1"
VENV = "/opt/hpc_elastic-venv"
"""Where `scripts/venv.sh` makes its environment in a box: that of the repository is the machine's."""

_PASSED_ON = ("DEVCLUSTER_", "HPC_ELASTIC_", "PYTEST_", "PIP_")
_FROM_THE_MACHINE = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Box:
    """The box of one version of Slurm for one repository.

    Attributes:
        suite: whose Slurm it has.
        repository: what it sees of the machine's files.
    """

    suite: Suite
    repository: Path = REPOSITORY

    @property
    def name(self) -> str:
        """Its host name."""
        return f"slurm-{self.suite.version.replace('.', '-')}" if self.suite.version else "bare"

    @property
    def folder(self) -> Path:
        """Where it keeps what it writes."""
        digest = hashlib.sha256(str(self.repository).encode()).hexdigest()[:12]
        return FOLDERS / f"{self.suite.version or self.name}-{digest}"

    @property
    def state_file(self) -> Path:
        """What the commands remember."""
        return self.folder / "box.json"

    def init(self) -> ProcessId | None:
        """Its PID 1; None if it is not open."""
        init = _init_of(self.state_file)
        return init if init is not None and init.is_alive() else None

    def sees_the_repository(self, init: ProcessId) -> bool:
        """Whether its mounts are there, and show the repository that lies there now, no deleted one."""
        root = Path(f"/proc/{init.pid}/root")
        seen = root / str(self.repository).lstrip("/")
        try:
            return (root / "usr").is_dir() and seen.samefile(self.repository)
        except OSError:
            return False


def of(version: str) -> Box:
    """Return the box of a version.

    Raises:
        DevClusterError: no suite has it.
    """
    if version not in SUITES:
        raise DevClusterError(f"--slurm must be one of {', '.join(SUITES)}, not {version!r}.")
    return Box(SUITES[version])


def open_box(box: Box) -> ProcessId:
    """Return the PID 1 of a box, which is opened if it is not; its tree is made if there is none."""
    box.suite.ensure()
    _prepare(box)
    _close_abandoned()
    with state_file.locked(box.folder / "lock"):
        init = box.init()
        if init is not None and box.sees_the_repository(init):
            return init
        if init is not None:
            kill_and_wait([init])
        return _start(box)


def close_box(box: Box) -> bool:
    """End everything in a box and delete what it has written; returns whether there was any."""
    if not box.folder.exists():
        return False
    _close(box.folder)
    return True


def _close(folder: Path) -> None:
    with state_file.locked(folder / "lock"):
        init = _init_of(folder / "box.json")
        if init is not None and init.is_alive():
            kill_and_wait([init])
        shutil.rmtree(folder)


def _init_of(path: Path) -> ProcessId | None:
    data = state_file.read(path, FORMAT)
    return None if data is None else ProcessId(**data["init"])


def _close_abandoned() -> None:
    """Close the boxes of repositories that are gone; nobody else would."""
    for path in FOLDERS.glob("*/box.json"):
        try:
            data = state_file.read(path, FORMAT)
        except DevClusterError:
            continue  # of another version of this program
        repository = None if data is None else data.get("repository")
        if repository is not None and not os.path.isdir(repository):
            _close(path.parent)


def enter(box: Box, argv: Sequence[str], *, network: bool = False) -> NoReturn:
    """Become a root process in a box, in the caller's directory if the box has it; as `entering` says."""
    words = entering(box, argv, network=network)
    sys.stdout.flush()
    os.execvpe(words[0], words, environment(os.environ))  # noqa: S606 - its exit code becomes ours


def entering(box: Box, argv: Sequence[str], *, network: bool = False) -> tuple[str, ...]:
    """Return the command that runs a program in a box; its environment is that of `environment`.

    Args:
        box: it is opened if it is not.
        argv: the program.
        network: it has the machine's network, and so is not in that of the box's clusters.
    """
    init = open_box(box)
    spaces = ("--mount", "--pid", "--ipc", "--uts", *(() if network else ("--net",)))
    here = os.getcwd()
    script = 'cd "$0" 2> /dev/null || cd /; exec "$@"'
    return ("nsenter", "--target", str(init.pid), *spaces, "--", "sh", "-c", script, here, *argv)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a program in a box gets of an environment."""
    own = {"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8", "HPC_ELASTIC_VENV": VENV}
    passed = {name: value for name, value in environ.items() if name.startswith(_PASSED_ON) or name == "CI"}
    return {**passed, **own}


def _prepare(box: Box) -> None:
    FOLDERS.mkdir(mode=0o755, exist_ok=True)
    if FOLDERS.is_symlink() or FOLDERS.stat().st_uid != 0:
        raise DevClusterError(f"{FOLDERS} is a link or belongs to another user; remove it.")
    box.folder.mkdir(mode=0o755, exist_ok=True)


def _start(box: Box) -> ProcessId:
    folder = box.folder
    for name in ("upper", "work", "root", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    (folder / "tmp").chmod(0o1777)
    _copy_files(box)
    plan: box_init.Plan = {
        "name": box.name,
        "tree": str(box.suite.root),
        "folder": str(folder),
        "binds": [str(box.repository), *_package_folders()],
    }
    init = _launch(plan, folder / "init.log")
    state_file.write(box.state_file, FORMAT, {"init": asdict(init), "repository": str(box.repository)})
    return init


def _copy_files(box: Box) -> None:
    """Give a box the machine's ways to look up names and to fetch packages, and a name for itself."""
    upper = box.folder / "upper"
    for name in _FROM_THE_MACHINE:
        if Path(name).exists():
            target = upper / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, target)
    hosts = f"127.0.0.1 localhost {box.name}\n"
    (upper / "etc").mkdir(exist_ok=True)
    (upper / "etc" / "hosts").write_text(hosts)
    if box.suite.version:
        cgroups.build_shim(upper / str(cgroups.SHIM).lstrip("/"))  # the tree has no compiler
    (upper / MARK.lstrip("/")).write_text(f"{box.folder.name}\n")


def _package_folders() -> list[str]:
    """Folders of this machine that its pip looks for packages in."""
    asked = (sys.executable, "-m", "pip", "config", "list")
    told = subprocess.run(asked, capture_output=True, text=True, check=False, cwd="/").stdout
    named = re.findall(r"(?:file://|(?<=['\s=]))(/[^'\s]+)", told)
    return sorted({folder for name in named if os.path.isdir(folder := _top(name))})


def _top(name: str) -> str:
    return os.path.dirname(name.rstrip("/")) if name.rstrip("/").endswith("/simple") else name.rstrip("/")


def _launch(plan: box_init.Plan, log: Path) -> ProcessId:
    spaces = ("unshare", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts", "--")
    program = (sys.executable, "-I", "-S", box_init.__file__, json.dumps(plan))
    started = start_helper((*spaces, *program), log, subprocess.DEVNULL)
    try:
        init = said_process(started, "The box", log)
        word = next_line(started)
    finally:
        let_go(started)
    if word != "ready":
        raise DevClusterError(f"The box could not be set up; see {log}.")
    started.returncode = 0  # unshare stays as the parent of PID 1: it is not this process's to wait for
    return init
