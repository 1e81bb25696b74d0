"""How a job script sees that srun waits for agents that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.test_script import Node, make_node

NAP = """#!/bin/sh
[ "$1" = 10 ] && exec /bin/sleep 0.3
exec /bin/sleep 0.05
"""
"""In the place of ``sleep``: ten seconds pass in the time of several beats of the script."""
SRUN = """#!/bin/bash
cd {home}/run\\ dir
echo "$@" >> {home}/sruns
for node in {others}; do : > "members/$node.7+0-0-$HPC_ELASTIC_RELAUNCH+left+0+0+0"; done
: > "members/n1.7+0-0-$HPC_ELASTIC_RELAUNCH+{phase}+1+0+0"
for ((count = 0; count < {beats}; count++)); do
  mv "members/n1.7+0-0-$HPC_ELASTIC_RELAUNCH+{phase}+1+$count+0" \
    "members/n1.7+0-0-$HPC_ELASTIC_RELAUNCH+{phase}+1+$((count + 1))+0"
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
    write(node, "sleep", NAP)
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


FULL = "#!/bin/bash\necho 'cat: write error: No space left on device' >&2\nexit 1\n"
"""In the place of ``cat``."""
NAMELESS = """#!/bin/bash
printf '%s\\n' "$@" > {home}/sruns
for word; do [[ $word != --task-epilog=* ]] || SLURMD_NODENAME=n1 "${{word#*=}}"; done
cd {home}/run\\ dir/members && ls > {home}/names
"""


@pytest.mark.parametrize(("arguments", "restart"), [((), 0), (("0", "2"), 20000)], ids=["first", "third"])
def test_whose_agent_never_came_is_told_by_the_epilog(
    node: Node, arguments: tuple[str, ...], restart: int
) -> None:
    """In the name of this start of the job: further jobs of a submission count on."""
    write(node, "srun", NAMELESS.format(home=node.home))
    assert 0 == node.run([("", 0)], *arguments)
    assert [f"n1.0+0-{restart}-0+absent+0+0+0"] == (node.home / "names").read_text().split()


def test_on_a_full_disk_the_epilog_of_the_last_start_does(node: Node) -> None:
    """A node whose agent dies as the disk is full would be waited for by all others otherwise."""
    write(node, "srun", NAMELESS.format(home=node.home))
    write(node, "cat", FULL)
    assert 0 == node.run([("", 0)])
    assert "--task-epilog" not in (node.home / "sruns").read_text()
    (node.home / "cat").unlink()
    assert 0 == node.run([("", 0)])
    write(node, "cat", FULL)
    (node.home / "names").unlink()
    assert 0 == node.run([("", 0)])
    assert ["n1.0+0-0-0+absent+0+0+0"] == (node.home / "names").read_text().split()


@pytest.mark.slow
def test_an_srun_of_a_further_job_that_waits_for_nobody_is_killed(node: Node) -> None:
    """Its agents count their starts on from those of the jobs before."""
    text = SRUN.format(home=node.home, phase="left", beats=0, others="n2 n3 n4", lasts=0)
    write(node, "srun", text.replace("+0-0-", "+0-20000-"))
    assert 0 == node.run([("", 0)], "0", "2")
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
