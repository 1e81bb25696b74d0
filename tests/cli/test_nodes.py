"""`hpc-elastic nodes`: the table, pardons and suspicions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli.app import run
from hpc_elastic.cli.commands.site.nodes import place_of
from hpc_elastic.clock import SystemClock
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.node_ledger import place_for, read_ledger, remember
from tests.slurm.forms import write_program


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a project with a node that was lost; there is no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HPC_ELASTIC_LEDGER", raising=False)
    runs = tmp_path / "hpc_elastic_runs"
    runs.mkdir()
    lost = NodeEvent("n2", Fault.NODE_LOSS, SystemClock().wall(), "run-3", "train-1", "vanished in round 2")
    remember(place_for(str(runs / "train-1")), [lost])
    return tmp_path


def table(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of the table without its head."""
    assert 0 == run(["nodes"])
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines[1:] if not line.startswith(("remembered", "next:"))]


def test_the_table(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Node, score, state, last event, when, which run and why; then where this is kept and what to do."""
    assert 0 == run(["nodes"])
    head, row, place, after = capsys.readouterr().out.splitlines()
    assert ["NODE", "SCORE", "STATE", "LAST", "WHEN", "RUN", "WHY"] == head.split()
    assert ["n2", "1.00", "suspect", "node_loss"] == row.split()[:4]
    assert row.endswith("train-1  vanished in round 2")
    assert f"remembered in {project}/hpc_elastic_runs/.hpc_elastic/nodes" == place
    assert "next: hpc-elastic nodes forgive n2, once it has been mended" == after


def test_a_forgiven_node_is_sound(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its score is nothing, and the pardon is its last event."""
    assert 0 == run(["nodes", "forgive", "n2", "--reason", "new cable"])
    assert "n2 counts as sound from now on\n" == capsys.readouterr().out
    assert ["n2", "0.00", "ok", "forgiven"] == table(capsys)[0].split()[:4]


def test_of_a_list_of_nodes_those_are_forgiven_that_need_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever forgives a rack need not know which of its nodes had failed."""
    assert 0 == run(["nodes", "forgive", "n[1-3]"])
    shown = "nothing is held against n1, n3\nn2 counts as sound from now on\n"
    assert shown == capsys.readouterr().out
    assert ["n2"] == [row.split()[0] for row in table(capsys)]


def test_a_node_can_be_suspected(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also several at once; the reason is kept."""
    assert 0 == run(["nodes", "suspect", "gpu[01-02]", "n7", "--reason", "slow links"])
    capsys.readouterr()
    rows = [line.split() for line in table(capsys)]
    assert ["gpu01", "gpu02", "n7", "n2"] == [row[0] for row in rows]
    assert [["4.00", "suspect", "suspected"]] * 3 == [row[1:4] for row in rows[:3]]


def test_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: numbers and times as they are."""
    assert 0 == run(["nodes", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (1, "nodes", []) == (found["format"], found["kind"], found["damaged"])
    (node,) = found["nodes"]
    assert ("n2", "suspect", [], 1) == (node["node"], node["state"], node["excluded_by"], node["events"])
    assert ("node_loss", "train-1") == (node["last"]["event"], node["last"]["run"])
    assert node["suspect_until"] > node["last"]["at"]


def test_nodes_that_jobs_do_without(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node on the list of one of the user's jobs is excluded."""
    write_program(project / "squeue", [{"i": "17", "x": "n[1-2]"}, {"i": "18_3", "x": "(null)"}])
    os.environ["PATH"] += ":/bin:/usr/bin"
    assert ["n2", "1.00", "excluded"] == table(capsys)[0].split()[:3]


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (["pardon", "n2"], "'pardon' is neither forgive nor suspect", "hpc-elastic nodes forgive HOST"),
        (["forgive"], "no node is named", "hpc-elastic nodes forgive HOST"),
        (["forgive", "n8"], "nothing is held against n8", "hpc-elastic nodes"),
        (["suspect", "n8"], "it has no reason", "--reason"),
        (["suspect", "../n8", "--reason", "x"], "'../n8' names no node", "node[1-3]"),
        (["suspect", "n[8", "--reason", "x"], "brackets do not match", "node[1-3,7]"),
        (["--project", "nowhere"], "the directory nowhere does not exist", "holds the runs"),
    ],
)
def test_mistakes(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str, fix: str
) -> None:
    """One error that says what, where and what to do; nothing is written."""
    assert 2 == run(["nodes", *words])
    shown = capsys.readouterr().err
    assert message in shown
    assert fix in shown.partition("fix: ")[2]
    assert 1 == len(read_ledger(place_for(str(project / "hpc_elastic_runs" / "x"))).events)


def test_damaged_records_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are shown."""
    place = Path(place_for(str(project / "hpc_elastic_runs" / "x")))
    (place / f"{int(SystemClock().wall())}.n3.unfit.x.json").write_text("{")
    assert 0 == run(["nodes"])
    assert ".n3.unfit.x.json" in capsys.readouterr().out.partition("damaged: ")[2]


def test_nothing_to_show(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where no run was ever."""
    (project / "empty").mkdir()
    assert 0 == run(["nodes", "--project", "empty"])
    assert capsys.readouterr().out.startswith("no node has failed of late\n")


def test_where_nodes_are_remembered(project: Path) -> None:
    """By the directory of the runs, one of the runs, or the environment."""
    runs = project / "hpc_elastic_runs"
    mine = str(runs / ".hpc_elastic" / "nodes")
    (runs / "train-1" / "journal").mkdir(parents=True)
    for given in (None, str(project), str(runs), str(runs / "train-1")):
        assert mine == place_of(given, None)
    assert "/elsewhere" == place_of(None, "/elsewhere")
    assert mine == place_of(str(project), "/elsewhere")
