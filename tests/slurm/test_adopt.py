"""Job scripts with torchrun, changed for our agent."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.adopt.script import NotAdoptedError, adopt

TYPICAL = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:USR1@60

source ~/env/bin/activate
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpu-bind=none torchrun \\
    --nnodes=4 --nproc-per-node=8 \\
    --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 \\
    train.py --lr 0.1
"""
LOOK = "trap '' TERM INT HUP USR1 USR2; hpc-elastic finish --run-dir PLACE --max-relaunch 0 --begins"
PLACE = '"${HPC_ELASTIC_RESUME:-${SLURM_SUBMIT_DIR:-$PWD}/hpc_elastic_runs/run-$SLURM_JOB_ID}"'
ADOPTED = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --signal=USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --no-kill

source ~/env/bin/activate
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
trap : TERM INT HUP USR1 USR2  # this shell outlives the signals that the agents save for
begins=
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || begins=$(LOOK)
ended=$?; [ "$begins" != 0 ] || exit "$ended"
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
--kill-on-bad-exit=0 --wait=0 --no-kill --cpu-bind=none env PYTHON_EXEC=python3 \
hpc-elastic run --run-dir PLACE \\
    --nnodes=4 --nproc-per-node=8 \\
    --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 \\
    train.py --lr 0.1
ended=$?
trap '' TERM INT HUP USR1 USR2
hpc-elastic finish --run-dir PLACE --srun-exit-code "$ended" --max-relaunch 0
""".replace("LOOK", LOOK)


def changed(text: str) -> str:
    """Return a script after its adoption; bash can read it."""
    done = adopt(text, "train.sbatch").text
    subprocess.run(["bash", "-n"], input=done, text=True, check=True)
    return done


@pytest.mark.parametrize(
    ("option", "line", "kept"),
    [
        ("-c 8", "torchrun train.py", ()),
        ("--cpus-per-task=8", "torchrun train.py", ()),
        ("--gpus-per-task=1", "srun torchrun train.py", ()),
        (
            "--gpus-per-task=1",
            "torchrun --nproc-per-node $SLURM_GPUS_PER_TASK train.py",
            ("SLURM_GPUS_PER_TASK",),
        ),
        ("--gpus-per-node=4", "torchrun train.py", None),
    ],
)
def test_an_agent_gets_its_whole_node(option: str, line: str, kept: tuple[str, ...] | None) -> None:
    """Where the job asks for parts of a node per task, srun would give the one agent of a node one part."""
    text = adopt(f"#!/bin/bash\n#SBATCH {option}\n{line}\n", "job.sh").text
    found = next((one.split()[1:] for one in text.splitlines() if one.startswith("unset ")), None)
    names = ["SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"]
    names += ["SLURM_TRES_BIND", "SLURM_GPUS_PER_TASK"]
    assert found == (None if kept is None else [name for name in names if name not in kept])


def test_a_typical_script() -> None:
    """What is the user's stays; each change has its reason."""
    assert ADOPTED.replace("PLACE", PLACE) == changed(TYPICAL)
    reasons = {change.what: change.why for change in adopt(TYPICAL, "train.sbatch").changes}
    assert "#SBATCH --signal=USR2@120" not in reasons
    assert "to the agents" in reasons["#SBATCH --signal without B:"]
    assert all(reasons.values())


@pytest.mark.parametrize(
    "line",
    [
        "torchrun train.py",
        "/opt/env/bin/torchrun --standalone train.py",
        "python -m torch.distributed.run train.py",
        "python3 -u -m torch.distributed.launch train.py",
        "time srun -N 1 -n 1 torchrun train.py",
        "    srun torchrun train.py",
        "cd code && OMP_NUM_THREADS=4 torchrun train.py",
        "srun hostname; srun -l torchrun train.py",
        "torchrun train.py --launcher srun",
        "srun torchrun train.py --filter 'a || b; c &' --n $(nvidia-smi -L | wc -l)  # && more",
        "srun python \\\n  -m torch.distributed.run \\\n  train.py",
        "srun torchrun train.py <<< word",
    ],
)
def test_the_ways_to_start_torchrun(line: str) -> None:
    """Below srun in any case, with one agent per node."""
    text = changed(f"#!/bin/bash\n{line}\n")
    (command,) = [found for found in text.splitlines() if " --ntasks" in found]
    assert re.search(rf'hpc[-_]elastic"? run --run-dir {re.escape(PLACE)} ', command)
    assert "srun --n" in command[: command.index("--run-dir")]
    assert "--ntasks-per-node=1" in command[: command.index("--run-dir")]
    assert 1 == command.count("-N ") + command.count("--nodes=")
    assert "torch" not in command


@pytest.mark.parametrize("option", ["--kill-on-bad-exit=1", "--kill-on-bad-exit", "-K1", "-K"])
def test_an_agent_that_leaves_ends_no_others(option: str) -> None:
    """Whatever the script has asked srun for; what it asked for is told."""
    script = f"#!/bin/bash\nsrun -l {option} torchrun train.py\n"
    assert 1 == changed(script).count("--kill-on-bad-exit")
    assert "-l --kill-on-bad-exit=0 env PYTHON_EXEC=python3 PET_" in changed(script)
    told = [change.what for change in adopt(script, "train.sbatch").changes]
    assert f"--kill-on-bad-exit=0 instead of {option}" in told


@pytest.mark.parametrize(
    "before", ["for lr in 1 2; do\n  echo $lr\ndone", "test -d data || exit 1\nsleep 1 &\nexec 2>&1"]
)
def test_what_stands_before_torchrun_does_not_matter(before: str) -> None:
    """A loop that is over, commands that are no torchrun; redirection is no background."""
    assert "finish" in changed(f"#!/bin/bash\n{before}\nsrun torchrun train.py >log 2>&1\n")


