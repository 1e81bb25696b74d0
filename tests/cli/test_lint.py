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
        ("srun python", "conda activate llm\nsrun python", ("HE115", 5)),
        ("srun python", "micromamba activate llm\nsource later.sh\nsrun python", ("HE115", 5)),
        ("--requeue", "--requeue --export=A=1", ("HE116", 2)),
        ("--requeue", "--requeue --export=NONE", ("HE116", 2)),
        ("srun python", "srun --export=NCCL_DEBUG=INFO python", ("HE116", 5)),
        ("--requeue", "--requeue --output=no/such/%j.out", ("HE117", 2)),
        ("--requeue", "--requeue -e no/such/%j.err", ("HE117", 2)),
        ("--requeue", "--requeue --chdir=$HOME/run", ("HE118", 2)),
        ("--requeue", "--requeue --output=~/%j.out", ("HE118", 2)),
        ("train.py", "train.py | tee log.txt", ("HE119", 5)),
        ("train.py", "train.py 2>&1 |& tee -a log.txt", ("HE119", 5)),
        ("srun python", "export RANK=$SLURM_PROCID\nsrun python", ("HE121", 5)),
        ("train.py", "train.py --node ${SLURM_NODEID}", ("HE121", 5)),
        ("srun python", 'srun bash -c "python train.py $SLURM_LOCALID"; srun python', ("HE121", 5)),
        ("srun python", "OUT=runs/$(date +%s)\nsrun python", ("HE124", 5)),
        ("srun python", "export WANDB_RUN_ID=$(openssl rand -hex 4)\nsrun python", ("HE124", 5)),
        ("train.py", "train.py --output_dir runs/$(date +%F)", ("HE124", 5)),
        ("train.py", 'train.py --run-name="a `date +%F`" x', ("HE124", 5)),
        ("train.py\n", "train.py &\nwait $!\nsleep 60 &\nwait $!\n", ("HE110", 5)),
        ("srun python train.py", "rm -rf out && mkdir out\nsrun python train.py --out out", ("HE125", 5)),
        ("srun python", "rm -r ckpts/*\nsrun python", ("HE125", 5)),
        ("srun python", "LAST=$(ls ckpt_*.pt | sort | tail -n 1)\nsrun python", ("HE126", 5)),
        ("srun python", "LAST=`ls out/step-* | tail -1`\nsrun python", ("HE126", 5)),
        ("srun python", 'cd "$(dirname "$0")"\nsrun python', ("HE128", 5)),
        (
            "--requeue\n#SBATCH --open-mode=append\n",
            "--open-mode=append -C 'a&b' --no-requeue # no\n",
            ("HE105", 2),
        ),
    ],
)
def test_each_pitfall_of_a_job_script_is_found_in_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], old: str, new: str, expected: tuple[str, int]
) -> None:
    """One change of a good script is one finding, with the line to look at."""
    assert old in GOOD
    assert [expected] == linted(tmp_path, capfd, GOOD.replace(old, new, 1))


LONG = 40_000  # times that a word stands in one line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"echo {'ls ckpt ' * LONG}", []),
        (f"LAST=$(ls {'ckpt ' * LONG}| tail -1)", [("HE126", 5)]),
        (f"ls ckpt* | sort {'-' * LONG}", []),
        (f"echo {'set srun= ' * LONG}", []),
        ("echo " + "'a' " * LONG, []),
    ],
    ids=["ls", "checkpoints", "sort", "set", "quotes"],
)
def test_a_very_long_line_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, expected: list[tuple[str, int]]
) -> None:
    """No rule looks at each pair of words of a line, which would take minutes here."""
    assert linted(tmp_path, capfd, GOOD.replace("srun python", f"{line}\nsrun python", 1)) == expected


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("srun -n1 ./sim &", "HE110"),
        ("rm -rf ckpt", "HE125"),
        ("OUT=$(date)", "HE124"),
        ('cd "${0%/*}"', "HE128"),
    ],
)
def test_a_script_of_many_lines_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, code: str
) -> None:
    """A sweep has a line for each of its parts; no rule walks over the script for each of them."""
    text = GOOD.replace("srun python train.py\n", f"{line}\n" * 5_000)
    assert [code] * 5_000 == [found for found, _ in linted(tmp_path, capfd, text)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("python", "--gpus=1 torchrun --nproc-per-node=$SLURM_GPUS_PER_NODE", ("HE120", 6)),
        ("python", "torchrun", ("HE122", 6)),
        ("srun python", "torchrun", ("HE123", 6)),
        ("srun python", "accelerate launch", ("HE123", 6)),
    ],
)
def test_each_pitfall_of_a_launcher_is_found_beside_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], old: str, new: str, expected: tuple[str, int]
) -> None:
    """Typed GPUs as a number of processes, a launcher in each task, and one on the first node only."""
    text = GOOD.replace(
        "#SBATCH --open", "#SBATCH --gpus-per-node=a100:4 --ntasks-per-node=4\n#SBATCH --open"
    )
    found = linted(tmp_path, capfd, text.replace(old, new, 1))
    assert expected in found
    assert {"HE114", "HE120", "HE122", "HE123"} >= {code for code, _ in found}


