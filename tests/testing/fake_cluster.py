"""The fake Slurm with the methods of the development cluster, so that the same tests run against both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpc_elastic.clock import SystemClock
from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings
from hpc_elastic.testing.fake_slurm.handle import Waits
from tests.real_slurm.facts import Facts

POLL_S = 0.02
LONGEST_S = 100.0  # no test here means a limit further away
SETTINGS = Settings(  # those of the development cluster
    cpus=8, grace=8, kill_wait=6, cred_expire=5, slurmd_timeout=10, requeue_exit=(99,), speed=1
)


class FakeCluster(Waits, Facts):
    """One running fake.

    Args:
        slurm: it; started.
        skips: whether waiting moves Slurm's clock forward while all processes wait for something.
    """

    def __init__(self, slurm: FakeSlurm, *, skips: bool = True) -> None:
        self.slurm = slurm
        self._skips = skips
        self.tracker = slurm.settings.tracker
        self.version = slurm.settings.full_version

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes, in order."""
        return self.slurm.node_names

    @property
    def shared(self) -> Path:
        """Directory for the files of jobs."""
        found = Path(self.slurm.directory) / "shared"
        found.mkdir(exist_ok=True)
        return found

    def run(
        self,
        user: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program; there is one user only."""
        del user
        return self.slurm.run(argv, env=env, cwd=cwd or self.shared, timeout=timeout)

    def submit(self, user: str, *options: str, wrap: str) -> str:
        """Submit a batch job; returns its id."""
        done = self.run(user, ["sbatch", "--parsable", "--output=%j.out", *options, f"--wrap={wrap}"])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(";")[0]

    def submit_high(self, nodes: int, *options: str) -> str:
        """Take whole nodes in partition `high`."""
        return self.slurm.submit_high(nodes, *options)

    def as_root(self, *argv: str) -> str:
        """Run one of Slurm's commands; returns its output, empty if it failed."""
        return self.slurm.command(*argv)

    def job(self, job: str) -> dict[str, str]:
        """Fields of `scontrol show job`."""
        return self.slurm.job(job)

    def story(self) -> str:
        """Queue, nodes and the end of the controller's log."""
        return self.slurm.story()

    def node_state(self, name: str) -> str:
        """State of a node with its flags."""
        return self.slurm.node_state(name)

    def wait_for(self, predicate: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait for a condition; what only Slurm's clock holds up comes at once."""
        clock = SystemClock()
        deadline = clock.monotonic() + max(timeout, 60)
        while not predicate():
            assert clock.monotonic() < deadline, f"Waited in vain for {what}.\n{self.story()}"
            if not (self._skips and self.slurm.skip(LONGEST_S, unless=predicate)):
                clock.sleep(POLL_S)

    def crash(self, node: str) -> None:
        """Power loss of a node."""
        self.slurm.crash(node)

    def boot(self, node: str) -> None:
        """Boot a crashed node."""
        self.slurm.boot(node)

    def cut(self, node: str) -> None:
        """Cut a node off the network; what runs there lives on."""
        self.slurm.cut(node)

    def heal(self, node: str) -> None:
        """End a partition."""
        self.slurm.heal(node)

    def command(self, *words: str) -> str:
        """Do what a command of `devcluster` does."""
        match words:
            case ("kill-slurmd", node):
                self.slurm.cut(node)
            case ("start-slurmd", node):
                self.slurm.heal(node)
            case _:
                raise NotImplementedError(words)
        return ""

    def save_controller_state(self) -> None:
        """There is nothing to save: the controller is only silent for a while."""

    def restart_controller(self) -> None:
        """Let the controller be away for a moment."""
        self.slurm.silence()
        self.slurm.speak()

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is left."""
        for job_id in self.as_root("squeue", "--noheader", "--format=%A").split():
            self.as_root("scancel", job_id)
        self.wait_for(lambda: not self.as_root("squeue", "--noheader"), 60, "all jobs to end")

    def execute(self, node: str, *argv: str) -> str:
        """Play ``pkill -SIGNAL [--oldest] -f PATTERN`` on a node."""
        program, word, *_, pattern = argv
        assert program == "pkill"
        conf = os.path.join(self.slurm.directory, "slurm.conf")
        found = [pid for pid, line in _on_node(node, conf) if re.search(pattern, line)]
        for pid in [min(found)] if "--oldest" in argv else found:
            os.kill(pid, getattr(signal, f"SIG{word[1:]}"))
        return ""

    def restore(self) -> None:
        """Cancel all jobs and mend all nodes."""
        for name in self.node_names:
            self.slurm.heal(name)
        for job_id in self.as_root("squeue", "--noheader", "--format=%A").split():
            self.as_root("scontrol", "update", f"jobid={job_id}", "requeue=0")
        self.cancel_all()
        for name in self.node_names:
            self.slurm.resume(name)
        self.as_root("scontrol", "update", "partitionname=low", "state=up")


def _on_node(node: str, conf: str) -> Iterator[tuple[int, str]]:
    """Yield pid and command line of the processes on a node; srun is called as it is on a real one.

    Other clusters on this machine, fake and real, have nodes of the same names: SLURM_CONF tells them apart.
    """
    wanted = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={conf}".encode()}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if wanted <= set(environ):
            yield int(name), re.sub(r"^.*/client\.py \S+ srun ", "srun ", line)
