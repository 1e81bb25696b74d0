"""Tables with a mark behind each cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.slurm.client.answers import Form, UnclearAnswerError, plain_environment

ARGV = ("squeue", "--all")
SHORT, LONG = Form(("F", "k")), Form(("jobid", "comment"), is_long=True)
MARK = "_6b1f_"


def test_a_mark_is_asked_for_behind_each_column() -> None:
    """No column has a width, which would cut it off."""
    assert "--format=%F_6b1f_%k_6b1f_" == SHORT.option(MARK)
    assert "--Format=jobid:0_6b1f_,comment:0_6b1f_" == LONG.option(MARK)


@given(st.lists(st.tuples(st.integers(0, 99).map(str), st.text().filter(lambda text: "6b1f" not in text))))
def test_what_was_printed_is_read_whatever_it_is(rows: list[tuple[str, str]]) -> None:
    """Newlines, separators and what looks like a row are parts of a cell."""
    text = "".join(f"{number}{MARK}{comment}{MARK}\n" for number, comment in rows)
    assert rows == SHORT.rows(text, MARK, ARGV)


def test_lines_of_somebody_elses_are_left_out() -> None:
    """Slurm prints the name of a cluster, and a site's program may greet."""
    text = f"hello\nCLUSTER: dev\n7{MARK}a\nb{MARK}\n8{MARK}{MARK}\ngood bye\n"
    assert [("7", "a\nb"), ("8", "")] == SHORT.rows(text, MARK, ARGV)
    assert [] == SHORT.rows("hello\n", MARK, ARGV)


def test_a_table_with_missing_cells_is_refused() -> None:
    """The error names the command, what is wrong, and what to do."""
    with pytest.raises(UnclearAnswerError) as error:
        SHORT.rows(f"7{MARK}\n", MARK, ARGV)
    assert (
        "what squeue tells cannot be read for sure: 1 cells in rows of 2\n"
        "  fix: compare with the output of squeue here; a site may have put a program in its place"
    ) == str(error.value)


def test_a_users_own_settings_change_no_answer() -> None:
    """A filter would hide jobs, and another format of dates could not be read."""
    own = {"PATH": "/bin", "SQUEUE_PARTITION": "x", "SINFO_FORMAT": "x", "SCONTROL_ALL": "1"}
    plain = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
    assert {"PATH": "/bin", **plain} == plain_environment({**own, "SLURM_TIME_FORMAT": "relative"})