@pytest.mark.parametrize(
    "trap",
    [
        "trap 'scontrol requeue $SLURM_JOB_ID' USR1",
        "trap 'echo bye; /usr/bin/scontrol requeue $SLURM_JOB_ID; exit 0' SIGUSR1 TERM",
        "again() {\n  date\n  if true; then\n    scontrol requeue $SLURM_JOB_ID\n  fi\n}\ntrap again 10",
        "trap '' TERM",
    ],
)
def test_a_trap_that_only_requeues_is_taken_out(trap: str) -> None:
    """Two who requeue disagree about a training that has failed."""
    done = adopt(f"#!/bin/bash\n# scontrol requeue\n{trap}\nsrun torchrun train.py\n", "train.sbatch")
    assert ["TERM"] == [line.split()[2] for line in done.text.splitlines() if line.startswith("trap :")]
    assert not re.search(r"^trap (?!: |'' TERM INT)", done.text, re.MULTILINE)
    number = 2 + len(trap.splitlines())
    assert f"the trap in line {number} is taken out" in [change.what for change in done.changes]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("trap 'touch stop' USR1\nsrun torchrun train.py", "line 2 runs `touch stop`, which an agent cannot"),
        (
            "save() {\n  cp -r out ~/\n}\ntrap save TERM\nsrun torchrun train.py",
            "line 5 runs `cp -r out ~/`, which an agent cannot",
        ),
        (
            "srun torchrun train.py\n[ -e done ] || scontrol requeue $SLURM_JOB_ID",
            "line 3 queues the job again",
        ),
        (
            "sbatch --dependency=singleton $0\nsrun torchrun train.py",
            "line 2 queues the job again, or another",
        ),
    ],
)
def test_a_script_with_rules_of_its_own_stays_as_it_is(script: str, words: str) -> None:
    """What a trap does beside a requeue, and when a script queues its job again, only the script knows."""
    with pytest.raises(InputError, match=re.escape(words)):
        adopt(f"#!/bin/bash\n{script}\n", "train.sbatch")


def test_what_follows_still_runs() -> None:
    """The job ends with the code of finish, whatever comes after it."""
    lines = changed("#!/bin/bash\nsrun torchrun train.py\ncp result.json ~/\n").splitlines()
    leave = '[ "$finished" != 75 ] || exit "$finished"'
    assert ["finished=$?", leave, "cp result.json ~/", 'exit "$finished"'] == lines[-4:]


@pytest.mark.parametrize("rest", ["exit $?", 'rc=$?\nexit "$rc"', ""])
def test_the_exit_code_is_that_of_finish(rest: str) -> None:
    """A script that hands on torchrun's code does not hide that of finish."""
    assert "hpc-elastic finish" in changed(f"#!/bin/bash\nsrun torchrun train.py\n{rest}\n").splitlines()[-1]


@pytest.mark.parametrize("strict", ["set -e", "set -euo pipefail", "set -o errexit"])
def test_a_strict_script_gets_to_its_end(strict: str) -> None:
    """With set -e a failing srun would end it before finish."""
    lines = changed(f"#!/bin/bash\n{strict}\nsrun torchrun train.py\n").splitlines()
    assert lines.index("set +e") < next(at for at, line in enumerate(lines) if "srun" in line)
    assert 1 == changed(f"#!/bin/bash\n{strict}\nset +e\ntorchrun train.py\n").count("set +e\n")


@pytest.mark.parametrize(
    "command",
    [
        "srun bash -c 'torchrun --node-rank $SLURM_NODEID train.py \"a b\"'",
        "srun bash -c \"torchrun --node-rank \\$SLURM_NODEID train.py 'a b'\"",
        "bash -lc '\n  torchrun \\\n  --node-rank $SLURM_NODEID \\\n  train.py \"a b\"\n'",
    ],
)
def test_each_task_may_have_a_shell(tmp_path: Path, command: str) -> None:
    """As where each has to know which node it is; the run directory may have blanks in its name."""
    place = tmp_path / "my runs"
    place.mkdir()
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; SLURM_NODEID=3 "$@"',
        "hpc-elastic": 'printf "%s|" "$@" >> told; echo >> told',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NUM_NODES": "2",
    }
    script = changed(f"#!/bin/bash\n{command}\n").replace("bash -lc", "bash -c")  # profiles may set PATH
    subprocess.run(["bash", "-c", script], cwd=place, env=env, check=True)
    run, finish = (place / "told").read_text().splitlines()
    assert f"run|--run-dir|{place}/hpc_elastic_runs/run-17|--node-rank|3|train.py|a b|" == run
    assert finish.startswith(f"finish|--run-dir|{place}/hpc_elastic_runs/run-17|--srun-exit-code|0|")


@pytest.mark.parametrize(
    ("strict", "code", "goes_on"),
    [("", 0, True), ("", 7, True), ("", 75, False), ("set -eu", 0, True), ("set -eu", 7, False)],
    ids=["done", "failed", "requeued", "strict and done", "strict and failed"],
)
def test_the_changed_script_runs(tmp_path: Path, strict: str, code: int, *, goes_on: bool) -> None:
    """With stand-ins for srun and our commands: the agent gets the user's words, the code is finish's."""
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "hpc-elastic": f'echo "$@" >> told; [ "$1" = run ] || exit {code}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    rest = "srun torchrun --nnodes=2 train.py 'a b'\necho after >> told\n"
    script = changed(f"#!/bin/bash\n{strict}\n{rest}")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=False)
    assert code == done.returncode
    told = (tmp_path / "told").read_text().splitlines()
    assert f"run --run-dir {tmp_path}/hpc_elastic_runs/run-17 --nnodes=2 train.py a b" == told[0]
    assert told[1].startswith(f"finish --run-dir {tmp_path}/hpc_elastic_runs/run-17 --srun-exit-code 0")
    assert goes_on == ("after" in told)


