"""Checks on this machine before anything is queued."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError, RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit import run_dir, validate
from hpc_elastic.slurm.submit.request import plan, read_template
from hpc_elastic.store.mount import Mount
from hpc_elastic.store.plain_file import absence_fix
from tests.slurm.test_run_dir import NOBODY


def check(**fields: Any) -> list[str]:
    """Check a spec in the current directory; return the warnings."""
    spec = JobSpec(
        **{
            "command": "python3 train.py",
            "cpus_per_node": 1,
            "time": 5,
            "allow_local_run_dir": True,
            **fields,
        }
    )
    return validate.check(plan(spec, read_template(), now_s=0), None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": "train.py --lr 1"},
        {"command": "python3 -u -X dev -W ignore train.py --config missing.yaml"},
        {"command": "python3 -c pass"},
        {"command": "python3 -m no.such.file"},
        {"command": "python3 -um no.such.file"},
        {"command": "/bin/sh -c missing.sh"},
        {"module": "no.such.module", "command": "missing.py-like"},
        {"command": "not-on-path", "setup": ["PATH=$PATH:bin"]},
        {"command": "anything in/the/image.py", "container": "sh"},
        {"command": "sh -c exit", "nodes": "1:2"},
        {
            "command": "torchrun --nproc-per-node 2 train.py",
            "workers_per_node": 1,
            "setup": ["PATH=/x:$PATH"],
        },
    ],
    ids=repr,
)
def test_what_can_work_is_let_through(workdir: Path, fields: dict[str, Any]) -> None:
    """Only what is certain to be missing is refused."""
    assert [] == check(**fields)


@pytest.mark.parametrize(
    ("fields", "where", "words", "fix"),
    [
        (
            {"command": "torchrun train.py"},
            "command",
            "the worker is torchrun, which starts workers itself",
            "write the script in its place: -- train.py",
        ),
        (
            {"module": "torch.distributed.run", "command": "--nproc-per-node 2 train.py"},
            "command",
            "the worker is torchrun",
            "--workers-per-node 2 -- train.py",
        ),
        (
            {"command": "torchrun train.py", "container": "sh"},
            "command",
            "the worker is torchrun",
            "-- train.py",
        ),
        (
            {"command": "torchrun train.py", "workers_per_node": 1, "nodes": "1:2"},
            "command",
            "the worker is torchrun",
            "-- train.py",
        ),
        (
            {"command": "python3 trian.py"},
            "command",
            "the worker file trian.py does not exist in",
            "'train.py'",
        ),
        ({"command": "python3 -u missing.py"}, "command", "missing.py does not exist", "workdir"),
        ({"command": "python3 ."}, "command", "is a directory", "check"),
        ({"command": "python3 fifo.py"}, "command", "fifo.py is no plain file", "check the name"),
        ({"command": "./fifo.sh"}, "command", "./fifo.sh is no plain file", "check the path"),
        ({"command": "trian.py"}, "command", "trian.py does not exist", "'train.py'"),
        ({"command": "pyhton3 train.py"}, "command", "pyhton3 is not on PATH", "check the name"),
        ({"command": "train.sh"}, "command", "train.sh is not on PATH", "bash ./train.sh"),
        ({"command": "go.sh"}, "command", "go.sh is not on PATH", "write ./go.sh: it is in the"),
        ({"command": "train"}, "command", "train is not on PATH", "python ./train"),
        ({"command": "./prog"}, "command", "./prog does not exist", "check the path"),
        ({"command": "./train.sh"}, "command", "./train.sh is not executable", "chmod u+x"),
        ({"container": "no-such-runtime exec"}, "container", "no-such-runtime is not on PATH", "setup"),
        ({"python": "/no/python"}, "python", "/no/python does not exist", "name another"),
        ({"python": "/bin/false"}, "python", "/bin/false cannot import hpc_elastic", "pip install"),
        ({"workdir": "wrok"}, "workdir", "wrok does not exist", "create it"),
        ({"workdir": "train.py"}, "workdir", "train.py is not a directory", ""),
        (
            {"setup": ["true", "if [ x ; then"]},
            "setup",
            "line 3: syntax error: unexpected end of file",
            "mend",
        ),
        ({"setup": ["a; ) b"]}, "setup", "in 'a; ) b': line 1: syntax error near unexpected token", "mend"),
        ({"health_command": "ib-check ("}, "health_command", "sh cannot make out 'ib-check ('", "mend"),
        ({"notify_command": "tell ("}, "notify_command", "sh cannot make out 'tell ('", "mend"),
        ({"notify_webhook": "hook"}, "notify_webhook", "hook has mode 0644, so other users may", "chmod 600"),
        ({"notify_webhook": "nowhere"}, "notify_webhook", "nowhere cannot be read: No such file", "path"),
        ({"notify_template": "slack"}, "notify_template", "for a webhook, and there is none", "webhook"),
        ({"notify_template": "train.py"}, "notify_template", "train.py is no JSON", "write JSON"),
        ({"notify_template": "odd.json"}, "notify_template", "has '$job', which names a value", "$job_id"),
        ({"notify_on": "done,fail"}, "notify_on", "there is no event 'fail'", "failed, held"),
        ({"sbatch": {"licences": "x"}}, "sbatch.licences", "no option --licences", "'licenses'"),
    ],
    ids=repr,
)
def test_what_cannot_work_is_refused(
    workdir: Path, fields: dict[str, Any], where: str, words: str, fix: str
) -> None:
    """The error names the thing, the place and what to do."""
    (workdir / "train.sh").write_text("true")
    (workdir / "train").write_text("pass")
    (workdir / "go.sh").write_text("#!/bin/sh\ntrue\n")
    (workdir / "go.sh").chmod(0o755)
    (workdir / "odd.json").write_text('{"text": "$job"}')
    (workdir / "hook").write_text("https://example.org/hook")
    (workdir / "hook").chmod(0o644)
    for name in ("fifo.py", "fifo.sh"):
        os.mkfifo(workdir / name)
    with pytest.raises(InputError) as caught:
        check(**fields)
    assert where == caught.value.where
    assert words in caught.value.message
    assert fix in caught.value.fix


@pytest.fixture
def seen_by_a_user() -> Iterator[Path]:
    """A directory of a user's without root's rights, with the eyes of that user."""
    with tempfile.TemporaryDirectory() as name:
        before, place = os.geteuid(), Path(name)
        if before == 0:
            os.chown(place, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        yield place
        (place / "closed").chmod(0o700)
        os.seteuid(before)


def test_what_cannot_be_seen_needs_access(workdir: Path, seen_by_a_user: Path) -> None:
    """To make it, or to choose another name, is no help; a file that is there can be given back its mode."""
    closed, paths = seen_by_a_user / "closed", RunPaths(seen_by_a_user)
    closed.mkdir(mode=0)
    with pytest.raises(InputError, match=f"cannot be seen: no permission on {closed}\n") as caught:
        check(workdir=str(closed / "x"))
    assert f"chmod u+x {closed}" == caught.value.fix
    with pytest.raises(InputError, match=f"cannot be seen: no permission on {closed}\n") as caught:
        check(command="python3 closed/train.py", workdir=str(seen_by_a_user))
    assert f"chmod u+x {closed}" == caught.value.fix
    Path(paths.identity).touch(mode=0)
    with pytest.raises(RunDirError, match="cannot be read: Permission denied") as refused:
        run_dir.read_identity(paths)
    assert f"chmod u+rw {paths.identity}" == refused.value.fix
    assert absence_fix(__file__, "look") == "look"
    assert absence_fix("/no/where", "look") == "look"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_what_another_user_has_closed_only_that_user_can_open(tmp_path: Path) -> None:
    """A command that is bound to fail is no help."""
    tmp_path.chmod(0)
    os.seteuid(NOBODY)
    try:
        fix = absence_fix(str(tmp_path / "x"), "look")
    finally:
        os.seteuid(0)
    assert fix.startswith("ask its owner, root, for access to /")


def test_the_worker_file_is_looked_for_where_the_workers_start(workdir: Path) -> None:
    """A relative path is relative to workdir."""
    (workdir / "code").mkdir()
    (workdir / "code" / "other.py").touch()
    assert [] == check(command="python3 other.py", workdir="code")


def test_an_interpreter_that_setup_provides_is_not_looked_for(workdir: Path) -> None:
    """It need not exist here; one that exists is asked for this package."""
    assert [] == check(python="python-of-a-module", modules=["python/3.12"])
    assert ["/bin/false cannot import hpc_elastic here"] == [
        warning.splitlines()[0] for warning in check(python="/bin/false", setup=["true"])
    ]


def test_a_working_directory_with_a_line_break_is_refused(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that sbatch says is that a quote is missing."""
    odd = workdir / "a\nb"
    odd.mkdir()
    (odd / "train.py").write_text("")
    monkeypatch.chdir(odd)
    with pytest.raises(InputError, match=r"the working directory '.*a\\nb' has a line break"):
        check()


