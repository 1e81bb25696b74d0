"""The functions of a job script, ``batch.sh``: how the script reads them, and what each of them does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.slurm.submit.request import epilog, read_template
from tests.slurm.test_script import Node, make_node

WAITS = '#!/bin/sh\necho "$1" >> {home}/naps\n{act}\n'
"""In the place of ``sleep``."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a batch host on which the script's waits for its file take no time."""
    node = make_node(tmp_path)
    waits(node, "")
    return node


def waits(node: Node, act: str) -> None:
    """Do something while the script waits."""
    sleep = node.home / "sleep"
    sleep.write_text(WAITS.format(home=node.home, act=act))
    sleep.chmod(0o755)


def naps(node: Node) -> list[str]:
    """Return for how long the script has waited."""
    path = node.home / "naps"
    return path.read_text().split() if path.exists() else []


def bash(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run lines of bash behind the functions."""
    text = f"{read_template().functions}\n{script}"
    return subprocess.run(
        ["/bin/bash", "-c", text, "job"], env=variables, capture_output=True, text=True, check=False
    )


def _change(file: Path) -> None:
    file.write_text(file.read_text() + "touch pwned\n")


def _sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(200 << 30)


def _link(file: Path) -> None:
    file.rename(file.with_name("other"))
    file.symlink_to("other")


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


ODD: dict[str, Callable[[Path], None]] = {
    "changed": _change,
    "sparse": _sparse,
    "link": _link,
    "fifo": _fifo,
    "endless": _endless,
    "gone": Path.unlink,
}


@pytest.mark.parametrize("odd", ODD)
def test_no_other_text_than_that_of_the_script_is_run(node: Node, odd: str) -> None:
    """The script ends with one line, whatever is at the path, and nothing is started."""
    ODD[odd](node.home / "run dir" / "batch.sh")
    assert 76 == node.run([])
    (said,) = node.done.stderr.splitlines()
    told = f"another directory is in the place of {node.home}/run dir, or its batch.sh"
    assert said.startswith(f"hpc_elastic: {told}")
    assert ([], []) == (node.lines("sruns"), node.lines("calls"))
    assert not list(node.home.rglob("pwned"))


def test_a_run_directory_that_is_away_for_a_while_is_waited_for(node: Node) -> None:
    """The job goes on when it is back."""
    run, away = node.home / "run dir", node.home / "away"
    run.rename(away)
    waits(node, f"[ ! -d {away} ] || mv {away} '{run}'")
    assert 0 == node.run([("", 0)])
    assert ["5"] == naps(node)
    assert 1 == len(node.lines("sruns"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_nothing_is_waited_for_in_somebody_elses_directory(node: Node) -> None:
    """It has no batch.sh, and will get none."""
    run = node.home / "run dir"
    (run / "batch.sh").unlink()
    os.chown(run, 65534, 65534)
    assert 76 == node.run([])
    assert [] == naps(node)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
@pytest.mark.parametrize(("owner", "waits"), [(65534, False), (0, True)])
def test_nothing_is_waited_for_behind_somebody_elses_link(node: Node, owner: int, *, waits: bool) -> None:
    """It may hang in the air; what a link of this user's leads to may be away for a while."""
    run = node.home / "run dir"
    run.rename(node.home / "away")
    run.symlink_to("nowhere")
    os.chown(run, owner, owner, follow_symlinks=False)
    assert 76 == node.run([])
    assert waits == bool(naps(node))


def test_the_script_can_read_all_of_the_file() -> None:
    """It reads 64 KiB, takes off newlines at the end and puts one back, and knows no encoding."""
    text = read_template().functions
    assert text.isascii()
    assert len(text) < 64 << 10
    assert (True, False) == (text.endswith("\n"), text.endswith("\n\n"))


def test_slurm_can_run_the_file_as_an_epilog() -> None:
    """Without a run directory it does nothing, and says nothing."""
    assert os.access(epilog(), os.X_OK)
    done = subprocess.run(
        [epilog()], env={"HPC_ELASTIC_RUN_DIR": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_a_pause_needs_no_process() -> None:
    """There is no `sleep` on this PATH, and time passes."""
    done = bash("open_pause; pause 0.2; echo $?", PATH="/nowhere")
    assert ("0\n", "") == (done.stdout, done.stderr)


def test_a_pause_without_a_pipe_is_one_all_the_same(tmp_path: Path) -> None:
    """Else its loop would take all of a processor."""
    (tmp_path / "sleep").write_text('#!/bin/sh\necho "slept $1"\n')
    (tmp_path / "sleep").chmod(0o755)
    assert "slept 7\n" == bash("pause 7 2> /dev/null", PATH=f"{tmp_path}:/bin").stdout


@pytest.mark.parametrize(
    ("names", "nodes", "code"),
    [
        ("n1.7+0-0-0-0+running+1+2+3 n2.7+0-0-0-0+left+1+2+3", 2, 0),
        ("n1.7+0-0-0-0+running+1+2+3 n1.9+0-0-0-0+left+1+2+3", 2, 1),
        ("n1.a.b.7+0-0-0-0+left+1+2+3 n1.a.c.7+0-0-0-0+left+1+2+3", 2, 0),
        ("n1.7+0-0-0-0+left+1+2+3 n1.7+0-0-0-0+suspected+3+by+n2.8", 2, 1),
        ("", 1, 1),
    ],
)
def test_nodes_are_counted_by_the_names_of_their_agents(names: str, nodes: int, code: int) -> None:
    """Two agents on one node are one, and host names have dots."""
    assert code == bash(f"_he_nodes={nodes}; all_have_come {names}").returncode


def test_a_sign_of_life_is_not_written_through_a_link(node: Node) -> None:
    """Whoever could write to the directory once may have put one there."""
    folder = node.home / "run dir" / "nodes"
    folder.mkdir()
    (node.home / "run dir" / "run.json").write_text('{\n "run_id": "train-1"\n}\n')
    (node.home / "precious").write_text("words")
    (folder / "batch.beat").symlink_to(node.home / "precious")
    srun = node.home / "srun"
    until = "[ -s batch.beat ] && [ ! -L batch.beat ]"
    srun.write_text(f"#!/bin/bash\ncd '{folder}'; until {until}; do :; done\n")
    assert 0 == node.run([("", 0)])
    assert "words" == (node.home / "precious").read_text()


EXCHANGES = """#!/bin/sh
/usr/bin/sha256sum "$@"
code=$?
[ ! -f /dev/stdin ] || {{ mv '{run}' '{away}' && mv '{other}' '{run}'; }}
exit "$code"
"""
"""In the place of sha256sum: the run directory becomes another one as soon as the job script is compared."""
OWN_SCRIPTS = {
    "/bin/bash -e": 'echo "own $*"\necho "$0"\nstat -c %a "${0%/*}"\n',
    "/usr/bin/env python3": "import os, sys\nprint('own', *sys.argv[1:])\nprint(__file__)\n"
    "print(f'{os.stat(sys.path[0]).st_mode & 0o7777:o}')\nimport planted\n",
}


@pytest.mark.parametrize("interpreter", OWN_SCRIPTS)
def test_the_job_script_that_was_compared_is_the_one_that_runs(node: Node, interpreter: str) -> None:
    """Another directory that gets the name of the run's just then changes nothing, also for its modules."""
    run, other, script = node.home / "run dir", node.home / "other", node.home / "job"
    script.write_text(f"#!{interpreter}\n{OWN_SCRIPTS[interpreter]}")
    (run / "slurm_script").write_bytes(script.read_bytes())
    other.mkdir()
    for name in ("slurm_script", "planted.py"):
        (other / name).write_text('print("pwned")\n' if "python" in interpreter else "echo pwned\n")
    (node.home / "sha256sum").write_text(EXCHANGES.format(run=run, away=node.home / "away", other=other))
    (node.home / "sha256sum").chmod(0o755)
    node.run([("", 0)] * 2, command=[str(script), "a b"], mode="script", time=None)
    assert not other.exists()
    said, path, mode = node.done.stdout.splitlines()
    assert (said, mode) == ("own a b", "700")
    assert path.endswith("/slurm_script")
    assert not Path(path).parent.exists()


def test_the_output_of_an_earlier_start_stays_as_it_is(tmp_path: Path) -> None:
    """A start whose output is no file tells where it is; that of the start before has had the same name."""
    run, first = tmp_path / "run", tmp_path / "first"
    run.mkdir(mode=0o700)
    (run / "run.json").write_text('{"run_id": "one"}')
    variables = {"HPC_ELASTIC_RUN_DIR": str(run), "HPC_ELASTIC_RUN_ID": "one", "SLURM_JOB_ID": "7"}
    outputs = []
    for out in (first, "/dev/null"):
        bash(f"exec > {out} 2>&1\nkeep_output\necho said in {out}", **variables, PATH=os.environ["PATH"])
        outputs.append((run / "slurm-7.out").read_text())
    assert outputs == [f"said in {first}\n", "the output of this job is in /dev/null\n"]
    assert first.read_text() == f"said in {first}\n"


HEARS = """
hears() {{
  local news script='' ended='' told=''
  exec {{news}}<> <(:)
  kill() {{  # the loop asks for the process after a read that its time limit has ended
    [ -z "$told" ] || return 1
    told=yes
    printf '{then}' >&"$news"
    return {code}
  }}
  printf 'pid 1\\ngot USR1\\nboth USR1\\n{first}' >&"$news"
  hear_news 1
  echo "$ended"
}}
hears
"""


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        ("en", r"d 5\n", 0),
        ("en", r"d 5\n", 1),
        ("", r"got USR2\nboth USR2\nend 5\n", 1),
    ],
    ids=["cut", "cut and gone", "a signal before it"],
)
def test_the_end_of_a_script_is_heard_at_any_moment(first: str, then: str, code: int) -> None:
    """A read whose time is over may have half a line; a process that is gone may have told more than one."""
    assert "5\n" == bash(HEARS.format(first=first, then=then, code=code)).stdout


def test_a_script_that_is_killed_with_its_process_has_ended() -> None:
    """Nobody is left to tell its exit code."""
    assert "137\n" == bash(HEARS.format(first="", then="", code=1)).stdout
