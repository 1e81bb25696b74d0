"""Jobs that tell which of their processes hears which signal, as tests see them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from hpc_elastic.slurm.client import parse
from tests.real_slurm.cluster import Cluster

PROBE = Path(__file__).with_name("signal_probe.py")
SYSTEM_PYTHON = "/usr/bin/python3 -IS"  # starts in 20 ms; nodes have it
LASTING = ("--kill-on-bad-exit=0", "--wait=0")


class Shape(NamedTuple):
    """What a probe job is like."""

    options: Sequence[str] = ()  # of sbatch
    agent: str = "stay"  # what an agent does after SIGTERM
    script: str = "exit=0"  # what the script does after the end of srun
    nodes: int = 1
    srun: Sequence[str] = LASTING


class Probe:
    """One submitted probe job."""

    def __init__(self, cluster: Cluster, shape: Shape) -> None:
        self.cluster = cluster
        self.shape = shape
        self.place = Path(tempfile.mkdtemp(dir=cluster.shared))
        self.place.chmod(0o1777)
        probe = cluster.shared / PROBE.name
        if not probe.exists():
            probe.write_text(PROBE.read_text())
        part = f"{SYSTEM_PYTHON} {probe}"
        many = f"-N {shape.nodes} -n {shape.nodes} --ntasks-per-node=1"
        srun = f"srun {many} {' '.join(shape.srun)} {part} agent {self.place} {shape.agent}"
        self.job_id = cluster.submit(
            "alice",
            f"--nodes={shape.nodes}",
            "--time=10",
            "--open-mode=append",
            *shape.options,
            wrap=f"exec {part} batch {self.place} {shape.script} {srun}",
        )

    def job(self) -> dict[str, str]:
        """Return what Slurm says of the job."""
        return self.cluster.job(self.job_id)

    @property
    def restarts(self) -> int:
        """How often Slurm has requeued the job."""
        return int(self.job().get("Restarts", "0"))

    @property
    def nodes(self) -> list[str]:
        """The nodes that the job has or had last, in Slurm's order."""
        return list(parse.expand(self.job().get("NodeList", "")))

    def file(self, role: str, node: str = "*", start: int = 0) -> Path | None:
        """Return what a process of the job has written; of the first such node."""
        found = sorted(self.place.glob(f"{role}.{node}.{start}"))
        return found[0] if found else None

    def heard(self, role: str, node: str = "*", start: int = 0) -> list[str]:
        """Return the signals that a process has heard, in order, without the end of its child."""
        return [word for _, word in self.story(role, node, start) if word != "start" and "=" not in word]

    def story(self, role: str, node: str = "*", start: int = 0) -> list[tuple[float, str]]:
        """Return all that a process has written down, with the monotonic time of it [s]."""
        path = self.file(role, node, start)
        lines = path.read_text().splitlines() if path else []
        return [(float(time), word) for time, word in (line.split() for line in lines)]

    def when(self, word: str, role: str, node: str = "*", start: int = 0) -> float | None:
        """Return when a process has first heard a signal [s]; None if it has not."""
        return next((at for at, heard in self.story(role, node, start) if heard == word), None)

    def child_code(self, role: str, node: str = "*") -> int | None:
        """Return the exit code of a process's child, None if it has not ended under its eyes."""
        codes = [word for _, word in self.story(role, node) if word.startswith("child=")]
        return int(codes[0].partition("=")[2]) if codes else None

    def lives(self, role: str, node: str = "*", start: int = 0) -> bool:
        """Tell whether a process of the job is alive."""
        path = self.file(role, node, start)
        return path is not None and _is_locked(path)

    def wait_started(self, start: int = 0) -> None:
        """Wait until all processes of a start of the job run."""

        def count() -> int:
            return len([path for path in self.place.glob(f"worker.*.{start}") if path.stat().st_size])

        self.cluster.wait_for(
            lambda: count() == self.shape.nodes, 60, f"the processes of job {self.job_id}, start {start}"
        )

    def wait_heard(self, word: str, role: str, node: str = "*", timeout: float = 60) -> None:
        """Wait until a process has heard a signal."""
        self.cluster.wait_for(
            lambda: word in self.heard(role, node), timeout, f"{role} of job {self.job_id} to hear {word}"
        )

    def wait_dead(self, role: str, node: str = "*", timeout: float = 60) -> None:
        """Wait until a process is gone."""
        self.cluster.wait_for(
            lambda: not self.lives(role, node), timeout, f"{role} of job {self.job_id} to be gone"
        )

    def wait_over(self, timeout: float = 60) -> str:
        """Wait until Slurm has no more to do with the job; return its last state."""
        done = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        self.cluster.wait_for(
            lambda: self.job().get("JobState", "") in done, timeout, f"the end of job {self.job_id}"
        )
        return self.job()["JobState"]

    def wait_requeued(self, timeout: float = 60) -> None:
        """Wait until Slurm has put the job back into the queue for the first time."""
        self.cluster.wait_for(lambda: self.restarts >= 1, timeout, f"the requeue of job {self.job_id}")

    def send(self, node: str, role: str, signal_name: str) -> None:
        """Send a signal as root to a process of this job on a node: script, agent, worker or srun."""
        python = rf"^[^ ]+ -IS [^ ]+signal_probe\.py {role} {self.place} "
        pattern = f"^srun .* agent {self.place} " if role == "srun" else python
        self.cluster.execute(node, "pkill", f"-{signal_name}", "--oldest", "-f", pattern)


def _is_locked(path: Path) -> bool:
    with path.open("r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 0, os.SEEK_SET)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def running(cluster: Cluster, shapes: Mapping[str, Shape]) -> Iterator[dict[str, Probe]]:
    """Submit probe jobs side by side, wait until all of them run, and afterwards end what is left at once."""
    probes = {name: Probe(cluster, shape) for name, shape in shapes.items()}
    try:
        for probe in probes.values():
            probe.wait_started()
        yield probes
    finally:
        # Slurm would wait for KillWait, as they take no notice of SIGTERM.
        for process in psutil.process_iter(["cmdline"]):
            if f"{cluster.shared}/{PROBE.name}" in (process.info["cmdline"] or []):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        cluster.restore()
