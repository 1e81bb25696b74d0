"""The test of the test: faults put into the real code on purpose, each of which must be noticed.

A mutation replaces the body of a real function for as long as it is wanted, by changing its text. If
the text is not there any more, that is an error: the mutation has to be brought up to date.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any, NamedTuple

from tests.simulation.broken import BrokenError
from tests.simulation.exhaustive import Play, Search
from tests.simulation.worlds import Failure, simulate

_STATE = "hpc_elastic.record.state"
_RULES = "hpc_elastic.meet.rules"
_LOG = "hpc_elastic.record.run_log:RunLog"
_SHARED = "hpc_elastic.meet.shared_run:SharedRun"
_MEMBERSHIP = "hpc_elastic.meet.membership:Membership"
_LIVENESS = "hpc_elastic.meet.liveness"
_CONTENT = "tests.simulation.content:Content"
_MONOTONIC, _WALL = "clock.monotonic()", "clock.wall()"


class Change(NamedTuple):
    """Another text in one function.

    Args:
        where: ``module:function`` or ``module:Class.function``.
        old: text that stands in it.
        new: what is to stand there.
    """

    where: str
    old: str
    new: str


class Mutation(NamedTuple):
    """A fault in the code, and where it is looked for."""

    name: str
    changes: tuple[Change, ...]
    places: tuple[str | Play, ...]  # kinds of worlds, and what is searched exhaustively


class Catch(NamedTuple):
    """What has noticed a mutation."""

    promise: str
    how: str  # world and seed, or the play
    replay: str


_OVERWRITE = Change(
    f"{_CONTENT}.append",
    """        if number != len(records) + 1:
            return False
        records.append(value)
