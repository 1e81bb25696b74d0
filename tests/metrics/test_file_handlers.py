"""Metrics as JSON lines and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hpc_elastic import metrics
from hpc_elastic.metrics import MetricData


class Scalar:
    """A number of an array library."""

    def item(self) -> float:
        """Return it as Python's."""
        return 2.5


DATA = [
    MetricData(1.5, "g", "a", 1),
    MetricData(2.0, 'odd,"group"', "näme", float("nan")),
    MetricData(3.0, "g", "a", Scalar()),
]


def test_json_lines(tmp_path: Path) -> None:
    """One JSON object per value; what JSON cannot say is null."""
    handler = metrics.JsonLinesMetricHandler(tmp_path)
    for data in DATA:
        handler.emit(data)
    handler.close()
    found = [
        json.loads(line, parse_constant=pytest.fail) for line in Path(handler.path).read_text().splitlines()
    ]
    assert ["timestamp", "group", "name", "value"] == list(found[0])
    assert [1, None, 2.5] == [one["value"] for one in found]
    assert ["g", 'odd,"group"', "g"] == [one["group"] for one in found]


def test_csv(tmp_path: Path) -> None:
    """One row per value, readable by Python's csv."""
    handler = metrics.CsvMetricHandler(tmp_path)
    for data in DATA:
        handler.emit(data)
    handler.close()
    with open(handler.path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert ["timestamp", "group", "name", "value"] == rows[0]
    assert [["1.5", "g", "a", "1"], ["2.0", 'odd,"group"', "näme", "nan"], ["3.0", "g", "a", "2.5"]] == rows[
        1:
    ]


def test_a_full_disk_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Metrics that cannot be written are dropped; it is told once."""
    handler = metrics.JsonLinesMetricHandler(tmp_path / "missing" / "too")
    for data in DATA:
        handler.emit(data)
    assert 1 == caplog.text.count("Metrics that cannot be written to")
