"""Workers that make no progress: notices them, has all nodes look, and says which ranks it is.

Only workers that tick are watched. When one has been silent for too long its agent asks for a look, by a
record in the journal; each node then writes the stacks of its ranks into the run directory, and the
one that asked puts all together. The run's own measurements are never enough: a rank that is somewhere
else at a second look is alive.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.decision import Group, Hang
from hpc_elastic.node.hangs.watch import HangWatch, Sign, Silence, is_still, silence_text
from hpc_elastic.node.setup.hang_times import QUIET, START, Length, Lengths, decode, encode, is_worth_writing
from hpc_elastic.node.workers import process_facts
from hpc_elastic.processes.control_group import read_memory
from hpc_elastic.store import files
from hpc_elastic.typed_json import parse
from hpc_elastic.worker.channel import Channel, Section

if TYPE_CHECKING:
    from hpc_elastic.meet.shared_run import SharedRun
    from hpc_elastic.node.hangs.activity import ActivityWatch
    from hpc_elastic.node.hangs.groups import RankLook
    from hpc_elastic.node.hangs.look import Evidence, HangVerdict, Look
    from hpc_elastic.node.setup.agent_setup import AgentParts
    from hpc_elastic.node.workers.local_group import LocalGroup
    from hpc_elastic.node.workers.process_facts import Usage
    from hpc_elastic.record.journal import HangSuspected, RoundFormed


_MOST_OTHERS = 4  # files of other nodes that are tried

_GATHER_S = 15.0  # for the other nodes to hear of it and to look
_LEAVE_S = 45.0  # for the node that asked to report its findings, before another one asks
_PAUSE_S = 0.1  # between two turns during a look
_NOTE_S = 0.5  # a worker with a sign of life so lately is not silent
_BETWEEN_WRITES_S = 60.0
_LEAST_GAP_S = 1.0
_UNNUMBERED = -1  # of a critical section: sections are numbered from 1
_BEATS = 3.0  # a turn that comes so many heartbeats late was held up


class _Asked(NamedTuple):
    """A look that this node or another one has asked for, and this one has taken."""

    record: HangSuspected
    at: float  # when it was seen here [s]


class Hangs:
    """The watch of one node over its workers in one round.

    Args:
        run: to agree with the other nodes.
        parts: the agent's parts.
        group: the workers.
        started: when they were started, by the monotonic clock [s].
        activity: of workers that tell no steps, where that is watched.
    """

    def __init__(
        self,
        run: SharedRun,
        parts: AgentParts,
        group: LocalGroup,
        started: float,
        activity: ActivityWatch | None = None,
    ) -> None:
        self._activity = activity
        self._run = run
        self._parts = parts
        self._group = group
        self._options = parts.hangs
        self._known = read_lengths(parts.paths.timeouts, parts.run.node)
        least_gap_s = max(_LEAST_GAP_S, _BEATS * run.settings.heartbeat_interval)
        self._watch = HangWatch(self._options, *self._known, started, least_gap_s)
        self._written = self._known[0]
        self._write_at = started + _BETWEEN_WRITES_S
        self._usage: dict[int, tuple[Sign, Usage | None]] = {}  # by local rank, with the sign before it
        self._look: Look | None = None
        self._asked: _Asked | None = None
        self._suspects: tuple[tuple[Silence, Sign], ...] = ()  # why this node asks
        self._since = started  # the last sign of life of the one that has been silent for longest
        self._gathered: dict[str, tuple[RankLook, ...]] = {}  # of the newest look, by node
        self._first: dict[int, RankLook] = {}  # findings of a first look, by rank
        self._again_at = math.inf
        self._is_told = False
        self._verdict: HangVerdict | None = None

    @property
    def detail(self) -> str:
        """Why this node asks for a look, in words."""
        silences = [silence for silence, _ in self._suspects]
        ranks = ", ".join(str(self._rank(silence)) for silence in silences)
        return f"rank{'s' if len(silences) > 1 else ''} {ranks}: {self._why}"

    @property
    def _why(self) -> str:
        """The defect of the first one of the suspects, in words."""
        return silence_text(self._suspects[0][0])

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep [s]."""
        is_busy = self._look is not None or self._is_judging()
        return _PAUSE_S if is_busy else math.inf

    def look(self, status: Group, *, counts: bool) -> Hang:
        """Look at the workers; never blocks.

        Args:
            status: of the workers.
            counts: whether time counts: they were not asked to stop, and this node sees the others.
        """
        now, state = self._now(), self._run.state
        running = state.running
        is_on = running is not None and running.number == self._group.formed.number
        if not (counts and is_on and status is Group.RUNNING) or state.drain is not None or state.leaving:
            self._drop(now)
            return Hang.NONE
        self._look_at_stopped()
        silences = self._watch.check(self._signs(), now)
        if self._activity is not None:
            silences += self._activity.silences(now)
        self._note_usage(now)
        if state.hang is not None and (self._asked is None or state.hang.look > self._asked.record.look):
            self._begin(state.hang, now)
        if self._look is not None and self._look.is_complete(now):
            self._finish(self._look, now)
        if self._is_judging():
            return self._judge(now)
        self._keep(now)
        return self._suspicion(silences, now)

    def ask(self) -> None:
        """Have all nodes look."""
        self._parts.log.say(f"{self.detail}: all nodes write down where their ranks are")
        self._run.suspect_hang(self._group.formed.number, self.detail)

    def report(self) -> None:
        """End the round for the verdict."""
        verdict = self._verdict
        if verdict is not None:
            self._parts.log.say(f"the workers hang: {verdict.failure.message}")
            silent_s = round(self._now() - self._since, 1)
            failure = {**verdict.failure.to_json(), "step": verdict.step, "silent_s": silent_s}
            self._run.report_hang(self._group.formed.number, verdict.nodes, failure)

    def close(self) -> None:
        """Keep the measurements; the round is over."""
        self._drop(self._now())
        if is_worth_writing(self._watch.lengths, self._written):
            self._write()

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _signs(self) -> dict[int, Sign]:
        return {
            local_rank: _sign_of(channel, self._watch.sign(local_rank))
            for local_rank, channel in enumerate(self._group.channels)
        }

    def _note_usage(self, now: float) -> None:
        """Remember the CPU time of a worker that begins to be silent for long."""
        for local_rank in range(len(self._group.channels)):
            if now - self._watch.since(local_rank) < _NOTE_S:
                continue
            sign = self._watch.sign(local_rank)
            known = self._usage.get(local_rank)
            if known is not None and known[0] != sign:
                del self._usage[local_rank]
            elif known is None and self._watch.is_half_over(local_rank, now):
                self._usage[local_rank] = sign, process_facts.usage(self._pid(local_rank), now)

    def _pid(self, local_rank: int) -> int:
        """Return the process that ticks, else the one that was started."""
        return self._group.channels[local_rank].pid or self._group.context.pids()[local_rank]

    def _suspicion(self, silences: Sequence[Silence], now: float) -> Hang:
        """Tell whether this node has a reason to ask for a look."""
        asked = self._asked
        if asked is not None and asked.record.node != self._parts.run.node and now - asked.at < _LEAVE_S:
            return Hang.NONE
        if now >= self._again_at:
            self._again_at = math.inf
            if self._are_still_silent():
                return Hang.SUSPECTED
            self._first = {}
        ended = self._group.context.exit_codes() if silences else {}
        living = [silence for silence in silences if silence.local_rank not in ended]
        stopped = [silence for silence in living if self._is_stopped(silence.local_rank)]
        if stopped:
            self._forgive(now)
            self._tell_once(f"{self._ranks(stopped)} stopped (SIGSTOP): that time does not count")
            self._report_stopped(self._parts.run.node, [self._rank(silence) for silence in stopped])
            return Hang.NONE
        if not living or self._again_at < math.inf:
            return Hang.NONE
        self._first = {}
        self._since = now - max(silence.seconds for silence in living)
        self._suspects = tuple((silence, self._watch.sign(silence.local_rank)) for silence in living)
        return Hang.SUSPECTED

    def _is_stopped(self, local_rank: int) -> bool:
        return process_facts.facts_of(self._pid(local_rank)).is_stopped

    def _report_stopped(self, node: str, ranks: Iterable[int]) -> None:
        self._run.report_stopped(self._group.formed.number, node, tuple(sorted(ranks)))

    def _look_at_stopped(self) -> None:
        """Tell of this node's ranks on record as stopped which of them are so still."""
        node, base = self._parts.run.node, self._group.place.base_rank
        known = self._run.state.stopped_ranks.get(node, ())
        if known:
            self._report_stopped(node, [rank for rank in known if self._is_stopped(rank - base)])

    def _tell_once(self, text: str) -> None:
        if not self._is_told:
            self._parts.log.say(text)
        self._is_told = True

    # the look

    def _begin(self, record: HangSuspected, now: float) -> None:
        """Have the workers write down where they are."""
        from hpc_elastic.node.hangs.look import Look, LookPlace, Subject  # noqa: PLC0415 - rare

        self._drop_look()
        self._asked, self._gathered = _Asked(record, now), {}
        place, group = self._group.place, self._group
        logs = group.context.stderrs
        subjects = [
            Subject(
                place.base_rank + local_rank,
                local_rank,
                pid,
                group.channels[local_rank],
                self._watch.sign(local_rank),
                self._silence_s(local_rank, now),
                self._usage.get(local_rank, (None, None))[1],
                logs.get(local_rank, ""),
            )
            for local_rank, pid in sorted(group.context.pids().items())
        ]
        parts = self._parts
        where = LookPlace(
            parts.run.node, self._directory(record), parts.scratch, parts.environ, read_memory()
        )
        self._look = Look(where, subjects, now)
        self._watch.suspected_in_vain(now)  # until the contrary is proven

    def _finish(self, look: Look, now: float) -> None:
        self._look = None
        try:
            look.write(now)
        except OSError as error:
            self._parts.log.say(f"the stacks of the workers cannot be written down: {error}")

    def _directory(self, record: HangSuspected) -> str:
        return self._parts.paths.hang_logs(record.number, record.look)

    def _drop_look(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look = None

    def _drop(self, now: float) -> None:
        """Forget all suspicions: the time up to now does not count."""
        self._drop_look()
        self._suspects, self._first, self._again_at = (), {}, math.inf
        self._forgive(now)

    def _forgive(self, now: float) -> None:
        self._watch.forgive(now)
        if self._activity is not None:
            self._activity.forgive(now)

    # the verdict

    def _is_judging(self) -> bool:
        """Tell whether this node reports the result of the newest look."""
        asked = self._asked
        mine = asked is not None and asked.record.node == self._parts.run.node
        return mine and bool(self._suspects) and self._again_at == math.inf and self._verdict is None

    def _judge(self, now: float) -> Hang:
        from hpc_elastic.node.hangs import look as hang_verdict  # noqa: PLC0415 - rare

        asked, running = self._asked, self._run.state.running
        if asked is None or running is None:
            return Hang.NONE
        nodes = self._nodes_with_workers(running)
        evidence = hang_verdict.gather(self._directory(asked.record), nodes, self._gathered)
        if evidence.missing and now - asked.at < _GATHER_S:
            return Hang.NONE
        suspects = {self._rank(silence) for silence, _ in self._suspects}
        stopped = hang_verdict.stopped(evidence)
        moved = hang_verdict.has_moved(evidence, self._first, suspects)
        if stopped or moved or not self._are_still_silent():
            self._acquit(stopped, now)
            return Hang.NONE
        if self._is_to_look_again(evidence, now):
            return Hang.NONE
        case = hang_verdict.Case(self._parts.run.node, self._why, suspects)
        self._verdict = hang_verdict.judge(case, evidence, self._parts.clock.wall())
        return Hang.PROVEN

    def _nodes_with_workers(self, running: RoundFormed) -> list[str]:
        """Return the nodes that are to write down where their workers are."""
        working = set(self._run.working_members(running))
        return [member.node for member in running.members if member.node_id in working]

    def _are_still_silent(self) -> bool:
        return any(self._is_still(one, before) for one, before in self._suspects)

    def _is_still(self, one: Silence, before: Sign) -> bool:
        if one.kind == QUIET:
            return self._activity is not None and self._activity.is_silent(one.local_rank, self._now())
        return is_still(one, before, self._watch.sign(one.local_rank))

    def _silence_s(self, local_rank: int, now: float) -> float:
        """Return for how long a worker has shown no sign of life [s]."""
        silence_s = self._watch.silence_s(local_rank, now)
        if self._activity is None or self._watch.sign(local_rank).ticks:
            return silence_s
        return min(silence_s, self._activity.silence_s(local_rank, now))

    def _acquit(self, stopped: Sequence[RankLook], now: float) -> None:
        """Take the suspicion back, and say so."""
        from hpc_elastic.node.hangs.look import stopped_text  # noqa: PLC0415 - rare

        self._suspects, self._first = (), {}
        if stopped:
            self._forgive(now)
            self._tell_once(stopped_text(stopped))
            for node in sorted({look.node for look in stopped}):
                self._report_stopped(node, [look.rank for look in stopped if look.node == node])
        else:
            self._parts.log.say("the workers go on: no hang")

    def _is_to_look_again(self, evidence: Evidence, now: float) -> bool:
        """Tell whether only a second look is enough: the user has given no limit."""
        is_first = not self._first
        if not is_first or not all(self._is_learned(silence) for silence, _ in self._suspects):
            return False
        self._first = {look.rank: look for look in evidence.looks}
        self._again_at = now + self._options.recheck
        self._parts.log.say(f"{self.detail}; a second look follows in {self._options.recheck:g} s")
        return bool(self._first)

    def _is_learned(self, silence: Silence) -> bool:
        if silence.kind == QUIET:
            return False
        given = self._options.first_step if silence.kind == START else self._options.timeout
        return silence.section is None and given is None

    # words

    def _rank(self, silence: Silence) -> int:
        return self._group.place.base_rank + silence.local_rank

    def _ranks(self, silences: Sequence[Silence]) -> str:
        ranks = ", ".join(str(self._rank(silence)) for silence in silences)
        return f"rank {ranks} is" if len(silences) == 1 else f"ranks {ranks} are"

    # the measured times

    def _keep(self, now: float) -> None:
        """Write the measurements, now and then."""
        if now >= self._write_at and is_worth_writing(self._watch.lengths, self._written):
            self._write_at = now + _BETWEEN_WRITES_S
            self._write()

    def _write(self) -> None:
        lengths = self._watch.lengths
        if write_lengths(self._parts.paths.timeouts, self._parts.run.node, lengths, self._watch.ticking):
            self._written = dict(lengths)


def _sign_of(channel: Channel, before: Sign) -> Sign:
    """Return the signs of a channel; a critical section counts as a section."""
    ticks, count = channel.pulse
    if count == before.section_count:
        return before if ticks == before.ticks else Sign(ticks, count, channel.last_step, before.sections)
    critical = channel.critical
    inside = (Section(_UNNUMBERED, critical.name, None),) if critical else ()
    return Sign(ticks, count, channel.last_step, (*channel.sections, *inside))


def read_lengths(directory: str, node: str) -> tuple[dict[str, Length], tuple[int, ...]]:
    """Return the measurements, and the local ranks that tick; nothing where nothing can be read."""
    own = f"{node}.json"
    try:
        names = files.list_names(directory)
        for name in [own] if own in names else names[:_MOST_OTHERS]:
            lengths, ticking = decode(parse(files.read(os.path.join(directory, name)) or b"{}"))
            if lengths:
                return lengths, ticking if name == own else ()
    except (OSError, ValueError):
        pass
    return {}, ()


def write_lengths(directory: str, node: str, lengths: Lengths, ticking: tuple[int, ...]) -> bool:
    """Write this node's file; return whether that worked: it is no loss if it did not.

    Args:
        directory: of all nodes' files.
        node: this node.
        lengths: the times of its workers.
        ticking: the local ranks that tick.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        data = json.dumps(encode(lengths, ticking)).encode()
        files.replace(os.path.join(directory, f"{node}.json"), data, durable=False)
    except OSError:
        return False
    return True