@pytest.mark.parametrize(
    ("option", "command", "gpus"),
    [
        ("--gpus-per-task=2", "torchrun --nnodes=$SLURM_NNODES train.py", "--gpus=8"),
        ("--gpus-per-task=2", "torchrun train.py", "--gpus=4"),
        ("--gpus-per-task a100:2", "srun torchrun train.py", "--gpus=8"),
        ("--gpus-per-task=2", "srun --gpus-per-node=4 torchrun train.py", "--gpus-per-node=4"),
        ("--gpus-per-node=4", "srun torchrun train.py", None),
    ],
)
def test_an_agent_gets_the_gpus_of_all_tasks_of_its_node(
    tmp_path: Path, option: str, command: str, gpus: str | None
) -> None:
    """Srun would give the one task of a node the GPUs of one task; an option of the user's stays."""
    for name, body in {"srun": 'echo "$@" > told', "hpc-elastic": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = changed(f"#!/bin/bash\n#SBATCH {option}\n{command}\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    env |= {"SLURM_NTASKS": "4"}  # Slurm tells the GPUs of a task in a variable of another name since 24.11
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=True)
    told = (tmp_path / "told").read_text().split()
    assert ([gpus] if gpus else []) == [word for word in told if word.startswith("--gpus")]


def test_a_signal_does_not_end_the_look_at_earlier_starts(tmp_path: Path) -> None:
    """They would stay uncounted, and the script goes on all the same."""
    looks = 'case "$*" in *--begins) kill -TERM $$; echo 0; exit 75 ;; esac'
    for name, body in {"srun": "touch begun", "hpc-elastic": looks}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = changed("#!/bin/bash\nsrun torchrun train.py\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    env["SLURM_RESTART_COUNT"] = "1"
    for shell in ("bash", "sh"):
        done = subprocess.run([shell, "-c", script], cwd=tmp_path, env=env, check=False)
        assert 75 == done.returncode
        assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("strict", ["", "set -eu"])
@pytest.mark.parametrize(
    ("says", "code", "begins"),
    [("echo 0; exit 75", 75, False), ("exit 0", 0, True), ("exit 127", 0, True), ("echo banner", 0, True)],
    ids=["a budget is spent", "nothing to say", "no Python just then", "a container says something"],
)
def test_a_further_start_looks_after_earlier_ones(
    tmp_path: Path, strict: str, says: str, code: int, *, begins: bool
) -> None:
    """Before it starts anything; where a budget is spent it starts nothing."""
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "hpc-elastic": f'echo "$@" >> told; case "$*" in *--begins) {says} ;; esac',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = changed(f"#!/bin/bash\n{strict}\nsrun torchrun train.py\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    env["SLURM_RESTART_COUNT"] = "1"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=False)
    assert code == done.returncode
    first, *others = (tmp_path / "told").read_text().splitlines()
    assert f"finish --run-dir {tmp_path}/hpc_elastic_runs/run-17 --max-relaunch 0 --begins" == first
    assert ["run", "finish"] * begins == [line.split()[0] for line in others]


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({}, "{here}/hpc_elastic_runs/run-17"),
        ({"SLURM_SUBMIT_DIR": "/sub mit"}, "/sub mit/hpc_elastic_runs/run-17"),
        ({"SLURM_SUBMIT_DIR": "/sub mit", "HPC_ELASTIC_RESUME": "/an old/run-3"}, "/an old/run-3"),
    ],
)
def test_the_run_lies_where_commands_look_for_it(tmp_path: Path, more: dict[str, str], place: str) -> None:
    """Below the directory of sbatch, wherever the script goes; or it is one that another job has left."""
    for name in ("srun", "hpc-elastic"):
        (tmp_path / name).write_text('#!/bin/bash\nwhile [ "$1" != --run-dir ]; do shift; done; echo "$2"\n')
        (tmp_path / name).chmod(0o755)
    script = changed("#!/bin/bash\nset -u\nsrun torchrun train.py\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", **more}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert [place.format(here=tmp_path)] * 2 == done.stdout.splitlines()


@pytest.mark.parametrize(
    "strict",
    [
        "set -ex;",
        "set -e;",
        "set -o errexit;",
        "set -ex; cd .",
        '[ -n "$SLURM_JOB_ID" ] && set -e',
        ": ; set -e",
        "if true; then set -euo pipefail; fi",
        "strict() { set -e; }; strict",
        "shopt -so errexit",
        "set +e\nset -e",
        "trap 'exit 1' ERR",
        "set -eE; trap 'echo failed; exit 1' ERR",
        "eval 'set -e'",
        "trap : EXIT; eval \"trap 'exit 1' ERR\"",
    ],
)
def test_finish_is_reached_however_a_script_is_strict(tmp_path: Path, strict: str) -> None:
    """The job of one that ends before it would not be requeued; behind finish the script is strict again."""
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "hpc-elastic": 'echo "$1" >> told; [ "$1" = finish ] || exit 75',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = changed(f"#!/bin/bash\n{strict}\nsrun torchrun train.py\nfalse\necho after >> told\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=False)
    told = (tmp_path / "told").read_text().splitlines()
    assert ["run", "finish"] == told[:2], script
    goes_on = strict.startswith("trap")
    assert (goes_on, 0 if goes_on else 1) == ("after" in told, done.returncode)


@pytest.mark.parametrize("first", ['[ -z "$SLURM_JOB_ID" ] && set -e', "# set -e", "echo 'set -e'", "set -x"])
def test_a_script_that_is_not_strict_does_not_become_it(tmp_path: Path, first: str) -> None:
    """What the shell has not been told is not in force behind finish either."""
    (tmp_path / "srun").write_text("#!/bin/bash\nexit 0\n")
    (tmp_path / "hpc-elastic").write_text("#!/bin/bash\nexit 0\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    script = changed(f"#!/bin/bash\n{first}\nsrun torchrun train.py\nfalse\necho after\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("after\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/bash\nRscript train.R\n", "no line of the script starts torchrun, another launcher or a"),
        ("#!/bin/bash\n# srun torchrun train.py\n", "no line of the script starts torchrun"),
        ("torchrun a.py\ntorchrun b.py\n", r"more than once \(lines 1, 2\)"),
        ("srun hpc-elastic run train.py\n", "starts hpc-elastic already"),
        (
            "srun torchrun \\\n  a.py &  # later\nls\n",
            "line 1 runs in the background, and the script does other",
        ),
        ("if ! srun torchrun a.py; then\n  exit 1\nfi\n", "line 1 stands behind `if`"),
        ("for lr in 1 2; do\n  srun torchrun a.py\ndone\n", "line 2 is in a loop"),
    ],
)
def test_what_cannot_be_adopted_is_told(text: str, words: str) -> None:
    """With the script's name and what to do."""
    with pytest.raises(InputError, match=words) as caught:
        adopt(text, "train.sbatch")
    assert "train.sbatch" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('LAUNCHER="accelerate launch"\nsrun $LAUNCHER t.py\n', "are in a variable or in quotes"),
        ("pip install deepspeed\nRscript train.R\n", "no line of the script starts torchrun"),
        ("srun python3 train.py\n", "no line of the script asks for a GPU for train.py in line 2"),
        ("torchrun a.py\ntorchrun b.py\n", "give each its own script"),
        ("for lr in 1 2; do\n  srun torchrun a.py\ndone\n", "it starts several trainings"),
    ],
)
def test_a_script_that_cannot_be_adopted_stays_as_it_is(text: str, words: str) -> None:
    """No line is given that would lose what the script does; submit brings it back without a change."""
    with pytest.raises(InputError) as caught:
        adopt(f"#!/bin/bash\n{text}", "my train.sbatch")
    assert caught.value.fix.startswith("this script stays as it is: hpc-elastic submit 'my train.sbatch'")
    assert words in f"{caught.value.message} {caught.value.fix}"
    assert "srun --" not in caught.value.fix