def test_a_trap_that_comes_too_late_is_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The shell waits for a command in the foreground; below `wait` it hears the signal at once."""
    text = GOOD.replace("--requeue", "--requeue --signal=B:USR1@60").replace(
        "trap :", "trap 'touch x' USR1 #"
    )
    late = text.replace("srun python", "python")
    assert [("HE127", 4)] == linted(tmp_path, capfd, late)
    for program in ("python", "srun python"):
        waiting = text.replace("srun python", program).replace(
            "trap 'touch x' USR1 #", "trap 'touch x' USR1 TERM #"
        )
        assert [] == linted(tmp_path, capfd, waiting.replace("train.py", "train.py &\nwait\nwait"))


@pytest.mark.parametrize(
    ("signal", "program", "expected"),
    [
        ("TERM", "exec python train.py", []),
        ("USR1", "exec >log 2>&1\npython train.py", [("HE107", 2)]),
        ("USR1", "python train.py", [("HE107", 2)]),
        ("10", "trap 'touch x' USR1\npython train.py &\nwait\nwait", []),
        ("USR1", "trap - USR1\npython train.py", [("HE107", 2)]),
    ],
)
def test_a_signal_for_a_script_without_srun_needs_a_program_that_gets_it(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    signal: str,
    program: str,
    expected: list[tuple[str, int]],
) -> None:
    """``exec`` makes the program the process that Slurm signals, and a trap may have the number of it."""
    text = f"#!/bin/bash\n#SBATCH --open-mode=append --signal=B:{signal}@60\n{program}\n"
    assert expected == linted(tmp_path, capfd, text)
    if expected:
        assert 1 == app.run(["lint", str(tmp_path / "job.sbatch")])
        assert "  fix: write `exec` before the program" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("python train.py", [("HE129", 2)]),
        ("source env.sh\npython train.py", [("HE129", 2)]),
        ("srun python train.py", []),
        ("mpirun -n 4 sim", []),
        ("bash -c 'srun python train.py'", []),
        ("bash -x train.sh --lr 1", []),
        ("./train.sh", []),
    ],
)
def test_a_warning_without_steps_reaches_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], program: str, expected: list[tuple[str, int]]
) -> None:
    """Slurm sends it to the steps of the job, and a script without srun has none."""
    text = f"#!/bin/bash\n#SBATCH --open-mode=append --signal=USR1@60\ntrap : TERM\n{program}\n"
    assert expected == linted(tmp_path, capfd, text)


def test_several_files_are_looked_at(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each has its own lines or its own document, and one with findings is enough for exit code 1."""
    (tmp_path / "good.sbatch").write_text(GOOD)
    (tmp_path / "bad.sbatch").write_text(GOOD.replace("srun", "exec srun"))
    names = [str(tmp_path / "good.sbatch"), str(tmp_path / "bad.sbatch")]
    assert 1 == app.run(["lint", *names])
    said = capfd.readouterr().out.splitlines()
    assert [f"{names[0]}: no findings", f"{names[1]}:5: HE108 exec replaces the script by srun"] == said[:2]
    assert 1 == app.run(["lint", "--json", *names])
    text = capfd.readouterr().out
    first, end = json.JSONDecoder().raw_decode(text)
    assert [names[0], names[1]] == [first["file"], json.loads(text[end:])["file"]]
    assert 0 == app.run(["lint", names[0], names[0]])


@pytest.mark.parametrize(
    "program",
    [
        "for n in 1 2; do\n    srun -n1 sim $n &\ndone\nwait\nwait",
        "srun -n1 sim &\nwhile kill -0 $!; do wait; done",
        "srun -n1 sim &\nuntil wait; do :; done",
        "srun --overlap nvidia-smi dmon > gpu.log &\nsrun python train.py\nkill $!",
        "srun ray start --head --block &\nsrun ray start --block &\nsleep 9\npython tune.py",
    ],
)
def test_srun_in_the_background_is_right_where_the_script_outlives_a_signal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], program: str
) -> None:
    """It waits twice or in a loop, or the command in the background serves one in the foreground."""
    assert [] == linted(tmp_path, capfd, GOOD.replace("srun python train.py", program))


