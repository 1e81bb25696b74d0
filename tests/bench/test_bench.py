"""scripts/bench measures real agents; here only that it works, not how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_lib.answers import COMMANDS, large_run
from bench_lib.kills import StepNote, lost_share

from hpc_elastic.cli import app
from hpc_elastic.record.run_log import read_records

pytestmark = pytest.mark.timeout(300)
BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def bench(*options: str, timeout_s: float = 250) -> subprocess.CompletedProcess[str]:
    """Run scripts/bench on hpc_elastic alone."""
    argv = [sys.executable, str(BENCH), "--quick", "--only", "hpc_elastic", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.slow
def test_measures_and_writes_what_it_measured(tmp_path: Path) -> None:
    """The table names the target, and the JSON file has every sample and the medians."""
    ended = bench("--measure", "start", "--json", str(tmp_path / "bench.json"))
    assert 0 == ended.returncode, ended.stderr
    assert "agent started -> worker's first line [s]" in ended.stdout
    assert "<= 24" in ended.stdout
    record = json.loads((tmp_path / "bench.json").read_text())
    assert (1, []) == (record["format"], record["failures"])
    samples = record["samples"]["hpc_elastic"]
    assert {"first_line_s", "rss_mb", "pss_mb", "all_rss_mb", "all_pss_mb"} == set(samples)
    assert all(len(values) == 3 and min(values) > 0 for values in samples.values())
    assert sorted(samples["rss_mb"])[1] == record["medians"]["hpc_elastic"]["rss_mb"]


@pytest.mark.slow
def test_a_start_from_one_file_is_measured_beside_a_bare_python(tmp_path: Path) -> None:
    """It opens fewer files than one from the installed package."""
    ended = bench("--measure", "one-file", "metadata", "--json", str(tmp_path / "bench.json"))
    assert 0 == ended.returncode, ended.stderr
    samples = json.loads((tmp_path / "bench.json").read_text())["samples"]["hpc_elastic"]
    assert all(min(samples[name]) > 0 for name in ("installed_s", "one_file_s", "floor_s", "times_floor"))
    if shutil.which("strace"):
        assert samples["one_file_opened"][0] < samples["opened_files"][0] / 2


@pytest.mark.slow
def test_nothing_outlives_a_killed_agent() -> None:
    """The promise that needs no stopwatch holds."""
    ended = bench("--measure", "orphans", "--strict")
    assert 0 == ended.returncode, ended.stdout + ended.stderr


def test_the_large_run_of_the_measure_of_commands_is_one(tmp_path: Path) -> None:
    """Each command answers about it; here it is small."""
    paths = large_run(tmp_path / "large-1", rounds=40, records=200, nodes=2)
    assert 200 <= len(read_records(paths)) < 260
    for words in COMMANDS.values():
        given = [words[0], paths.root, *words[1:]]
        assert 0 == app.run(["3" if word == "4000" else word for word in given]), words


def test_unknown_measure_is_refused() -> None:
    """A misspelt measure is an error that lists the measures."""
    ended = bench("--measure", "speed")
    assert 2 == ended.returncode
    assert "four-agents" in ended.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_saves_are_measured_beside_a_copy_in_memory(tmp_path: Path) -> None:
    """Each way to save has its samples and a line of the table; nothing is left of what was saved."""
    into = tmp_path / "saves.json"
    small = ("--size", "16", "--in", str(tmp_path), "--json", str(into))
    ended = bench("--measure", "save", *small)
    assert 0 == ended.returncode, ended.stderr
    record = json.loads(into.read_text())
    assert [] == record["failures"]
    assert "memory copy" in record["saves"]
    for name, samples in record["saves"].items():
        assert 2 == len(samples)
        assert f"| {name} | " in ended.stdout
    assert [into] == list(tmp_path.iterdir())


def lines_of(record: dict[str, Any], measure: str, what: str) -> dict[str, dict[str, list[float]]]:
    """Return the samples of one thing measured, by system and number of nodes."""
    return {
        f"{line['system']}, {line['store']}": line["samples"]
        for line in record["series"]
        if line["measure"] == measure and line["what"].startswith(what)
    }


@pytest.mark.slow
def test_nodes_of_a_rendezvous_are_timed_and_counted(tmp_path: Path) -> None:
    """Real nodes meet in a directory, and operations of the first one and the others are told apart."""
    shared = tmp_path / "shared"
    shared.mkdir()
    ended = bench(
        *("--measure", "rendezvous-scale", "rendezvous-ops", "--nodes", "2", "3"),
        *("--dir", f"here={shared}", "--json", str(tmp_path / "bench.json")),
    )
    assert 0 == ended.returncode, ended.stderr
    assert "all agents ready -> the last has its place [s]" in ended.stdout
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [] == record["failures"]
    took = lines_of(record, "rendezvous-scale", "all agents ready")
    assert {"hpc_elastic, nodes known, here", "hpc_elastic, only N known, here"} == set(took)
    assert all({"2", "3"} == set(samples) for samples in took.values())
    assert all(0 < values[0] < 30 for samples in took.values() for values in samples.values())
    operations = lines_of(record, "rendezvous-ops", "store operations")
    calls = lines_of(record, "rendezvous-ops", "file-system calls")
    for who in ("first node, here", "busiest other, here"):
        assert operations[who]["3"][0] > 5
        assert calls[who]["3"][0] > operations[who]["3"][0]
    assert [] == list(shared.iterdir())


@pytest.mark.slow
def test_a_slow_file_system_is_told_apart(tmp_path: Path) -> None:
    """By default the local disk is measured as it is and slowed."""
    file = tmp_path / "bench.json"
    ended = bench("--measure", "rendezvous-scale", "--nodes", "2", "--json", str(file))
    assert 0 == ended.returncode, ended.stderr
    took = lines_of(json.loads(file.read_text()), "rendezvous-scale", "all agents ready")
    known = [name for name in took if "nodes known" in name]
    fast, slow = sorted(known, key=len)
    assert took[slow]["2"][0] > 20 * 0.005  # so many calls one after another at least
    assert took[fast]["2"][0] > 0


@pytest.mark.slow
def test_the_cost_of_living_is_counted(tmp_path: Path) -> None:
    """Every node beats, somebody listens, and the kernel agrees about the calls of a real agent."""
    file = tmp_path / "bench.json"
    ended = bench("--measure", "steady-ops", "--nodes", "4", "8", "--json", str(file))
    assert 0 == ended.returncode, ended.stderr
    record = json.loads(file.read_text())
    operations = lines_of(record, "steady-ops", "store operations")
    mean, busiest = (operations[f"{who}, simulated time"] for who in ("mean", "busiest node"))
    for nodes in ("4", "8"):
        assert 0 < mean[nodes][0] <= busiest[nodes][0]
    listed = lines_of(record, "steady-ops", "names listed")["sum, simulated time"]
    assert 0 < listed["4"][0]
    if shutil.which("strace"):
        real = lines_of(record, "steady-ops", "calls per second of a real agent")
        assert all(samples["2"] for samples in real.values())


@pytest.mark.slow
def test_a_key_is_timed_against_the_floor(tmp_path: Path) -> None:
    """Setting a key for another process is compared with a bare link and listing."""
    file = tmp_path / "bench.json"
    ended = bench("--measure", "set-wait", "--json", str(file))
    assert 0 == ended.returncode, ended.stderr
    record = json.loads(file.read_text())
    trips = lines_of(record, "set-wait", "one process sets")
    assert 3 == len(trips)
    assert all(10 == len(samples["2"]) and min(samples["2"]) > 0 for samples in trips.values())
    ratio = lines_of(record, "set-wait", "set -> get, times the floor")
    assert ratio["link -> listdir without pause, local disk"]["2"][0] > 0


@pytest.mark.slow
def test_a_turn_of_waiting_is_timed(tmp_path: Path) -> None:
    """A node that waits is timed as the first one and as another; so is the listing of the members."""
    file = tmp_path / "bench.json"
    ended = bench("--measure", "waiting-turn", "--nodes", "4", "16", "--json", str(file))
    assert 0 == ended.returncode, ended.stderr
    turns = lines_of(json.loads(file.read_text()), "waiting-turn", "CPU time of a node that waits")
    assert 5 == len(turns)
    assert all({"4", "16"} == set(samples) and min(samples["16"]) > 0 for samples in turns.values())


def test_unusable_directory_is_refused(tmp_path: Path) -> None:
    """A directory that is not there is an error that names it."""
    ended = bench("--measure", "set-wait", "--dir", str(tmp_path / "absent"))
    assert 1 == ended.returncode
    assert str(tmp_path / "absent") in ended.stderr
    assert "fix:" in ended.stderr


def record_of_runs(path: Path) -> None:
    """Write what a run with a measure of scale would have written."""
    line = {
        "measure": "rendezvous-scale",
        "what": "all agents ready -> the last has its place [s]",
        "system": "hpc_elastic",
        "store": "local disk",
        "samples": {"2": [0.1], "8": [0.2, 0.3]},
        "stopped": {"32": "> 1 s"},
    }
    path.write_text(json.dumps({"format": 1, "series": [line]}))


def test_runs_are_drawn(tmp_path: Path) -> None:
    """The files of runs become a picture that names their lines."""
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    record_of_runs(tmp_path / "run.json")
    picture = tmp_path / "scale.svg"
    ended = bench("--plot", str(picture), "--from", str(tmp_path / "run.json"))
    assert 0 == ended.returncode, ended.stderr
    text = picture.read_text()
    assert "<svg" in text
    assert "hpc_elastic, local disk" in text


def test_a_file_without_series_is_refused(tmp_path: Path) -> None:
    """Drawing what was not measured is an error that names the file."""
    file = tmp_path / "run.json"
    file.write_text("{}")
    ended = bench("--plot", str(tmp_path / "scale.svg"), "--from", str(file))
    assert 1 == ended.returncode
    assert str(file) in ended.stderr


def test_tables_of_earlier_runs_are_shown(tmp_path: Path) -> None:
    """Files of runs become tables with medians, and say where a series ended."""
    record_of_runs(tmp_path / "run.json")
    plain = bench("--from", str(tmp_path / "run.json"))
    assert 0 == plain.returncode, plain.stderr
    assert ["hpc_elastic", "local", "disk", "0.100", "0.250", ">", "1", "s"] == plain.stdout.splitlines()[
        2
    ].split()
    marked = bench("--markdown", "--from", str(tmp_path / "run.json"))
    assert "| hpc_elastic | local disk | 0.100 | 0.250 | > 1 s |" in marked.stdout.splitlines()


def test_steps_that_were_lost_or_never_made_are_a_share_of_the_time() -> None:
    """A start that goes on from an older step takes back what was computed since; the wait counts, too."""
    before = [StepNote(100.0 + step, 1, 1 + step) for step in range(11)]
    after = [StepNote(115.0 + step, 2, 7 + step) for step in range(6)]
    assert lost_share(before, 110.0) == pytest.approx(0)
    assert lost_share([*before, *after], 120.0) == pytest.approx(1 - 11 / 20)
