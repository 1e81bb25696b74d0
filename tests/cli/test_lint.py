"""The pitfalls that ``lint`` finds in job scripts, training scripts and job files, and its exit codes."""

from __future__ import annotations

import json
import resource
import stat
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.slurm.lint.pitfalls import RULES, Pitfall
from tests.docs.lint_page import PAGE, page

REPOSITORY = Path(__file__).parents[2]
GOOD = """#!/bin/bash
#SBATCH --nodes=2 --requeue
#SBATCH --open-mode=append
trap : TERM INT HUP USR1 USR2
srun python train.py
"""


def linted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, name: str = "job.sbatch", *words: str
) -> list[tuple[str, int]]:
    """Return the codes that are found in a file, with their lines; the exit code says whether any are."""
    file = tmp_path / name
    file.write_bytes(text.encode())
    code = app.run(["lint", str(file), "--json", *words])
    found = json.loads(capfd.readouterr().out)
    assert (1, "lint", str(file)) == (found["format"], found["kind"], found["file"])
    assert code == bool(found["findings"])
    return [(one["code"], one["line"]) for one in found["findings"]]


def test_a_good_script_has_no_findings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor has a script of our own, which `render` prints."""
    assert [] == linted(tmp_path, capfd, GOOD)
    words = ["--nodes", "2:4", "--gpus-per-node", "8", "--exclusive", "--time", "4h", "--", "train.py"]
    for mode in ("step", "array"):
        assert 0 == app.run(["render", "--mode", mode, *words])
        assert [] == linted(tmp_path, capfd, capfd.readouterr().out)


def test_options_of_a_script_that_a_script_writes_are_not_late(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The lines of a here-document are no options of the job; those behind it still are."""
    inner = "cat > inner.sbatch <<EOF\n#!/bin/bash\n#SBATCH --no-requeue\n#SBATCH --time=1\nEOF\n"
    late = "#SBATCH --time=2\n"
    assert [("HE104", 9)] == linted(tmp_path, capfd, GOOD.replace("trap :", f"{inner}{late}trap :"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("trap :", "if true; then\ntrap :", ("HE101", 7)),
        ("#!/bin/bash\n", "\ufeff#!/bin/bash\n", ("HE102", 1)),
        ("#!/bin/bash\n", "#!/bin/bash\r\n", ("HE102", 1)),
        ("#!/bin/bash\n", "", ("HE103", 1)),
        ("srun python", "#SBATCH --time=1\nsrun python", ("HE104", 5)),
        ("--requeue", "--no-requeue", ("HE105", 2)),
        (" --requeue", "", ("HE105", 1)),
        ("#SBATCH --open-mode=append\n", "", ("HE106", 1)),
        ("--requeue", "--requeue --signal=B:USR1@60", ("HE107", 2)),
        ("srun python", "exec srun python", ("HE108", 5)),
        ("trap : TERM", "trap : USR1 #", ("HE109", 5)),
        ("train.py\n", "train.py &\nwait\n", ("HE110", 5)),
        ("trap :", "trap 'scontrol requeue $SLURM_JOB_ID'", ("HE111", 4)),
        ("train.py\n", "train.py || scontrol requeue $SLURM_JOB_ID\n", ("HE111", 5)),
        ("--requeue", "--requeue --no-kill", ("HE112", 2)),
        ("srun python", "srun --no-kill python", ("HE112", 5)),
        ("srun python", "srun --kill-on-bad-exit=1 python", ("HE113", 5)),
        ("python train", "torchrun train", ("HE114", 5)),
        ("srun python", 'LAUNCH="torchrun -n 2"\nsrun $LAUNCH', ("HE114", 6)),
        ("srun python", "export LAUNCH=torchrun # see below\nsrun ${LAUNCH:-python}", ("HE114", 6)),
        ("srun python", 'RUN="python -m"\nRUN+=" torch.distributed.run"\n\nsrun $RUN', ("HE114", 8)),
        ("srun python", 'A="torchrun \\\n -n 2"\nB="$A train.py"\nsrun bash -c "$B"', ("HE114", 8)),
        ("srun python", 'A=(torchrun # many\n  -n 2)\nB=1\nsrun "${A[@]}"', ("HE114", 8)),
        ("srun python", "A='torchrun'\nsrun bash -lc 'cd x && $A'", ("HE114", 6)),
        ("srun python", 'GO="exec srun"\n$GO python', ("HE108", 6)),
        ("srun python", "OPTIONS=--kill-on-bad-exit\nsrun -n 4 $OPTIONS python", ("HE113", 6)),
        ("trap :", 'AGAIN="scontrol requeue $SLURM_JOB_ID"\n$AGAIN\ntrap :', ("HE111", 5)),
    ],
)
def test_each_pitfall_of_a_job_script_is_found_in_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], old: str, new: str, expected: tuple[str, int]
) -> None:
    """One change of a good script is one finding, with the line to look at."""
    assert old in GOOD
    assert [expected] == linted(tmp_path, capfd, GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    "line",
    [
        "echo 'scontrol requeue 7; torchrun'",
        "# exec srun torchrun x",
        "srun --no-kill-me python x",
        "srun --kill-on-bad-exit=0 python x",
        "cat <<END\nscontrol requeue 7\nEND",
        "LAUNCH=torchrun",
        "LAUNCH=(torchrun x)\nLAUNCH=python\n$LAUNCH x",
        "LAUNCH=torchrun\necho \"$LAUNCH is not used\" '$LAUNCH' # $LAUNCH",
        "A=x\n" + 'A="$A$A"\n' * 200 + "$A",
        "srun --exclusive python x -k -K",
        "srun python -c 'torchrun'",
    ],
)
def test_text_that_is_no_command_is_no_pitfall(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    """Comments, quoted words, here-documents and longer words are not taken for commands."""
    assert [] == linted(tmp_path, capfd, f"{GOOD}{line}\n")


def test_safe_findings_are_fixed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The script keeps its mode and all other lines; the others are left, and named."""
    file = tmp_path / "job.sbatch"
    file.write_bytes(
        ("\ufeff" + GOOD.replace("#SBATCH --open-mode=append\n", "")).replace("\n", "\r\n").encode()
    )
    file.chmod(0o750)
    assert 0 == app.run(["lint", "--fix", str(file)])
    assert "2 findings fixed\nno findings\n" == capfd.readouterr().out
    lines = file.read_bytes().decode().split("\n")
    assert "#SBATCH --open-mode=append" == lines.pop(1)
    assert GOOD.replace("#SBATCH --open-mode=append\n", "").split("\n") == lines
    assert 0o750 == stat.S_IMODE(file.stat().st_mode)


TRAINED = """from hpc_elastic import worker
saved = worker.latest_checkpoint()
for step in range(saved.step if saved else 0, 9):
    worker.tick(step + 1)
    if worker.should_stop():
        worker.checkpoint_saved(step + 1, "x")
        break
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRAINED, []),
        (TRAINED.replace("worker.tick(step + 1)", "pass"), [("HE202", 1)]),
        (TRAINED.replace('worker.checkpoint_saved(step + 1, "x")', "pass"), [("HE203", 1)]),
        (TRAINED.replace("worker.should_stop()", "step == 5"), [("HE204", 1)]),
        (TRAINED.replace("worker.latest_checkpoint()", "None"), [("HE205", 1)]),
        (f"{TRAINED}import signal\nsignal.signal(signal.SIGTERM, print)\n", [("HE206", 9)]),
        ("from hpc_elastic.frameworks.torch import Checkpoints\n", []),
        ("x = (\n", [("HE201", 1)]),
    ],
)
def test_each_pitfall_of_a_training_script_is_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, expected: list[tuple[str, int]]
) -> None:
    """Python's own parser reads the script; a handler is found in its line, a missing call in the first."""
    assert expected == linted(tmp_path, capfd, text, "train.py")


