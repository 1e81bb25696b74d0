"""Job scripts with torchrun, changed for our agent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.adopt import adopt

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
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
--kill-on-bad-exit=0 --wait=0 --no-kill --cpu-bind=none hpc-elastic run --run-dir "$PWD/run-$SLURM_JOB_ID" \\
    --nnodes=4 --nproc-per-node=8 \\
    --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 \\
    train.py --lr 0.1
ended=$?
trap '' TERM INT HUP USR1 USR2
hpc-elastic finish --run-dir "$PWD/run-$SLURM_JOB_ID" --srun-exit-code "$ended" --max-relaunch 0
"""


def changed(text: str) -> str:
    """Return a script after its adoption; bash can read it."""
    done = adopt(text, "train.sbatch").text
    subprocess.run(["bash", "-n"], input=done, text=True, check=True)
    return done


def test_a_typical_script() -> None:
    """What is the user's stays; each change has its reason."""
    assert ADOPTED == changed(TYPICAL)
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
        "time srun -N 2 -n 2 torchrun train.py",
        "    srun torchrun train.py",
    ],
)
def test_the_ways_to_start_torchrun(line: str) -> None:
    """Below srun in any case, with one agent per node."""
    (command,) = [
        text for text in changed(f"#!/bin/bash\n{line}\n").splitlines() if "hpc-elastic run" in text
    ]
    assert 'hpc-elastic run --run-dir "$PWD/run-$SLURM_JOB_ID"' in command
    assert 1 == command.count("srun")
    assert "--ntasks-per-node=1" in command
    assert 1 == command.count("-N ") + command.count("--nodes=")
    assert "torch" not in command


def test_what_follows_still_runs() -> None:
    """The job ends with the code of finish, whatever comes after it."""
    lines = changed("#!/bin/bash\nsrun torchrun train.py\ncp result.json ~/\n").splitlines()
    assert ["finished=$?", "cp result.json ~/", 'exit "$finished"'] == lines[-3:]


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


def test_the_changed_script_runs(tmp_path: Path) -> None:
    """With stand-ins for srun and our commands: the agent gets the user's words, the code is finish's."""
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "hpc-elastic": 'echo "$@" >> told; [ "$1" = run ] || exit 7',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = changed("#!/bin/bash\nset -eu\nsrun torchrun --nnodes=2 train.py 'a b'\necho after >> told\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=False)
    assert 7 == done.returncode
    told = (tmp_path / "told").read_text().splitlines()
    assert f"run --run-dir {tmp_path}/run-17 --nnodes=2 train.py a b" == told[0]
    assert told[1].startswith(f"finish --run-dir {tmp_path}/run-17 --srun-exit-code 0")
    assert "after" == told[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/bash\npython train.py\n", "no line of the script starts torchrun"),
        ("#!/bin/bash\n# srun torchrun train.py\n", "no line of the script starts torchrun"),
        ("torchrun a.py\ntorchrun b.py\n", r"more than once \(lines 1, 2\)"),
        ("srun hpc-elastic run train.py\n", "starts hpc-elastic already"),
    ],
)
def test_what_cannot_be_adopted_is_told(text: str, words: str) -> None:
    """With the script's name and what to do."""
    with pytest.raises(InputError, match=words) as caught:
        adopt(text, "train.sbatch")
    assert "train.sbatch" in str(caught.value)