OURS = ("/our own/bin/python", "-I", "-m", "hpc_elastic")


@pytest.mark.parametrize(
    ("launcher", "python"),
    [
        ("torchrun", "python3"),
        ("$(which torchrun)", "python3"),
        ('"$ENV/bin/torchrun"', '"$ENV/bin/python3"'),
        ("${ENV}/bin/torchrun", "${ENV}/bin/python3"),
        ("~/env/bin/torchrun", "$HOME/env/bin/python3"),
        ("~/.local/bin/torchrun", "python3"),
        ("python3.11 -u -m torch.distributed.run", "python3.11"),
        ('"$PYTHON" -X faulthandler -m torch.distributed.run', '"$PYTHON"'),
        ("uv run torchrun", "python3"),
        ("conda run -n env torchrun", "python3"),
    ],
)
def test_the_agents_are_ours_and_the_workers_have_the_python_of_the_script(
    launcher: str, python: str
) -> None:
    """Its environment needs nothing of ours; finish is called by the path of the program that ran adopt."""
    before = re.match(r"(?:(?:uv|conda) run (?:-n env )?)?", launcher)
    for srun in ("", "srun "):
        lines = adopt(
            f"#!/bin/bash\n{srun}{launcher} --nproc-per-node 1 train.py\n", "a", OURS
        ).text.splitlines()
        ours = "'/our own/bin/python' -I -m hpc_elastic"
        environment = before[0] if before else ""
        run = (
            f"{environment}env PYTHON_EXEC={python} {ours} run --run-dir {PLACE} --nproc-per-node 1 train.py"
        )
        assert [run] == [line[line.index("--no-kill ") + 10 :] for line in lines if " --ntasks" in line]
        assert lines[-1].startswith(f"{ours} finish --run-dir ")


@pytest.mark.parametrize(
    ("words", "bind", "container"),
    [
        ("singularity exec --nv image.sif", "SINGULARITY_BIND", "singularity exec --nv image.sif"),
        ('srun apptainer exec -B /a:/b "$IMAGE"', "APPTAINER_BIND", 'apptainer exec -B /a:/b \\"$IMAGE\\"'),
        ("srun apptainer \\\n  exec a.sif", "APPTAINER_BIND", "apptainer exec a.sif"),
    ],
)
def test_workers_are_in_the_container_and_agents_are_not(words: str, bind: str, container: str) -> None:
    """So the image needs nothing of ours, and it gets the run directory."""
    done = adopt(f"#!/bin/bash\n{words} /opt/bin/torchrun --nproc_per_node 2 train.py\n", "a", OURS).text
    python = "env PYTHON_EXEC=/opt/bin/python3 '/our own/bin/python' -I -m hpc_elastic run --run-dir"
    assert f'{python} {PLACE} --container "{container}" --nproc_per_node 2 train.py\n' in done
    assert f'export {bind}="${{{bind}:+${bind},}}{PLACE[1:-1]}"\n' in done
    assert done.splitlines()[-1].startswith("'/our own/bin/python' -I -m hpc_elastic finish")
    subprocess.run(["bash", "-n"], input=done, text=True, check=True)


def test_torchrun_in_a_shell_of_a_container_leaves_its_flags_to_the_agent() -> None:
    """Each worker has a shell of its own in the image, which becomes the Python of the image."""
    words = (
        'apptainer exec --nv a.sif bash -c "\n  cd x &&\n  torchrun --nproc_per_node=2 \\\n  train.py a;\n"'
    )
    done = changed(f"#!/bin/bash\n{words}\n")
    run = (
        f"hpc-elastic run --run-dir {PLACE} --nproc_per_node=2 --no-python apptainer exec --nv a.sif bash -c"
    )
    assert f'{run} "\n  cd x &&\n  exec python3 -u train.py a;\n"\n' in done
    assert "srun --nodes=1 --ntasks=1 " in changed(f"#!/bin/bash\n#SBATCH --nodes=4\n{words}\n")


