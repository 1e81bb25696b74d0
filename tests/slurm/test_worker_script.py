"""What a worker's command runs."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.job.worker_launcher import script_of, title_of


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("train.py --lr 1", "train.py"),
        ("code/train.py", "train.py"),
        ("python train.py --lr 1", "train.py"),
        ("/opt/env/bin/python3.11 -u -X dev code/train.py", "train.py"),
        ("python -u -m package.train --lr 1", "package.train"),
        ("bash ./run.sh", "run.sh"),
        ("python -c pass", "python"),
        ("bash -c true", "bash"),
        ("./prog -m 1", "prog"),
    ],
)
def test_a_command_is_called_by_its_script(command: str, title: str) -> None:
    """As torchrun calls it; what runs the script is no name for a failure."""
    assert title == title_of(command.split())


def test_a_program_of_its_own_has_no_script() -> None:
    """Nothing is looked for in its arguments."""
    assert script_of(["./prog", "train.py"]) is None
