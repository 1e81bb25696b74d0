"""One node's watch over real processes that only wait, with a clock that the test moves.

What the workers show in their channels, what other nodes record and write down, and how much time passes: all
of that the test says.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hpc_elastic.multiprocessing.context import StartSettings
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.node.decision import Group, Hang
from hpc_elastic.node.hangs.activity import ActivityWatch
from hpc_elastic.node.hangs.groups import Frame, RankLook
from hpc_elastic.node.hangs.hangs import Hangs
from hpc_elastic.node.hangs.look import FORMAT
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.agent_setup import AgentParts, AgentTimes, SignalMeanings
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.workers.local_group import Command, LocalGroup
from hpc_elastic.node.workers.worker_env import RunEnv
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import AfterDrain, HangSuspected, RoundFormed
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, member, node_id, start
from tests.meet.one_node import node_maker

TEN = HangOptions(timeout=10.0)
RANKS = 2  # on this node, n1; n2 has rank 2
MUCH_MB = 16  # what a worker that hangs does not move between two looks
FORMED = RoundFormed(1, E0, (member("n1", RANKS), member("n2")), "127.0.0.1", 29_000, None)
IN_FETCH = (Frame("fetch", "/n/train.py", "3"),)


class World(NamedTuple):
    """A node with two workers in a round of three, and what it tells.

    Attributes:
        hangs: its watch.
        group: its workers.
        parts: what its agent is put together from.
        clock: of the node.
        log: the file with what it says.
        activity: of workers that tell no steps, where that has a limit.
    """

    hangs: Hangs
    group: LocalGroup
    parts: AgentParts
    clock: FakeClock
    log: Path
    activity: ActivityWatch | None = None

    @property
    def said(self) -> str:
        """What the node has said."""
        return self.log.read_text()

    @property
    def run_directory(self) -> Path:
        """The run directory."""
        return Path(self.parts.paths.root)

    def tick(self, *ranks: int) -> None:
        """Have workers make a step."""
        for rank in ranks:
            channel = self.group.channels[rank]
            channel.tick((channel.last_step or 0) + 1)

    def feed(self, rank: int) -> None:
        """Have a worker read much data, and go on waiting."""
        writer = os.open(f"{self.parts.scratch}/pipe.{rank}", os.O_WRONLY)
        for _ in range(MUCH_MB + 1):
            os.write(writer, bytes(1 << 20))

    def look(self, *, counts: bool = True, status: Group = Group.RUNNING) -> Hang:
        """Look at the workers once."""
        if self.activity is not None:
            self.activity.look(self.clock.monotonic())
        return self.hangs.look(status, counts=counts)

    def watch(self, seconds: int, *alive: int) -> Hang:
        """Look each second while some ranks go on; return the first finding, NONE if there is none."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.tick(*alive)
            found = self.look()
            if found is not Hang.NONE:
                return found
        return Hang.NONE

    def ask(self, seconds: int, *alive: int) -> None:
        """Watch until the node suspects a hang, and have it ask for a look."""
        assert self.watch(seconds, *alive) is Hang.SUSPECTED
        self.hangs.ask()

    @property
    def asked(self) -> HangSuspected | None:
        """The newest look that was asked for."""
        return self.parts.rendezvous.run.state.hang

    def other_asks(self, look: int = 1) -> None:
        """Record that the other node asks for a look."""
        self.parts.rendezvous.run.commit(HangSuspected(1, look, "n2", "rank 2: no progress"))

    def directory(self, look: int = 1) -> Path:
        """Return where a look is written down."""
        return Path(self.parts.paths.hang_logs(1, look))

    def other_writes(self, look: int = 1, frames: tuple[Frame, ...] = IN_FETCH, state: str = "S") -> None:
        """Write down where the other node's rank is."""
        self.directory(look).mkdir(parents=True, exist_ok=True)
        one = RankLook(rank=2, node="n2", step=1, frames=frames, state=state, doing="asleep")
        text = json.dumps({"format": FORMAT, "node": "n2", "ranks": [one.to_json()]})
        (self.directory(look) / "n2.json").write_text(text)


MakeWorld = Callable[..., World]


def make_world(tmp_path: Path, options: HangOptions, path: str = "/nowhere") -> World:
    """Start the workers of a node and the watch over them; programs are looked for in `path`."""
    clock, paths = FakeClock(), RunPaths(tmp_path / "run")
    rendezvous = node_maker(MemoryStore(), clock)("n1")
    rendezvous.run.commit(start(E0, ("n1", "n2")))
    rendezvous.run.commit(FORMED)
    log, scratch = tmp_path / "said", tmp_path / "scratch"
    scratch.mkdir()
    pipe = scratch / "pipe"
    for local_rank in range(RANKS):
        os.mkfifo(f"{pipe}.{local_rank}")
    parts = AgentParts(
        clock=clock,
        loop=EventLoop(clock),
        log=AgentLog(clock, "n1", [os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)]),
        rendezvous=rendezvous,
        command=Command(
            "wait", ("cat", f"{pipe}.${{local_rank}}"), DefaultLogsSpecs(str(tmp_path / "logs")), ""
        ),
        run=RunEnv("run", str(paths.root), "n1", 0),
        start=StartSettings(),
        paths=paths,
        scratch=str(scratch),
        times=AgentTimes(),
        signals=SignalMeanings(),
        on_timeout=AfterDrain.LEAVE,
        hangs=options,
        environ={"PATH": path},
    )
    group = LocalGroup(FORMED, node_id("n1"), str(scratch), parts.run, parts.start)
    group.start(parts.command, restarts=0)
    now = clock.monotonic()
    activity = ActivityWatch(parts, group, now) if options.silence < math.inf else None
    return World(Hangs(rendezvous.run, parts, group, now, activity), group, parts, clock, log, activity)
