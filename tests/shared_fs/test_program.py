"""`scripts/shared-fs` does what its help says: real clients, real faults, nothing left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from hpc_elastic.testing.waiting import wait_until
from tests.shared_fs.file_system import KINDS, FileSystem, shared_fs


def _start(system: FileSystem, client: int, *program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(system.argv(client, program), stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_clients_are_separate_and_share_files(intact_system: FileSystem) -> None:
    """Each client has its own host name and its own mount; a file written on one is read on another."""
    names = [intact_system.execute(client, "hostname") for client in (1, 2, 3)]
    assert ["client1\n", "client2\n", "client3\n"] == names
    file = str(intact_system.mount / "hello")
    intact_system.execute(1, "sh", "-c", f"echo hello >{file}")
    assert "hello\n" == intact_system.execute(3, "cat", file)
    kind = {"gluster": "fuse.glusterfs", "nfs3": "nfs", "nfs4": "nfs4"}[intact_system.kind]
    assert kind == intact_system.execute(2, "findmnt", "-no", "FSTYPE", str(intact_system.mount)).strip()
    assert [] == os.listdir(intact_system.mount)


def test_programs_run_as_here(intact_system: FileSystem) -> None:
    """Input, output and exit code of a program on a client are its own, and results come back."""
    code = f"cat; echo no >&2; echo yes >{intact_system.results}/yes; exit 3"
    done = subprocess.run(
        intact_system.argv(1, ["sh", "-c", code]), input="in\n", capture_output=True, text=True, check=False
    )
    assert ("in\n", "no\n", 3) == (done.stdout, done.stderr, done.returncode)
    assert "yes\n" == (intact_system.results / "yes").read_text()


def test_a_program_ends_with_who_asked_for_it(intact_system: FileSystem) -> None:
    """When `exec` is killed, the program on the client is killed, too."""
    file = intact_system.results / "pid"
    process = _start(intact_system, 1, "sh", "-c", f"echo $$ >{file}; echo up; exec sleep 600")
    assert "up\n" == _line(process)
    process.kill()
    process.communicate()
    gone = ("sh", "-c", f"kill -0 $(cat {file}) 2>/dev/null || echo gone")
    wait_until(lambda: "gone\n" == intact_system.execute(1, *gone), "the program to end", interval_s=0.2)


def test_power_loss_takes_everything_along(system: FileSystem) -> None:
    """A killed client takes its programs with it; after a boot it has the file system again."""
    file = str(system.mount / "kept")
    process = _start(system, 2, "sh", "-c", f"echo kept >{file}; echo up; sleep 600")
    assert "up\n" == _line(process)
    system.command("kill", "2")
    process.communicate()
    assert process.returncode == 255
    refused = shared_fs("exec", "--dir", str(system.directory), "2", "--", "true")
    assert (1, True) == (refused.returncode, "`boot 2`" in refused.stderr)
    system.command("boot", "2")
    assert "kept\n" == system.execute(2, "cat", file)


@pytest.mark.parametrize(("fault", "mend"), [("cut 2", "heal 2"), ("server-freeze", "server-thaw")])
def test_no_access_until_it_is_mended(system: FileSystem, fault: str, mend: str) -> None:
    """While a client is cut off, or the server stalls, access hangs; then it goes on as if nothing was."""
    file = str(system.mount / fault.replace(" ", "-"))
    system.command(*fault.split())
    process = _start(system, 2, "sh", "-c", f"echo up; echo x >{file}; echo written")
    assert "up\n" == _line(process)
    system.execute(2, "sleep", "1")  # reached over another network
    assert "client2: up" in system.command("status")
    assert process.poll() is None
    system.command(*mend.split())
    assert "written\n" == process.communicate()[0]
    assert "x\n" == system.execute(1, "cat", file)


@pytest.mark.skipif(os.geteuid() != 0, reason="shared-fs needs root")
@pytest.mark.parametrize("below", ["", "/below"], ids=["a file", "below a file"])
def test_a_file_is_no_place(tmp_path: Path, below: str) -> None:
    """One line, before anything is installed."""
    file = tmp_path / "file"
    file.touch()
    refused = shared_fs("start", "nfs4", "--dir", f"{file}{below}")
    said = f"shared-fs: {file}{below} cannot be made a directory: "
    assert (1, "") == (refused.returncode, refused.stdout)
    assert refused.stderr.startswith(said)
    assert 1 == refused.stderr.count("\n")


def test_a_frozen_client_does_nothing(system: FileSystem) -> None:
    """Nothing runs on a frozen client until it is thawed; then it goes on where it was."""
    counter = system.results / "counter"
    loop = f"i=0; while :; do i=$((i + 1)); echo $i >{counter}.new; mv {counter}.new {counter}; done"
    process = _start(system, 3, "sh", "-c", f"echo up; {loop}")
    assert "up\n" == _line(process)
    wait_until(counter.exists, "the first count")
    system.command("freeze", "3")
    frozen = counter.read_text()
    system.execute(1, "sleep", "1")
    assert frozen == counter.read_text()
    system.command("thaw", "3")
    wait_until(lambda: frozen != counter.read_text(), "more counts")
    process.kill()
    process.communicate()


@pytest.mark.kinds("gluster")
@pytest.mark.usefixtures("_is_possible")
def test_it_starts_once_and_stops_all(kind: str, tmp_path: Path) -> None:
    """Starting again changes nothing, nor does stopping again; no process or namespace stays."""
    directory = tmp_path / "one"
    system = FileSystem.start(kind, directory)
    first = (directory / "shared-fs.json").read_text()
    namespace = _namespace(system)
    FileSystem.start(kind, directory)
    assert first == (directory / "shared-fs.json").read_text()
    system.stop()
    system.stop()
    assert namespace not in os.listdir("/run/netns")
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not any(str(directory) in word for words in commands for word in words)


def _namespace(system: FileSystem) -> str:
    return system.command("status").partition("network namespace ")[2].partition(")")[0]


@pytest.mark.usefixtures("_is_possible")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["status"], "`start` one"),
        (["freeze", "1"], "`start` one"),
        (["start", KINDS[0], "--clients", "0"], "--clients must be between 1 and 16, not 0"),
    ],
    ids=["status", "freeze", "clients"],
)
def test_what_cannot_be_is_said(tmp_path: Path, words: list[str], expected: str) -> None:
    """What is not possible is told in one line, with the exit code 1."""
    done = shared_fs(words[0], "--dir", str(tmp_path / "one"), *words[1:])
    assert (1, True) == (done.returncode, expected in done.stderr)
    assert 1 == len(done.stderr.splitlines())
