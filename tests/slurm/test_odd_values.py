"""Numbers of hundreds of digits, thousands of brackets, half characters: refused, each with what to write."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.run import flags
from hpc_elastic.clock import clock_text, date_text
from hpc_elastic.errors import InputError
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.report.timeline import span_text
from hpc_elastic.settings.values import (
    BadValueError,
    parse_duration_s,
    parse_memory,
    parse_nodes,
    parse_size,
    parse_time_limit_s,
)
from hpc_elastic.slurm.adopt.script import adopt
from hpc_elastic.slurm.client.answers import gpus_in
from hpc_elastic.slurm.client.deadlines import seconds
from hpc_elastic.slurm.job.job_file import read_job_file
from hpc_elastic.slurm.job.options import header_line
from hpc_elastic.slurm.job.shell_text import code_of
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit.request import plan, read_template

LONG = "9" * 400
TOO_LONG = "9" * 5000  # for Python to read as a number
READERS = (parse_nodes, parse_duration_s, parse_time_limit_s, parse_size, parse_memory)


@pytest.mark.parametrize("value", [LONG, TOO_LONG, 10**400, 10**5000], ids=["400", "5000", "int", "long int"])
@pytest.mark.parametrize("read", READERS)
def test_a_number_of_hundreds_of_digits_is_refused(read: Callable[[object], object], value: object) -> None:
    """The value is shown cut, with what to write instead."""
    with pytest.raises(BadValueError) as caught:
        read(value)
    assert len(caught.value.message) < 130
    assert caught.value.fix


@pytest.mark.parametrize("text", ["٣", "²", "1²"])
@pytest.mark.parametrize("read", READERS)
def test_digits_of_other_scripts_are_no_number(read: Callable[[object], object], text: str) -> None:
    """Slurm would not read them either."""
    with pytest.raises(BadValueError):
        read(text)


def test_the_longest_times_are_taken() -> None:
    """The limits are far beyond what anybody waits for."""
    assert 1e9 == parse_duration_s(1e9)
    assert 10_000 * 86400 == parse_duration_s("10000d")
    with pytest.raises(BadValueError, match="longer than 30 years"):
        parse_duration_s(1e9 + 1)
    assert 60 * (2**32 - 3) == parse_time_limit_s(2**32 - 3)
    with pytest.raises(BadValueError):
        parse_time_limit_s(2**32 - 2)
    assert 10**6 == parse_nodes(10**6).high
    with pytest.raises(BadValueError, match="asks for 1000001 nodes"):
        parse_nodes(10**6 + 1)


@pytest.mark.parametrize(
    "flag",
    [
        "--max-restarts",
        "--master-port",
        "--probe-min-inodes",
        "--probe-min-space",
        "--lease",
        "--join-timeout",
        "--health-timeout",
    ],
)
@pytest.mark.parametrize("value", [LONG, TOO_LONG], ids=["400", "5000"])
def test_a_flag_refuses_a_number_of_hundreds_of_digits(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flag, value and limit are named."""
    with pytest.raises(SystemExit):
        flags.parser().parse_args([flag, value, "train.py"])
    err = capsys.readouterr().err
    assert err.startswith(f"error: {flag}: ")
    assert re.search(r"999 \.\.\. \(\d+ characters\) is", err.replace("'", ""))
    assert len(err) < 260