@pytest.mark.parametrize(
    ("options", "command", "words"),
    [
        ("--gres=gpu:1", "python train.py a", "--nnodes=1 --nproc-per-node=1 --no-python python train.py a"),
        ("-G 1 -N 1 -n 4", "uv run python train.py", "--nproc-per-node=1 --no-python uv run python train.py"),
        (
            "--gpus-per-node=a100:1 --signal=USR1@90",
            "srun -u python -u -m mine",
            "--nproc-per-node=1 --unasked=signal:USR1 --warn-timeout=90 --no-python python -u -m mine",
        ),
        (
            "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4",
            "srun --ntasks=8 python train.py",
            '--nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 --no-python python train.py',
        ),
        (
            "--nodes=2",
            "srun --ntasks-per-node=2 --gpus-per-task=1 -c 4 python train.py",
            "--nproc-per-node=2 --virtual-local-rank --no-python python train.py",
        ),
        (
            "--gres=gpu:1",
            'C="python train.py"\nsrun $C a',
            "run --nnodes=1 --nproc-per-node=1 --no-python python",
        ),
    ],
)
def test_a_program_without_a_launcher_gets_one_worker_for_each_task(
    options: str, command: str, words: str
) -> None:
    """With the device, the signal and the words that each task has now."""
    text = f"#!/bin/bash\n#SBATCH {options}\n{command}\n"
    done = adopt(text, "a", OURS[1:], lambda _: "init_process_group()").text
    assert words in done
    assert 1 == len(re.findall(r"--ntasks(?=[=\s])", done.split("srun ")[1])), done
    assert "--gpus-per-task" not in done.split("srun ")[1]
    assert " -c 4" not in done


@pytest.mark.parametrize(
    ("options", "command", "program", "reason"),
    [
        ("--gres=gpu:2", "python train.py", "", "one process for 2 GPUs"),
        ("--gpus-per-socket=1", "python train.py", "", "cannot see how many GPUs"),
        ("--gres=gpu:1", "python a.py\npython b.py", "", "is started more than once (lines 3, 4)"),
        ("--gres=gpu:1", "python a.py < words", "", "reads its input from the script"),
        ("--gres=gpu:1 --signal=HUP@90", "srun python a.py", "", "hears of its end by SIGHUP"),
        ("-N 2 --ntasks-per-node=2", "srun python a.py", None, "cannot read a.py in line 3 from here"),
        ("-N 2 --ntasks-per-node=2", "srun python a.py", "from mpi4py import MPI", "does not learn its rank"),
        ("-N 2 --ntasks-per-node=2", "srun --mpi=pmix python a.py", "jax.distributed", "from MPI"),
        ("-N 2 --ntasks-per-node=2 --gpus-per-task=2", "srun python a.py", "lightning", "2 GPUs of its own"),
        ("-N 2-4", "srun python a.py", "lightning", "cannot see on how many nodes"),
        ("-N 2 --gres=gpu:1", "python a.py", "", "on the first of 2 nodes"),
        ("--gres=gpu:1", "pip install x\npython -c 1\npython setup.py install", "", "no line of the script"),
        ("--gres=gpu:2", "accelerate launch --config_file a.yaml a.py", None, "what --config_file has it do"),
        ("--gres=gpu:2", "accelerate launch a.py", "compute: 1", "reads ~/.cache/huggingface/accelerate"),
        (
            "--gres=gpu:2",
            "export HF_HOME=/x\naccelerate launch a.py",
            None,
            "the HF_HOME that the script sets",
        ),
        (
            "-N 2",
            "srun accelerate launch --num_machines 2 --machine_rank $1 a.py",
            None,
            "outside of the script",
        ),
        ("-N 2", "deepspeed --hostfile x a.py", None, "what --hostfile has it do"),
        ("-N 2", "deepspeed --num_nodes 2 a.py", None, "on other nodes by ssh"),
        ("-N 2", "deepspeed a.py", None, "uses one of 2 nodes"),
    ],
)
def test_a_program_that_may_be_something_else_is_not_changed(
    options: str, command: str, program: str | None, reason: str
) -> None:
    """Its ranks, devices, signals and configuration have to be those of now."""
    with pytest.raises(InputError, match=re.escape(reason)):
        adopt(f"#!/bin/bash\n#SBATCH {options}\n{command}\n", "a", OURS, lambda _: program)


