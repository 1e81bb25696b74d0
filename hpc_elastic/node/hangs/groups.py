"""Which ranks are the odd ones out when workers make no progress. Pure.

In a hang most ranks wait in the same place for the few that never came there. Ranks are put
together by where they are: step, section, stack; first finely, then ever more coarsely, until more
than half of them are in one place. The others are the odd ones.

Ranks that wait for each other fall silent together. Where some go on, the ranks are not in lockstep: those
that go on are never the odd ones, however far behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from hpc_elastic.named_tuple import NamedTuple

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_PY_SPY = re.compile(r"^\s+(?P<name>\S.*) \((?P<file>[^()]*):(?P<line>\d+)\)$")
_MOST_FRAMES = 40
_MOST_RANKS = 8  # that are named one by one
_MOST_PLACES = 4
_GOES_ON = 0.5  # share of the longest silence; ranks that wait for each other have been silent for as long
_WAITING = {  # functions that wait and do not tell for which thing: the frame around them tells more
    "threading.py",
    "selectors.py",
    "queue.py",
    "queues.py",
    "connection.py",
    "socket.py",
    "subprocess.py",
    "popen_fork.py",
    "popen_spawn_posix.py",
    "ssl.py",
    "_base.py",
    "contextlib.py",
    "c10d_logger.py",
    "_contextlib.py",
}


class Frame(NamedTuple):
    """One call of a Python stack."""

    name: str  # of the function
    file: str
    line: str

    @property
    def place(self) -> tuple[str, str]:
        """The part that is the same on all nodes and in every turn of a loop: function and file name."""
        return self.name, self.file.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.name} ({self.file.rpartition('/')[2]}:{self.line})"


_FRAME_PARTS = len(Frame._fields)


class RankLook(NamedTuple):
    """Where one rank is."""

    rank: int
    node: str
    step: int | None = None
    section: str = ""  # the sections it is in, the outermost first
    frames: tuple[Frame, ...] = ()  # of its main thread, the innermost first
    state: str = ""  # of its process: D, R, S, T ...
    doing: str = ""  # in words, e.g. "asleep in futex_wait_queue"
    local_rank: int = 0
    pid: int = 0
    log: str = ""  # its stderr
    stack: str = ""  # the text of its main thread's stack
    moved: int = 0  # read and written by it and its children [bytes]
    silence_s: float | None = None  # since its last sign of progress [s]; None: an older agent does not tell

    @property
    def innermost(self) -> Frame | None:
        """The innermost call with a meaning."""
        telling = (frame for frame in self.frames if frame.place[1] not in _WAITING)
        return next(telling, self.frames[0] if self.frames else None)

    @property
    def where(self) -> str:
        """Where it is, in words."""
        step = "before the first step" if self.step is None else f"step {self.step}"
        section = f", section {self.section}" if self.section else ""
        call = self.innermost
        if call is not None:
            return f"{step}{section}, in {call}"
        return f"{step}{section}, {self.doing}" if self.doing else f"{step}{section}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {**self._asdict(), "frames": [list(frame) for frame in self.frames]}

    @classmethod
    def from_json(cls, data: Any) -> RankLook:
        """Return the look of another node; missing or odd fields take their defaults.

        Raises:
            ValueError: it names no rank.
        """
        try:
            rank, node = int(data["rank"]), str(data["node"])
        except (KeyError, TypeError) as error:
            raise ValueError("no rank") from error
        look = cls(rank, node)
        texts = {name: data[name] for name in _TEXTS if isinstance(data.get(name), str)}
        numbers = {name: data[name] for name in _NUMBERS if isinstance(data.get(name), int)}
        silence = data.get("silence_s")
        if isinstance(silence, int | float):
            look = look._replace(silence_s=float(silence))
        frames = data.get("frames")
        if isinstance(frames, list):
            whole = [frame for frame in frames if isinstance(frame, list) and len(frame) == _FRAME_PARTS]
            texts["frames"] = tuple(Frame(*map(str, frame)) for frame in whole)
        return look._replace(**texts, **numbers)


_TEXTS = ("section", "state", "doing", "log", "stack")
_NUMBERS = ("step", "local_rank", "pid", "moved")


def main_stack(text: str) -> str:
    """Return the main thread's part of the output of faulthandler or py-spy; empty if there is none.

    faulthandler writes the oldest thread last, py-spy first.
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ", "Stack (most recent call first)")):
            blocks.append([])
        elif blocks and line.strip():
            blocks[-1].append(line)
    if not blocks:
        return ""
    is_py_spy = any(_PY_SPY.match(line) for line in blocks[0])
    return "\n".join(blocks[0 if is_py_spy else -1])


def frames_of(stack: str) -> tuple[Frame, ...]:
    """Return the calls in the stack of one thread, the innermost first."""
    found = (_FRAME.match(line) or _PY_SPY.match(line) for line in stack.splitlines())
    frames = [Frame(one["name"], one["file"], one["line"]) for one in found if one]
    return tuple(frames[:_MOST_FRAMES])


