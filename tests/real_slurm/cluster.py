"""A development cluster as tests see it."""

from __future__ import annotations

import functools
import os
import pwd
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_elastic.clock import SystemClock
from hpc_elastic.testing.fake_slurm.handle import Waits, shown_fields, shown_job
from tests.real_slurm.facts import Facts

REPOSITORY = Path(__file__).resolve().parents[2]
DEVCLUSTER = REPOSITORY / "scripts" / "devcluster"
LOG_TAIL_LINES = 40
USER_PATH = "/usr/local/bin:/usr/bin:/bin"
EXTRA = os.environ.get("DEVCLUSTER_EXTRA", "")  # lines of slurm.conf, between semicolons
DELAYS = os.environ.get("DEVCLUSTER_DELAYS", "")  # SECONDS:SEED, see `delay_strike`
_PATIENCE = 2.0  # times the limit of each wait: it costs nothing where the event comes
_STRIKES = frozenset({"scancel", "update", "requeue", "suspend", "resume", "crash", "cut", "exec", "stop"})
_random = random.Random(DELAYS.partition(":")[2])


def delay_strike(*words: str) -> None:
    """Wait for a random time before something is done to a run, where DEVCLUSTER_DELAYS asks for it.

    So the same tests strike at other moments of a step, a save, a start.

    Args:
        words: the command line.
    """
    if DELAYS and not _STRIKES.isdisjoint(words[:4]):
        SystemClock().sleep(_random.uniform(0.0, float(DELAYS.partition(":")[0])))