def test_a_launcher_of_several_nodes_gets_their_number_from_slurm() -> None:
    """As its own flags have it from there."""
    words = "--num_machines $SLURM_NNODES --num_processes $((2 * SLURM_NNODES)) --machine_rank $SLURM_NODEID"
    text = f"#!/bin/bash\n#SBATCH -N 2\nsrun python -m accelerate.commands.launch {words} \\\n  a.py --b\n"
    run = 'hpc-elastic run --run-dir PLACE --nnodes="$SLURM_JOB_NUM_NODES" '
    workers = '--nproc-per-node="$(( ($((2 * SLURM_NNODES))) / ($SLURM_NNODES) ))" a.py --b\n'
    assert f"env PYTHON_EXEC=python {run}{workers}".replace("PLACE", PLACE) in changed(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("docker run img torchrun a.py", "container of `docker`"),
        (
            "apptainer exec --cleanenv img torchrun a.py",
            "has --cleanenv, which hides the ranks from workers",
        ),
        ("srun --container-image=a.sqsh torchrun a.py", "cannot see whether the image has Python 3.10"),
        ('ARGS=(--container-image a.sqsh)\nsrun "${ARGS[@]}" torchrun a.py', "cannot see whether the image"),
        ("#SBATCH --container-image=a.sqsh\nsrun torchrun a.py", "the whole job script runs in a container"),
        ("apptainer exec a.sif bash -c 'cd x; torchrun $F a.py'", "what $F holds"),
        ("srun mpirun -np 2 torchrun a.py", "started by `mpirun`"),
        ("timeout 3h torchrun a.py", "started by `timeout`"),
        ("torchrun --nnodes=$2 --node_rank=$1 a.py", "its --node-rank from outside of the job ($1)"),
        ("RANK=${2:-0}\ntorchrun --nnodes 2 --node-rank $RANK a.py", "its --node-rank from outside"),
        ("torchrun --nnodes=2 --node_rank=0 a.py", "its --node-rank from outside of the job (0)"),
        ("torchrun --nnodes=$1 a.py", "the number of nodes of torchrun in line 2 ($1) comes from outside"),
        ("#SBATCH --nodes=2\ntorchrun --nnodes=4 a.py", "is for 4 nodes, and the script asks for 2"),
        (
            "#SBATCH -N 2\nsrun torchrun --standalone a.py",
            "srun starts it on each of 2: as many trainings",
        ),
        ("#SBATCH -N2 --ntasks-per-node=4\nsrun torchrun a.py", "4 times on each node, with 1 worker each"),
        ("#SBATCH -N2\nsrun -n 8 torchrun --nproc-per-node=4 --nnodes=2 a.py", "8 times on 2 nodes"),
        ("#SBATCH hetjob\nsrun torchrun a.py", "heterogeneous"),
    ],
)
def test_what_cannot_be_shown_to_be_right_is_not_changed(text: str, reason: str) -> None:
    """The reason is that of the script, not of a pattern."""
    with pytest.raises(InputError, match=re.escape(reason)):
        adopt(f"#!/bin/bash\n{text}\n", "train.sbatch")


def test_one_node_of_many_is_used_by_one_agent() -> None:
    """Others would stand by for ever; it is told that they are paid for."""
    done = adopt("#!/bin/bash\n#SBATCH --nodes=2\ntorchrun --nproc-per-node=8 train.py\n", "a")
    assert "srun --nodes=1 --ntasks=1 --ntasks-per-node=1 " in done.text
    assert "the other 1 of the job stand by unused" in dict(done.changes)["--nodes=1"]


def test_the_oldest_launcher_tells_its_script_the_local_rank() -> None:
    """By a flag whose name depends on the version of torch, unless it is told otherwise."""
    done = changed("#!/bin/bash\npython -m torch.distributed.launch -n 2 train.py --a b > log 2>&1\n")
    assert "export rank_flag=$(python -c 'import torch; " in done
    assert '-n 2 train.py --a b "$rank_flag=\\${local_rank}" > log 2>&1\n' in done
    assert "rank_flag" not in changed("#!/bin/bash\npython -m torch.distributed.launch --use_env train.py\n")


