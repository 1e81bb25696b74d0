"""Where logs go."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.multiprocessing import logs
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, log_line_prefix, set_aside
from hpc_elastic.multiprocessing.std import Std, to_map


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", Std.NONE), ("3", Std.ALL), ("0:1", {0: Std.OUT}), ("1:2,12:3", {1: Std.ERR, 12: Std.ALL})],
)
def test_std_is_read_from_text(text: str, expected: object) -> None:
    """One value for all, or one per local rank, of any number of digits."""
    assert Std.from_str(text) == expected


@pytest.mark.parametrize("text", ["", "4", "x", "0:4", "a:1", "0:1,", "0:1;1:2", ":1", "-1:1"])
def test_other_texts_are_refused(text: str) -> None:
    """What is neither is refused with an example."""
    with pytest.raises(ValueError, match="for example 0:1,12:3"):
        Std.from_str(text)


def test_to_map_fills_missing_ranks_with_none() -> None:
    """A mapping leaves the ranks that it does not name alone."""
    assert to_map({1: Std.OUT, 9: Std.ALL}, 2) == {0: Std.NONE, 1: Std.OUT}
    assert to_map(Std.ERR, 2) == {0: Std.ERR, 1: Std.ERR}


def test_global_rank_and_round_name_the_directory(tmp_path: Path) -> None:
    """The directory is named by the round and the global rank, so that all nodes can share it."""
    envs = {0: {"RANK": "8", "HPC_ELASTIC_ROUND": "3"}, 1: {"RANK": "9", "HPC_ELASTIC_ROUND": "3"}}
    dest = DefaultLogsSpecs(str(tmp_path), Std.ALL).reify(envs)
    assert dest.stdouts == {i: f"{tmp_path}/attempt_3/{8 + i}/stdout.log" for i in (0, 1)}
    assert dest.error_files[1] == f"{tmp_path}/attempt_3/9/error.json"


def test_log_dir_is_made_at_once_unless_it_is_a_runs(tmp_path: Path) -> None:
    """Callers may rely on it; the directory of a run is made and checked as a whole."""
    DefaultLogsSpecs(str(tmp_path / "new" / "deep"))
    DefaultLogsSpecs(str(tmp_path / "run" / "logs"), is_of_run=True)
    assert (tmp_path / "new" / "deep").is_dir()
    assert not (tmp_path / "run").exists()


def test_what_nobody_has_written_goes_when_the_round_is_over(tmp_path: Path) -> None:
    """In a run's own directory, of the ranks that were named; a directory with anything in it stays."""
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL, is_of_run=True)
    dest = specs.reify({rank: {"HPC_ELASTIC_ROUND": "1"} for rank in range(4)})
    for rank in range(4):
        Path(dest.stdouts[rank]).write_text("said" if rank == 1 else "")
        Path(dest.stderrs[rank]).touch()
    Path(dest.error_files[2]).write_text("{}")
    specs.remove_empty(dest, [0, 1, 2])
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    first = "attempt_1"
    assert [
        f"{first}/1/stdout.log",
        f"{first}/2/error.json",
        f"{first}/3/stderr.log",
        f"{first}/3/stdout.log",
    ] == left
    assert not Path(tmp_path, first, "0").exists()
    specs.remove_empty(dest, [0, 1, 2])


def test_elsewhere_empty_files_stay(tmp_path: Path) -> None:
    """As torch's do, whose readers expect them."""
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL)
    dest = specs.reify({0: {}})
    Path(dest.stdouts[0]).touch()
    specs.remove_empty(dest, [0])
    assert Path(dest.stdouts[0]).exists()


def test_tee_implies_a_file(tmp_path: Path) -> None:
    """A teed stream goes to its file and is followed; the other stays on the console."""
    dest = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT).reify({0: {}})
    assert dest.stdouts == dest.tee_stdouts == {0: f"{tmp_path}/attempt_0/0/stdout.log"}
    assert (dest.stderrs, dest.tee_stderrs) == ({0: ""}, {})


def test_filtered_ranks_are_silent_on_the_console(tmp_path: Path) -> None:
    """Ranks that are not selected write their files, but nothing to the console."""
    dest = DefaultLogsSpecs(str(tmp_path), {1: Std.OUT}, {0: Std.OUT, 1: Std.OUT}, {0}).reify({0: {}, 1: {}})
    assert set(dest.tee_stdouts) == {0}
    assert (dest.stderrs[0], dest.stderrs[1]) == ("", os.devnull)
    assert dest.stdouts[1] == f"{tmp_path}/attempt_0/1/stdout.log"


def test_devnull_means_no_files() -> None:
    """With the null device as log directory there are no logs and no error files."""
    dest = DefaultLogsSpecs(os.devnull, Std.ALL, Std.ALL).reify({0: {}})
    assert (dest.stdouts[0], dest.error_files[0], dest.tee_stdouts) == (os.devnull, "", {})


def test_no_log_dir_means_a_temporary_one() -> None:
    """Without a log directory one is made when somebody asks for it."""
    specs = DefaultLogsSpecs()
    folder = specs.root_log_dir
    specs.reify({0: {}})
    assert os.path.isdir(f"{folder}/attempt_0/0")
    shutil.rmtree(folder)


def test_a_full_disk_is_no_mistake_in_the_log_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for a while ends no run for good: it is no error in what the user has given."""
    for number, kind in ((errno.ENOSPC, OSError), (errno.EACCES, InputError)):

        def refuse(path: str, _mode: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(logs, "make_directories", refuse)
        with pytest.raises(kind):
            DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))


def test_log_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    """A file in place of the directory gives an error with its path."""
    (tmp_path / "logs").write_text("")
    with pytest.raises(InputError, match="logs"):
        DefaultLogsSpecs(str(tmp_path / "logs")).reify({0: {}})


def test_set_aside_never_overwrites(tmp_path: Path) -> None:
    """Earlier files keep their content under the first free number."""
    for text in ("a", "b", "c"):
        set_aside(str(tmp_path / "error.json"))
        (tmp_path / "error.json").write_text(text)
    names = ("error.1.json", "error.2.json", "error.json")
    assert [(tmp_path / name).read_text() for name in names] == ["a", "b", "c"]


def test_prefix_template_knows_four_names() -> None:
    """All names of the template are filled in."""
    template = "${role_name}/${rank}.${local_rank}@${node}: "
    text = log_line_prefix(template, role_name="w", rank=9, local_rank=1, node="n3")
    assert text == "w/9.1@n3: "
    assert os.uname().nodename == log_line_prefix(
        "${hostname}", role_name="w", rank=9, local_rank=1, node="n3"
    )
    text = log_line_prefix("$rank ${unknown} $$", role_name="w", rank=9, local_rank=1, node="n3")
    assert text == "9 ${unknown} $"
