"""Bob listens where alice's workers or agents do, before or beside them: nobody takes him for one of hers."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from hpc_elastic.record.journal import Decision, RoundFormed
from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run, installed_for_users, nodes_of, submit

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

LIMIT_S = 120
LISTEN = """
import os, selectors, socket, sys
told, port, addresses = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
looks, kept = selectors.DefaultSelector(), []
for address in addresses:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ":" in address:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((address, port))
    made.listen(64)
    looks.register(made, selectors.EVENT_READ)
looks.register(sys.stdin, selectors.EVENT_READ)
print("listens", flush=True)
while True:
    for key, _ in looks.select():
        if key.fileobj is sys.stdin:
            sys.exit()
        kept.append(key.fileobj.accept())
        with open(told, "a") as file:
            print(*key.fileobj.getsockname(), file=file)
"""
PORTS = """
import os, sys
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    words = line.split()
    if words[3] == "0A" and words[7] == sys.argv[1]:
        print(int(words[1].partition(":")[2], 16))
"""
"""Prints the ports at which a user listens, as everybody can see them."""
STORE = """
import os, sys, time
place, ports, tries_s = sys.argv[1], [int(port) for port in sys.argv[2].split(",")], float(sys.argv[3])
from hpc_elastic.errors import StoreTimeoutError
from hpc_elastic.frameworks.torch import store
from hpc_elastic.store.kv.store import from_env

def tell(name, text):
    with open(f"{place}/{name}.new", "w") as file:
        file.write(text)
    os.rename(f"{place}/{name}.new", f"{place}/{name}")

def wait(name):
    while not os.path.exists(f"{place}/{name}"):
        time.sleep(0.01)

rank = os.environ["RANK"]
if tries_s and rank == "1":
    from_env(os.environ, timeout=60).wait(["torch/address"])
    tell("told", "")
    wait("go")
    try:
        store(timeout=tries_s)
    except StoreTimeoutError as error:
        tell("missed", str(error))
    wait("again")
if rank == "0":
    tell("pid", str(os.getpid()))
made = store(ports=ports, timeout=60)
made.set(f"key{rank}", rank)
for other in range(int(os.environ["WORLD_SIZE"])):
    assert made.get(f"key{other}") == str(other).encode()
tell(f"met.{rank}", str(made.underlying_store.port))
"""
"""Ranks meet at a store; rank 1 may try for so long before it tries in earnest."""


HOLD = """
import resource, select, socket, sys, time
told, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
speaks_at, gone = {}, 0

def speak(one):
    if time.monotonic() >= speaks_at[one]:
        one.send(b"A: b\\r\\n" if speaks_at[one] else b"GET / HTTP/1.1\\r\\n")
        speaks_at[one] = time.monotonic() + 2
    return one.recv(1) == b""

print("begins", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    while len(speaks_at) < count:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        speaks_at[one] = 0
    for one in list(speaks_at):
        try:
            is_over = speak(one)
        except BlockingIOError:
            continue
        except OSError:
            is_over = True
        if is_over:
            del speaks_at[one]
            one.close()
            gone += 1
    if gone >= count:
        open(told, "w").write(str(gone))
"""
"""Holds so many connections and never ends its requests; tells once as many were ended for it."""
NAMES = """
import socket, sys
kept = []
for name in sys.argv[1:]:
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    kept[-1].bind("\\0" + name)
print("has", flush=True)
sys.stdin.read()
"""
"""Takes names in the abstract space of sockets."""
SOCKET = """
import os, select, socket, sys
os.umask(0)
made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
made.listen(8)
print("listens", flush=True)
while sys.stdin not in select.select([sys.stdin, made], [], [])[0]:
    open(sys.argv[2], "a").write("connected\\n")
    made.accept()
"""
WAITS = """
import os, sys, time
open(sys.argv[1] + ".begun", "w").close()
while not os.path.exists(sys.argv[1] + ".end"):
    time.sleep(0.02)
"""


class Sockets(NamedTuple):
    """A directory where both users may make files, on a cluster."""

    cluster: Cluster
    path: Path

    @property
    def taken(self) -> Path:
        """Where bob notes each connection that he was given."""
        return self.path / "taken"

    @contextmanager
    def bob(self, script: str, *words: str) -> Iterator[None]:
        """Have bob run a Python script on this machine, from when it has printed a line on."""
        argv, pipe = [*as_user("bob"), PYTHON, "-I", "-c", script, *words], subprocess.PIPE
        with subprocess.Popen(argv, text=True, stdin=pipe, stdout=pipe) as bob:
            assert bob.stdin is not None
            assert bob.stdout is not None
            assert bob.stdout.readline().endswith("\n")
            yield
            bob.stdin.close()
        assert 0 == bob.returncode

    def bob_listens(self, port: int, *addresses: str) -> AbstractContextManager[None]:
        """Have bob listen at some addresses of this machine."""
        return self.bob(LISTEN, str(self.taken), str(port), *addresses)

    def bob_listens_on(self, node: str, port: int, *addresses: str) -> None:
        """Have bob listen at some addresses of a node, in a job of his."""
        words = (PYTHON, "-I", "-c", LISTEN, str(self.taken), str(port), *addresses)
        options = (f"--nodelist={node}", "--partition=low", "--cpus-per-task=1")
        job = self.cluster.submit("bob", *options, wrap=f"sleep 600 | {shlex.join(words)}")
        output = self.cluster.shared / f"{job}.out"
        self.cluster.wait_for(
            lambda: output.exists() and "listens" in output.read_text(), 60, f"bob on {node}"
        )

    @property
    def connections(self) -> list[str]:
        """Where bob was given connections."""
        return self.taken.read_text().splitlines() if self.taken.exists() else []

    @contextmanager
    def alice_runs(self, *words: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Have alice run agents on this machine."""
        home = {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "TMPDIR": "/tmp"}
        argv = [*as_user(USER), PYTHON, "-P", "-m", "hpc_elastic", "run", *words]
        pipe, env = subprocess.PIPE, {**home, **environ}
        with subprocess.Popen(
            argv, env=env, cwd=self.path, stdout=pipe, stderr=subprocess.STDOUT, text=True
        ) as agent:
            try:
                yield agent
            finally:
                agent.kill()


def as_user(user: str) -> list[str]:
    """Return how a program is run as another user."""
    return ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]