@pytest.mark.parametrize(
    "value", [10**400, LONG, TOO_LONG, "1e400", "inf"], ids=["int", "400", "5000", "1e400", "inf"]
)
def test_an_option_of_the_rendezvous_refuses_it(value: object) -> None:
    """What cannot be waited for or counted is no value."""
    params = RendezvousParameters("shared_fs", "/x", "run", 1, 2, keep_alive_max_attempt=value)
    with pytest.raises(ValueError, match="keep_alive_max_attempt"):
        params.get_as_int("keep_alive_max_attempt")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_restarts": 10**400}, "max_restarts = 1000"),
        ({"nodes": LONG}, "nodes = "),
        ({"gpus_per_node": LONG}, "gpus_per_node = "),
        ({"time": 10**400}, "time = "),
        ({"join_timeout": LONG}, "join_timeout = "),
        ({"name": "\ud800"}, "name = '\\ud800' holds a character that is not valid Unicode"),
        ({"partition": "a\ud800"}, "partition = 'a\\ud800' holds"),
        ({"modules": "a\ud800"}, "modules = 'a\\ud800' holds"),
        ({"command": "a \ud800"}, "command = '\\ud800' holds"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_job_spec_refuses_what_nobody_can_use(fields: dict[str, Any], words: str) -> None:
    """Names the setting, and shows the value cut."""
    with pytest.raises(InputError) as caught:
        JobSpec(**{"command": ["train.py"], **fields})
    assert caught.value.message.startswith(words)
    assert len(caught.value.message) < 200


def test_a_name_in_another_encoding_is_taken() -> None:
    """Bytes that are no UTF-8 come from a shell as such halves, and can be given back."""
    assert "a\udcffb" == JobSpec(command=["train.py"], reservation="a\udcffb").reservation


@pytest.mark.parametrize("text", ["command=" + "[" * 3000, "a=" + '{"b"=' * 3000])
def test_a_job_file_of_thousands_of_brackets_is_refused(text: str, tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_job_file(str(path))
    assert str(path) in caught.value.where


@pytest.mark.parametrize("opening", ["$(", "${", '"$(', "`", "(", '"${'])
def test_thousands_of_substitutions_are_read(opening: str) -> None:
    """However deep they are, the script is as long as it was."""
    text = "srun torchrun " + opening * 3000
    assert len(text) == len(code_of(text))
    with suppress(InputError):
        adopt(text, "job.sh")


def test_nested_substitutions_end_where_they_did() -> None:
    """What follows them is code again."""
    text = 'a=$(b "${c:-$(d \')\' "e)")}" `f`) ; g'
    assert text.index(";") == code_of(text).index(";")


def test_times_that_no_calendar_has_are_no_times() -> None:
    """Neither the beginning nor the end of the world is passed."""
    assert ["?"] * 5 == [date_text(at) for at in (1e18, -1.0, float("nan"), float("inf"), 1e300)]
    assert "?" == clock_text(1e18)
    assert "1970-01-0" == date_text(0.0)[:9].replace("1969-12-3", "1970-01-0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-5.0, "0.0 s"),
        (float("inf"), "more than 100 years"),
        (1e300, "more than 100 years"),
    ],
)
def test_spans_that_cannot_be_are_told_so(value: float, text: str) -> None:
    """Two records of one run may be any time apart."""
    assert text == span_text(value)


def test_slurms_numbers_have_few_digits() -> None:
    """Whatever else stands there is no time and no count."""
    assert [None, None, 30.0] == [seconds(text) for text in (LONG, f"1-{TOO_LONG}:00:00", "30 sec")]
    assert 1 == gpus_in(f"gpu:{TOO_LONG}")


@pytest.mark.parametrize(
    "name", ["../x", "-x", "../../..", "%j", "~", "$(id)", "--wrap=x", "\\", ".x", "x" * 500]
)
def test_a_job_may_have_any_name_in_one_line(name: str, tmp_path: Path) -> None:
    """Slurm takes it as it is; the directory of the run is one below that of all runs, by a plain name."""
    spec = JobSpec(command=["true"], name=name)
    planned = plan(spec, read_template(spec.mode), now_s=0.0, directory=str(tmp_path))
    folder, run_id = os.path.split(planned.paths.root)
    assert (str(tmp_path / "hpc_elastic_runs"), planned.run_id) == (folder, run_id)
    assert re.fullmatch(r"[\w][\w.-]{1,100}", run_id)
    assert header_line("job-name", name) in planned.script.splitlines()[1]
