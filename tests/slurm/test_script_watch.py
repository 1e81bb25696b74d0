"""How a job script sees that srun waits for agents that are gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.slurm.submit.request import epilog
from tests.slurm.test_script import Node, make_node

NAP = """#!/bin/sh
[ "$1" = 30 ] && exec /bin/sleep 0.3
exec /bin/sleep 0.05
"""
"""In the place of ``sleep``: thirty seconds pass in the time of several beats of the script."""
PAUSE = 'pause() { sleep "$1"; }\n'
"""In the place of the function: a process, which a test can make."""
IDENTITY = '{\n "run_id": "train-1"\n}\n'
SRUN = """#!/bin/bash
cd {home}/run\\ dir
echo "$@" >> {home}/sruns
for node in {others}; do : > "members/$node.7+0-0-0-$HPC_ELASTIC_RELAUNCH+left+0+0+0"; done
: > "members/n1.7+0-0-0-$HPC_ELASTIC_RELAUNCH+{phase}+1+0+0"
for ((count = 0; count < {beats}; count++)); do
  mv "members/n1.7+0-0-0-$HPC_ELASTIC_RELAUNCH+{phase}+1+$count+0" \
    "members/n1.7+0-0-0-$HPC_ELASTIC_RELAUNCH+{phase}+1+$((count + 1))+0"
  /bin/sleep 0.05
done
/bin/sleep {lasts}
[ -e {home}/ends ] || read -r -t 600 _ <> <(:)
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a batch host whose time passes fast."""
    node = make_node(tmp_path)
    for folder in ("nodes", "members"):
        (node.home / "run dir" / folder).mkdir(parents=True)
    (node.home / "run dir" / "run.json").write_text(IDENTITY)
    write(node, "sleep", NAP)
    node.more = PAUSE
    return node


def write(node: Node, name: str, text: str) -> None:
    """Put a program in the place of another."""
    path = node.home / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.slow
def test_an_srun_that_waits_for_nobody_is_killed(node: Node) -> None:
    """Slurm has lost the word that the last agent has ended; the run's records then decide."""
    write(node, "srun", SRUN.format(home=node.home, phase="left", beats=0, others="n2 n3 n4", lasts=0))
    assert 0 == node.run([("3", 80), ("", 0)])
    told = "no agent has given a sign of life for 120 s, but srun waits for one: srun is killed"
    assert 2 == node.done.stderr.count(told)
    exits = [call["words"] for call in node.lines("calls") if call["words"][2] == "finish"]
    assert 2 == sum("--srun-exit-code=137" in words for words in exits)


@pytest.mark.slow
def test_an_srun_with_agents_is_left_alone(node: Node) -> None:
    """They change their names for longer than a silence would have to last."""
    (node.home / "ends").touch()
    write(node, "srun", SRUN.format(home=node.home, phase="running", beats=100, others="", lasts=0))
    assert 0 == node.run([("", 0)])
    assert "sign of life" not in node.done.stderr


FULL = """#!/bin/bash
cd {home}/run\\ dir/nodes
beats() {{ grep -c '^2$' {home}/naps; }}
until [ "$(beats)" -ge 4 ]; do :; done
rmdir batch.beat
until [ -s batch.beat ]; do :; done
"""
"""An srun that ends when the batch host could write again, which it could not for some beats."""


def test_a_beat_that_cannot_be_written_is_told_once(node: Node) -> None:
    """The batch log tells when it began, as on a full disk, and when it is over; not at every beat."""
    write(node, "sleep", f'#!/bin/sh\necho "$1" >> {node.home}/naps\n[ "$1" = 2 ] || exec /bin/sleep 0.3\n')
    (node.home / "run dir/nodes/batch.beat").mkdir()
    (node.home / "naps").touch()
    write(node, "srun", FULL.format(home=node.home))
    assert 0 == node.run([("", 0)])
    told = [line for line in node.done.stderr.splitlines() if "sign of life of this script" in line]
    assert 2 == len(told)
    assert "batch.beat: Is a directory" in told[0]
    assert told[1].endswith("written again")


NAMELESS = """#!/bin/bash
printf '%s\\n' "$@" > {home}/sruns
for word; do [[ $word != --task-epilog=* ]] || SLURMD_NODENAME=n1 "${{word#*=}}"; done
cd {home}/run\\ dir/members && ls > {home}/names
"""


@pytest.mark.parametrize(("arguments", "link"), [((), 0), (("0", "2"), 2)], ids=["first", "third"])
def test_whose_agent_never_came_is_told_by_the_epilog(
    node: Node, arguments: tuple[str, ...], link: int
) -> None:
    """In the name of this start of the job: further jobs of a submission count on."""
    write(node, "srun", NAMELESS.format(home=node.home))
    looks = 2 if link else 1  # a further job of a chain looks after those before it first
    assert 0 == node.run([("", 0)] * looks, *arguments)
    assert [f"n1.0+0-{link}-0-0+absent+0+0+0"] == (node.home / "names").read_text().split()


TASK = """#!/bin/bash
for at in $(seq $#); do [[ ${{!at}} != /bin/bash ]] || break; done
{before}
SLURMD_NODENAME=n1 "${{@:at}}"
echo $? > {home}/ended
{after}
cd {home}/run\\ dir/members && ls > {home}/names
"""
"""In the place of srun: begins one task as it does, without what Slurm does after it."""
AWAY = {
    "python": ("chmod a-x {home}/python", "chmod +x {home}/python"),
    "package": ("mv {home}/epilog {home}/gone", "mv {home}/gone {home}/epilog"),
}