@pytest.mark.parametrize(
    "command",
    [
        "for seed in 42; do\n  srun torchrun --seed $seed train.py 'a b'\ndone",
        "for seed in 42; do srun torchrun --seed 42 train.py 'a b'; done",
        "if true; then\n  srun torchrun --seed 42 train.py 'a b'\nelse\n  torchrun --seed 7 other.py\nfi",
        "case x in\n  x) srun torchrun --seed 42 train.py 'a b' ;;\n  *) torchrun other.py ;;\nesac",
        "train() {\n  local seed=42\n  srun torchrun --seed $seed train.py \"$1\"\n}\ntrain 'a b'",
        "function train {\n  srun torchrun --seed 42 train.py 'a b'\n}\nif true; then train; fi",
        "{ srun torchrun --seed 42 train.py 'a b'; }",
        "srun torchrun --seed 42 train.py 'a b' && echo well",
        "srun torchrun --seed 42 train.py 'a b' || exit 1",
        "srun torchrun --seed 42 train.py 'a b'; echo well",
        "exec srun torchrun --seed 42 train.py 'a b'",
        "srun torchrun --seed 42 train.py 'a b' &\nPID=$!\necho $PID\nwait $PID",
        "srun torchrun --seed 42 train.py 'a b' & wait",
        'L="torchrun --seed 42"\nsrun $L train.py "a b"',
        "export L='python -m torch.distributed.run \\\n  --seed 42'\nsrun bash -c \"$L train.py 'a b'\"",
        "export L='torchrun --seed 42'\nsrun bash -c '$L train.py \"a b\"'",
        'L=\'torchrun --seed 42\'\nA=\'train.py "a b"\'\nC="$L $A"\necho "$C"\neval "$C"',
        "CMD=(\n  torchrun # many\n  --seed 42\n)\nCMD+=(train.py)\nsrun -l \"${CMD[@]}\" 'a b'",
        "CMD=(torchrun --seed 42 train.py 'a b')\n\"${CMD[@]}\"",
        "srun bash -c 'cd . && A=1 torchrun --seed 42 train.py \"a b\"'",
        "srun bash -c \"\n  export A=1\n  torchrun --seed 42 train.py 'a b'\n\"",
    ],
)
def test_a_training_in_another_shape_runs(tmp_path: Path, command: str) -> None:
    """With stand-ins for srun and our commands: one agent with the user's words, then finish decides."""
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "hpc-elastic": 'printf "%s|" "$@" "dir=$PET_RUN_DIR" >> told; echo >> told; [ $1 = run ] || exit 75',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = changed(f"#!/bin/bash\n{command}\necho after >> told\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (75, "") == (done.returncode, done.stderr), script
    run, finish = (tmp_path / "told").read_text().splitlines()
    place = f"{tmp_path}/hpc_elastic_runs/run-17"
    assert run in (
        f"run|--run-dir|{place}|--seed|42|train.py|a b|dir=|",
        f"run|--seed|42|train.py|a b|dir={place}|",
    )
    assert finish.startswith(f"finish|--run-dir|{place}|--srun-exit-code|0|")


@pytest.mark.parametrize(("code", "said"), [(0, "well"), (1, "")])
def test_what_stands_behind_a_training_in_its_line_depends_on_finish(
    tmp_path: Path, code: int, said: str
) -> None:
    """As it did on the launcher, and the job ends with finish's code."""
    for name, body in {"srun": "exit 0", "hpc-elastic": f"exit {code}"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    for text in (
        "srun torchrun t.py && echo well",
        "srun torchrun t.py || exit\necho well",
        "if true; then\n  srun torchrun t.py && echo well\nfi",
        "t() {\n  srun torchrun t.py\n}\nt && echo well",
        "set -e\nsrun torchrun t.py || (exit $?)\necho well",
        "set -e\nt() {\n  srun torchrun t.py\n}\nt || exit\necho well",
        "set -e\nt() {\n  srun torchrun t.py\n}\nt\necho well",
    ):
        script = changed(f"#!/bin/bash\n{text}\n")
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (code, said) == (done.returncode, done.stdout.strip()), script


def test_branches_that_are_not_gone_through_change_nothing(tmp_path: Path) -> None:
    """The script ends with the code of its last command then."""
    text = "if false; then\n  srun torchrun a.py\nfi\necho here\nfalse\n"
    script = changed(f"#!/bin/bash\n{text}")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (1, "here\n", "") == (done.returncode, done.stdout, done.stderr)


def test_a_draft_has_all_that_is_known_and_does_nothing_by_itself(tmp_path: Path) -> None:
    """The places that are left are marked, also for a program: it ends before it starts anything."""
    text = (
        "#!/bin/bash\n#SBATCH -N 2\nmodule load x\nfor lr in 1 2; do\n  srun torchrun --lr $lr a.py\ndone\n"
    )
    with pytest.raises(NotAdoptedError) as caught:
        adopt(text, "a.sh", OURS)
    draft = caught.value.draft
    for line in ("#SBATCH -N 2", "#SBATCH --requeue", "# module load x", "#   srun torchrun --lr $lr a.py"):
        assert line in draft.splitlines()
    assert "'/our own/bin/python' -I -m hpc_elastic finish --run-dir" in draft
    assert 5 == draft.count("LEFT TO YOU") - 1
    done = subprocess.run(
        ["bash", "-c", draft], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert (64, b"") == (done.returncode, done.stdout)
    with pytest.raises(NotAdoptedError) as caught:
        adopt("#!/bin/bash\nRscript a.R\n", "a.sh", OURS)
    assert "" == caught.value.draft


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("srun torchrun train.py 2>&1 | tee log", "${PIPESTATUS[0]}"),
        ("srun torchrun train.py |\n  grep -v noise | tee log", "${PIPESTATUS[0]}"),
        ("yes | srun torchrun train.py | tee log", "${PIPESTATUS[1]}"),
        ("yes | srun torchrun train.py >log 2>&1", "$?"),
        ("srun torchrun train.py <<EOF\nyes | tee\nEOF", "$?"),
        ("srun torchrun \\\n  train.py \\\n", "$?"),
    ],
)
def test_the_code_is_that_of_the_training(command: str, ended: str) -> None:
    """What a pipe ends with is not what the agents ended with."""
    lines = changed(f"#!/bin/bash\n{command}\n").splitlines()
    assert f"ended={ended}" == lines[-3]
    last = [line.strip() for line in f"{command}\n".split("\n")][-2]
    assert last.split(" ")[-1] == lines[-4].split(" ")[-1]


def test_a_pipe_needs_bash() -> None:
    """Other shells tell the code of its last command alone."""
    with pytest.raises(InputError, match=r"line 2 has `\|` behind it, and only bash tells"):
        adopt("#!/bin/sh\nsrun torchrun train.py | tee log\n", "train.sbatch")


@pytest.mark.parametrize(
    "before",
    [
        "for i in 1 2; do echo $i; done",
        "while read -r line; do\n  echo $line\ndone < names",
        "if [ -e x ]; then\n  echo x\nelse\n  echo y; fi",
        "case $1 in\n  a | b) echo 1 ;;\n  *) echo 2 ;;\nesac",
        'say() {\n  echo "$@"\n}\nsay "$(dirname "$(readlink -f "$0")")" $((1 + 2))',
        "function say {\n  echo 1\n}",
        "(cd x; ls) && echo `date` # don't",
        "names=(a b)\necho ${names[@]} ${#names[@]}",
        "echo 'starting torchrun'\necho \"torchrun's\" version: $(torchrun --version)\nwhich torchrun",
        "cat > run.sh <<EOF\nfor x in 1; do torchrun $x\nEOF",
        "cat <<-'A' <<B\ntorchrun\n\tA\nif\nB",
    ],
)
def test_what_is_over_before_torchrun_does_not_matter(before: str) -> None:
    """Blocks that are closed, text, and commands that only talk about torchrun."""
    text = changed(f"#!/bin/bash\n{before}\nsrun torchrun train.py\n")
    assert f"{before}\ntrap :" in text
    assert f"hpc-elastic run --run-dir {PLACE} train.py\nended=$?" in text


def test_options_behind_a_command_are_none() -> None:
    """The new ones stand where sbatch reads them, and what it does not read counts for nothing."""
    text = "#!/bin/bash\n\n#SBATCH -J a\n# more\nset -u\n#SBATCH --requeue\nsrun torchrun train.py\n"
    lines = changed(text).splitlines()
    assert ["#SBATCH -J a", "#SBATCH --requeue"] == lines[2:4]
    assert lines.index("#SBATCH --signal=USR2@120") < lines.index("set -u")


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ("source ./env.sh", True),
        ('. "$HOME/setup env.sh"', True),
        ("cd x && source env.sh", True),
        ("if true; then . env.sh; fi", True),
        ("source ~/env/bin/activate", False),
        ("source /etc/profile.d/modules.sh", False),
        ('source "$CONDA/etc/profile.d/conda.sh" && conda activate x', False),
        (". $LMOD/init/bash", False),
        ("echo source env.sh", False),
        ("source env.sh\nset +e", False),
        ("eval 'set -e'", True),
        ('cd x; eval "set -o errexit"', True),
        ("eval set -e\nset +e", False),
        ('eval "$(conda shell.bash hook)"', False),
        ("echo eval 'set -e'", False),
    ],
)
def test_what_is_sourced_or_evaluated_may_have_set_e(line: str, is_kept: bool) -> None:
    """Finish runs all the same; well-known scripts have none."""
    text = changed(f"#!/bin/bash\n#SBATCH -J a\n{line}\nsrun torchrun train.py\n")
    assert is_kept == ("\nstrict=$-\nset +e\n" in text)