Key = Callable[[RankLook], Hashable]


def _calls(look: RankLook) -> Hashable:
    return tuple(frame.place for frame in look.frames)


def _call(look: RankLook) -> Hashable:
    return look.innermost.place if look.innermost else None


_KEYS: tuple[Key, ...] = (
    lambda look: (look.step, look.section, _calls(look)),
    lambda look: (look.step, look.section, _call(look)),
    lambda look: (look.step, look.section),
    lambda look: look.step,
)


class Vote(NamedTuple):
    """The odd ones out, and where the others are."""

    odd: tuple[RankLook, ...] = ()  # empty if no place has more than half of the ranks
    others: tuple[RankLook, ...] = ()
    in_lockstep: bool = True  # False: the others go on


def odd_ones(looks: Iterable[RankLook], suspects: Collection[int] = ()) -> Vote:
    """Return the ranks that are not where most of those are that make no progress; the culprit first.

    Args:
        looks: all ranks.
        suspects: ranks of which it is known that they make none.
    """
    everybody = tuple(sorted(looks))
    going_on = _going_on(everybody, suspects)
    if not going_on:
        most = _majority(everybody)
        odd = _minority(everybody) if most else _behind(everybody)
        others = tuple(look for look in everybody if look not in odd)
        return Vote(odd, others if most or odd else ())
    silent = tuple(look for look in everybody if look not in going_on)
    odd = _minority(silent) or silent
    first = sorted(odd, key=lambda look: (-(look.silence_s or 0.0), look.rank))
    return Vote(tuple(first), tuple(look for look in everybody if look not in odd), in_lockstep=False)


def _going_on(looks: Sequence[RankLook], suspects: Collection[int]) -> tuple[RankLook, ...]:
    """Return the ranks that have made progress while suspects are silent for far longer."""
    known = [look.silence_s for look in looks if look.rank in suspects and look.silence_s is not None]
    if not known:
        return ()
    least_s = _GOES_ON * min(known)
    others = (look for look in looks if look.rank not in suspects and look.silence_s is not None)
    return tuple(look for look in others if (look.silence_s or 0.0) < least_s)


def _majority(looks: Sequence[RankLook]) -> list[RankLook]:
    """Return the ranks in the place in which more than half of them are; empty if there is none."""
    for key in _KEYS:
        most = max(_grouped(looks, key), key=len, default=[])
        if 2 * len(most) > len(looks):
            return most
    return []


def _minority(looks: Sequence[RankLook]) -> tuple[RankLook, ...]:
    """Return the ranks that are not in the place of the majority; empty if there is none."""
    most = _majority(looks)
    return tuple(look for look in looks if look not in most) if most else ()


def _behind(looks: Sequence[RankLook]) -> tuple[RankLook, ...]:
    """Return the ranks with the lowest step, unless that is the step of all."""
    steps = [-1 if look.step is None else look.step for look in looks]
    low = min(steps, default=-1)
    behind = tuple(look for look, step in zip(looks, steps, strict=True) if step == low)
    return behind if len(behind) < len(looks) else ()


def _grouped(looks: Sequence[RankLook], key: Key) -> list[list[RankLook]]:
    groups: dict[Hashable, list[RankLook]] = {}
    for look in looks:
        groups.setdefault(key(look), []).append(look)
    return list(groups.values())


def vote_text(vote: Vote, looks: Sequence[RankLook]) -> str:
    """Return in words the places of the ranks, the odd ones first."""
    if not vote.odd:
        alone = len(looks) == 1
        return _places(looks, named=True) if alone else f"no rank stands out: {_places(looks, named=True)}"
    text = f"{_places(vote.odd, named=True)}; the {_count(vote.others)}: {_places(vote.others, named=False)}"
    return text if vote.in_lockstep else f"{text}; they go on: the ranks are not in lockstep"


def _count(looks: Sequence[RankLook]) -> str:
    return "other" if len(looks) == 1 else f"{len(looks)} others"


def _places(looks: Sequence[RankLook], *, named: bool) -> str:
    groups = sorted(_grouped(looks, lambda look: look.where.partition(":")[0]), key=len)
    shown = groups[:_MOST_PLACES]
    texts = [f"{ranks_text(group)}: {group[0].where}" if named else group[0].where for group in shown]
    if len(groups) > _MOST_PLACES:
        texts.append(f"and {len(groups) - _MOST_PLACES} more places")
    return "; ".join(texts)


def ranks_text(looks: Sequence[RankLook]) -> str:
    """Return the ranks in words: ``rank 3 (node2)``, ``ranks 3 (node2), 5 (node3)``."""
    names = [f"{look.rank} ({look.node})" for look in looks[:_MOST_RANKS]]
    if len(looks) > _MOST_RANKS:
        names.append(f"and {len(looks) - _MOST_RANKS} more")
    return ("rank " if len(looks) == 1 else "ranks ") + ", ".join(names)
