"""What the agents of a run cost the file system while nothing happens."""

from __future__ import annotations

import heapq
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from bench_lib.group import Group
from bench_lib.launchers import HPC_ELASTIC, Shape
from bench_lib.meter import CountingStore, Meter
from bench_lib.scale_measures import Scale
from bench_lib.series import Series

_SETTLE_LEASES = 4  # simulated time before counting begins
_SETTLE_S = 2.0
_MEASURE = "steady-ops"


class Counts(NamedTuple):
    """What all nodes did in a span of simulated time; one value per node.

    Attributes:
        operations: operations of the store.
        calls: file-system calls below them.
        names: names that its listings of members returned.
    """

    operations: list[int]
    calls: list[int]
    names: list[int]


def steady_operations(scale: Scale) -> Iterator[Series]:
    """Operations per node and second while a round runs and nothing happens, by simulated time."""
    per_node = {
        (what, who): Series(_MEASURE, f"{text} per node and second", who, "simulated time")
        for what, text in (("operations", "store operations"), ("calls", "file-system calls"))
        for who in ("mean", "busiest node")
    }
    listed = Series(_MEASURE, "names listed per second by all nodes together", "sum", "simulated time")
    span_s = scale.effort.span_s
    with tempfile.TemporaryDirectory(prefix="bench-") as root:
        meter = _Metered(os.path.join(root, ""))
        for size in scale.effort.steady_sizes:
            scale.say(f"{_MEASURE}: {size} nodes ...")
            counts = _watch_members(meter, os.path.join(root, str(size)), size, span_s)
            for what in ("operations", "calls"):
                values: list[int] = getattr(counts, what)
                per_node[what, "mean"].add(size, statistics.mean(values) / span_s)
                per_node[what, "busiest node"].add(size, max(values) / span_s)
            listed.add(size, sum(counts.names) / span_s)
    yield from (*per_node.values(), listed)
    yield from real_agent(scale)


class _Metered:
    """A meter that books every call on the node whose turn it is."""

    def __init__(self, root: str) -> None:
        self.node = -1
        self.meter = Meter(root, key=lambda: self.node)
        self.meter.install()


def _watch_members(metered: _Metered, root: str, size: int, span_s: float) -> Counts:
    """Have a round of nodes live for a while by a clock that only ever jumps to the next heartbeat."""
    from bench_lib.scale_nodes import World, make_round, make_run  # noqa: PLC0415
    from hpc_elastic.paths import RunPaths  # noqa: PLC0415 - the launchers are measured without it
    from hpc_elastic.record.run_directory import prepare_run_dir  # noqa: PLC0415
    from hpc_elastic.store.shared_dir import SharedDirStore  # noqa: PLC0415
    from hpc_elastic.testing.clock import FakeClock  # noqa: PLC0415

    world = World(RunPaths(root), size, known=True)
    prepare_run_dir(world.paths)
    clock = FakeClock()
    stores = [CountingStore(SharedDirStore(root)) for _ in range(size)]
    runs = [make_run(world, index, stores[index], clock) for index in range(size)]
    settings = runs[0].settings
    formed = make_round(world)
    runs[0].announce()
    runs[0].publish_round(formed)
    for run in runs:  # nodes do not beat in step
        run.refresh()
        run.take_place(formed)
        clock.advance(settings.heartbeat_interval / size)

    beats = [(run.membership.next_beat_at(), index) for index, run in enumerate(runs)]
    heapq.heapify(beats)

    def live(seconds: float) -> None:
        until = clock.monotonic() + seconds
        while beats[0][0] < until:
            at, index = beats[0]
            clock.advance(max(0.0, at - clock.monotonic()))
            metered.node = index
            runs[index].tick()
            heapq.heapreplace(beats, (runs[index].membership.next_beat_at(), index))

    live(_SETTLE_LEASES * settings.lease)
    metered.meter.clear()
    for store in stores:
        store.clear()
    live(span_s)
    if runs[0].refresh().running != formed:
        raise RuntimeError("the round did not last: " + str(runs[0].state.ended))
    return Counts(
        operations=[store.operations.total() for store in stores],
        calls=[metered.meter.calls(index).total() for index in range(size)],
        names=[store.names_listed for store in stores],
    )


_KINDS = {  # what is counted -> the calls that belong to it
    "all calls that name a file, and listings": r"\w+",
    "  opened": r"open\w*",
    "  listed (getdents64)": "getdents64",
    "  renamed": r"rename\w*",
}


def real_agent(scale: Scale) -> Iterator[Series]:
    """File-system calls per second of a real agent of two whose worker sleeps, as strace sees them."""
    if shutil.which("strace") is None:
        scale.failures.append("strace is not installed here: the calls of a real agent are not counted")
        return
    scale.say(f"{_MEASURE}: a real agent under strace ...")
    lines = {
        kind: Series(_MEASURE, "calls per second of a real agent, by strace", kind, "local disk")
        for kind in _KINDS
    }
    with Group(HPC_ELASTIC, Shape(agents=2, workers=1)) as group:
        group.wait_for_workers()
        time.sleep(_SETTLE_S)
        for agent in group.agents:
            calls, took_s = _traced(agent.pid, scale.effort.watch_s)
            for kind, pattern in _KINDS.items():
                count = sum(number for call, number in calls.items() if re.fullmatch(pattern, call))
                lines[kind].add(2, count / took_s)
    yield from lines.values()


def _traced(pid: int, seconds: float) -> tuple[Counter[str], float]:
    """Return the calls of a process in so many seconds, and how long they really were."""
    with tempfile.NamedTemporaryFile(mode="r") as trace:
        argv = ["strace", "-qq", "-f", "-e", "trace=%file,getdents64,fsync", "-o", trace.name, "-p", str(pid)]
        tracer = subprocess.Popen(argv)
        began_s = time.monotonic()
        time.sleep(seconds)
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        took_s = time.monotonic() - began_s
        return Counter(re.findall(r"^(?:\d+ +)?(\w+)(?=\()", trace.read(), flags=re.MULTILINE)), took_s
