"""scripts/fuzz finds faults that are put where it looks, and tells them by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_lib import cli, commands, damage, finish, records, samples, texts
from fuzz_lib.corpus import keep_input, read_inputs
from fuzz_lib.engine import Fuzzer, Tally
from fuzz_lib.shrink import shrink
from fuzz_lib.slurm_here import SlurmHere, world_with
from fuzz_lib.strategies import with_fields
from fuzz_lib.target import Target, allowed, expect
from fuzz_lib.watchdog import HangError, Watchdog
from hypothesis import strategies as st

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.testing.fake_slurm.cluster.model import State

ALL = (*records.TARGETS, *texts.TARGETS, *commands.TARGETS, *finish.TARGETS)


def raises(text: str) -> None:
    """Stumble over one character."""
    if "x" in text:
        raise KeyError(text)


def hangs(text: str) -> None:
    """Never come back from one character."""
    while "x" in text:
        pass


def lies(text: str) -> None:
    """Say what is not so about one character."""
    expect("x" not in text, "x is done")


def is_well(_text: str) -> None:
    """Take everything."""


def refuses(text: str) -> None:
    """Answer one character with an error that is an answer."""
    with allowed(KeyError):
        raises(text)


def target(check: Callable[[Any], None]) -> Target:
    """Return a target whose inputs are words, of which some have an x."""
    return Target(check.__name__, st.sampled_from(["ab", "abcxdef", "ghx"]), check, 20)


def fuzzed(check: Callable[[Any], None], corpus: Path) -> tuple[Tally, list[str]]:
    """Return what comes of a target, and what is said of it."""
    said: list[str] = []
    fuzzer = Fuzzer(corpus, said.append, Watchdog(0.05))
    fuzzer.run(target(check), 0, 1)
    return fuzzer.tallies[check.__name__], said


@pytest.mark.parametrize(
    ("check", "sign"),
    [(raises, "KeyError at "), (lies, "WrongVerdictError: x is done")],
    ids=["raises", "lies"],
)
def test_a_fault_is_found_and_told_with_its_smallest_input(
    check: Callable[[Any], None], sign: str, tmp_path: Path
) -> None:
    """Each fault is told once, kept, and said how to be had again."""
    tally, said = fuzzed(check, tmp_path)
    assert ["x"] == [failure.value for failure in tally.failures]
    assert tally.failures[0].sign.startswith(sign)
    assert said[0].startswith(f"FAILED {check.__name__}: {sign}")
    assert [
        "  input: 'x'",
        f"  it is kept; once more: scripts/fuzz --replay --target {check.__name__}",
    ] == said[1:]
    assert ["x"] == read_inputs(tmp_path, check.__name__)


def test_a_hang_is_found(tmp_path: Path) -> None:
    """Whoever does not come back is interrupted and named."""
    tally, said = fuzzed(hangs, tmp_path)
    assert 1 == len(tally.failures)
    assert said[0].startswith("FAILED hangs: HangError at ")
    assert "x" in read_inputs(tmp_path, "hangs")[0]


@pytest.mark.parametrize("check", [is_well, refuses])
def test_what_is_well_is_left_in_peace(check: Callable[[Any], None], tmp_path: Path) -> None:
    """An error that is an answer is no fault."""
    tally, said = fuzzed(check, tmp_path)
    assert ((), []) == (tally.failures, said)
    assert tally.inputs > 0


def test_a_slow_call_is_let_through_in_its_time() -> None:
    """Only what takes longer than the limit hangs, and no alarm is left behind."""
    Watchdog(5.0).call(lambda: None)
    began = time.monotonic()
    with pytest.raises(HangError):
        Watchdog(0.05).call(lambda: hangs("x"))
    assert time.monotonic() - began < 30


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    """A slice of a target depends on nothing but its name, its number and the seed."""
    given: list[list[str]] = []
    for seed in (7, 7, 8):
        seen: list[str] = []
        of_journal = next(one for one in ALL if one.name == "hostlist")._replace(check=seen.append, slice=30)
        Fuzzer(tmp_path, seen.append).run(of_journal, 3, seed)
        given.append(seen)
    assert given[0] == given[1] != given[2]


def test_kept_inputs_are_given_again(tmp_path: Path) -> None:
    """A fault that was found once is found at once."""
    assert keep_input(tmp_path, "raises", "ax")
    assert not keep_input(tmp_path, "raises", "ax")
    fuzzer = Fuzzer(tmp_path, lambda _: None, keeps=False)
    fuzzer.replay(target(raises))
    assert 1 == len(fuzzer.tallies["raises"].failures)


def test_a_kept_line_that_is_no_literal_is_named(tmp_path: Path) -> None:
    """Somebody may have edited the file."""
    (tmp_path / "raises.txt").write_text("# a comment\nfoo(\n")
    with pytest.raises(ValueError, match=r"raises\.txt:2 is no literal"):
        read_inputs(tmp_path, "raises")


@pytest.mark.parametrize("check", [raises, is_well])
def test_the_exit_code_tells_of_faults(
    check: Callable[[Any], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One summary line per target, and the faults once more at the end."""
    monkeypatch.setattr(cli, "_guard", lambda: None)  # this process goes on
    name = check.__name__
    code = cli.main(["--minutes", "0", "--corpus", str(tmp_path), "--seed", "3"], [target(check)])
    out = capsys.readouterr().out
    assert int(check is raises) == code
    assert out.startswith("seed 3, 0 minutes, 1 targets\n")
    assert f"| {name} | " in out
    assert (f"\nFAILED {name}: KeyError" in out) == (check is raises)