@pytest.mark.parametrize("away", AWAY)
def test_where_python_cannot_be_run_the_task_itself_says_that_no_agent_comes(node: Node, away: str) -> None:
    """The epilog, which would say it, lies on the same file system."""
    shutil.copy(epilog(), node.home / "epilog")
    before, after = (line.format(home=node.home) for line in AWAY[away])
    write(node, "srun", TASK.format(home=node.home, before=before, after=after))
    assert 0 == node.run([("", 0)], names={"epilog": str(node.home / "epilog")})
    assert "126" == (node.home / "ended").read_text().strip()
    assert ["n1.0+0-0-0-0+absent+0+0+0"] == (node.home / "names").read_text().split()


def test_the_task_becomes_the_agent(node: Node) -> None:
    """Slurm signals the agent itself, with the environment and the exit code as they would be without."""
    write(node, "srun", TASK.format(home=node.home, before="export BATCH_PID=$$ SHLVL=7", after=""))
    assert 0 == node.run([("", 0)], env={"WORKER_CODE": "9"})
    assert ["9", ""] == [(node.home / name).read_text().strip() for name in ("ended", "names")]
    (agent,) = [call["env"] for call in node.lines("calls") if call["words"][2] == "run"]
    assert "7" == agent["SHLVL"]


def take_by_another_run(run: Path) -> None:
    """Put another run in the place of one."""
    (run / "run.json").write_text('{\n "run_id": "train-2"\n}\n')


def open_to_others(run: Path) -> None:
    """Let others write to it."""
    run.chmod(0o770)


@pytest.mark.parametrize("take", [take_by_another_run, open_to_others])
def test_nothing_is_started_in_another_directory_than_that_of_the_run(
    node: Node, take: Callable[[Path], None]
) -> None:
    """The script ends at once, and the only words do not depend on what is there."""
    take(node.home / "run dir")
    assert 76 == node.run([])
    assert node.done.stderr.startswith("hpc_elastic: another directory is in the place of ")
    assert (1, "") == (node.done.stderr.count("\n"), node.done.stdout)
    assert [] == node.lines("sruns")


def test_a_directory_that_is_no_run_is_not_written_to(node: Node) -> None:
    """It is the user's own, and others have put it there: the agent and finish refuse it then."""
    run = node.home / "run dir"
    (run / "run.json").unlink()
    write(node, "srun", TASK.format(home=node.home, before="", after=f"SLURMD_NODENAME=n1 {epilog()}"))
    assert 0 == node.run([("", 0)])
    assert "" == (node.home / "names").read_text()
    assert [] == os.listdir(run / "nodes")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_somebody_elses_link_to_an_own_directory_is_not_followed(node: Node) -> None:
    """Even where it leads to the run itself; the user's own link is a way to name a run."""
    run = node.home / "run dir"
    run.rename(node.home / "own")
    run.symlink_to("own")
    assert 0 == node.run([("", 0)])
    os.lchown(run, 65534, 65534)
    (node.home / "sruns").unlink(missing_ok=True)
    assert 76 == node.run([])
    assert [] == node.lines("sruns")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_somebody_elses_directory_gets_no_names(node: Node) -> None:
    """It takes the place of the run's while the agent runs; epilog and script write nothing into it."""
    run = node.home / "run dir"
    before = f"mv '{run}' '{run}.moved'; mkdir -p '{run}/members' '{run}/nodes'; chown -R 65534 '{run}'"
    write(node, "srun", TASK.format(home=node.home, before=before, after=f"SLURMD_NODENAME=n1 {epilog()}"))
    assert 0 == node.run([("", 0)])
    assert "" == (node.home / "names").read_text()
    assert [] == os.listdir(run / "nodes")


@pytest.mark.slow
def test_an_srun_of_a_further_job_that_waits_for_nobody_is_killed(node: Node) -> None:
    """Its agents count their starts on from those of the jobs before."""
    text = SRUN.format(home=node.home, phase="left", beats=0, others="n2 n3 n4", lasts=0)
    write(node, "srun", text.replace("+0-0-0-", "+0-2-0-"))
    assert 0 == node.run([("", 0)] * 2, "0", "2")  # the first answer is that of the look at its beginning
    assert "srun is killed" in node.done.stderr


@pytest.mark.slow
def test_agents_that_have_told_no_names_yet_are_left_alone(node: Node) -> None:
    """They run a long health command, while that of another node has failed at once."""
    (node.home / "ends").touch()
    write(node, "srun", SRUN.format(home=node.home, phase="left", beats=0, others="n2 n3", lasts=8))
    assert 0 == node.run([("", 0)])
    assert "sign of life" not in node.done.stderr


@pytest.mark.slow
def test_a_setup_in_strict_mode_keeps_nobody_from_it(node: Node) -> None:
    """Where words are not parted at blanks any more, srun is found all the same."""
    write(node, "srun", SRUN.format(home=node.home, phase="left", beats=0, others="n2 n3 n4", lasts=0))
    assert 0 == node.run([("", 0)], setup=["set -euo pipefail; set -fC", "IFS=$'\\n\\t'"])
    assert "srun is killed" in node.done.stderr