@pytest.fixture
def place(cluster: Cluster) -> Sockets:
    """Return a fresh directory, with the script of the ranks."""
    directory = Path(tempfile.mkdtemp(dir=cluster.shared))
    directory.chmod(0o1777)
    (directory / "store.py").write_text(STORE)
    return Sockets(cluster, directory)


# the store of the ranks of a round


def ranks(place: Sockets, ports: str = "0", tries_s: str = "0") -> tuple[str, ...]:
    """Return the command of two ranks on one node that meet at a store."""
    script = str(place.path / "store.py")
    return ("--standalone", "--nproc-per-node", "2", script, str(place.path), ports, tries_s)


def listens_at(pid: int) -> str:
    """Return the only port of IPv4 at which a process listens; its user may have more processes here."""
    sockets = psutil.Process(pid).net_connections("tcp4")
    (port,) = {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
    return str(port)


@pytest.mark.torch
def test_bob_beside_a_store_that_is_slow_to_answer_is_asked_nothing(place: Sockets) -> None:
    """Rank 0 is held up; rank 1 has time enough to try whatever other address of its node there is."""
    uid = place.cluster.run(USER, ["id", "-u"]).stdout.strip()
    with place.alice_runs(*ranks(place, tries_s="3")) as agent:
        place.cluster.wait_for((place.path / "told").exists, LIMIT_S, "rank 0 to tell where it listens")
        rank_0 = int((place.path / "pid").read_text())
        port = listens_at(rank_0)
        assert port in place.cluster.run("bob", [PYTHON, "-I", "-c", PORTS, uid]).stdout.split()
        os.kill(rank_0, signal.SIGSTOP)
        with place.bob_listens(int(port), "::1", *own_addresses()):
            (place.path / "go").touch()
            place.cluster.wait_for((place.path / "missed").exists, LIMIT_S, "rank 1 to give up")
        os.kill(rank_0, signal.SIGCONT)
        (place.path / "again").touch()
        assert 0 == agent.wait(LIMIT_S)
    assert "cannot reach the store of rank 0" in (place.path / "missed").read_text()
    assert ([], [port] * 2) == (place.connections, met(place))


@pytest.mark.torch
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])  # noqa: S104 - bob's
def test_a_port_that_bob_has_first_is_passed_over(place: Sockets, address: str) -> None:
    """Where there is no other port, rank 0 says so; at another address it is no hindrance."""
    port, other = free_port(), free_port()
    with place.bob_listens(port, address):
        with place.alice_runs(*ranks(place, f"{port},{other}")) as agent:
            assert 0 == agent.wait(LIMIT_S)
        expected = port if address == "::1" else other
        assert ([], [str(expected)] * 2) == (place.connections, met(place))
        with place.alice_runs(*ranks(place, str(port)), "--max-restarts", "0") as agent:
            said, _ = agent.communicate(timeout=LIMIT_S)
    if address != "::1":
        assert agent.returncode != 0
        assert f"rank 0 cannot listen on port {port} of" in said, said
    assert [] == place.connections