def test_the_committed_inputs_are_of_targets() -> None:
    """Every kept file belongs to a target and can be read."""
    names = {one.name for one in ALL}
    assert len(names) == len(ALL)
    for path in cli.CORPUS.glob("*"):
        assert path.stem in names
        assert read_inputs(cli.CORPUS, path.stem)


def test_a_field_anywhere_in_a_record_is_replaced() -> None:
    """Values are counted through, the outermost last."""
    found = [with_fields(b'{"a": [1, 2]}', [(number, "NaN")]) for number in range(5)]
    assert [b'{"a": [NaN, 2]}', b'{"a": [1, NaN]}', b'{"a": NaN}', b"NaN", b'{"a": [NaN, 2]}'] == found


def test_an_input_shrinks_to_what_matters() -> None:
    """Texts, lists and numbers get smaller; the parts of a tuple stay."""
    value = ("abcx", [1, 2, 300], 77)
    assert ("x", [2], 0) == shrink(value, lambda other: "x" in other[0] and 2 in other[1])


@pytest.mark.parametrize("story", samples.STORIES)
def test_the_runs_are_what_the_package_writes(story: str, tmp_path: Path) -> None:
    """An undamaged run is read to its end."""
    damage.lay_out(tmp_path / "toy-1", samples.files_of(story))
    paths = RunPaths(tmp_path / "toy-1")
    ending = read_state(paths).ending
    final = {"done": Decision.DONE, "failed": Decision.FAILED, "held": Decision.HELD}
    assert final.get(story) == (None if ending is None else ending.decision)
    assert len(read_records(paths)) == len([name for name in samples.files_of(story) if "journal/" in name])


@pytest.mark.parametrize("what", ["fifo", "directory", "gone", "empty", "link-self", "link-out", "sparse"])
def test_a_file_becomes_something_else(what: str, tmp_path: Path) -> None:
    """Whatever can stand in place of a file is laid out."""
    damage.lay_out(tmp_path / "run", {"run.json": b"{}"}, [("as", 0, what)])
    path = tmp_path / "run" / "run.json"
    assert (what == "gone") == (not path.is_symlink() and not path.exists())


def test_commands_are_asked_in_this_process() -> None:
    """What a command prints is caught, also on the descriptors themselves."""
    with commands.place():
        said = commands.say(["status"])
    assert (0, "there are no runs below") == (said.code, said.out[:23])
    with pytest.raises(AssertionError, match="control characters"):
        commands.check_said(["status"], said._replace(out="\x1b[31m"))
    with pytest.raises(AssertionError, match="exit code 3"):
        commands.check_said(["status"], said._replace(code=3))


def test_slurm_answers_in_this_process() -> None:
    """The job is there, and what would bring it back is noted."""
    world = world_with(State.RUNNING, name="toy", comment="c", reason="None", restarts=1, held=False)
    here = SlurmHere(world)
    with here.in_place():
        fields = Slurm().show_job("7")
        assert not here.brought_back
        Slurm().requeue("7")
    assert fields is not None
    assert ("RUNNING", "c", "1") == (fields["JobState"], fields["Comment"], fields["Restarts"])
    assert here.brought_back