def test_a_job_file_is_checked_as_submit_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A wrong value is found with its line and its own fix; the example's file has none."""
    job = 'command = "train.py"\nnodes = 2\ngpus_per_node = 8\nexclusive = true\ntime = "4h"\n'
    assert [] == linted(tmp_path, capfd, job, "job.toml")
    assert [("HE301", 6)] == linted(tmp_path, capfd, f"{job}nodse = 3\n", "job.toml")
    file = tmp_path / "wrong.toml"
    file.write_text('command = "train.py"\nnodes = "many"\n')
    assert 1 == app.run(["lint", str(file)])
    fix = "write N, or MIN:MAX for an elastic run, e.g. 4 or 2:4"
    assert (
        f"{file}:2: HE301 nodes = 'many' is not a node count\n    nodes = \"many\"\n  fix: {fix}\n"
        "1 finding; hpc-elastic lint --explain HE301\n"
    ) == capfd.readouterr().out
    assert 1 == app.run(["lint", str(file), "--json"])
    assert fix == json.loads(capfd.readouterr().out)["findings"][0]["fix"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("job.sbatch", "#!/usr/bin/env python3\n#SBATCH --requeue\nimport os\n", [("HE106", 1)]),
        ("job", "#!/usr/bin/python3.11\n#SBATCH --requeue\nx = (\n", [("HE106", 1), ("HE201", 3)]),
        ("train", "#!/usr/bin/env python3\nfrom hpc_elastic.frameworks.torch import Checkpoints\n", []),
        ("train.py", "from hpc_elastic.frameworks.torch import Checkpoints\n", []),
        ("job.txt", f"# a comment\n{GOOD.partition(chr(10))[2]}", [("HE103", 1)]),
        ("job", GOOD, []),
    ],
)
def test_name_and_text_tell_the_kind_of_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, text: str, expected: list[tuple[str, int]]
) -> None:
    """A job script in Python is checked for its options, and not for the calls of a training script."""
    assert expected == linted(tmp_path, capfd, text, name)


