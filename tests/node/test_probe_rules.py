"""What is said against a node, by what was measured on it."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.node.probe_rules import (
    GIB,
    Disk,
    Measured,
    NodeFinding,
    ProbeOptions,
    in_use,
    in_use_text,
    is_shared,
    judge,
    judge_command,
    judge_gpus,
    size_text,
)
from hpc_elastic.processes.nvidia_smi import Gpu, mine, processes_of

USUAL = ProbeOptions()
ROOM = Disk("/tmp", 10 * GIB, 100_000, is_shared=False)
SOUND = Measured(
    gpus_promised=8, gpus_visible="0,1", gpu_files=8, disks=(ROOM,), cpus=64, cpus_asked=64, workers=8
)


def fatal(findings: tuple[NodeFinding, ...]) -> list[str]:
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


@pytest.mark.parametrize(
    "change",
    [
        {"disks": (ROOM._replace(free=GIB // 16, inodes=1000),)},
        {"disks": (ROOM._replace(inodes=None),)},
        {"look_s": 0.99},
        {"cpus": 8, "cpus_asked": 8},
        {"cpus": 64, "cpus_asked": None},
        {"gpus_promised": 0, "gpu_files": 0, "gpus_visible": "NoDevFiles"},
    ],
    ids=["just enough room", "inodes not counted", "quick look", "a CPU each", "nobody asked", "no GPUs"],
)
def test_what_is_just_enough_is_enough(change: dict[str, Any]) -> None:
    """Nothing is said of it."""
    assert () == judge(SOUND._replace(**change), USUAL)


@pytest.mark.parametrize(
    ("look_s", "again_s", "is_fatal"),
    [(1.0, None, False), (19.9, None, False), (20.0, None, True), (20.0, 20.0, True), (20.0, 19.9, False)],
)
def test_a_run_directory_that_answers_too_late_keeps_a_node_out(
    look_s: float, again_s: float | None, is_fatal: bool
) -> None:
    """Unless a second look shows that it was an outage."""
    (finding,) = judge(SOUND._replace(look_s=look_s, again_s=again_s), USUAL)
    assert (is_fatal, False) == (finding.is_fatal, finding.is_everywhere)


@pytest.mark.parametrize(
    ("cpus", "asked", "there", "words"),
    [
        (4, 4, 3, "the machine has no more"),
        (4, 4, 5, "ask for --cpus-per-node"),
        (4, 4, 0, "ask for --cpus-per-node"),
        (4, None, 4, "8 workers share 4 CPUs; the machine has no more"),
        (4, 5, 4, "srun without -c"),
    ],
)
def test_what_mends_a_want_of_cpus(cpus: int, asked: int | None, there: int, words: str) -> None:
    """A binding is mended first; a machine without more CPUs gets fewer workers."""
    (finding,) = judge(SOUND._replace(cpus=cpus, cpus_asked=asked, cpus_there=there), USUAL)
    assert words in finding.text


def test_both_wants_of_a_disk_are_told() -> None:
    """Room and inodes, of each disk; only those of the node itself keep it out."""
    shared = Disk("/run", 0, 0, is_shared=True)
    found = judge(SOUND._replace(disks=(shared, ROOM._replace(free=0, inodes=0))), USUAL)
    assert [(True, False)] * 2 + [(False, True)] * 2 == [(one.is_fatal, one.is_everywhere) for one in found]


def test_what_is_asked_of_a_node_that_nobody_has_set() -> None:
    """A quick probe, of a minute at most, with 64 MiB and 1000 inodes free."""
    assert ("quick", "", 60.0, 64 << 20, 1000, "") == tuple(ProbeOptions())


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
        (0, f"a warning of the driver\n{TWO.format('0, more')}", ""),
        (0, TWO.format("1"), "GPU 1 (GPU-bbbb): 1 uncorrectable memory errors, 0 needed"),
        (0, TWO.format("3"), "GPU 1 (GPU-bbbb): 3 uncorrectable memory errors, 0 needed"),
        (0, TWO.format("[GPU is lost]"), "GPU 1 (GPU-bbbb) does not answer"),
        (0, "0, GPU-aaaa, 0\n", "nvidia-smi lists 1, 2 needed"),
        (9, "NVIDIA-SMI has failed because it could not talk to the driver", "exit code 9: NVIDIA-SMI has"),
        (9, "a warning\nno driver", "exit code 9: no driver"),
        (15, "", "exit code 15: it said nothing"),
    ],
)
def test_what_the_driver_says_of_gpus(code: int, output: str, words: str) -> None:
    """Missing, lost and damaged GPUs, and a driver that does not answer, keep a node out."""
    found = SOUND._replace(gpus_promised=2, gpus_visible="0,1")
    findings = judge_gpus(code, output, found)
    assert all(finding.is_fatal for finding in findings)
    texts = [finding.text for finding in findings]
    assert (1 if words else 0) == len(texts)
    assert words in "".join(texts)


USED = "0, GPU-aaaa, {}, 81920, Disabled\n1, GPU-bbbb, 10, 81920, [N/A]\n"


@pytest.mark.parametrize(
    ("output", "more", "numbers"),
    [
        (USED.format(4000), {}, ""),  # the driver's own
        (USED.format(70000), {}, "0"),
        (USED.format(1025).replace("81920", "16384"), {}, "0"),
        (USED.format(70000).replace("Disabled", "Enabled"), {}, ""),  # cut up: other jobs have parts of it
        (USED.format("[N/A]"), {}, ""),
        (USED.format(70000), {"gpus_promised": 1, "gpus_visible": "1"}, ""),  # another job's
        (USED.format(70000), {"gpus_promised": 1, "gpus_visible": ""}, ""),  # not known which are ours
        (USED.format(70000), {"gpus_promised": None}, ""),
        ("Field mig.mode.current is not a valid field to query.", {}, ""),
    ],
)
def test_memory_that_others_hold_is_seen(output: str, more: dict[str, Any], numbers: str) -> None:
    """Of the GPUs that are the job's alone, by more than a driver needs for itself."""
    found = SOUND._replace(**{"gpus_promised": 2, "gpus_visible": "0,1", **more})
    taken = in_use(output, found)
    assert numbers == "".join(one.gpu.number for one in taken)


