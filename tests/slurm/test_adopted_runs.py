"""Each class of script that ``adopt`` changes, run on the fake Slurm: preempted, back, and done."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.slurm.adopt.script import adopt
from hpc_elastic.testing.fake_slurm import FakeSlurm

OURS = (sys.executable, "-I", "-m", "hpc_elastic")
LIMIT_S = 200.0
TRAIN = """
import json, os, signal, sys, time
rank = os.environ.get("RANK")
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES")
told = {name: os.environ.get(name) for name in names}
told |= {"words": sys.argv[1:], "precision": os.environ.get("ACCELERATE_MIXED_PRECISION")}
def save(*_):
    os.replace("tmp" + rank, f"saved.{rank}")
    sys.exit(0)
with open("tmp" + rank, "w") as file:
    json.dump(told, file)
if "--on-signal" in sys.argv:
    signal.signal(signal.SIGUSR1, save)
elif not os.path.exists(f"saved.{rank}"):
    os.link("tmp" + rank, f"saved.{rank}")
done = f"{os.environ['SLURM_RESTART_COUNT']}.{rank}" if "SLURM_RESTART_COUNT" in os.environ else f"0.{rank}"
open(f"start.{done}", "w").close()
if os.path.exists("start.0.0") and not done.startswith("0."):
    assert os.path.exists(f"saved.{rank}"), "nothing was saved"
    sys.exit(0)
time.sleep(600)  # nothing ends it but the preemption
"""
TASKS = """
#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-task=1
srun --cpu-bind=none python3 -u train.py 'a b'
"""
TRAP = """
#SBATCH --gres=gpu:1 --signal=B:USR1@60
again() {
  kill -USR1 $PID
  wait $PID
  scontrol requeue $SLURM_JOB_ID
}
trap again USR1
python3 train.py 'a b' --on-signal &
PID=$!
wait $PID
"""
VARIABLE = """
export L='python3 -m torch.distributed.run \\
  --nproc-per-node=2'
S='--kill-on-bad-exit=1 --wait=60'
srun $S bash -c "$L train.py 'a b'"
"""
BRANCHES = """
set -e
if [ $SLURM_NNODES -gt 1 ]; then
  srun torchrun --nnodes=2 train.py
else
  torchrun --nproc-per-node=2 train.py 'a b' && echo well
fi
"""
CLASSES = {  # the script, and how many workers it has
    "torchrun": ("#SBATCH --nodes=2\nsrun torchrun --nnodes=2 --nproc-per-node=2 train.py 'a b'", 4),
    "python -m": ("python3 -m torch.distributed.run --nproc-per-node=2 train.py 'a b' 2>&1 | tee log", 2),
    "tasks": (TASKS, 4),
    "one GPU and a trap": (TRAP, 1),
    "a variable": (VARIABLE, 2),
    "an array of words": ("C=(torchrun --nproc-per-node=2\n train.py 'a b')\n\"${C[@]}\"", 2),
    "quotes": ("srun bash -c 'cd . && A=1 torchrun --nproc-per-node=2 train.py \"a b\"'", 2),
    "a function": (
        "go() {\n  torchrun --nproc-per-node=$1 train.py 'a b'\n}\nif go 2; then echo well; fi",
        2,
    ),
    "branches": (BRANCHES, 2),
    "one pass": ("for seed in 1; do torchrun --nproc-per-node=2 train.py 'a b'; done", 2),
    "background": ("torchrun --nproc-per-node=2 train.py 'a b' &\nwait", 2),
    "exec": ("exec srun torchrun --nproc-per-node=2 train.py 'a b'", 2),
    "a container": ("singularity exec --nv \"my image\" torchrun --nproc-per-node=2 train.py 'a b'", 2),
    "a shell in a container": (
        'singularity exec --nv "my image" bash -c "cd . && torchrun --nproc-per-node=2 train.py \'a b\'"',
        2,
    ),
    "accelerate": (
        "accelerate launch --num_processes 2 --mixed_precision bf16 --main_process_port 0 train.py 'a b'",
        2,
    ),
    "deepspeed": ("deepspeed --num_gpus=2 train.py 'a b'", 2),
}
BOUND = ("tasks",)  # each worker sees one GPU
SINGULARITY = '#!/bin/bash\n[ "$1 $2 $3" = "exec --nv my image" ] || exit 9\nshift 3\nexec "$@"\n'


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.fake_slurm(nodes=2, grace=20.0, kill_wait=5.0, speed=600)
def test_a_changed_script_comes_back_after_a_preemption(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its workers are those of the script, and it ends well: nothing of ours is in the script's Python."""
    text, workers = CLASSES[kind]
    home = tmp_path / "job"
    home.mkdir()
    (home / "train.py").write_text(f"# reads SLURM_PROCID\n{TRAIN}")
    (home / "bin").mkdir()
    (home / "bin" / "singularity").write_text(SINGULARITY)
    (home / "bin" / "python3").write_text(
        '#!/bin/sh\nexec /usr/bin/env -u PYTHONPATH /usr/bin/python3 "$@"\n'
    )
    for program in (home / "bin").iterdir():
        program.chmod(0o755)
    (home / "job.sh").write_text(
        adopt(
            f"#!/bin/bash\n{text}\n",
            "job.sh",
            OURS,
            lambda name: (home / name).read_text() if name == "train.py" else None,
        ).text
    )
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(home)
    done = fake_slurm.run(["sbatch", "--parsable", "--time=60", "--output=out", "job.sh"], cwd=home)
    job = done.stdout.strip()
    names = [f"start.0.{rank}" for rank in range(workers)]
    fake_slurm.wait_for(
        lambda: all((home / name).exists() for name in names), LIMIT_S, f"the workers\n{_said(home)}"
    )
    high = fake_slurm.submit_high(2)
    fake_slurm.wait_state(high, "RUNNING", LIMIT_S)
    fake_slurm.command("scancel", high)
    fake_slurm.wait_for(
        lambda: fake_slurm.job(job).get("JobState") in ("COMPLETED", "FAILED"),
        LIMIT_S,
        f"the end\n{_said(home)}",
    )
    shown = fake_slurm.job(job)
    assert ("COMPLETED", "1") == (shown["JobState"], shown["Restarts"]), _said(home)
    told = [json.loads((home / f"saved.{rank}").read_text()) for rank in range(workers)]
    assert [[str(rank), str(workers)] for rank in range(workers)] == [
        [one["RANK"], one["WORLD_SIZE"]] for one in told
    ]
    assert [str(rank) for rank in range(workers)] == [one["SLURM_PROCID"] for one in told]
    if kind in BOUND:
        assert {"0"} == {one["LOCAL_RANK"] for one in told}
        assert all("," not in one["CUDA_VISIBLE_DEVICES"] for one in told)
    words = [[word for word in one["words"] if word != "--on-signal"] for one in told]
    ranks = [[f"--local_rank={rank}"] if kind == "deepspeed" else [] for rank in range(workers)]
    assert [[*rank, "a b"] for rank in ranks] == words
    assert {"bf16" if kind == "accelerate" else None} == {one["precision"] for one in told}
    assert 0 == app.run(["status", f"hpc_elastic_runs/run-{job}"])


def _said(home: Path) -> str:
    out = home / "out"
    return out.read_text() if out.exists() else "no output"
