"""A first job file: the program, the settings and the comments that it is made of."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.client.answers import OfferedPartition, parse_accounts, parse_partitions
from hpc_elastic.slurm.job.first_job import FirstJobFacts, FirstProgram, program_in_script, text_of
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, read_toml
from hpc_elastic.slurm.job.spec import JobSpec

HEAD = "#!/bin/bash\n#SBATCH -p gpu -N 2\n#SBATCH --gres=gpu:a100:4,nvme:1 --time=$LIMIT\n"
GPU = OfferedPartition("gpu", is_default=False, limit="1:00:00", nodes=8, cpus=64, gpus=4)
BIG = OfferedPartition("big", is_default=False, limit="2-00:00:00", nodes=80, cpus=128, gpus=8)
CPU = OfferedPartition("cpu", is_default=True, limit="infinite", nodes=100, cpus=48, gpus=0)
TRAIN = FirstProgram(("train.py",), "this directory")


def written(facts: FirstJobFacts) -> tuple[str, JobSpec]:
    """Return the text of a job file, and the job that it is."""
    text = text_of(facts, "job.toml")
    return text, build_spec(JobFile("job.toml", read_toml("job.toml", text), text), {})


@pytest.mark.parametrize(
    ("line", "words", "settings", "left_out"),
    [
        (
            "torchrun --nproc-per-node=4 train.py --lr 1 | tee log",
            ("train.py", "--lr", "1"),
            {"workers_per_node": "4"},
            (),
        ),
        ("srun torchrun --nnodes $N \\\n  --rdzv-id $ID t.py -x $OUT y", ("t.py",), {}, ("-x", "$OUT", "y")),
        (
            "/env/bin/python -m torch.distributed.run --max-restarts 2 t.py",
            ("t.py",),
            {"max_restarts": "2"},
            (),
        ),
        ("srun python -u t.py --n 3 > log 2>&1 &", ("t.py", "--n", "3"), {}, ()),
        ("# python old.py\npython3.12 new.py 'a b'", ("new.py", "a b"), {}, ()),
        ("torchrun -m pkg.train a", ("a",), {"module": "pkg.train"}, ()),
        ("torchrun -m pkg.train $ARGS --resume", (), {"module": "pkg.train"}, ("$ARGS", "--resume")),
        ("accelerate launch --num_processes 4 t.py a", ("t.py", "a"), {}, ()),
    ],
)
def test_the_program_of_a_job_script(
    line: str, words: tuple[str, ...], settings: dict[str, str], left_out: tuple[str, ...]
) -> None:
    """Its launcher is left out, as the agents start the workers; options of sbatch are settings."""
    found = program_in_script("job.sbatch", HEAD + line + "\n")
    assert found is not None
    assert (words, left_out) == (found.words, found.left_out)
    of_head = {"partition": "gpu", "nodes": "2", "gpus_per_node": "a100:4"}
    assert of_head | settings == {**found.settings}
    assert found.origin.startswith("job.sbatch, line ")


@pytest.mark.parametrize("line", ["echo no", "python $SCRIPT", "R -f a.R", "torchrun $ARGS", "python 'a"])
def test_a_job_script_without_a_program_that_is_known(line: str) -> None:
    """None is guessed."""
    assert program_in_script("job.sbatch", HEAD + line + "\n") is None


def test_workers_of_srun_are_its_tasks() -> None:
    """One for each."""
    found = program_in_script("a", "#!/bin/bash\n#SBATCH --ntasks-per-node=4\nsrun python t.py\n")
    assert found is not None
    assert {"workers_per_node": "4"} == found.settings


def test_a_partition_with_gpus_is_taken_and_the_others_are_named() -> None:
    """The largest one; the time limit is no longer than it allows."""
    text, spec = written(FirstJobFacts(TRAIN, partitions=(CPU, GPU, BIG), accounts=("ml", "other")))
    given = (spec.partition, spec.account, spec.time, spec.nodes, spec.gpus_per_node, spec.exclusive)
    assert ("big", "ml", "04:00:00", "1", 8, True) == given
    assert "80 nodes with 128 CPUs and 8 GPUs; others: cpu, gpu" in text
    assert "your default; others: other" in text
    text, spec = written(FirstJobFacts(TRAIN, partitions=(GPU,)))
    assert ("gpu", "01:00:00", None) == (spec.partition, spec.time, spec.account)
    assert '# account = "NAME"' in text


def test_without_gpus_the_default_partition_is_taken() -> None:
    """And a share of a node."""
    _, spec = written(FirstJobFacts(TRAIN, partitions=(CPU,)))
    assert ("cpu", 8, None, False) == (spec.partition, spec.cpus_per_node, spec.gpus_per_node, spec.exclusive)


def test_the_partition_of_the_script_goes_first() -> None:
    """Its sizes, too."""
    settings = {"partition": "gpu", "nodes": "2-4", "gpus_per_node": "a100:2", "time": "30", "mem": "10G"}
    _, spec = written(FirstJobFacts(TRAIN._replace(settings=settings), partitions=(CPU, GPU, BIG)))
    assert ("gpu", "2:4", "a100:2", "00:30:00", "10G") == (
        spec.partition,
        spec.nodes,
        spec.gpus_per_node,
        spec.time,
        spec.mem,
    )


def test_settings_of_the_settings_files_are_not_repeated() -> None:
    """Their place is named."""
    given = {"account": "/etc/x:1", "partition": "/etc/x:2", "time": "/etc/x:3"}
    text, spec = written(FirstJobFacts(TRAIN, partitions=(GPU,), accounts=("ml",), given=given))
    assert (None, None, None) == (spec.account, spec.partition, spec.time)
    assert all(f"# given by {place}\n" in text for place in given.values())


def test_the_environment_runs_the_workers() -> None:
    """The agents keep their Python."""
    _, spec = written(FirstJobFacts(TRAIN, environment=("venv", "/e"), environment_origin="the active one"))
    assert (None, "/e", ("train.py",)) == (spec.python, spec.venv, spec.command)
    _, spec = written(FirstJobFacts(TRAIN, environment=("uv", True), environment_origin="here"))
    assert spec.uv


def test_hostile_names_stay_in_their_line() -> None:
    """A file may have any name."""
    name = 'a"b\n#SBATCH\x7f é.py'
    _, spec = written(FirstJobFacts(FirstProgram((name,), name)))
    assert (name,) == spec.command


def test_the_partitions_of_slurm() -> None:
    """Those that are up; of two kinds of nodes the one with GPUs."""
    rows = [
        ("cpu*", "up", "infinite", "10", "48", "(null)"),
        ("gpu", "up", "1-00:00:00", "20", "32+", "(null)"),
        ("gpu", "up", "1-00:00:00", "2", "64", "gpu:a100:4(S:0-1)"),
        ("old", "down", "1:00", "3", "8", "gpu:2"),
        ("empty", "up", "1:00", "0", "0", "(null)"),
    ]
    found = [
        OfferedPartition("cpu", is_default=True, limit="infinite", nodes=10, cpus=48, gpus=0),
        OfferedPartition("gpu", is_default=False, limit="1-00:00:00", nodes=2, cpus=64, gpus=4),
    ]
    assert found == parse_partitions(rows)


def test_the_accounts_of_slurm() -> None:
    """The default one first; a user may have none."""
    assert ("ml", "a") == parse_accounts("ml|a\nml|ml\nml|a\n")
    assert () == parse_accounts("|\n")
    assert () == parse_accounts("sacctmgr: no such thing\n")
