"""Publishing metrics to the handlers that were configured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpc_elastic import metrics
from hpc_elastic.clock import SystemClock
from hpc_elastic.metrics import MetricData, MetricHandler, api


class Kept(MetricHandler):
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.data: list[MetricData] = []

    def emit(self, metric_data: MetricData) -> None:
        """Keep it."""
        self.data.append(metric_data)

    def values(self) -> dict[str, object]:
        """Return the last values by name, without durations."""
        return {data.name: data.value for data in self.data if not data.name.endswith(".ms")}


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_router", api.MetricRouter())


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Return the handler of all groups."""
    handler = Kept()
    metrics.configure(handler)
    return handler  # type: ignore[return-value]


@metrics.prof
def profiled(fail: bool) -> str:
    """Do what was asked."""
    if fail:
        raise ValueError("asked to")
    return "done"


class Trainer:
    """A class with profiled methods."""

    @metrics.prof(group="training")
    def step(self) -> None:
        """Do nothing."""


def test_a_group_has_its_own_handler(kept: Kept) -> None:
    """A group's handler goes before the one of all groups."""
    own = Kept()
    metrics.configure(own, group="own")
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "own")
    assert [("torchelastic", "a", 1)] == [data[1:] for data in kept.data]
    assert [("own", "b", 2)] == [data[1:] for data in own.data]


def test_metrics_are_dropped_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a handler nothing is printed."""
    metrics.put_metric("a", 1)
    assert ("", "") == capsys.readouterr()


def test_a_value_has_the_time_of_now(kept: Kept) -> None:
    """The timestamp is wall time in seconds."""
    before = SystemClock().wall()
    metrics.put_metric("a", 1)
    assert before <= kept.data[0].timestamp <= SystemClock().wall()


def test_the_console_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The console shows time, group, name and value."""
    metrics.ConsoleMetricHandler().emit(MetricData(1574213883.4182858, "my_app", "my_metric", 5))
    assert "[1574213883.4182858][my_app]: my_metric=5\n" == capsys.readouterr().out


def test_older_spellings_are_the_same() -> None:
    """Documents of torchelastic spell two handlers in another way."""
    assert metrics.NullMetricsHandler is metrics.NullMetricHandler
    assert metrics.ConsoleMetricsHandler is metrics.ConsoleMetricHandler


@pytest.mark.parametrize(("fail", "word"), [(False, "success"), (True, "failure")])
def test_calls_are_counted_and_timed(kept: Kept, fail: bool, word: str) -> None:
    """A call publishes its end and its duration, named for module and function."""
    try:
        profiled(fail)
    except ValueError:
        assert fail
    names = [data.name for data in kept.data]
    assert [f"test_api.profiled.{word}", "test_api.profiled.duration.ms"] == names
    assert isinstance(kept.data[1].value, int)


def test_a_method_is_named_for_its_class(kept: Kept) -> None:
    """The name is class and method; the group is the chosen one."""
    Trainer().step()
    assert ("training", "Trainer.step.success", 1) == kept.data[0][1:]


def test_an_interrupt_is_neither(kept: Kept) -> None:
    """Ctrl-C in a profiled function counts as no success and no failure."""

    @metrics.prof
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ({}, 1) == (kept.values(), len(kept.data))


def test_old_names_still_work_and_say_so(kept: Kept) -> None:
    """Deprecated functions warn, at the place that uses them."""
    with pytest.warns(FutureWarning, match="put_metric") as warned:
        metrics.publish_metric("group", "a", 1)
    with pytest.warns(FutureWarning, match="@prof"):
        decorate = metrics.profile("group")
    decorate(len)("abc")
    assert {"a": 1, "len.success": 1} == kept.values()
    assert [__file__] == [one.filename for one in warned]


def test_an_error_of_a_handler_is_the_callers() -> None:
    """What a user's handler raises is not hidden."""

    class Broken(MetricHandler):
        def emit(self, metric_data: MetricData) -> None:
            raise RuntimeError(metric_data.name)

    metrics.configure(Broken(), "group")
    with pytest.raises(RuntimeError, match="my_metric"):
        metrics.put_metric("my_metric", 1, "group")


def test_unknown_names_are_no_attributes() -> None:
    """The package does not pretend to have what it has not."""
    with pytest.raises(AttributeError, match="no attribute 'StatsdHandler'"):
        _ = metrics.StatsdHandler
