"""One process of a measure of scale: many nodes, one thread each.

    python -m bench_lib.scale_child ORDER       (ORDER: JSON of `Order`)

It says ``ready`` by a name in the control directory, starts when the name ``go`` appears there, says
``done`` when all its nodes have their places, keeps them alive until all processes are done, and
prints what its nodes did as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from bench_lib import torch_nodes
from bench_lib.meter import CountingStore, Meter
from bench_lib.scale_order import GO, Order
from bench_lib.turns import Turns

_STACK_BYTES = 1 << 18  # a thousand threads fit into a small client
_POLL_S = 0.002


class Node:
    """One node in its thread.

    Args:
        index: its number.
        rendezvous: takes it through the rendezvous.
        store: where its operations are counted, if they are.
        meter: counts its file-system calls.
        turns: shared with the other nodes of this process.
    """

    def __init__(
        self, index: int, rendezvous: Any, store: CountingStore | None, meter: Meter, turns: Turns
    ) -> None:
        self._index = index
        self._rendezvous = rendezvous
        self._store = store
        self._meter = meter
        self._turns = turns
        self.record: dict[str, Any] = {}
        self.placed = threading.Event()

    def live(self, start: Start) -> None:
        """Go through the rendezvous when it starts, and beat until the process ends."""
        start.go.wait()
        run = getattr(self._rendezvous, "run", None)  # torch's handlers do more by themselves
        if run is not None:
            self._turns.take()
        rank, error = -1, ""
        try:
            rank = self._rendezvous.next_rendezvous().rank
        except Exception as problem:  # noqa: BLE001 - told to whoever measures
            error = f"{type(problem).__name__}: {problem}"
        self.record = {
            "index": self._index,
            "rank": rank,
            "took_s": time.monotonic() - start.at_s,
            "cpu_s": time.thread_time(),
            "error": error,
            "operations": dict(self._store.operations) if self._store else {},
            "calls": dict(self._meter.calls(threading.get_ident())),
        }
        self.placed.set()
        while run is not None and not error:
            time.sleep(max(0.0, run.membership.next_beat_at() - time.monotonic()))
            run.tick()
        if run is not None:
            self._turns.give()


class Start:
    """The moment at which all nodes of a process start; monotonic time [s]."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.at_s = 0.0

    def now(self) -> None:
        """Let them start."""
        self.at_s = time.monotonic()
        self.go.set()


def main(argv: list[str]) -> int:
    """Run the nodes of this process and print what they did."""
    order = Order(*json.loads(argv[0]))
    meter = Meter(order.place, order.delay_s)
    turns = Turns()
    nodes = _make_nodes(order, meter, turns)
    turns.share_waiting()
    start = Start()
    threading.stack_size(_STACK_BYTES)
    for node in nodes:
        threading.Thread(target=node.live, args=(start,), daemon=True).start()
    if order.counted or order.delay_s:
        meter.install()
    _tell(order, "ready")
    while GO not in os.listdir(order.control):
        time.sleep(_POLL_S)
    start.now()
    for node in nodes:
        node.placed.wait()
    _tell(order, "done")
    while sum(name.startswith("done") for name in os.listdir(order.control)) < order.processes:
        time.sleep(_POLL_S)  # the others still need these nodes, or the store that they host
    print(json.dumps([node.record for node in nodes]), flush=True)
    os._exit(0)  # the threads need no farewell


def _tell(order: Order, what: str) -> None:
    with open(os.path.join(order.control, f"{what}{order.process}"), "x"):
        pass


def _make_nodes(order: Order, meter: Meter, turns: Turns) -> list[Node]:
    if order.system in ("tcp", "file"):
        handlers = [
            torch_nodes.make_rendezvous(order.system, order.place, order.nodes, index) for index in order.mine
        ]
        return [
            Node(index, handler, None, meter, turns)
            for index, handler in zip(order.mine, handlers, strict=True)
        ]
    from bench_lib.scale_nodes import World, make_rendezvous  # noqa: PLC0415 - torch's nodes need none of it
    from hpc_elastic.paths import RunPaths  # noqa: PLC0415
    from hpc_elastic.record.run_directory import prepare_run_dir  # noqa: PLC0415
    from hpc_elastic.store.shared_dir import SharedDirStore  # noqa: PLC0415

    world = World(RunPaths(order.place), order.nodes, order.system == "known")
    prepare_run_dir(world.paths)
    nodes = []
    for index in order.mine:
        store: Any = SharedDirStore(world.paths.root)
        counting = CountingStore(store) if order.counted else None
        nodes.append(Node(index, make_rendezvous(world, index, counting or store), counting, meter, turns))
    return nodes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
