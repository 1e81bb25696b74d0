"""Scripts with torchrun that srun runs on each node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.errors import InputError
from hpc_elastic.slurm.adopt.script import adopt_per_node, is_per_node

NODE = "cd work\ntorchrun --node_rank=$SLURM_NODEID train.py\necho after >> ../told\n"
STAND_INS = {
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; for node in 0 1; do SLURM_NODEID=$node "$@"; done',
    "hpc-elastic": 'echo "$@" >> "$TOLD"; [ "$1" = finish ] || exit "$CODE"',
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NODE, True),
        (f"# each node\n{NODE}", True),
        (f"#!/bin/bash\n{NODE}", False),
        (f"#SBATCH -N 2\n{NODE}", False),
        ("srun torchrun train.py\n", False),
        (f"# srun runs this\n{NODE}", True),
    ],
)
def test_what_sbatch_cannot_take_is_run_by_srun(text: str, expected: bool) -> None:
    """It wants a first line of the shell, or options."""
    assert expected == is_per_node(text)


@pytest.mark.parametrize(("code", "goes_on"), [(0, True), (75, False), (1, False)])
def test_both_scripts_run(tmp_path: Path, code: int, *, goes_on: bool) -> None:
    """By bash, with stand-ins for srun and our commands: an agent on each node, one finish for the job."""
    (tmp_path / "work").mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "node.sh"
    script.write_text(NODE)
    done = adopt_per_node(NODE, str(script))
    script.write_text(done.text)
    assert "srun" not in done.text
    told = tmp_path / "told"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
    env |= {"TOLD": str(told), "CODE": str(code), "SLURM_SUBMIT_DIR": "/sub mit"}
    job = "\n".join(done.job_script)
    subprocess.run(["bash", "-eu", "-c", f"set +e\n{job}"], cwd=tmp_path, env=env, check=True)
    place = "/sub mit/hpc_elastic_runs/run-17"
    after = ["after"] if goes_on else []
    lines = told.read_text().splitlines()
    run = f"run --run-dir {place} --node_rank="
    assert [f"{run}0 train.py", *after, f"{run}1 train.py", *after] == lines[:-1]
    assert f"finish --run-dir {place} --srun-exit-code {code} --max-relaunch 0" == lines[-1]


def test_the_code_of_the_agent_counts_behind_a_pipe() -> None:
    """Not that of what takes its output."""
    text = adopt_per_node("torchrun train.py 2>&1 | tee log\n", "node.sh").text
    assert "| tee log\nended=${PIPESTATUS[0]}\n[ " in text


def test_a_script_that_starts_srun_is_a_job_script() -> None:
    """On each node it would start one more step for all."""
    with pytest.raises(InputError, match="line 1 is started by srun"):
        adopt_per_node("srun torchrun train.py\n", "node.sh")


def test_a_script_without_a_launcher_is_refused() -> None:
    """As by the command for job scripts."""
    with pytest.raises(InputError, match="no line of the script starts torchrun"):
        adopt_per_node("hostname\n", "node.sh")


def test_the_command_tells_what_the_job_script_is_to_have(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the script could be one for sbatch, if that is said."""
    script = tmp_path / "node.sh"
    script.write_text(NODE)
    assert 0 == app.run(["adopt", str(script)])
    said = capfd.readouterr()
    assert f"bash {script}\n  ended=$?" in said.err
    assert "+srun" not in said.out
    script.write_text(f"#!/bin/bash\n{NODE}")
    assert 0 == app.run(["adopt", str(script)])
    assert "+srun" in capfd.readouterr().out
    assert 0 == app.run(["adopt", "--per-node", str(script)])
    assert "+srun" not in capfd.readouterr().out