""",
    "        records[number - 1 :] = [value]\n",
)

MUTATIONS = (
    Mutation(
        "a round of an older start counts",
        (Change(f"{_STATE}:_round", " or entry.epoch != state.epoch", ""),),
        (Play(2, "freeze", zombies=1), Play(2, zombies=1), "zombies"),
    ),
    Mutation(
        "an older start may be announced again",
        (Change(f"{_STATE}:_epoch", "entry.epoch <= state.epoch", "entry.epoch == state.epoch"),),
        (Play(2, zombies=1), "zombies"),
    ),
    Mutation(
        "the number of a round is not checked",
        (Change(f"{_STATE}:_round", "entry.number != state.rounds + 1 or ", ""),),
        ("wild",),
    ),
    Mutation(
        "a round may be formed beside a running one",
        (
            Change(f"{_STATE}:_round", "has_left or state.running is not None or", "has_left or"),
            Change(f"{_RULES}:join", "if state.running is not None:", "if False:"),
        ),
        (Play(2, "freeze"), "three"),
    ),
    Mutation(
        "the end of any round ends the running one",
        (Change(f"{_STATE}:_ended", "running.number != entry.number or ", ""),),
        ("rough",),
    ),
    Mutation(
        "a round can end after the run has",
        (Change(f"{_STATE}:_ended", " or state.ending is not None", ""),),
        ("ended",),
    ),
    Mutation(
        "agents of an older start are heard",
        (Change(f"{_STATE}:_is_foreign", "epoch is not None and epoch != state.epoch", "False"),),
        ("zombies", "rough", "wild"),
    ),
    Mutation("records may be overwritten", (_OVERWRITE,), (Play(2), "three")),
    Mutation(
        "the lock is trusted",
        (Change(f"{_LOG}.commit", "range(_UNLOCKED_TRIES)", "range(0)"), _OVERWRITE),
        ("broken lock", "rough"),
    ),
    Mutation(
        "a record is written though it fits no more",
        (Change(f"{_LOG}._try_append", "entry is None or not fits(state, entry)", "entry is None"),),
        (Play(2), "three"),
    ),
    Mutation(
        "a number that is taken is believed to be won",
        (Change(f"{_LOG}._try_append", "if not self._store.append(", "if self._store.append("),),
        (Play(2), "three"),
    ),
    Mutation(
        "blind is dead",
        (
            Change(
                f"{_MEMBERSHIP}.look",
                "now - before > half or self._was_away(before) or self._was_blind",
                "False",
            ),
        ),
        ("stall", "three", "rough"),
    ),
    Mutation(
        "an own beat hides a blindness",
        (Change(f"{_MEMBERSHIP}.look", " or self._was_blind", ""),),
        ("stall", "three", "rough", "eight"),
    ),
    Mutation(
        "verdicts outlive an error",
        (Change(f"{_SHARED}.note_blindness", "        self._lost = (0, {})\n", ""),),
        ("rough", "wild"),
    ),
    Mutation(
        "a lost member counts as succeeded",
        (
            Change(
                f"{_SHARED}.everyone_succeeded",
                "formed = self.state.round\n",
                "formed = self.state.round\n"
                "        living = self.live_members(formed) if formed else ()\n"
                "        formed = formed and formed._replace(\n"
                "            members=tuple(m for m in formed.members if m.node_id in living))\n",
            ),
        ),
        ("loss", "three", "rough"),
    ),
    Mutation(
        "no heartbeat",
        (Change(f"{_MEMBERSHIP}.beat_if_due", "if name is not None", "if False"),),
        ("calm", "three"),
    ),
    Mutation(
        "no node watches",
        (Change(f"{_SHARED}._is_on_watch", "if running is None:", "if True:"),),
        ("loss", "three"),
    ),
    Mutation(
        "suspicions are kept to oneself",
        (Change(f"{_MEMBERSHIP}.suspect", "if suspicion in self.suspicions:", "if True:"),),
        ("loss", "three"),
    ),
    Mutation(
        "most silent at once are all lost",
        (Change(f"{_LIVENESS}:silent", "quiet -= lately", "pass"),),
        ("stall of most",),
    ),
    Mutation(
        "members that were never seen are gone",
        (Change(f"{_RULES}:_may_come", "alive | unseen |", "alive |"),),
        (Play(2, crashes=1), "rough"),
    ),
    Mutation(
        "an agent takes its predecessor's place",
        (Change(f"{_RULES}:_beside_a_round", "member.node_id == view.me", "member.node == _node(view.me)"),),
        ("three", "rough"),
    ),
    Mutation(
        "wall clocks decide",
        (
            Change(f"{_SHARED}.now", _MONOTONIC, _WALL),
            Change(f"{_MEMBERSHIP}.look", _MONOTONIC, _WALL),
            Change(f"{_MEMBERSHIP}.set_phase", _MONOTONIC, _WALL),
            Change(f"{_MEMBERSHIP}.beat_if_due", _MONOTONIC, _WALL),
            Change(f"{_MEMBERSHIP}.forgive", _MONOTONIC, _WALL),
        ),
        ("wall clocks", "rough"),
    ),
    Mutation(
        "a failed operation is repeated at once",
        (Change(f"{_SHARED}.next_turn_at", "max(due, ", "min(due, "),),
        ("three", "rough"),
    ),
    Mutation(
        "a node that has left may be in a round",
        (
            Change(f"{_STATE}:_round", "wrong or has_left or", "wrong or"),
            Change(f"{_RULES}:Gathering.ready", "view.state.left | self.outdated", "self.outdated"),
        ),
        ("array leaves",),
    ),
    Mutation(
        "a round continues with a node that had left at its start",
        (Change(f"{_STATE}:_node_left", "state.drain is not None and", "True and"),),
        ("array leaves", "array of three"),
    ),
    Mutation(
        "a node that has left is lost",
        (Change(f"{_STATE}:_without_who_left", "entry.cause is Cause.NODE_LOSS:", "False:"),),
        ("array", "array leaves"),
    ),
    Mutation(
        "others wait for a node that has left, and its name does not show it",
        (
            Change(f"{_RULES}:_may_come", "view.state.left | outdated", "outdated"),
            Change(f"{_MEMBERSHIP}.leave", "if self._name is None or", "if False and"),
        ),
        ("array leaves",),
    ),
    Mutation(
        "a node that has succeeded in a failed round is lost",
        (Change(f"{_RULES}:_returning", "if last is None or", "if True or last is None or"),),
        ("uneven", "uneven loss"),
    ),
    Mutation(
        "an older start of a task takes part",
        (Change("hpc_elastic.meet.member_names:outdated", "start[1:] < newest", "() > newest"),),
        ("array of three", "array"),
    ),
    Mutation(
        "a newer start of a task does not ask for its place",
        (Change(f"{_RULES}:_beside_a_round", "replaces or ", ""),),
        ("array of three",),
    ),
    Mutation(
        "a node that leaves costs a restart",
        (Change(f"{_STATE}:_node_left", "(running.number, why.cause,", "(running.number, Cause.CRASH,"),),
        ("array leaves", "array of three"),
    ),
)


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Have the fault in the code for a while."""
    with ExitStack() as stack:
        for change in mutation.changes:
            stack.enter_context(_changed(change))
        yield