def devcluster(*words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `scripts/devcluster`; the caller looks at the exit code."""
    return subprocess.run(
        [sys.executable, str(DEVCLUSTER), *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True)
class Cluster(Waits, Facts):
    """One running cluster.

    Attributes:
        directory: its directory.
        slurm_conf: value of SLURM_CONF.
        nodes: number of nodes, named node1..nodeN.
        tracker: `linuxproc`, `cgroup` or `cgroup2`.
    """

    directory: Path
    slurm_conf: Path
    nodes: int
    tracker: str

    @classmethod
    def start(
        cls, directory: Path, *, nodes: int = 4, tracker: str = "linuxproc", options: Sequence[str] = ()
    ) -> Cluster:
        """Start a cluster in `directory`.

        Raises:
            RuntimeError: it did not come up; the text is what the command said.
        """
        where, shape = ("--dir", str(directory)), ("--nodes", str(nodes), "--proctrack", tracker)
        auth = os.environ.get("DEVCLUSTER_AUTH")
        extra = [word for line in EXTRA.split(";") if line for word in ("--extra", line)]
        options = (*(("--auth", auth) if auth else ()), *extra, *options)
        done = devcluster("start", *where, *shape, *options)
        match = re.fullmatch(r"export SLURM_CONF=(.+)\n", done.stdout)
        if done.returncode != 0 or match is None:
            raise RuntimeError(f"devcluster start: exit code {done.returncode}, {done.stdout}{done.stderr}")
        return cls(directory, Path(match[1]), nodes, tracker)

    @functools.cached_property
    def version(self) -> str:
        """Its Slurm, such as `24.11.5`."""
        return self._as_root("sbatch", "--version").stdout.split()[-1]

    @property
    def shared(self) -> Path:
        """Directory that all nodes see and everybody may write to."""
        return self.directory / "shared"

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes, in order."""
        return [f"node{i}" for i in range(1, self.nodes + 1)]

    # Users

    def run(
        self,
        user: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the login host (this machine) as an unprivileged user.

        Args:
            user: who runs it.
            argv: the program; no shell is involved.
            env: added to a minimal environment (PATH, HOME, USER, LANG, SLURM_CONF).
            cwd: working directory; the shared directory if None.
            timeout: limit [s].

        Returns:
            The finished process; its exit code is not checked.
        """
        delay_strike(*argv)
        home = pwd.getpwnam(user).pw_dir
        own = {"PATH": USER_PATH, "HOME": home, "USER": user, "LANG": "C.UTF-8"}
        return subprocess.run(
            ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--", *argv],
            env={**own, "SLURM_CONF": str(self.slurm_conf), **(env or {})},
            cwd=cwd or self.shared,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def submit(self, user: str, *options: str, wrap: str) -> str:
        """Submit a batch job with the script `wrap`; returns its id."""
        done = self.run(user, ["sbatch", "--parsable", "--output=%j.out", *options, f"--wrap={wrap}"])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(";")[0]

    def submit_high(self, nodes: int, *options: str) -> str:
        """Let bob take whole nodes in partition `high`, preempting who is there; returns the job id."""
        words = ("--partition=high", f"--nodes={nodes}", "--exclusive", *options)
        return self.submit("bob", *words, wrap="sleep 600")

    def wait_for(self, predicate: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until a condition holds, for longer than on a machine that has nothing else to do."""
        super().wait_for(predicate, _PATIENCE * timeout, what)

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is left, not even completing."""
        seen: set[str] = set()

        def none_left() -> bool:
            done = self._as_root("squeue", "--noheader", "--all", "--format=%A.%t")
            if done.returncode != 0:
                return False  # slurmctld does not answer, which is not to say that it has no jobs
            jobs = set(done.stdout.split())
            # A job that was on its way back into the queue while it was cancelled is cancelled again.
            if jobs - seen:
                self.as_root("scancel", "--hurry", *{job.partition(".")[0] for job in jobs - seen})
            seen.update(jobs)
            return not jobs

        self.wait_for(none_left, 60, "all jobs to end")

    # What Slurm says

    def as_root(self, *argv: str) -> str:
        """Run a Slurm client as root on this machine; returns its output, empty if it failed."""
        delay_strike(*argv)
        return self._as_root(*argv).stdout

    def _as_root(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "SLURM_CONF": str(self.slurm_conf), "LC_ALL": "C"}
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, errors="backslashreplace", timeout=60, check=False
        )

    def job(self, job: str) -> dict[str, str]:
        """Fields of `scontrol show job`; empty if Slurm does not know the job."""
        return shown_job(self.as_root("scontrol", "show", "job", "--oneliner", job))

    def node_state(self, name: str) -> str:
        """State of a node with its flags, such as `idle`, `mixed` or `down+not_responding`.

        Not from sinfo, which may go on to show `mix` after slurmd was restarted under a job.
        """
        shown = self.as_root("scontrol", "show", "node", "--oneliner", name)
        return shown_fields(shown).get("State", "").lower()

    def story(self) -> str:
        """Queue, node states and the end of slurmctld's log."""
        log = (self.directory / "log" / "slurmctld.log").read_text(errors="replace").splitlines()
        boring = ("Running job scheduler", "_attempt_backfill")
        tail = [line for line in log if not any(word in line for word in boring)][-LOG_TAIL_LINES:]
        states = " ".join(f"{name}={self.node_state(name)}" for name in self.node_names)
        return "\n".join((self.as_root("squeue", "--all"), states, *tail))

    # Faults

    def command(self, *words: str) -> str:
        """Run a `devcluster` command that must work; returns its output."""
        delay_strike(*words)
        done = devcluster(words[0], "--dir", str(self.directory), *words[1:])
        assert done.returncode == 0, f"devcluster {' '.join(words)}: {done.stderr}"
        return done.stdout

    def crash(self, node: str) -> None:
        """Power loss of a node."""
        self.command("crash", node)

    def boot(self, node: str) -> None:
        """Boot a crashed node."""
        self.command("boot", node)

    def cut(self, node: str) -> None:
        """Cut a node off the network; the shared directory stays."""
        self.command("cut", node)

    def heal(self, node: str) -> None:
        """End a partition."""
        self.command("heal", node)

    def save_controller_state(self) -> None:
        """Wait until slurmctld has saved what it knows; what it has not saved dies with it."""
        name = f"save-{SystemClock().wall()}"
        self.submit("alice", "--hold", f"--job-name={name}", wrap="true")
        state = self.directory / "state" / "job_state"

        def saved() -> bool:
            return state.exists() and name.encode() in state.read_bytes()

        self.wait_for(saved, 30, "slurmctld to save its state")

    def restart_controller(self) -> None:
        """SIGKILL slurmctld, unless it is dead, and start it again.

        What it has not saved, up to 5 s ago, it forgets: jobs that are over run again in its eyes.
        """
        self.execute("ctl", "sh", "-c", "pkill -KILL -x slurmctld || true")
        self._start_controller()

    def change_settings(self, slurm_conf: str) -> None:
        """Restart slurmctld in order, so that it forgets nothing, with another slurm.conf."""
        self.execute("ctl", "pkill", "-TERM", "-x", "slurmctld")
        self._wait_controller_gone()
        self.slurm_conf.write_text(slurm_conf)
        self._start_controller()

    def _wait_controller_gone(self) -> None:
        self.wait_for(lambda: not self._controller(), 20, "its end")

    def _controller(self) -> str:
        """The process id of slurmctld; empty if it is dead."""
        return self.execute("ctl", "sh", "-c", "pgrep -x slurmctld || true")

    def _start_controller_if_dead(self) -> None:
        if not self._controller():
            self._start_controller()

    def _start_controller(self) -> None:
        """Start slurmctld and wait until it has heard of all nodes.

        Until then it may say of a job that nodes of this kind do not exist.
        """
        self._wait_controller_gone()
        self.command("start-slurmctld")
        self.wait_for(self._knows_all_nodes, 40, "slurmctld to hear of all nodes")

    def _knows_all_nodes(self) -> bool:
        states = [self.node_state(name) for name in self.node_names]
        return all(states) and not any("unknown" in state for state in states)

    def execute(self, node: str, *argv: str) -> str:
        """Run a program as root on a node; returns its output."""
        return self.command("exec", node, *argv)

    def restore(self) -> None:
        """Undo all faults, cancel all jobs and wait until every node is idle.

        slurmctld 22.05.8 has been seen to crash (SIGSEGV) as an array task came back to a node that was lost;
        one test that meets this is to fail, and not all that come after it.
        """
        if self._as_root("squeue", "--noheader").returncode != 0:
            self._start_controller_if_dead()
        for name, power, link, slurmd in re.findall(r"(node\d+): (.+), (.+), (.+)", self.command("status")):
            if power == "crashed":
                self._boot_and_wait(name)
                continue
            if link == "cut off":
                self.heal(name)
            if slurmd == "no slurmd":
                self.command("start-slurmd", name)
        self.cancel_all()
        for name in self.node_names:
            if re.search("down|drain", self.node_state(name)):
                self.as_root("scontrol", "update", f"nodename={name}", "state=resume")
        self.wait_idle()

    def _boot_and_wait(self, name: str) -> None:
        """Boot a node and wait until it has told slurmctld so, which may have missed nothing before."""

        def started() -> str:
            shown = self.as_root("scontrol", "show", "node", "--oneliner", name)
            return shown_fields(shown).get("SlurmdStartTime", "")

        before = started()
        self.boot(name)
        self.wait_for(lambda: started() not in ("", "None", before), 40, f"{name} to be up")

    def purge(self) -> None:
        """End the cluster and delete its directory."""
        self.command("purge")