@pytest.mark.parametrize("word", [">", "2>&1", "|", "&&"])
def test_a_word_that_means_something_to_a_shell_only_is_a_warning(workdir: Path, word: str) -> None:
    """The program may take it, and gets it; a shell that the command names reads it itself."""
    (warning,) = check(command=f"python3 train.py {word} log")
    assert f"the program gets {word} as an argument, as no shell reads the command\n  fix: " in warning
    assert [] == check(command=f"bash -c 'python3 train.py {word} cat'")
    assert [] == check(command="python3 train.py --arrow=->")


def test_a_health_command_that_is_not_here_is_a_warning(workdir: Path) -> None:
    """The nodes may have it; what sh itself knows, or is more than a name, is not looked for."""
    (warning,) = check(health_command="ib-chekc --quick || exit 1")
    assert "begins with ib-chekc, which is not on this machine" in warning
    for command in ("test -e /", "! true", "(true)", '"$HOME/x"', "if true; then true; fi", "A=1 true"):
        assert [] == check(health_command=command)


def test_where_messages_go_is_in_no_script(workdir: Path) -> None:
    """Only the path of the file is, from the root; the template is that of the submission's directory."""
    hook = workdir / "hook"
    hook.write_text("https://example.org/5ecret")
    hook.chmod(0o600)
    (workdir / "own.json").write_text('{"text": "$text"}')
    spec = JobSpec(command="train.py", notify_webhook="hook", notify_template="own.json", notify_on="held")
    request = plan(spec, read_template(), now_s=0)
    text = request.script + request.job_json().decode()
    assert "5ecret" not in text
    for flag in (f"webhook={hook}", f"template={workdir}/own.json", "on=held"):
        assert f"--notify-{flag}" in request.script


def test_the_interpreter_that_submits_is_the_default(workdir: Path) -> None:
    """It has this package, or this test would not run."""
    assert [] == check(python=sys.executable)


def test_a_lease_that_the_file_system_does_not_allow_is_a_warning(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents use a longer one anyway; ordinary file systems cause no warning."""
    monkeypatch.setattr(validate, "mount_at", lambda _: Mount("/keys", "fuse.sshfs"))
    (warning,) = check(heartbeat_interval=1, lease=5)
    assert warning.startswith(
        "a lease of 5 s is too short for fuse.sshfs on /keys, where a listing can be 20 s"
    )
    assert "set lease to 22.5" in warning
    assert [] == check(heartbeat_interval=1, lease=22.5)
    monkeypatch.setattr(validate, "mount_at", lambda _: Mount("/home", "nfs4"))
    assert [] == check()
