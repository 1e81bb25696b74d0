"""Ends without a record where the sources about them are gone, slow, damaged or another's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.cli.commands.ending import finish as finish_command
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Drained, Requeued
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs.job_start import Start
from tests.slurm.forms import write_program
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import FastClock, job, paths, write
from tests.slurm.test_unwritten import BEGAN, FIRST, LOG, ROUND, WORD, Anew, log_of

__all__ = ["job", "paths"]


def begin(paths: RunPaths, slurm: Slurm, restart: int = 1) -> list[Cause]:
    """Begin a start of job 7; return the causes of the ends that are recorded then."""
    start = Start(paths, FIRST._replace(restart=restart), "7", 2, local=False, srun_exit_code=0)
    assert Finish(start, RequeueBudgets(), slurm, FastClock(), print).begin() is None
    return [record.entry.cause for record in read_records(paths) if isinstance(record.entry, Requeued)]


def make_sacct(job: FakeJob, body: str) -> None:
    """Put a program in the place of sacct."""
    program = job.bin / "sacct"
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("echo 'PREEMPTED|n[1-2]'; echo 'RUNNING|n[1-2]'", Cause.PREEMPTION),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", Cause.TIME_LIMIT),
        ("sleep 60", Cause.TIME_LIMIT),
        ("echo 'CANCELLED by 0|n1|more'", Cause.TIME_LIMIT),
        ("for _ in 1 2 3 4 5; do echo 'NODE_FAIL|n1'; done", Cause.TIME_LIMIT),  # of another job as well
    ],
    ids=["known", "without accounting", "slow", "other words", "too many rows"],
)
def test_the_accounting_may_be_of_no_use(paths: RunPaths, job: FakeJob, body: str, cause: Cause) -> None:
    """The words in the batch log tell then; nothing is waited for beyond the limit of a question."""
    make_sacct(job, body)
    log_of(paths, WORD.format("TIME LIMIT"))
    write(paths, BEGAN, ROUND)
    assert [cause] == begin(
        paths, Slurm({**job.environ, "PATH": f"{job.bin}:/usr/bin:/bin"}, query_timeout_s=0.5)
    )


def test_a_log_that_is_a_link_is_not_read(paths: RunPaths, job: FakeJob, tmp_path: Path) -> None:
    """Another user may have put it there; nothing tells the cause then."""
    other = tmp_path / "other"
    other.write_text(WORD.format("PREEMPTION"))
    os.symlink(other, paths.batch_log.replace("%j", "7"))
    write(paths, BEGAN, ROUND)
    assert [Cause.UNKNOWN] == begin(paths, Slurm(job.environ))


@pytest.mark.parametrize(
    ("state", "up", "cause"),
    [
        ("idle", "2001-01-01T00:00:00", Cause.UNKNOWN),  # its batch script may have been killed
        ("idle", "2099-01-01T00:00:00", Cause.NODE_LOSS),
        ("down~not_responding", "2001-01-01T00:00:00", Cause.NODE_LOSS),
        ("idle", "None", Cause.UNKNOWN),
    ],
)
def test_a_log_without_a_word_blames_no_node_that_was_up(
    paths: RunPaths, job: FakeJob, state: str, up: str, cause: Cause
) -> None:
    """Slurm tells whether the batch host is down, or has started anew since its start began."""
    log_of(paths, LOG)
    write(paths, BEGAN, ROUND)
    rows = [
        {"N": name, "T": state if name == "n1" else "idle", "nodelist": name, "statecomplete": state}
        | {"P": "low*", "f": "(null)", "G": "(null)", "reason": "none"}
        for name in ("n1",)
    ]
    write_program(job.bin / "sinfo", rows)
    known = job.bin / "known"
    (job.bin / "scontrol").rename(known)
    shown = f"NodeName=n1 State=IDLE BootTime={up} SlurmdStartTime={up}"
    (job.bin / "scontrol").write_text(
        f'#!/bin/sh\nif [ "$2" = node ]; then echo {shown}; exit; fi; exec "{known}" "$@"\n'
    )
    (job.bin / "scontrol").chmod(0o755)
    assert [cause] == begin(paths, Slurm({**job.environ, "PATH": f"{job.bin}:/usr/bin:/bin"}))


def test_restart_counts_may_jump(paths: RunPaths, job: FakeJob) -> None:
    """Slurm counts the requeues by hand of a job that waits, too: no script has said a word in those."""
    log_of(paths, LOG)
    write(paths, BEGAN, ROUND)
    assert [Cause.NODE_LOSS, *[Cause.UNKNOWN] * 3] == begin(paths, Anew(job), 4)
    assert 4 == read_state(paths).requeues
    assert 4 == len(begin(paths, Anew(job), 4))


def test_a_script_of_a_former_start_that_is_late_counts_nothing(paths: RunPaths, job: FakeJob) -> None:
    """Its node was cut off, and it writes what it knows when the next start has charged its end already."""
    log_of(paths, LOG)
    write(paths, BEGAN, ROUND)
    assert [Cause.NODE_LOSS] == begin(paths, Anew(job))
    write(paths, Drained(FIRST, Cause.PREEMPTION, 9, ""), Requeued(FIRST, Cause.PREEMPTION))
    state = read_state(paths)
    assert (1, 1, 0) == (state.requeues, state.used(Cause.NODE_LOSS), state.used(Cause.PREEMPTION))


def test_a_start_begins_though_the_last_record_is_torn(
    paths: RunPaths, job: FakeJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its agents name the record and the fix; nothing is charged, and no budget is claimed to be spent."""
    write(paths, BEGAN, ROUND)
    newest = max(path for path in Path(paths.journal).rglob("*") if path.is_file())
    newest.write_bytes(newest.read_bytes()[:20])
    for name, value in {**job.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert 0 == finish_command.main(["--run-dir", paths.root, "--begins"])
    told = capfd.readouterr()
    assert "" == told.out
    assert "earlier starts are not looked at: " in told.err
    assert "journal record 2 is damaged" in told.err