@pytest.mark.torch
def test_bob_on_the_nodes_of_a_job_gets_no_connection_of_its_ranks(place: Sockets) -> None:
    """He has the same port on both nodes: beside rank 0 at other addresses, elsewhere at all."""
    port = 29517
    place.bob_listens_on("node1", port, "127.0.0.1", "::1")
    place.bob_listens_on("node2", port, "0.0.0.0", "::")  # noqa: S104 - bob's
    nodes = ("--nodes", "2", "--nodelist", "node[1-2]", "--gpus-per-node", "2")
    script = str(place.path / "store.py")
    run = submit(
        place.cluster,
        (*nodes, "--time", "5", "--partition", "low"),
        [PYTHON, script, str(place.path), str(port), "0"],
    )
    ending = run.wait_ending(LIMIT_S).ending
    assert ending is not None
    assert Decision.DONE is ending.decision, run.log()
    assert ([], [str(port)] * 4) == (place.connections, met(place))


# what an agent or a worker listens at beside that


@contextmanager
def waiting_run(place: Sockets, **environ: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Have alice run one worker, which waits; afterwards it is told to end, and the run ends well."""
    script, mark, directory = place.path / "waits.py", place.path / "mark", place.path / "run"
    script.write_text(WAITS)
    words = ("--run-dir", str(directory), "--nnodes", "1", "--nproc-per-node", "1", str(script), str(mark))
    with place.alice_runs(*words, **environ) as agent:
        place.cluster.wait_for(Path(f"{mark}.begun").exists, LIMIT_S, "the worker")
        yield agent, directory
        Path(f"{mark}.end").touch()
        assert 0 == agent.wait(LIMIT_S)


def logged(directory: Path) -> str:
    """Return what the agents of a run have logged."""
    return "".join(path.read_text() for path in (directory / "logs" / "agents").iterdir())


def test_bob_who_has_the_port_of_the_health_check_first_holds_up_no_run(place: Sockets) -> None:
    """The agent says where it cannot listen, and asks bob nothing."""
    port = free_port()
    with (
        place.bob_listens(port, "0.0.0.0"),  # noqa: S104 - bob's
        waiting_run(place, TORCHELASTIC_HEALTH_CHECK_PORT=str(port)) as (_, directory),
    ):
        assert f"127.0.0.1:{port} cannot be listened at" in logged(directory)
    assert [] == place.connections


@pytest.mark.parametrize("asked", ["TORCHELASTIC_HEALTH_CHECK_PORT=", "HPC_ELASTIC_METRICS=prometheus-http:"])
def test_connections_that_bob_holds_open_take_nothing_from_an_agent(place: Sockets, asked: str) -> None:
    """Neither descriptors nor threads, of which it has few, and others are answered meanwhile."""
    port, many = free_port(), 300
    name, _, value = f"{asked}{port}".partition("=")
    with (
        waiting_run(place, **{name: value}) as (agent, _),
        place.bob(HOLD, str(place.taken), str(port), str(many)),
    ):
        place.cluster.wait_for(place.taken.exists, LIMIT_S, "bob to be let go")
        answered = place.cluster.run("alice", ["curl", "--silent", "--fail", f"http://127.0.0.1:{port}/"])
        assert 0 == answered.returncode, answered.stderr
        few = psutil.Process(agent.pid)
        place.cluster.wait_for(lambda: few.num_fds() < many / 3 > few.num_threads(), 60, "few of both")


def test_names_of_sockets_that_bob_has_first_hold_up_no_run(place: Sockets) -> None:
    """Agents outside Slurm claim a name each, by a socket that everybody can name as well."""
    uid, host = place.cluster.run(USER, ["id", "-u"]).stdout.strip(), os.uname().nodename
    run = f"hpc_elastic/{uid}/{zlib.crc32(os.fsencode(place.path / 'run')):08x}/{host}"
    with place.bob(NAMES, run, *(f"{run}-{number}" for number in range(2, 200))):
        with waiting_run(place) as (_, directory):
            pass
        (formed,) = Run(place.cluster, directory, "").entries(RoundFormed)
    assert [f"{host}-200"] == nodes_of(formed)


def test_a_socket_of_bobs_in_the_place_of_a_workers_gets_no_connection(place: Sockets) -> None:
    """The worker says what is in its way."""
    path = place.path / "worker.socket"
    code = "import sys; from hpc_elastic.control_plane import worker_main\nwith worker_main(): pass"
    with place.bob(SOCKET, str(path), str(place.taken)):
        environ = {"TORCH_WORKER_SERVER_SOCKET": str(path), "PYTHONPATH": str(REPOSITORY)}
        done = place.cluster.run(USER, [PYTHON, "-P", "-c", code], env=environ)
    assert (1, []) == (done.returncode, place.connections)
    assert f"no socket can be made at {path}: Address already in use" in done.stderr
    assert "fix: give a path in a directory of your own" in done.stderr


def met(place: Sockets) -> list[str]:
    """Return the port at which each rank has met the others."""
    return [path.read_text() for path in sorted(place.path.glob("met.[0-9]"))]


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.create_server(("", 0)) as made:
        number: int = made.getsockname()[1]
        return number


def own_addresses() -> list[str]:
    """Return the addresses of this machine that others may reach."""
    names = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if "." in name]
