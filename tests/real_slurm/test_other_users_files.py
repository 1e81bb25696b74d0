"""What bob puts beside alice's runs, in a folder where everybody may, hangs nothing and misleads nobody."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from hpc_elastic.ids import RUNS_FOLDER
from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import PYTHON, installed_for_users

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.timeout(300)]
ANSWER_S = 60  # a command takes a second; this machine may be busy
MAKE = """
import os, socket, sys
os.umask(0)
os.chdir("hpc_elastic_runs")
def run(name, **files):
    for directory in ("journal/000000", "submissions", "members", "nodes", "logs/agents"):
        os.makedirs(os.path.join(name, directory))
    for path, content in files.items():
        open(os.path.join(name, path), "w").write(content)
def sparse(path):
    with open(path, "wb") as file:
        file.truncate(200 << 30)
"""
FILES = {
    "a FIFO": "run('train-29990101-000000-1'); os.mkfifo('train-29990101-000000-1/run.json')",
    "an endless link": "run('x'); os.symlink('/dev/zero', 'x/run.json')",
    "a sparse file": "run('x'); sparse('x/run.json')",
    "a socket and a FIFO of a record": (
        "run('x'); socket.socket(socket.AF_UNIX).bind('x/run.json'); os.mkfifo('x/journal/000000/00000001')"
    ),
    "links that are runs themselves": "os.symlink('/dev/fd', 'x'); os.symlink('/proc/self/root', 'y')",
    "a directory for everybody with a FIFO of each kind": (
        "run('x'); [os.mkfifo('x/' + name) for name in ('run.json', 'job.json', 'site.json', 'drain')]; "
        "os.mkfifo('x/submissions/000000.json'); os.mkfifo('x/slurm-1.out')"
    ),
}
NAMES = {
    "escapes": "esc-\x1b]0;OWNED\x07\x1b[31mred\x1b[2J",
    "shell words": "zz;touch pwned",
    "another direction": "run-\u202etxt.exe\u2066",
    "a second line": "run\nnext: touch pwned\n",
    "no text": b"run-\x9b2J\xff\xfe".decode(errors="surrogateescape"),
}
DECOYS = {
    "newer": "run('train-29990101-000000-1', **{'run.json': IDENTITY})",
    "called like the job": "os.chdir('..'); run('train', **{'run.json': IDENTITY})",
    "a link in the way": "os.chdir('..'); os.symlink('/dev/fd', 'train')",
    "with a log of the job": "run('aa', **{'run.json': IDENTITY, 'slurm-' + sys.argv[1] + '.out': ''})",
}
LEDGERS = {
    "the usual one": "os.mkdir('.hpc_elastic')",
    "the next one, too": "os.mkdir('.hpc_elastic'); os.mkdir('.hpc_elastic-' + sys.argv[2])",
    "a link to nowhere": "os.symlink('/dev/fd/nothing', '.hpc_elastic')",
    "a file": "os.mkfifo('.hpc_elastic')",
}


class Place:
    """A folder where everybody may make files, in which alice and bob work.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.directory = Path(tempfile.mkdtemp(dir=cluster.shared))
        self.runs = self.directory / RUNS_FOLDER
        self.runs.mkdir()
        for each in (self.directory, self.runs):
            each.chmod(0o1777)

    def bob(self, text: str, *words: str) -> None:
        """Run Python text as bob."""
        identity = 'IDENTITY = \'{"format": 1, "run_id": "x", "name": "train"}\'\n'
        argv = [PYTHON, "-c", MAKE + identity + text, *words]
        done = self.cluster.run("bob", argv, cwd=self.directory)
        assert done.returncode == 0, done.stderr

    def alice(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as alice; it must come back soon."""
        argv = [PYTHON, "-P", "-m", "hpc_elastic", *words]
        env = {"PYTHONPATH": str(REPOSITORY)}
        return self.cluster.run("alice", argv, cwd=self.directory, timeout=ANSWER_S, env=env)

    def submit(self) -> str:
        """Have alice submit a run that is called train; return its job."""
        shape = ("--nodes", "1", "--time", "10m", "--partition", "low", "--cpus-per-task", "1")
        where = ("--name", "train", "--allow-local-run-dir")
        done = self.alice("submit", *shape, *where, "--", "sleep", "600")
        assert done.returncode == 0, done.stderr
        found = re.search(r"job (\d+)", done.stdout)
        assert found is not None, done.stdout
        self.said = done.stderr
        return found[1]

    def is_over(self, job_id: str) -> bool:
        """Tell whether a job has ended."""
        return self.cluster.job(job_id).get("JobState") not in ("PENDING", "RUNNING", "CONFIGURING")


@pytest.fixture
def place(cluster: Cluster) -> Place:
    """Return a fresh folder."""
    return Place(cluster)


@pytest.mark.parametrize("what", FILES)
def test_no_file_of_bobs_holds_up_a_command_of_alices(place: Place, what: str) -> None:
    """She sees her run, and ends it by its name."""
    job_id = place.submit()
    place.bob(FILES[what])
    listed = place.alice("status")
    assert listed.returncode == 0, listed.stderr
    assert 1 == len(re.findall(r"^train-20\S+  ", listed.stdout, re.MULTILINE))
    for command in ("status", "timeline"):
        done = place.alice(command, "train")
        assert done.returncode == 0, done.stderr
    done = place.alice("cancel", "train")
    assert done.returncode == 0, done.stderr
    place.cluster.wait_for(lambda: place.is_over(job_id), 60, "alice's job to end")


@pytest.mark.parametrize("what", NAMES)
def test_no_name_of_bobs_acts_on_alices_terminal(place: Place, what: str) -> None:
    """Nor on her shell, if she pastes what she is advised."""
    name = NAMES[what]
    place.bob("run(os.fsdecode(bytes.fromhex(sys.argv[1])))", name.encode(errors="surrogateescape").hex())
    inner = f"cd {place.directory}; {PYTHON} -P -m hpc_elastic status"
    env = {"PYTHONPATH": str(REPOSITORY)}
    done = place.cluster.run("alice", ["script", "-qec", inner, "/dev/null"], env=env, timeout=ANSWER_S)
    assert done.returncode == 0, done.stdout
    acting = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # colours of our own
    assert [] == re.findall(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", acting)
    lines = acting.replace("\r\n", "\n").splitlines()
    assert 1 == sum("belongs to user bob" in line for line in lines)
    assert [] == [line for line in lines if line.startswith("next: touch")]
    assert [] == [line for line in lines if line.startswith("next:") and "touch" in line]


@pytest.mark.parametrize("what", DECOYS)
def test_no_decoy_of_bobs_takes_the_place_of_alices_run(place: Place, what: str) -> None:
    """Her run is ended, by its name and by its job."""
    job_id = place.submit()
    place.bob(DECOYS[what], job_id)
    assert f"job         {job_id}" in place.alice("status", "train").stdout
    assert f"job         {job_id}" in place.alice("status", job_id).stdout
    done = place.alice("cancel", "train")
    assert done.returncode == 0, done.stderr
    place.cluster.wait_for(lambda: place.is_over(job_id), 60, "alice's job to end")


@pytest.mark.parametrize("what", LEDGERS)
def test_bob_cannot_have_alice_forget_bad_nodes(place: Place, what: str) -> None:
    """They are remembered in a directory of hers, which her next run finds; it says so."""
    uid = place.cluster.run("alice", ["id", "-u"]).stdout.strip()
    place.bob(LEDGERS[what], "", uid)
    done = place.alice("nodes", "suspect", "node2", "--reason", "slow links")
    assert done.returncode == 0, done.stderr
    assert "node2" in place.alice("nodes").stdout
    place.submit()
    assert "belongs to user bob, so nodes are remembered in " in place.said
    assert "left out: node2 (suspected: slow links)" in place.said


LISTEN = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from hpc_elastic.frameworks.torch import store
made = store(timeout=60)
if os.environ["RANK"] == "0":
    open(sys.argv[1] + ".new", "w").write(str(made.underlying_store.port))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
while not os.path.exists(sys.argv[1] + ".end"):
    time.sleep(0.05)
"""
CONNECT = """
import socket, sys
for address in (sys.argv[1], "::1", "127.0.0.2"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as made:
            made.settimeout(5)
            made.connect((address, int(sys.argv[2])))
            print("connected to", address)
    except OSError:
        pass
"""


@pytest.mark.torch
def test_bob_reaches_the_store_of_one_node_at_no_other_address(place: Place) -> None:
    """Neither over the network nor over the other loopback addresses."""
    pytest.importorskip("torch")
    script, told = place.directory / "listen.py", place.directory / "port"
    script.write_text(LISTEN)
    own = socket_address()
    shape = ("run", "--standalone", "--nproc-per-node", "2", str(script), str(told), str(REPOSITORY))
    argv = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--", PYTHON, "-P"]
    home = {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "TMPDIR": "/tmp"}
    agent = subprocess.Popen([*argv, "-m", "hpc_elastic", *shape], env=home, cwd=place.directory)
    try:
        place.cluster.wait_for(told.exists, 120, "the store to listen")
        words = (own, told.read_text())
        assert "" == place.cluster.run("bob", [PYTHON, "-c", CONNECT, *words]).stdout
    finally:
        Path(f"{told}.end").touch()
        assert 0 == agent.wait(60)


def socket_address() -> str:
    """Return an address of this machine that others may reach, or one that nobody has."""
    names = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return next(iter(names), "192.0.2.1")
