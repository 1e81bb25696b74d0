"""A line of the job script that failed before srun."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    Member,
    Record,
    Requeued,
    RoundFormed,
    SetupFailure,
)
from hpc_elastic.slurm.end.history import Earlier, earlier_starts, with_words
from tests.slurm.failed_lines import failed_line


def lasts(text: str) -> bool:
    """Tell whether a line that failed so will fail again, by the words in parentheses behind it."""
    told = failed_line(text)
    plain = told._replace(words="")
    return with_words(plain, f"{told.words}\nhpc_elastic: {plain.text}\n").lasting


OWN_TRAP = """trap 'failed setup "$?" "$BASH_COMMAND"' ERR EXIT"""


@pytest.mark.parametrize(
    ("failure", "is_it"),
    [
        ("setup failed (exit code 127): pyenv local 3.11 (pyenv: command not found)", True),
        ('setup failed (exit code 127): V="$(nvcc --version)" (nvcc: command not found)', True),
        ("setup failed (exit code 126): ./no-program (./no-program: Permission denied)", True),
        ("setup failed (exit code 2): source env.sh (env.sh: line 3: syntax error near `)')", True),
        (f"setup failed (exit code 2): {OWN_TRAP}", True),
        ("setup failed (exit code 1): echo 'syntax error'; exit 1", False),  # the words are the line's own
        ("setup failed (exit code 127): pyenv local 3.11", False),  # nobody knows who said so
        (
            "setup failed (exit code 127): bash a.sh (bash: a.sh: No such file or directory)",
            False,
        ),
        (
            "setup failed (exit code 127): /env/python (/env/python: No such file or directory)",
            False,
        ),
        ("setup failed (exit code 126): /env/run (/env/run: Transport endpoint is not connected)", False),
        ("setup failed (exit code 126): tool (/shared/bin/tool: Text file busy)", False),
        ("setup failed (exit code 127): eval load (module: command not found)", False),
        ("setup failed (exit code 127): module load cuda/12 (module: command not found)", False),
        ("setup failed (exit code 127): module load cuda/12 (tclsh: command not found)", False),
        ("setup failed (exit code 126): . ./env.sh (./no-program: Permission denied)", False),
        ("setup failed (exit code 1): module load cuda/12", False),
        ("setup failed (exit code 127): source env.sh (nvcc: command not found)", False),
        ("setup failed (exit code 1): source venv/bin/activate", False),
        ("setup failed (exit code 1): test -e /data", False),
        ("the working directory failed (exit code 1): cd /gone", False),
        ("the working directory failed (exit code 1): cd a (cd: syntax error: No such file)", False),
    ],
)
def test_what_fails_again_everywhere(failure: str, is_it: bool) -> None:
    """What may be mounted, licensed or installed on another node is tried again."""
    assert is_it is lasts(failure)


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
            "slurmstepd-n5: error: *** JOB 7 ON n5 CANCELLED DUE TO JOB REQUEUE ***\nhpc_elastic: {}\n",
            "setup failed (exit code 1): a",
            "setup failed (exit code 1): a",
        ),
        (
            "[2026-11-22T21:08:06] error: *** JOB 9 ON n CANCELLED DUE TO JOB REQUEUE ***\nhpc_elastic: {}\n",
            "setup failed (exit code 1): a",
            "setup failed (exit code 1): a",
        ),
        (
            "[2026-11-22T21:08:06] error: Detected 1 oom_kill event in StepId=7.batch.\nhpc_elastic: {}\n",
            "setup failed (exit code 137): a",
            "setup failed (exit code 137): a",
        ),
        (
            "[2026-11-22T21:08:06.134] error: no licence\nhpc_elastic: {}\n",
            "setup failed (exit code 1): a",
            "setup failed (exit code 1): a ([2026-11-22T21:08:06.134] error: no licence)",
        ),
        (
            "job.sbatch: line 4: syntax error near `)'\nhpc_elastic: {}\n",
            f"setup failed (exit code 2): {OWN_TRAP}",
            "setup failed (exit code 2): a line that bash cannot make out (syntax error near `)')",
        ),
    ],
    ids=["no log", "bash", "an earlier start", "Slurm", "Slurm 26.05", "Slurm's OOM", "a time", "syntax"],
)
def test_the_log_says_what_was_wrong(log: str, failure: str, told: str) -> None:
    """The line before ours is that of the program, or of bash."""
    assert told == with_words(failed_line(failure), log.format(failure)).text


E0, E1, RESUMED = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0), Epoch(1, 0, 0, 0)
ROUND = RoundFormed(1, E0, (Member("n1", "n1", 1),), "n1", 1234, None)
CD = SetupFailure("cd /data", "setup", 1)


def failed(line: SetupFailure, epoch: Epoch = E0) -> Requeued:
    """Return the record of a start that was requeued for a line."""
    return Requeued(epoch, Cause.LAUNCH_FAILURE, f"{line.text}: requeue 1 of at most 500", line)


@pytest.mark.parametrize(
    ("entries", "now", "expected"),
    [
        ((), E0, Earlier.NOTHING),
        ((failed(CD),), E1, Earlier.FAILED),
        ((failed(CD._replace(words="cd: /data: No such file or directory")),), E1, Earlier.FAILED),
        ((failed(CD._replace(line="cd /data/mine")),), E1, Earlier.NOTHING),
        ((failed(CD._replace(line="cd /data: requeue 1 of")),), E1, Earlier.NOTHING),
        ((failed(CD._replace(code=2)),), E1, Earlier.NOTHING),
        ((failed(CD._replace(step="the working directory")),), E1, Earlier.NOTHING),
        ((failed(CD)._replace(failure=None),), E1, Earlier.NOTHING),
        ((failed(CD),), RESUMED, Earlier.NOTHING),
        ((ROUND, failed(CD)), E1, Earlier.WORKED),
        ((ROUND,), RESUMED, Earlier.OTHERWISE),
        ((ROUND, failed(CD, RESUMED)), RESUMED._replace(restart=1), Earlier.FAILED),
    ],
)
def test_what_became_of_the_line_before(entries: tuple[Entry, ...], now: Epoch, expected: Earlier) -> None:
    """In this submission; a job script may be mended between two."""
    records = [Record(number, 0.0, "batch", entry) for number, entry in enumerate(entries)]
    assert expected is earlier_starts(records, now, CD)


def test_a_start_whose_lines_work_has_not_failed() -> None:
    """There is no line to compare with."""
    assert Earlier.NOTHING is earlier_starts([Record(0, 0.0, "batch", failed(CD))], E1, None)


@pytest.mark.parametrize(
    ("failure", "is_it"),
    [
        ("setup failed (exit code 1): tool (tool: command not found)", False),
        ("setup failed (exit code 125): ./x (./x: Permission denied)", False),
        ("setup failed (exit code 127): ./x (./x: Permission denied)", False),
        ("setup failed (exit code 126): tool (tool: command not found)", False),
        ("setup failed (exit code 126): ./dir (./dir: Is a directory)", True),
        ("setup failed (exit code 126): . ./x (./x: Permission denied)", False),
        ("setup failed (exit code 127): ml cuda (nvcc: command not found)", False),
        ("setup failed (exit code 127): x (ml: command not found)", False),
        ("setup failed (exit code 127): x (source: command not found)", False),
        ("setup failed (exit code 127): x (/opt/tool: command not found)", False),
        ("setup failed (exit code 127):  (tool: command not found)", True),
        ("setup failed (exit code 1): module x (y: syntax error)", True),
    ],
)
def test_exit_code_line_and_words_must_fit_together(failure: str, is_it: bool) -> None:
    """A program that is not there ends with 127, one that must not be run with 126."""
    assert is_it is lasts(failure)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("first\nlast\n\nhpc_elastic: {}\n", "{} (last)"),
        ("\nhpc_elastic: {}\n", "{}"),
        ("old\nhpc_elastic: {}\nnew\nhpc_elastic: {}\n", "{} (new)"),
        ("slurmstepd: error: x\nhpc_elastic: {}\n", "{}"),
        ("the slurmstepd: x\nhpc_elastic: {}\n", "{} (the slurmstepd: x)"),
        ("words of another failure\nhpc_elastic: other\n", "{}"),
        ("x" * 201 + "\nhpc_elastic: {}\n", "{} (" + "x" * 200 + ")"),
    ],
)
def test_the_last_line_before_the_failure_tells(log: str, told: str) -> None:
    """Of the newest one, two hundred characters; Slurm's words and ours are none about it."""
    failure = "setup failed (exit code 1): a"
    found = with_words(failed_line(failure), log.replace("{}", failure))
    assert told.replace("{}", failure) == found.text