def test_who_holds_the_memory_is_named_where_it_can_be_seen() -> None:
    """The processes on the GPU with most of it in use."""
    taken = in_use(USED.format(71680), SOUND._replace(gpus_promised=2, gpus_visible="0,1"))
    known = in_use_text(taken, {"GPU-aaaa": ["process 7 (python of bob)"], "GPU-bbbb": ["process 8 (x)"]})
    told = "GPU 0 (GPU-aaaa): 70.0 of 80.0 GiB are in use by process 7 (python of bob), not by this run"
    assert told == known
    assert "by a process that cannot be seen from here" in in_use_text(taken, {})
    assert "GPU 0 (GPU-aaaa) (and 1 GPU more)" in in_use_text((*taken, *taken), {})


def test_processes_on_gpus() -> None:
    """A name may have commas; lines of another form are left out."""
    output = "GPU-a, 17, /usr/bin/python3\nNo running processes found\nGPU-b, [N/A], x\nGPU-b, 18, a, b\n"
    assert [("GPU-a", 17, "/usr/bin/python3"), ("GPU-b", 18, "a, b")] == processes_of(output)


@pytest.mark.parametrize(
    ("environ", "shared"),
    [({}, False), ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, True), ({"SLURM_SHARDS_ON_NODE": "2"}, True)],
)
def test_gpus_that_jobs_share_are_known(environ: dict[str, str], *, shared: bool) -> None:
    """There the memory of others is as it should be."""
    assert shared is is_shared(environ)


def test_the_damaged_gpu_of_another_job_is_no_matter() -> None:
    """Only the GPUs that this job may use are looked at, by number or by the start of their UUID."""
    bad = TWO.format("3")
    found = SOUND._replace(gpus_promised=1)
    assert () == judge_gpus(0, bad, found._replace(gpus_visible="0"))
    assert () == judge_gpus(0, bad, found._replace(gpus_visible="GPU-aa"))
    assert judge_gpus(0, bad, found._replace(gpus_visible="1"))
    assert judge_gpus(0, bad, found._replace(gpus_promised=None, gpus_visible=None))


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [("1", "1"), ("1,", "1"), ("0,2", "02"), ("GPU-b,0", "01"), ("", "012"), ("7", "012"), (",", "012")],
)
def test_a_list_names_the_gpus_of_a_job(visible: str, numbers: str) -> None:
    """One that names none of them says nothing."""
    gpus = [Gpu(number, f"GPU-{letter}") for number, letter in zip("012", "abc", strict=True)]
    assert numbers == "".join(gpu.number for gpu in mine(gpus, visible))


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
    assert ["1 KiB", "1 MiB", "1 GiB"] == [size_text(1 << power) for power in (10, 20, 30)]
    assert ["1023 B", "1e+03 KiB"] == [size_text(n) for n in (1023, 1000 << 10)]


def test_cpus_that_nobody_could_count_are_no_fault() -> None:
    """Nothing is said of what is not known."""
    assert () == judge(SOUND._replace(cpus=0), USUAL)