@contextmanager
def _changed(change: Change) -> Iterator[None]:
    function = _function(change.where)
    whole = function.__code__
    function.__code__ = _code(function, change)
    try:
        yield
    finally:
        function.__code__ = whole


def _function(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = vars(found)[name]
    found = getattr(found, "func", getattr(found, "fget", found))  # of a cached property, or another one
    assert isinstance(found, FunctionType), f"{where} is no function"
    return found


def _code(function: FunctionType, change: Change) -> Any:
    """Return the changed code; whoever holds the function already runs it, too."""
    source = inspect.getsource(function)
    if change.old not in source:
        raise LookupError(f"{change.where} has no {change.old!r} any more: bring the mutation up to date")
    text = "from __future__ import annotations\n" + textwrap.dedent(source.replace(change.old, change.new))
    names: dict[str, Any] = dict(function.__globals__)
    exec(compile(text, f"<mutated {change.where}>", "exec"), names)  # noqa: S102 - the mutation itself
    changed = names[function.__name__]
    return getattr(changed, "func", getattr(changed, "fget", changed)).__code__


def catch(mutation: Mutation, seeds: int) -> Catch | None:
    """Look for a mutation; return what has noticed it first.

    Args:
        mutation: the fault.
        seeds: how many schedules to try in each kind of world.
    """
    with mutated(mutation):
        plays = [place for place in mutation.places if isinstance(place, Play)]
        worlds = [place for place in mutation.places if isinstance(place, str)]
        found = next(filter(None, map(_search, plays)), None)
        if found is not None:
            return found
        tries = ((seed, world) for seed in range(seeds) for world in worlds)
        return next(filter(None, (_simulate(seed, world) for seed, world in tries)), None)


def _search(play: Play) -> Catch | None:
    try:
        Search(play).run()
    except BrokenError as error:
        return Catch(error.promise, f"all interleavings: {play.name}", "")
    except Exception as error:  # noqa: BLE001 - the code has broken down, which is noticed too
        return Catch(type(error).__name__, f"all interleavings: {play.name}", "")
    return None


def _simulate(seed: int, world: str) -> Catch | None:
    try:
        simulate(seed, world)
    except Failure as failure:
        return Catch(failure.promise, f"world {world}, seed {seed}", f"--world '{world}' --replay {seed}")
    return None


def table(mutations: Iterable[Mutation], seeds: int) -> tuple[str, bool]:
    """Return mutations and what caught them as a Markdown table, and whether all were caught."""
    rows = ["| mutation of the real code | broken promise | found by |", "|---|---|---|"]
    complete = True
    for mutation in mutations:
        caught = catch(mutation, seeds)
        complete = complete and caught is not None
        promise, how = (caught.promise, caught.how) if caught else ("**none**", f"not in {seeds} seeds")
        rows.append(f"| {mutation.name} | {promise} | {how} |")
    return "\n".join(rows), complete