@pytest.mark.parametrize(
    ("name", "text"), [("notes.txt", "to do\n"), ("job.json", '{"nodes": 2}'), ("empty", "")]
)
def test_a_file_of_no_known_kind_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    """The error names the file, and says what lint takes."""
    (tmp_path / name).write_text(text)
    assert 2 == app.run(["lint", "--fix", str(tmp_path / name)])
    error = capfd.readouterr().err
    assert f"{tmp_path / name} is no script and no job file" in error
    assert "an sbatch script (#!/bin/bash), a training script (.py) or a job file in TOML (.toml)" in error
    assert text == (tmp_path / name).read_text()


def test_a_script_that_cannot_be_fixed_stays_as_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without `#!`, with a second name, and on a disk without room; the error says so."""
    file = tmp_path / "job.sbatch"
    broken = GOOD.replace("#SBATCH --open-mode=append\n", "") + "# long\n" * 9999
    no_interpreter = broken.partition("\n")[2]
    file.write_text(no_interpreter)
    assert 2 == app.run(["lint", "--fix", str(file)])
    assert "is not changed: its first line names no interpreter (#!)" in capfd.readouterr().err
    assert no_interpreter == file.read_text()
    assert 1 == app.run(["lint", str(file)])
    assert "can be fixed" not in capfd.readouterr().out

    file.write_text(broken)
    (tmp_path / "other.sbatch").hardlink_to(file)
    assert 2 == app.run(["lint", "--fix", str(file)])
    assert "has a second name (a hard link)" in capfd.readouterr().err
    (tmp_path / "other.sbatch").unlink()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(broken), before[1]))
    try:
        assert 2 == app.run(["lint", "--fix", str(file)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capfd.readouterr().err
    assert "cannot be written, and is as before: File too large" in error, error
    assert broken == file.read_text()
    assert [file] == list(tmp_path.iterdir())


def test_findings_are_lines_that_editors_understand(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """File, line, code and text; then how many there are, and how to read more."""
    file = tmp_path / "job.sbatch"
    file.write_text(GOOD.replace(" --requeue", "").replace("#SBATCH --open-mode=append\n", ""))
    assert 1 == app.run(["lint", str(file)])
    assert (
        f"{file}:1: HE105 the job is not requeued\n{file}:1: HE106 a requeue empties the log\n"
        "2 findings, 1 can be fixed with --fix; hpc-elastic lint --explain HE105\n"
    ) == capfd.readouterr().out


@pytest.mark.parametrize("pitfall", Pitfall)
def test_each_rule_is_explained(pitfall: Pitfall, capfd: pytest.CaptureFixture[str]) -> None:
    """With its consequence and its fix."""
    assert 0 == app.run(["lint", "--explain", pitfall.value.lower()])
    out = capfd.readouterr().out
    assert out.startswith(f"{pitfall.value}: {RULES[pitfall].title}\n")
    assert RULES[pitfall].fix in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--explain", "HE999"], "there is no rule 'HE999'"),
        ([], "no file was given"),
        (["nowhere.sbatch"], "nowhere.sbatch cannot be read: No such file or directory"),
    ],
)
def test_wrong_use_is_an_error(words: list[str], error: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, other than that of findings."""
    assert 2 == app.run(["lint", *words])
    assert error in capfd.readouterr().err


def test_the_page_has_all_rules() -> None:
    """It is made by ``python -m tests.docs.lint_page``."""
    assert page() == PAGE.read_text()
