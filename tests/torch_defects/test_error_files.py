"""Whatever a worker leaves as its error file, the launcher tells how the worker ended.

Elsewhere an empty or cut file ends the launcher with an exception of its own, and one that cannot be
written takes the place of the user's exception.
"""

from __future__ import annotations

import pytest

from hpc_elastic.multiprocessing import Std
from hpc_elastic.multiprocessing.errors import ProcessFailure
from tests.torch_defects.launches import MakeLaunches

LEAVES = """
open(os.environ["TORCHELASTIC_ERROR_FILE"], "wb").write(CONTENT)
os._exit(7)
"""

RAISES = """
from hpc_elastic.multiprocessing.errors import record
CHANGE

@record
def main():
    raise ValueError("the user's own")

main()
"""


@pytest.mark.parametrize(
    "content",
    [b"", b'{"message": {"message": "Key', b'{"unknown": 1}', b"[1, 2]", b"\xff\xfe\x00", b'{"message": 3}'],
    ids=["empty", "cut", "foreign", "list", "bytes", "number"],
)
def test_any_error_file_leaves_the_exit_code(make: MakeLaunches, content: bytes) -> None:
    """The launcher goes on as for any failure: a restart, then the worker's code and a summary."""
    launches = make(LEAVES.replace("CONTENT", repr(content)))
    launches.start(0, "--max-restarts", "1")
    output = launches.output(0)
    assert 7 == launches.code(0)
    assert 2 == len(launches.rounds())
    assert "Root Cause" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "change",
    [
        "os.environ['TORCHELASTIC_ERROR_FILE'] = '/proc/no/such/place'",
        "os.mkdir(os.environ['TORCHELASTIC_ERROR_FILE'])",
    ],
    ids=["nowhere", "directory"],
)
def test_an_error_that_cannot_be_recorded_is_still_the_users(make: MakeLaunches, change: str) -> None:
    """The user's exception ends the worker, and is what the console and the summary show."""
    launches = make(RAISES.replace("CHANGE", change))
    launches.start(0, "--max-restarts", "0", "--tee", "2")
    output = launches.output(0)
    assert 1 == launches.code(0)
    assert "ValueError: the user's own" in output.partition("Root Cause")[0]
    assert "FileNotFoundError" not in output


def test_local_ranks_of_two_digits_can_be_chosen(make: MakeLaunches) -> None:
    """Streams of local rank 10 alone can go to a file."""
    assert {10: Std.OUT, 2: Std.ALL} == Std.from_str("10:1,2:3")
    launches = make("print('hello')")
    launches.start(0, "--nproc-per-node", "11", "--redirects", "10:1")
    output = launches.output(0)
    assert 0 == launches.code(0)
    assert 10 == output.count("hello")


def test_what_is_noted_of_one_failure_is_not_in_another() -> None:
    """Failures without an error file have traits of their own, and nothing of them stays behind."""
    first, second = (ProcessFailure(rank, 1, 1, "/nowhere") for rank in (0, 1))
    first.error_file_data["errorTraits"]["category"] = "changed"
    assert "changed" not in str(second.error_file_data)
    assert "errorTraits" not in ProcessFailure(2, 1, -9, "/nowhere").error_file_data
