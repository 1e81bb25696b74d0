"""Metrics for Prometheus."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.metrics import MetricData, PrometheusHttpHandler, PrometheusTextfileHandler
from hpc_elastic.testing.clock import FakeClock

WITHOUT_THE_PACKAGE = """
import sys
sys.modules["prometheus_client"] = None
from hpc_elastic import metrics
try:
    metrics.PrometheusHttpHandler(0)
except Exception as error:
    print(type(error).__name__, error)
"""


def data(name: str, value: float) -> MetricData:
    """Return a value of the group `train`."""
    return MetricData(1.0, "train", name, value)


def lines(text: str) -> list[str]:
    """Return the samples of an exposition, without times of creation."""
    return [line for line in text.splitlines() if not line.startswith("#") and "_created" not in line]


def test_a_textfile(tmp_path: Path, clock: FakeClock) -> None:
    """Calls are counted, other metrics show their last value, all with the labels."""
    handler = PrometheusTextfileHandler(tmp_path / "rank0.prom", labels={"rank": "0"}, clock=clock)
    for name, value in (("step.success", 1), ("step.success", 1), ("loss-mean", 4), ("loss-mean", 2.5)):
        handler.emit(data(name, value))
    handler.close()
    assert [
        'hpc_elastic_step_success_total{group="train",rank="0"} 2.0',
        'hpc_elastic_loss_mean{group="train",rank="0"} 2.5',
    ] == lines((tmp_path / "rank0.prom").read_text())
    assert ["rank0.prom"] == os.listdir(tmp_path)


def test_a_textfile_is_replaced_now_and_then(tmp_path: Path, clock: FakeClock) -> None:
    """Many values make one file per interval."""
    path = tmp_path / "a.prom"
    handler = PrometheusTextfileHandler(path, prefix="my", interval_s=5.0, clock=clock)
    seen = []
    for value in (1, 2, 3):
        handler.emit(data("a", value))
        seen += lines(path.read_text())
        clock.advance(2.5)
    handler.close()
    assert [f'my_a{{group="train"}} {value}' for value in ("1.0", "1.0", "3.0")] == seen


def test_a_textfile_needs_its_name(tmp_path: Path) -> None:
    """A file that node_exporter would not read is refused."""
    with pytest.raises(InputError, match=r"end the name with \.prom"):
        PrometheusTextfileHandler(tmp_path / "metrics.txt")


def test_a_full_disk_ends_no_training(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be replaced is told once."""
    handler = PrometheusTextfileHandler(tmp_path / "missing" / "a.prom", interval_s=0, clock=clock)
    handler.emit(data("a", 1))
    handler.emit(data("a", 2))
    handler.close()
    assert 1 == caplog.text.count("Metrics cannot be written to")


def test_http() -> None:
    """Whoever asks on this machine gets the values of now."""
    handler = PrometheusHttpHandler(0)
    try:
        handler.emit(data("a", 1))
        with urllib.request.urlopen(f"http://127.0.0.1:{handler.port}/metrics") as answer:
            assert ['hpc_elastic_a{group="train"} 1.0'] == lines(answer.read().decode())
    finally:
        handler.close()


def test_without_the_package_the_extra_is_named() -> None:
    """The error says what to install."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("InputError ")
    assert "pip install 'hpc-elastic[metrics]'" in done.stdout