def test_a_byte_order_mark_goes() -> None:
    """Sbatch refuses a script that does not begin with an interpreter."""
    text = f"\ufeff{TYPICAL}"
    assert ADOPTED.replace("PLACE", PLACE) == changed(text)
    assert "the byte order mark" in adopt(text, "train.sbatch").changes[0].what


def test_line_ends_of_windows_go() -> None:
    """Sbatch refuses a script with them."""
    text = TYPICAL.replace("\n", "\r\n")
    assert ADOPTED.replace("PLACE", PLACE) == changed(text)
    assert "line ends of Windows are taken out" == adopt(text, "train.sbatch").changes[0].what


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("rc=$?\necho ended with $rc\nexit $rc", "rc=$finished\necho ended with $rc\nexit $rc"),
        (
            "\n# ours\nif [ $? -ne 0 ]; then echo bad; fi",
            "\n# ours\nif [ $finished -ne 0 ]; then echo bad; fi",
        ),
    ],
)
def test_who_asks_for_the_code_gets_that_of_finish(rest: str, expected: str) -> None:
    """The lines between have codes of their own."""
    assert f"\n{expected}\n" in changed(f"#!/bin/bash\nsrun torchrun train.py\n{rest}\n")


@pytest.mark.parametrize(
    "first", ["#!/bin/bash -e", "#!/usr/bin/env -S bash -eu", "#!/bin/sh\nset -x -o errexit"]
)
def test_a_script_may_be_strict_in_other_words(first: str) -> None:
    """By its first line, or by the long name of the option."""
    assert "set +e" in changed(f"{first}\nsrun torchrun train.py\n").splitlines()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("test -e x || srun torchrun a.py", r"stands behind `\|\|`"),
        ("for x in 1 2; do srun torchrun a.py; done", "is in a loop"),
        ("while true\ndo\n  srun torchrun a.py\ndone", "line 3 is in a loop"),
        (
            "train() {\n  srun torchrun a.py\n}\ntrain\ntrain",
            "is in a function, train, that is named several",
        ),
        (
            "train() {\n  srun torchrun a.py\n}\nsrun $x train",
            "is in a function, train, that is never called",
        ),
        ("train() {\n  srun torchrun a.py\n}\ntrain | tee log", "that runs in a shell of its own"),
        ("train() {\n  srun torchrun a.py\n}\nfor x in 1 2; do train; done", "that is called in a loop"),
        ("(cd x; srun torchrun a.py)", "is in parentheses"),
        ("X=$(srun torchrun a.py)", "is kept in a variable"),
        ("test $(srun torchrun a.py)", "no line of the script starts torchrun"),
        (
            "L='torchrun --nnodes 2'\nsrun ssh n1 $L a.py",
            "line 1 is kept in a variable, and no command begins",
        ),
        ("L=torchrun\nsrun $L a.py\nsrun $L b.py", "is started more than once"),
        ("srun bash -c 'torchrun a.py && echo'", "has another command behind it in the words of `bash -c`"),
        ("srun ssh n1 'torchrun a.py'", "is in quotes, and not in those of a `bash -c`"),
        ("srun bash -c 'for x in 1 2; do torchrun a.py; done'", "in the words of `bash -c`"),
        ("srun bash <<EOF\ntorchrun a.py\nEOF", "line 2 stands in a here-document"),
        ("#!/bin/tcsh\ntorchrun a.py", "is a script of tcsh, not of bash"),
        ("#!/usr/bin/env python3\nos.system('torchrun a.py')", "is a script of python3"),
    ],
)
def test_what_finish_could_not_follow_is_told(text: str, words: str) -> None:
    """Rather than to write a script that does something else."""
    with pytest.raises(InputError, match=words):
        adopt(f"{text}\n", "train.sbatch")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("set -u\n#SBATCH --nodes=3\nsrun torchrun a.py\n", "#SBATCH --nodes=3 in line 3 has no effect"),
        ("#SBATCH --no-requeue\nsrun torchrun a.py\n", "--no-requeue in line 2 has no effect"),
        ("#SBATCH --array=0-3%1\nsrun torchrun a.py\n", "#SBATCH --array"),
        ("srun --auto-resume=1 torchrun a.py\n", "without --auto-resume=1"),
    ],
)
def test_what_the_script_cannot_do_is_told(text: str, what: str) -> None:
    """Once each: options that sbatch does not read or that ours overrule, arrays, restarts by others."""
    assert 1 == [change.what for change in adopt(f"#!/bin/bash\n{text}", "a").changes].count(what)


def test_options_above_the_first_command_are_not_talked_about() -> None:
    """They are read."""
    text = "#!/bin/bash\n#SBATCH --nodes=3\n\n# text\n#SBATCH -J a\nsrun torchrun --nnodes=3 a.py\n"
    assert [] == [change for change in adopt(text, "a").changes if "no effect" in change.what]
