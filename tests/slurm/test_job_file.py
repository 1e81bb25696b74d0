"""Job files: errors name file, line and the line itself; options win."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, line_of, read_job_file


def written(folder: Path, text: str) -> str:
    """Write a job file and return its path."""
    path = folder / "train.toml"
    path.write_text(text)
    return str(path)


def test_a_typo_in_the_syntax_shows_the_line(tmp_path: Path) -> None:
    """The message has file, line, the line and an arrow."""
    path = written(tmp_path, 'command = "python train.py"\nnodes = 2:4\n')
    with pytest.raises(InputError) as caught:
        read_job_file(path)
    assert f"{path}:2" == caught.value.where
    assert "    nodes = 2:4\n" in caught.value.message
    assert caught.value.message.endswith("^")


@pytest.mark.parametrize("again", ["nodes = 3", "[nodes]"])
def test_a_key_that_is_given_twice_is_named(tmp_path: Path, again: str) -> None:
    """The parser only says that it cannot overwrite a value."""
    path = written(tmp_path, f'command = "python x.py"\nnodes = 2\n{again}\n')
    with pytest.raises(InputError) as caught:
        read_job_file(path)
    assert f"{path}:3: nodes is given a second time\n    {again}\n" in str(caught.value)
    assert "keep one of the lines with nodes" == caught.value.fix


def test_a_file_that_ends_too_early_shows_its_last_line(tmp_path: Path) -> None:
    """An open bracket is noticed at the end of the file."""
    path = written(tmp_path, 'nodes = 1\ncommand = ["python",\n')
    with pytest.raises(InputError, match="not valid TOML") as caught:
        read_job_file(path)
    assert caught.value.where.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("text", "line", "shown", "fix"),
    [
        ('command = "python x.py"\n\nnodse = 2\n', 3, "nodse = 2", "'nodes'"),
        ('command = "python x.py"\nnodes = "3:1"\n', 2, 'nodes = "3:1"', "1:3"),
        ('command = "a"\n[sbatch]\nmem = "1G"\nmem-per-cpu = "1G"\n', 4, 'mem-per-cpu = "1G"', "remove"),
        ('command = "a"\n[env]\nA = "x"\nRANK = "1"\n', 4, 'RANK = "1"', "remove"),
        ('command = "a"\nsbatch.ntasks = 3\n', 2, "sbatch.ntasks = 3", "workers_per_node"),
        ('command = "a"\nsbatch = { ntasks = 3 }\n', 2, "sbatch = { ntasks = 3 }", "workers_per_node"),
        ('command = "a"\n"max_restarts" = -3\n', 2, '"max_restarts" = -3', "0 or more"),
        ('command = "a"\n[slurm]\nmem = 1\n', 2, "[slurm]", "top level"),
    ],
)
def test_a_wrong_value_shows_its_line(tmp_path: Path, text: str, line: int, shown: str, fix: str) -> None:
    """Keys in tables, dotted and quoted keys are found."""
    file = read_job_file(written(tmp_path, text))
    with pytest.raises(InputError) as caught:
        build_spec(file, {})
    assert f"{file.path}:{line}" == caught.value.where
    assert caught.value.message.endswith(f"\n    {shown}")
    assert fix in caught.value.fix


def test_a_missing_file_is_answered_with_a_similar_name(tmp_path: Path) -> None:
    """trian.toml is probably train.toml."""
    written(tmp_path, "")
    with pytest.raises(InputError, match="does not exist") as caught:
        read_job_file(str(tmp_path / "trian.toml"))
    assert "'train.toml'" in caught.value.fix


def test_a_missing_job_script_is_called_one(tmp_path: Path) -> None:
    """By the end of its name."""
    written(tmp_path, "")
    with pytest.raises(InputError, match=r"the job script .*/jobb.sbatch does not exist"):
        read_job_file(str(tmp_path / "jobb.sbatch"))


def test_a_wrong_variable_shows_its_own_line(tmp_path: Path) -> None:
    """And not that of its table."""
    file = read_job_file(written(tmp_path, 'command = ["x"]\n[env]\nA = "1"\nB = true\n'))
    with pytest.raises(InputError) as caught:
        build_spec(file, {})
    assert f"{file.path}:4" == caught.value.where
    assert caught.value.message.endswith("\n    B = true")


def test_a_script_in_the_place_of_the_job_file_is_explained(tmp_path: Path) -> None:
    """The worker command goes after --."""
    with pytest.raises(InputError) as caught:
        read_job_file(str(tmp_path / "train.py"))
    assert "after --: -- /" in caught.value.fix


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """Fields are replaced; env and sbatch are merged key by key, whatever the spelling."""
    text = (
        'command = "a"\nnodes = 2\n[sbatch]\np = "low"\nnice = 5\nlicenses = "x"\n[env]\nA = "1"\nB = "1"\n'
    )
    file = read_job_file(written(tmp_path, text))
    spec = build_spec(file, {"nodes": "4", "partition": "high", "sbatch": {"L": "y"}, "env": {"B": "2"}})
    assert ("4", "high") == (spec.nodes, spec.partition)
    assert {"nice": 5, "licenses": "y"} == spec.sbatch
    assert {"A": "1", "B": "2"} == spec.env


def test_a_wrong_option_is_named_and_not_the_file(tmp_path: Path) -> None:
    """The place is the option when the option gave the value."""
    file = read_job_file(written(tmp_path, 'command = "a"\nnodes = 2\n'))
    with pytest.raises(InputError) as caught:
        build_spec(file, {"nodes": "3:1"})
    assert "--nodes" == caught.value.where
    with pytest.raises(InputError) as caught:
        build_spec(file, {"sbatch": {"ntasks": "1"}})
    assert "-o ntasks" == caught.value.where


def test_without_a_file_the_option_is_the_place() -> None:
    """Also when the option is missing."""
    with pytest.raises(InputError) as caught:
        build_spec(JobFile(), {"gpus_per_node": "x", "command": ("a",)})
    assert "--gpus-per-node" == caught.value.where


def test_lines_of_other_tables_are_not_taken() -> None:
    """A key counts in its own table only."""
    text = "[env]\nnodes = 1\n[sbatch]\nmem = 1\n"
    assert line_of(text, "nodes") is None
    assert 4 == line_of(text, "sbatch.mem")