def test_a_trap_that_is_missing_is_one_finding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line above the first srun is good for all."""
    text = GOOD.replace("trap : TERM INT HUP USR1 USR2\n", "srun ./prepare\n")
    assert [("HE109", 4)] == linted(tmp_path, capfd, text)


@pytest.mark.parametrize(
    "lines",
    [
        '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -rf out',
        'if [ -z "$SLURM_RESTART_COUNT" ]; then\n    rm -rf out\n    OUT=runs/$(date +%s)\nfi',
        "if [ -f id ]; then\n    RUN_ID=$(cat id)\nelse\n    RUN_ID=$(date +%s)\nfi",
        "export TMPDIR=/tmp/job-$RANDOM TRITON_CACHE_DIR=/tmp/t-$RANDOM",
        "OUT_DIR=$TMPDIR/$RANDOM",
        "srun fold --output_dir=out --until=$(date +%F)",
        "rm -rf out/tmp && mkdir out/tmp\nsrun ./prepare out/tmp",
        "RDZV_ID=$RANDOM\nBACKUP_DIR=old/$(date +%F)\nCONTAINER_NAME=c$RANDOM",
        "if [ -f /opt/conda.sh ]; then . /opt/conda.sh; fi\nconda activate llm",
        "srun bash <<'EOF'\nexport RANK=$SLURM_PROCID\nEOF",
        'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"',
        'if [ -n "$SLURM_JOB_ID" ]; then HERE=x\nelse\n    HERE=$(dirname "$0")\nfi',
        "ls -lh checkpoints | tail -n 3",
        "srun --nodes=1 torchrun --standalone train.py",
    ],
)
def test_a_script_that_knows_its_starts_and_its_places_has_no_findings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], lines: str
) -> None:
    """The fixes of the rules themselves, names that no start needs, text that the shell leaves alone."""
    text = GOOD.replace("srun python train.py", f"{lines}\nsrun python train.py --out out")
    assert [] == linted(tmp_path, capfd, text)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('if [ "$SLURM_RESTART_COUNT" ]; then echo again; fi\nrm -rf out', ("HE125", 6)),
        ('echo "$SLURM_RESTART_COUNT"; rm -rf out', ("HE125", 5)),
        ('[ "$SLURM_JOB_ID" ] || exit 1\ncd "$(dirname "$0")"', ("HE128", 6)),
        ('if [ -e x ]; then\n    cd "$(dirname "$0")"\nfi', ("HE128", 6)),
        ("RUN_ID=$(date +%s)\necho $RUN_ID > id", ("HE124", 5)),
    ],
)
def test_a_question_that_decides_nothing_changes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], lines: str, expected: tuple[str, int]
) -> None:
    """What stands behind the condition, and not within it, is done at each start."""
    text = GOOD.replace("srun python train.py", f"{lines}\nsrun python train.py --out out")
    assert [expected] == linted(tmp_path, capfd, text)


def test_a_script_without_srun_may_make_its_own_environment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sites advise it: no task takes the option over. One variable alone is still a slip."""
    text = GOOD.replace("srun ", "").replace("--requeue", "--export=NONE --requeue")
    assert [] == linted(tmp_path, capfd, text)
    assert [("HE116", 2)] == linted(tmp_path, capfd, text.replace("NONE", "A=1"))


@pytest.mark.parametrize(
    "line",
    [
        'eval "$(conda shell.bash hook)"\nconda activate llm',
        "source ~/miniconda3/etc/profile.d/conda.sh\nconda activate llm",
        "module load anaconda\nconda activate llm",
        "srun --export=ALL,NCCL_DEBUG=INFO python x",
        "set -euo pipefail\npython x | tee log.txt",
        "echo hello | tee log.txt",
        'python x | tee log.txt\nexit "${PIPESTATUS[0]}"',
        "srun bash -c 'python x $SLURM_PROCID'",
        'srun bash -c "python x \\$SLURM_PROCID"',
        "echo node $SLURM_NODEID",
        "LOG=logs/$(date +%s).txt",
        "OUT=runs/$SLURM_JOB_ID",
        "rm -rf /tmp/ckpt",
        "rm -rf __pycache__",
        "LAST=$(ls -t ckpt_*.pt | head -n 1)",
        "LAST=$(ls ckpt_*.pt | sort -V | tail -n 1)",
        "ls *.csv | tail -n 1",
        'cat <<END\n$SLURM_PROCID $(dirname "$0") conda activate x\nEND',
        "# OUT=$(date) conda activate x",
    ],
)
def test_what_is_right_is_no_mistake(tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str) -> None:
    """A hook, a marked pipe, a rank read in the task, names that stay, directories that no start needs."""
    assert [] == linted(tmp_path, capfd, f"{GOOD}{line}\n")


