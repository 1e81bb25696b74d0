"""Slips in the words of `submit` and `render`: the line to write instead is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli import app


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--", "train.py --lr 0.1"], "take the quotes away: -- train.py --lr 0.1"),
        (["--", "python train.py"], "take the quotes away: -- python train.py"),
        (
            ["--", "OMP_NUM_THREADS=4", "A=b c", "python", "train.py"],
            "hpc-elastic submit -e OMP_NUM_THREADS=4 -e 'A=b c' -- python train.py",
        ),
        (["--", "-m", "pkg.mod", "--lr", "1"], "-m goes before --: hpc-elastic submit -m pkg.mod -- --lr 1"),
        (["--", "--module=pkg.mod"], "-m goes before --: hpc-elastic submit -m pkg.mod"),
        (
            ["--lr", "0.1", "--nodes", "1", "--", "train.py", "-x"],
            "hpc-elastic submit --local 1 --nodes 1 -- train.py -x --lr 0.1",
        ),
        (["--lr=0.1", "--", "train.py"], "hpc-elastic submit --local 1 -- train.py --lr=0.1"),
        (["--node", "1", "--", "train.py"], "did you mean"),
        (["-e", "FOO", "--", "train.py"], "fix: write NAME=VALUE, a variable of the workers\n"),
        (["-e", "err.log", "--", "train.py"], "a variable of the workers; the logs are in the run directory"),
        (["-o", "%j.out", "--", "train.py"], "an option of sbatch by its name; the logs are in the run dir"),
        (["-c", "8", "--", "train.py"], "-c of sbatch is --cpus-per-task: write --cpus-per-task; options of"),
        (["-n", "4", "--", "train.py"], "hpc-elastic submit --local 1 -- train.py -n 4"),
        (["-n4", "--", "train.py"], "-n of sbatch is --ntasks: the sbatch option --ntasks cannot be given: "),
        (["-G", "8"], "fix: -G of sbatch is --gpus: GPUs are counted per node: --gpus-per-node N\n"),
        (["-b", "now+1hour", "--", "train.py"], "-b of sbatch is --begin: options of sbatch go into -o: "),
    ],
)
def test_the_fix_is_the_line_to_write(words: list[str], fix: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is made before."""
    assert 2 == app.run(["submit", "--local", "1", *words])
    assert fix in capfd.readouterr().err
    assert ["train.py"] == [path.name for path in Path().iterdir()]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["-n", "2"], "hpc-elastic sbatch -n ... job.sh, which takes all options of sbatch"),
        (["--gres=gpu:1"], "hpc-elastic sbatch --gres ... job.sh, which takes all options of sbatch"),
        (["--nodse", "2"], "did you mean --nodes?"),
    ],
)
def test_an_option_of_sbatch_for_a_job_script_goes_to_the_command_that_takes_it(
    words: list[str], fix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Agents, of which there is one on each node, are no matter of such a script."""
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH -N 1\nsrun true\n")
    assert 2 == app.run(["submit", *words, "job.sh"])
    assert fix in capfd.readouterr().err


def test_line_ends_of_windows_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    """The kernel only says that there is no such file, though the script is there."""
    script = Path("crlf.sh")
    script.write_bytes(b"#!/bin/bash\r\necho hi\r\n")
    script.chmod(0o755)
    assert 2 == app.run(["submit", "--local", "1", "--", "./crlf.sh"])
    error = capfd.readouterr().err
    assert "has line ends of Windows: its interpreter is '/bin/bash\\r'" in error
    assert "sed -i 's/\\r$//' ./crlf.sh" in error


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#!/bin/bash\nsource env.sh\n\nexec torchrun train.py\n", "starts torchrun in line 4"),
        ("#!/bin/sh\nif true; then\n  srun python train.py\nfi\n", "starts srun in line 3"),
        ("#!/bin/bash\n# torchrun train.py\nexec python train.py\n", ""),
        ("#!/bin/bash\ncat <<END\ntorchrun train.py\nEND\n", ""),
        ("#!/usr/bin/env python3\ntorchrun\n", ""),
    ],
)
@pytest.mark.parametrize("words", [["./go"], ["bash", "go"]])
def test_a_script_that_starts_a_launcher_is_warned_of(
    text: str, told: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """With one worker in all it may."""
    script = Path("go")
    script.write_text(text)
    script.chmod(0o755)
    for workers in ("1", "2"):
        shape = ("--local", "1", "--workers-per-node", workers)
        assert 0 == app.run(["submit", "--dry-run", *shape, "--", *words])
        error = capfd.readouterr().err
        assert bool(told and workers == "2") == ("every worker would be a whole training" in error)
        assert workers == "1" or told in error


def test_a_quoted_home_directory_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    """A shell replaces it only without quotes."""
    assert 2 == app.run(["submit", "--local", "1", "--", "~/train.py"])
    assert "fix: take the quotes away" in capfd.readouterr().err


def test_more_nodes_than_this_machine_can_play_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """A slip of a zero would bring it down."""
    assert 2 == app.run(["submit", "--local", "100000", "--", "train.py"])
    assert "error: --local: 100000 nodes are too many for the " in capfd.readouterr().err
    assert ["train.py"] == [path.name for path in Path().iterdir()]


def test_a_byte_order_mark_is_read_over() -> None:
    """Editors of Windows begin a file with it."""
    Path("job.toml").write_bytes(b'\xef\xbb\xbfnodes = 1\ncommand = "train.py"\n')
    assert 0 == app.run(["render", "job.toml"])


def test_a_job_file_may_have_options_of_sbatch_in_a_comment() -> None:
    """So the old script's may be kept beside the new ones."""
    Path("job.toml").write_text('#SBATCH -N 2\nnodes = 1\ncommand = "train.py"\n')
    assert 0 == app.run(["render", "job.toml"])


@pytest.mark.parametrize("name", ["job.json", "job.yaml", "job.yml"])
def test_other_formats_are_named(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A parser of TOML would complain about a brace."""
    Path(name).write_text("{}")
    assert 2 == app.run(["render", name])
    assert f"{name} is no TOML, by its name" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("job.sbatch", "python train.py\n", "it runs as it is: hpc-elastic submit job.sbatch"),
        ("job.slurm", "", "begin it with #!/bin/bash, and it runs as it is: hpc-elastic submit job.slurm"),
        ("go.sh", "python train.py\n", "write it after --: -- go.sh"),
        ("go", "#!/usr/bin/env python3\nimport os\n", "write it after --: -- go"),
        ("go.py", 'JOB = """\n#SBATCH -N 2\n"""\n', "write it after --: -- go.py"),
    ],
)
def test_a_script_in_place_of_a_job_file_is_named(
    name: str, text: str, fix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A parser of TOML would complain about its first command."""
    Path(name).write_text(text)
    assert 2 == app.run(["submit", name])
    error = capfd.readouterr().err
    assert f"{name} is a script and not a job file" in error
    assert f"{fix}\n" in error


def test_a_job_script_without_an_interpreter_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """As sbatch would, with the line to write."""
    Path("job").write_text("#SBATCH -N 2\nsrun ./sim\n")
    assert 2 == app.run(["submit", "job"])
    error = capfd.readouterr().err
    assert "job:1: the job script has no first line with #! and an interpreter" in error
    assert "fix: begin it with #!/bin/bash\n" in error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Usage: hpc-elastic [OPTIONS]"),
        (["help"], "Usage: hpc-elastic [OPTIONS]"),
        (["--help"], "Usage: hpc-elastic [OPTIONS]"),
        (["stop"], "Usage: hpc-elastic stop"),
        (["stop", "RUN"], "Usage: hpc-elastic stop"),
        (["stop", "--nowhere"], "Usage: hpc-elastic stop"),
        (["submit", "--local"], "--local N\n  Run here and now without Slurm"),
        (["submit", "-N"], "-N, --nodes N|MIN:MAX\n  Nodes: N, or MIN:MAX"),
        (["watch", "--rank=3"], "--rank R\n  Show the newest lines of this global rank"),
    ],
)
def test_help_is_a_word_too(words: list[str], expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`help COMMAND` shows the same as `COMMAND --help`, with an option the entry of that option alone."""
    assert 0 == app.run(["help", *words])
    assert expected in capfd.readouterr().out


def test_help_of_an_unknown_command_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    """It is named, as in a line without `help`."""
    assert 2 == app.run(["help", "nosuch"])
    assert "No such command or page 'nosuch'" in capfd.readouterr().err
