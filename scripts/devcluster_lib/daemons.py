"""Start Slurm's daemons, and what they need, in the order that works."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import cgroups, config
from .addresses import AddressPlan
from .errors import DevClusterError
from .layout import Layout
from .namespaces import Host, start_daemon
from .processes import SYSTEM_PATH, children, wait_until
from .settings import Tracker

DATABASE_PORT = 6819


@dataclass(frozen=True)
class Daemons:
    """Starts and stops daemons of one cluster.

    Attributes:
        plan: names and addresses.
        layout: file names.
        controller: where all but slurmd run.
    """

    plan: AddressPlan
    layout: Layout
    controller: Host

    def start_munged(self) -> None:
        """Start munged, which the nodes reach by its socket."""
        run, socket_file = self.layout.run / "munge", self.layout.munge_socket
        files = (
            f"--key-file={self.layout.munge_key}",
            f"--socket={socket_file}",
            f"--pid-file={run}/munged.pid",
            f"--seed-file={run}/munged.seed",
        )
        # --force: a temporary directory that belongs to a user is good enough for this cluster.
        self._start(("munged", "--foreground", "--force", *files), user="munge")
        wait_until(socket_file.is_socket, 10, f"munged did not start; see {self.layout.logs}/munged.out.")

    def start_database(self) -> None:
        """Start MariaDB and slurmdbd; slurmctld needs them up on its very first start."""
        mysql = self.layout.mysql_socket
        self._start(
            (
                "mariadbd",
                "--no-defaults",
                f"--datadir={self.layout.database}",
                f"--socket={mysql}",
                f"--pid-file={mysql.with_suffix('.pid')}",
                "--bind-address=127.0.0.1",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-buffer-pool-size=64M",
                "--innodb-lock-wait-timeout=900",
                "--skip-log-bin",
                "--performance-schema=OFF",
            ),
            user="mysql",
        )
        log = self.layout.logs / "mariadbd.out"
        wait_until(lambda: _answers(mysql), 30, f"MariaDB did not start; see {log}.")
        self._grant()
        self._start(("slurmdbd", "-D"), user="slurm")
        self._wait_port(DATABASE_PORT, 30, "slurmdbd")

    def _grant(self) -> None:
        account = f"{config.DATABASE_USER}@127.0.0.1"
        statements = (
            f"CREATE DATABASE IF NOT EXISTS slurm_acct;"
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{config.DATABASE_PASSWORD}';"
            f"GRANT ALL ON slurm_acct.* TO {account};"
        )
        client = ["mariadb", "--no-defaults", f"--socket={self.layout.mysql_socket}", "--user=root"]
        done = subprocess.run(client, input=statements, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DevClusterError(f"MariaDB refused to create the accounting database: {done.stderr.strip()}")

    def start_slurmctld(self) -> None:
        """Start slurmctld and wait until it answers."""
        self._start(("slurmctld", "-D", "-i"), user="slurm")
        self._wait_port(config.CONTROLLER_PORT, 20, "slurmctld")

    def start_slurmd(self, node: Host) -> None:
        """Start slurmd on a node.

        Slurmctld must listen already: a failed registration is tried again after up to 64 s.
        """
        start_daemon(
            self.plan,
            node,
            ("slurmd", "-D", "-N", node.name),
            self.layout.logs / f"slurmd-{node.name}.out",
            {**self._env(), **_v1_hidden(node.tracker)},
        )

    def stop_database(self) -> None:
        """End the accounting daemons in order, so that the next start finds clean data."""
        for command in ("slurmctld", "slurmdbd", "mariadbd"):
            for process in children(self.controller.init, command):
                process.send(signal.SIGTERM)
            with contextlib.suppress(DevClusterError):  # too slow: it is killed with the controller
                wait_until(partial(self._is_gone, command), 15, command)

    def _is_gone(self, command: str) -> bool:
        return not children(self.controller.init, command)

    def register_users(self, users: Sequence[str]) -> None:
        """Give the users an account, as sites do."""
        self._client("sacctmgr", "-i", "-Q", "add", "account", "dev")
        self._client("sacctmgr", "-i", "-Q", "add", "user", ",".join(users), "account=dev")

    def _client(self, *argv: str) -> None:
        env = {"PATH": SYSTEM_PATH, **self._env()}
        subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def _start(self, argv: Sequence[str], user: str) -> None:
        log = self.layout.logs / f"{argv[0]}.out"
        start_daemon(self.plan, self.controller, argv, log, self._env(), user)

    def _env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.layout.slurm_conf)}

    def _wait_port(self, port: int, timeout_s: float, program: str) -> None:
        address = (self.plan.controller, port)
        log = self.layout.logs / f"{program}.out"
        wait_until(lambda: _accepts(address), timeout_s, f"{program} did not start; see {log}.")


def _v1_hidden(tracker: Tracker) -> dict[str, str]:
    hides = cgroups.shim() if tracker is Tracker.CGROUP2 else None
    return {} if hides is None else {"LD_PRELOAD": str(hides)}


@contextlib.contextmanager
def database_ready(layout: Layout, *, wanted: bool) -> Iterator[None]:
    """Create the empty database, where it is wanted and missing, beside what the caller does.

    Raises:
        DevClusterError: at the end, when it could not be created.
    """
    if not wanted or (layout.database / "mysql").is_dir():
        yield
        return
    process = _create_database(layout)
    try:
        yield
    finally:
        failed = process.wait() != 0
        if failed:
            shutil.rmtree(layout.database)
    if failed:
        raise DevClusterError(f"MariaDB's files could not be made; see {layout.logs}/mariadb-install-db.log.")


def _create_database(layout: Layout) -> subprocess.Popen[bytes]:
    shutil.rmtree(layout.database, ignore_errors=True)
    layout.database.mkdir()
    shutil.chown(layout.database, "mysql", "mysql")
    argv = (
        "mariadb-install-db",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={layout.database}",
        "--skip-test-db",
        "--auth-root-authentication-method=socket",
    )
    with (layout.logs / "mariadb-install-db.log").open("wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")


def _answers(socket_file: Path) -> bool:
    if not socket_file.is_socket():
        return False
    client = ["mariadb", "--no-defaults", f"--socket={socket_file}", "--user=root", "--execute=SELECT 1"]
    return subprocess.run(client, capture_output=True, check=False).returncode == 0


def _accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True