def test_the_directory_of_the_output_is_looked_for_where_the_job_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below `--chdir`, else below the directory in which lint runs; names of sbatch's own are not known."""
    monkeypatch.chdir(tmp_path)
    for wanted in ("--output=logs/%j.out", f"--chdir={tmp_path}/there --output=logs/%j.out"):
        text = GOOD.replace("--requeue", f"--requeue {wanted}")
        assert [("HE117", 2)] == linted(tmp_path, capfd, text)
        Path("there/logs").mkdir(parents=True, exist_ok=True)
        Path("logs").mkdir(exist_ok=True)
        assert [] == linted(tmp_path, capfd, text)
        Path("there/logs").rmdir()
    assert [] == linted(tmp_path, capfd, GOOD.replace("--requeue", "--requeue -o %x/%j.out"))


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
        ("import lightning as L\n\ntrainer = L.Trainer()\n", [("HE207", 3)]),
        ("from transformers import Trainer\nTrainer(None)\n", [("HE207", 2)]),
        ("from accelerate import Accelerator\na = Accelerator()\n", [("HE207", 2)]),
        ("from transformers import Trainer\nclass MyTrainer(Trainer): ...\nMyTrainer()\n", [("HE207", 3)]),
        (f"from transformers import AutoModel\n{TRAINED}class OwnTrainer: ...\nOwnTrainer()\n", []),
        (
            "import lightning as L\nfrom hpc_elastic.frameworks import lightning\nL.Trainer()\n",
            [],
        ),
        ("import submitit\nsubmitit.AutoExecutor('log').submit(f)\n", [("HE207", 2)]),
        (
            'from submitit import AutoExecutor\nAutoExecutor("log", cluster="hpcelastic")\n',
            [("HE202", 1), ("HE203", 1), ("HE204", 1)],
        ),
        (f"{TRAINED}plugin = SLURMEnvironment(auto_requeue=True)\n", [("HE208", 8)]),
        (f'{TRAINED}run(["scontrol", "requeue", job])\n', [("HE208", 8)]),
        (f'{TRAINED}os.system(f"scontrol requeue {{job}}")\n', [("HE208", 8)]),
        (f'{TRAINED}out = time.strftime("runs/%H%M")\n', [("HE209", 8)]),
        (f'{TRAINED}out = f"runs/{{datetime.now():%H%M}}"\n', [("HE209", 8)]),
        (f'{TRAINED}log = open(f"logs/{{datetime.now():%F}}.log", "w")\n', []),
        (f'{TRAINED}print(f"{{time.time() - begin}} s/step")\nt = time.strftime("%H:%M")\n', []),
        (f'{TRAINED}wandb.init(project="demo")\n', [("HE209", 8)]),
        (f'{TRAINED}wandb.init(project="demo", id=job, resume="allow")\n', []),
        (f'{TRAINED}os.environ["WANDB_RUN_ID"] = job\nwandb.init()\n', []),
        (f'{TRAINED}found = sorted(glob.glob("ckpt_*.pt"))\nload(found[-1])\n', [("HE210", 8)]),
        (f'{TRAINED}load(max(Path("out").glob("step-*")))\n', [("HE210", 8)]),
        (f'{TRAINED}load(sorted(glob("ckpt_*.pt"), key=number)[-1])\nload(sorted(glob("*.csv"))[-1])\n', []),
    ],
)
def test_each_pitfall_of_a_training_script_is_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, expected: list[tuple[str, int]]
) -> None:
    """Python's own parser reads the script; a handler is found in its line, a missing call in the first."""
    assert expected == linted(tmp_path, capfd, text, "train.py")


def test_a_script_with_deepspeed_is_told_of_its_engine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All ranks save and load there, each its part."""
    file = tmp_path / "train.py"
    file.write_text("import deepspeed\nengine, *_ = deepspeed.initialize(model=None)\nengine.step()\n")
    assert 1 == app.run(["lint", str(file)])
    out = capfd.readouterr().out
    assert 3 == out.count("  fix: ")
    assert "fix: behind `engine.save_checkpoint(folder, tag)`, on all ranks: `worker.checkpoint_saved(" in out


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
    file.write_text(GOOD.replace("srun", "exec srun").replace("#SBATCH --open-mode=append\n", ""))
    assert 1 == app.run(["lint", str(file)])
    assert (
        f"{file}:1: HE106 a requeue empties the log\n{file}:4: HE108 exec replaces the script by srun\n"
        "2 findings, 1 can be fixed with --fix; hpc-elastic lint --explain HE106\n"
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
