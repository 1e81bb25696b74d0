"""A line of the job script that failed before srun."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.setup_failure import is_lasting, with_words

OWN_TRAP = """trap 'failed setup "$?" "$BASH_COMMAND"' ERR EXIT"""


@pytest.mark.parametrize(
    ("failure", "is_it"),
    [
        ("setup failed (exit code 127): pyenv local 3.11", True),
        ("setup failed (exit code 126): ./not-executable", True),
        ("setup failed (exit code 2): source env.sh (env.sh: line 3: syntax error near `)')", True),
        ("setup failed (exit code 2): a line that bash cannot make out", True),
        ("setup failed (exit code 127): /scratch/env/bin/python -V", False),
        ("setup failed (exit code 127): module load cuda/12", False),
        ("setup failed (exit code 1): module load cuda/12", False),
        ("setup failed (exit code 1): source venv/bin/activate", False),
        ("setup failed (exit code 1): test -e /data", False),
        ("the working directory failed (exit code 1): cd /gone", False),
    ],
)
def test_what_fails_again_everywhere(failure: str, is_it: bool) -> None:
    """What may be mounted, licensed or installed on another node is tried again."""
    assert is_it == is_lasting(failure)


@pytest.mark.parametrize(
    ("log", "failure", "told"),
    [
        ("", "setup failed (exit code 1): a", "setup failed (exit code 1): a"),
        (
            "old\n/tmp/slurm_script: line 9: a: command not found\nhpc_elastic: {}\nmore",
            "setup failed (exit code 127): a",
            "setup failed (exit code 127): a (a: command not found)",
        ),
        (
            "[12:00:00] hpc_elastic finish: requeue\nhpc_elastic: {}\n",
            "setup failed (exit code 1): a",
            "setup failed (exit code 1): a",
        ),
        (
            "job.sbatch: line 4: syntax error near `)'\nhpc_elastic: {}\n",
            f"setup failed (exit code 2): {OWN_TRAP}",
            "setup failed (exit code 2): a line that bash cannot make out (syntax error near `)')",
        ),
    ],
    ids=["no log", "bash", "an earlier start", "syntax"],
)
def test_the_log_says_what_was_wrong(log: str, failure: str, told: str) -> None:
    """The line before ours is that of the program, or of bash."""
    assert told == with_words(failure, log.format(failure))
