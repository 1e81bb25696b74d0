"""What sbatch and srun of the fake Slurm read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.slurm.client import parse
from hpc_elastic.testing.fake_slurm import launching
from hpc_elastic.testing.fake_slurm.cluster import job_environ
from hpc_elastic.testing.fake_slurm.cluster.model import Job, JobRequest, Step, Task, Warning_
from hpc_elastic.testing.fake_slurm.cluster.steps import lay_out
from hpc_elastic.testing.fake_slurm.commands import options
from hpc_elastic.testing.fake_slurm.commands.options import SBATCH, SRUN, Refusal

RECORDED = Path(__file__).parents[2] / "slurm" / "recorded" / "22.05" / "sbatch_help.txt"


LOOSE = {"container", "export", "get-user-env", "mem", "wait", "wrap"}  # the help does not say it exactly


def test_every_option_of_sbatch_is_known() -> None:
    """Those that the help of Slurm 22.05 lists, each taking a value or not as there."""
    listed = re.findall(r"^\s+(?:-\w, )?--([a-z][a-z0-9-]*)(\[?)(=?)", RECORDED.read_text(), re.MULTILINE)
    real = {name: "?" if bracket else equals for name, bracket, equals in listed}
    assert set() == {name for name, kind in real.items() if SBATCH.kinds.get(name) != kind} - LOOSE


def test_the_help_is_read_by_the_package() -> None:
    """`hpc-elastic submit` looks there for misspelt options."""
    assert set(SBATCH.kinds) == parse.help_options(options.help_text("sbatch", SBATCH))


@pytest.mark.parametrize(
    ("words", "found", "rest"),
    [
        (["-N2", "-n", "4", "job.sh", "-x"], {"nodes": "2", "ntasks": "4"}, ["job.sh", "-x"]),
        (["--nodes=1-4", "--exclusive", "--", "-odd"], {"nodes": "1-4", "exclusive": ""}, ["-odd"]),
        (["--time", "10", "--gpus-per-n=2"], {"time": "10", "gpus-per-node": "2"}, []),
        (["-kN3"], {"no-kill": "", "nodes": "3"}, []),
    ],
)
def test_options_are_written_in_many_ways(words: list[str], found: dict[str, str], rest: list[str]) -> None:
    """Letters with and without blanks, long names cut short, and what follows the first word is not ours."""
    assert (found, rest) == options.read("sbatch", SBATCH, words)


def test_srun_has_options_of_its_own() -> None:
    """What the templates of the package give it."""
    words = "--nodes=2 --kill-on-bad-exit=0 --wait=0 --no-kill --immediate=45 --cpu-bind=none --mpi=none a -b"
    found, rest = options.read("srun", SRUN, words.split())
    assert (["a", "-b"], "45", "0") == (rest, found["immediate"], found["kill-on-bad-exit"])


def test_options_of_a_script_end_at_its_first_command() -> None:
    """Comments are left out."""
    script = "#!/bin/sh\n# why\n#SBATCH -J 'a b' # name\n\n#SBATCH --requeue\ntrue\n#SBATCH -N9\n"
    assert {"job-name": "a b", "requeue": ""} == options.of_script(script)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5", 300), ("3:30", 240), ("1:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400)),
        *(("0:01", 60), ("2-00:00:00", 172800), ("UNLIMITED", None)),
    ],
)
def test_limits_are_whole_minutes(text: str, seconds: float | None) -> None:
    """Rounded up, as Slurm does."""
    assert seconds == options.minutes(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *(("USR1", Warning_(10, 60, to_script=False)), ("B:USR2@300", Warning_(12, 300, to_script=True))),
        *(("R:15@5", Warning_(15, 5, to_script=False)), ("BR:SIGUSR1", Warning_(10, 60, to_script=True))),
    ],
)
def test_warnings_go_to_the_tasks_unless_it_says_b(text: str, wanted: Warning_) -> None:
    """A minute ahead, if nothing else is said."""
    assert wanted == options.warning(text)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["--gpus-per-node=a100:2"], 2),
        (["--gres=gpu:4"], 4),
        (["--gres=tmp:1,gpu:v100:1"], 1),
        (["-N2", "--gpus=4"], 2),
        (["-N1", "--ntasks=2", "--gpus-per-task=1"], 2),
        ([], 0),
    ],
)
def test_gpus_are_asked_for_in_many_ways(words: list[str], gpus: int) -> None:
    """All come down to a number for each node."""
    assert gpus == options.request(options.read("sbatch", SBATCH, words)[0], JobRequest()).gpus_per_node


@pytest.mark.parametrize("text", ["0-2,7", "3", "0-8:4%2"])
def test_arrays_are_lists_of_tasks(text: str) -> None:
    """With a step and a throttle."""
    wanted = {"0-2,7": ((0, 1, 2, 7), 0), "3": ((3,), 0), "0-8:4%2": ((0, 4, 8), 2)}
    assert wanted[text] == options.array(text)


def test_an_unknown_value_is_refused() -> None:
    """With Slurm's words."""
    with pytest.raises(Refusal, match="invalid number of nodes: many"):
        options.nodes("many")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("node1", "node2", "node3", "node7"), "node[1-3,7]"),
        (("gpu01", "gpu02"), "gpu[01-02]"),
        (("login",), "login"),
        (("node1", "big2"), "node1,big2"),
        ((), ""),
    ],
)
def test_host_lists_are_compressed(names: tuple[str, ...], text: str) -> None:
    """The way back is `hpc_elastic.slurm.client.parse`."""
    assert text == job_environ.compress(names)


def test_tasks_fill_one_node_after_the_other() -> None:
    """As even as can be, the first nodes get more."""
    tasks = lay_out(("a", "b"), 3)
    assert [(0, "a", 0), (1, "a", 1), (2, "b", 0)] == [(task.rank, task.node, task.local) for task in tasks]


def test_names_of_files_have_patterns() -> None:
    """Those of Slurm's, and relative ones stand in the job's directory."""
    job = Job(
        7, JobRequest(name="x", directory="/home/me"), 0.0, 0.0, 1, nodes=("node1", "node2"), array=5, task=3
    )
    step = Step(0, (Task(0, "node1", 0), Task(1, "node2", 0)), 1)
    assert "/home/me/7_5_3.x.node1" == launching.fill("%j_%A_%a.%x.%N", job, "me")
    assert "/logs/7_1_1_me.out" == launching.fill("/logs/%j_%t_%n_%u.out", job, "me", step, step.tasks[1])
    assert "/home/me/007%" == launching.fill("%3j%%", job, "me")
    assert ("/dev/null", "/home/me/slurm-5_3.out", "/home/me/slurm-5_3.out") == launching.of_script(job, "me")


def test_a_flag_takes_no_value() -> None:
    """The option is named in full."""
    with pytest.raises(Refusal, match="option '--requeue' doesn't allow an argument"):
        options.read("sbatch", SBATCH, ["--requeu=x"])
