"""What is said against a node, by what was measured on it."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.agent.probe_rules import (
    GIB,
    Disk,
    Finding,
    Measured,
    ProbeOptions,
    judge,
    size_text,
)
from hpc_elastic.agent.probe_said import judge_command, judge_gpus

USUAL = ProbeOptions()
ROOM = Disk("/tmp", 10 * GIB, 100_000, is_shared=False)
SOUND = Measured(
    gpus_promised=8, gpus_visible="0,1", gpu_files=8, disks=(ROOM,), cpus=64, cpus_asked=64, workers=8
)


def fatal(findings: tuple[Finding, ...]) -> list[str]:
    """Return what keeps the node out."""
    return [finding.text for finding in findings if finding.is_fatal]


def test_nothing_is_said_against_a_sound_node() -> None:
    """Everything is as promised."""
    assert () == judge(SOUND, USUAL)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu_files": 7}, "GPUs: 7 device files /dev/nvidia[0-9]*, 8 needed"),
        ({"gpu_files": 1}, "GPUs: 1 device file "),
        ({"gpus_visible": "NoDevFiles", "gpu_files": 0}, "NoDevFiles"),
        ({"disks": (ROOM._replace(free=GIB // 32),)}, "/tmp: 32 MiB free, 64 MiB needed"),
        ({"disks": (ROOM._replace(inodes=3),)}, "/tmp: 3 inodes free, 1000 needed"),
        ({"look_s": 25.0}, "run directory: a listing took 25.0 s"),
        ({"clock_went_back": True}, "clock: the monotonic clock went back"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_of_the_node_keeps_it_out(change: dict[str, Any], words: str) -> None:
    """The text has what, the value, what is needed, and what to do after a semicolon."""
    (text,) = fatal(judge(SOUND._replace(**change), USUAL))
    assert words in text
    assert "; " in text


@pytest.mark.parametrize(
    ("change", "words", "everywhere"),
    [
        ({"disks": (ROOM._replace(free=0, is_shared=True),)}, "/tmp: 0 B free", True),
        ({"look_s": 2.0}, "a listing took 2.0 s", False),
        ({"cpus": 1, "cpus_asked": 1}, "8 workers share 1 CPU; ask for", True),
        ({"cpus": 16}, "16 CPUs of the 64 that it was given; srun without -c", True),
        ({"cpus": 2}, "8 workers share 2 CPUs of the 64 that the job has here; srun without -c", True),
        ({"cpus": 4, "cpus_asked": 4, "cpus_there": 4}, "share 4 CPUs; the machine has no more", True),
    ],
)
def test_what_is_no_fault_of_the_node_is_only_told(
    change: dict[str, Any], words: str, everywhere: bool
) -> None:
    """The node joins; what all nodes find is marked, so that one of them tells it."""
    (finding,) = judge(SOUND._replace(**change), USUAL)
    assert words in finding.text
    assert (False, everywhere) == (finding.is_fatal, finding.is_everywhere)


@pytest.mark.parametrize(
    ("promised", "files", "pattern", "is_unfit"),
    [
        (None, 0, "", False),  # nobody has promised any
        (2, None, "", False),  # nobody could look
        (2, 0, "", False),  # GPUs of another make
        (2, 0, "/dev/accel*", True),  # the user has said what they are called
        (2, 4, "", False),  # a node shared with others
    ],
)
def test_gpus_are_counted_where_that_tells_something(
    promised: int | None, files: int | None, pattern: str, is_unfit: bool
) -> None:
    """A node is unfit if it has fewer device files than promised, and it is known what they are called."""
    found = SOUND._replace(gpus_promised=promised, gpu_files=files)
    assert is_unfit == bool(fatal(judge(found, USUAL._replace(gpu_devices=pattern))))


def test_the_worst_comes_first() -> None:
    """What keeps the node out stands before what is only told."""
    found = judge(SOUND._replace(cpus=1, cpus_asked=1, clock_went_back=True), USUAL)
    assert [True, False] == [finding.is_fatal for finding in found]


TWO = "0, GPU-aaaa, 0\n1, GPU-bbbb, {}\n"


@pytest.mark.parametrize(
    ("code", "output", "words"),
    [
        (0, TWO.format("0"), ""),
        (0, TWO.format("[N/A]"), ""),  # memory without error correction
        (0, TWO.format("3"), "GPU 1 (GPU-bbbb): 3 uncorrectable memory errors, 0 needed"),
        (0, TWO.format("[GPU is lost]"), "GPU 1 (GPU-bbbb) does not answer"),
        (0, "0, GPU-aaaa, 0\n", "nvidia-smi lists 1, 2 needed"),
        (9, "NVIDIA-SMI has failed because it could not talk to the driver", "exit code 9: NVIDIA-SMI has"),
        (15, "", "exit code 15: it said nothing"),
    ],
)
def test_what_the_driver_says_of_gpus(code: int, output: str, words: str) -> None:
    """Missing, lost and damaged GPUs, and a driver that does not answer, keep a node out."""
    found = SOUND._replace(gpus_promised=2, gpus_visible="0,1")
    texts = [finding.text for finding in judge_gpus(code, output, found)]
    assert (1 if words else 0) == len(texts)
    assert words in "".join(texts)


def test_the_damaged_gpu_of_another_job_is_no_matter() -> None:
    """Only the GPUs that this job may use are looked at, by number or by the start of their UUID."""
    bad = TWO.format("3")
    found = SOUND._replace(gpus_promised=1)
    assert () == judge_gpus(0, bad, found._replace(gpus_visible="0"))
    assert () == judge_gpus(0, bad, found._replace(gpus_visible="GPU-aa"))
    assert judge_gpus(0, bad, found._replace(gpus_visible="1"))


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        (3, "no link", "health command ended with 3 (0 is needed): no link"),
        (None, "", "took more than 60 s, and printed nothing: check"),
        (-9, "", "ended with -9"),
    ],
)
def test_the_users_own_check(code: int | None, line: str, words: str) -> None:
    """Its last line is the reason."""
    finding = judge_command(code, line, USUAL._replace(command="check"))
    assert finding is not None
    assert words in finding.text
    assert finding.is_fatal
    assert judge_command(0, line, USUAL) is None


def test_sizes_for_people() -> None:
    """Sizes have a unit."""
    assert ["5 B", "2 KiB", "1.5 MiB", "3 GiB"] == [size_text(n) for n in (5, 2048, 3 << 19, 3 << 30)]


def test_cpus_that_nobody_could_count_are_no_fault() -> None:
    """Nothing is said of what is not known."""
    assert () == judge(SOUND._replace(cpus=0), USUAL)
