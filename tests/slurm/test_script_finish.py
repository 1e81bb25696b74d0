"""How a job script runs the command that decides what becomes of its job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.slurm.test_script import make_node


def test_finish_is_tried_again_where_python_cannot_be_run(tmp_path: Path) -> None:
    """Its file system may be away for a while; else the job would end and nobody would requeue it."""
    node = make_node(tmp_path)
    naps, sleep = node.home / "naps", node.home / "sleep"
    sleep.write_text(f'#!/bin/sh\necho "$1" >> {naps}\ntest "$1" -ne 2 || exec /bin/sleep 2\n')
    sleep.chmod(0o755)
    assert 75 == node.run([("", 127), ("", 126), ("3", 80), ("", 75)])
    assert ["5", "10"] == [nap for nap in naps.read_text().split() if nap != "2"]  # others are the beat's
    assert ["4", "3"] == [options[0].partition("=")[2].strip() for options in node.lines("sruns")]
    assert "hpc_elastic: finish cannot be run (exit code 127); again in 5 s" in node.done.stderr
    assert 127 == node.run([("", 127)] * 9, setup=["false"])
    assert f"submit --resume {node.home}/run\\ dir" in node.done.stderr


def test_finish_is_never_killed_while_it_starts(tmp_path: Path) -> None:
    """The script itself ignores Slurm's signals before it makes the process; srun and agents hear them."""
    node = make_node(tmp_path)
    node.run([("3", 80), ("", 0)])
    node.run([("", 75)], setup=["false"])
    ignored = [(call["words"][2], call["ignored"] >> signal.SIGTERM - 1 & 1) for call in node.lines("calls")]
    assert [*[("run", 0), ("finish", 1)] * 2, ("finish", 1)] == ignored


@pytest.mark.parametrize("code", [126, 127])
def test_the_exit_code_of_a_worker_is_none_of_a_finish_that_cannot_be_run(tmp_path: Path, code: int) -> None:
    """The job ends with it at once: finish was run, as what it has printed tells."""
    node = make_node(tmp_path)
    assert code == node.run([("0", code)])
    assert "cannot be run" not in node.done.stderr
    assert code == node.run([("0", code)], setup=["false"])
    assert "cannot be run" not in node.done.stderr


@pytest.mark.parametrize(
    ("answer", "code", "sruns"),
    [(("", 0), 3, 1), (("", 127), 3, 1), (("", 1), 3, 1), (("0", 75), 75, 0)],
    ids=["may begin", "no Python", "a fault of its own", "a budget is spent"],
)
def test_a_further_start_begins_unless_a_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[str, int], code: int, sruns: int
) -> None:
    """It has the ends of earlier starts counted first; it begins, too, where that cannot be done."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    node = make_node(tmp_path)
    assert code == node.run([answer, ("", 3)])
    assert "--begins" in node.lines("calls")[0]["words"]
    assert sruns == len(node.lines("sruns"))


@pytest.mark.parametrize("link", ["0", "1"])
def test_the_next_job_of_a_chain_looks_after_those_before_it(tmp_path: Path, link: str) -> None:
    """Slurm has started it once, but it is a further start of the run."""
    node = make_node(tmp_path)
    assert 75 == node.run([("0", 75)] if link != "0" else [("", 75)], "0", link)
    assert (link != "0") == ("--begins" in node.lines("calls")[0]["words"])


def test_a_sigterm_while_earlier_ends_are_counted_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not end finish, and no agent is started after it: finish asks Slurm what it means."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    node = make_node(tmp_path)
    (node.home / "term-while-finishing").touch()
    assert 75 == node.run([("", 0), ("", 75)])
    assert [] == node.lines("sruns")
    begins, finish = node.lines("calls")
    assert "--begins" in begins["words"]
    assert "--srun-exit-code=1" in finish["words"]


def test_words_of_a_container_are_no_answer_of_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program around Python may print lines first; a start begins all the same, and srun gets a number."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    node = make_node(tmp_path)
    assert 75 == node.run([("== container 1.0", 0), ("== container 1.0\n3", 80), ("== container 1.0", 75)])
    assert ["4", "3"] == [options[0].partition("=")[2].strip() for options in node.lines("sruns")]
    assert 75 == node.run([("== container 1.0\n0", 75)])
    assert 75 == node.run([("", 0), ("== container 1.0", 127), ("", 75)], setup=["false"])


def test_a_sigterm_that_came_before_srun_is_remembered(tmp_path: Path) -> None:
    """Slurm may be ending the job: no agent would hear of it again, so none is started; finish asks Slurm."""
    node = make_node(tmp_path)
    assert 75 == node.run([("", 75)], setup=["kill -TERM $$"])
    assert [] == node.lines("sruns")
    (finish,) = node.lines("calls")
    assert "--srun-exit-code=1" in finish["words"]
    assert 75 == node.run([("4", 80), ("", 75)], setup=["kill -TERM $$"])
    assert 1 == len(node.lines("sruns"))  # Slurm does nothing to the job
