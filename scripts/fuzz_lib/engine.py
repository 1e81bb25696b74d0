"""Gives targets inputs, and notes what breaks a promise, each fault once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz_lib.corpus import keep_input, read_inputs
from fuzz_lib.shrink import shrink
from fuzz_lib.target import Target
from fuzz_lib.watchdog import HangError, Watchdog

_MOST_LINES = 12  # of a traceback
_SHRINK_S = 10.0
_SLICE_S = 20.0
_MOST_WORDS = 60  # of an error, in a sign
_MOST_FRAMES = 200
_MOST_COLUMNS = 300
_PACKAGE = "/hpc_elastic/"


class Failure(NamedTuple):
    """A broken promise."""

    target: str
    sign: str  # tells it from others: the error and the line that raised it
    text: str  # the end of the traceback
    value: Any  # the input


class Tally(NamedTuple):
    """What came of a target."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    failures: tuple[Failure, ...] = ()


class Fuzzer:
    """Runs targets.

    Args:
        corpus: directory of the kept inputs.
        say: prints a line.
        watchdog: ends what takes too long.
        keeps: whether inputs that break a promise are added to the kept ones.
    """

    def __init__(
        self,
        corpus: Path,
        say: Callable[[str], None],
        watchdog: Watchdog | None = None,
        *,
        keeps: bool = True,
    ) -> None:
        self._corpus = corpus
        self._say = say
        self._watchdog = watchdog or Watchdog()
        self._keeps = keeps
        self.tallies: dict[str, Tally] = {}

    def replay(self, target: Target) -> None:
        """Give a target its kept inputs."""
        began = time.monotonic()
        keeps, self._keeps = self._keeps, False
        for value in read_inputs(self._corpus, target.name):
            self.try_input(target, value)
        self._keeps = keeps
        self._took(target, began)

    def run(self, target: Target, number: int, seed_number: int) -> None:
        """Give a target one slice of inputs.

        Args:
            target: the target.
            number: of the slice; each has inputs of its own.
            seed_number: gives all inputs of all slices.
        """
        began = time.monotonic()

        @seed(crc32(f"{seed_number} {target.name} {number}".encode()))
        @settings(
            max_examples=target.slice,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(target.inputs)
        def give(value: Any) -> None:
            if time.monotonic() < began + _SLICE_S:  # many that hang in a row
                self.try_input(target, value)

        give()
        self._took(target, began)

    def try_input(self, target: Target, value: Any) -> None:
        """Give a target one input."""
        tally = self._tally(target)
        self.tallies[target.name] = tally._replace(inputs=tally.inputs + 1)
        failure = self._failure(target, value)
        if failure is None or failure.sign in {known.sign for known in tally.failures}:
            return
        smaller = failure
        if not failure.sign.startswith(HangError.__name__):
            found = shrink(value, lambda other: self._sign(target, other) == failure.sign, limit_s=_SHRINK_S)
            smaller = self._failure(target, found) or failure
        self._tell(target, smaller._replace(sign=failure.sign))

    def _tell(self, target: Target, failure: Failure) -> None:
        tally = self._tally(target)
        self.tallies[target.name] = tally._replace(failures=(*tally.failures, failure))
        self._say(f"FAILED {target.name}: {failure.sign}\n{failure.text}")
        self._say(f"  input: {failure.value!a}")
        if self._keeps:
            keep_input(self._corpus, target.name, failure.value)
            self._say(f"  it is kept; once more: scripts/fuzz --replay --target {target.name}")

    def _sign(self, target: Target, value: Any) -> str:
        failure = self._failure(target, value)
        return "" if failure is None else failure.sign

    def _failure(self, target: Target, value: Any) -> Failure | None:
        try:
            self._watchdog.call(lambda: target.check(value))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return Failure(target.name, _sign(error), _text(error), value)
        return None

    def _tally(self, target: Target) -> Tally:
        return self.tallies.get(target.name, Tally(target.name))

    def _took(self, target: Target, began: float) -> None:
        tally = self._tally(target)
        self.tallies[target.name] = tally._replace(seconds=tally.seconds + time.monotonic() - began)


def _sign(error: BaseException) -> str:
    """Return what tells a fault from others: the error, and the innermost place of the package."""
    if isinstance(error, AssertionError):
        return f"{type(error).__name__}: {str(error)[:_MOST_WORDS]}"
    frames = traceback.extract_tb(error.__traceback__, limit=-_MOST_FRAMES)
    ours = [frame for frame in frames if _PACKAGE in frame.filename] or list(frames)[-1:]
    if not ours:
        return type(error).__name__
    name = ours[-1].filename.rpartition(_PACKAGE)[2]
    place = (
        ours[-1].name if isinstance(error, HangError) else ours[-1].lineno
    )  # a hang is seen anywhere in it
    return f"{type(error).__name__} at {name}:{place}"


def _text(error: BaseException) -> str:
    lines: Sequence[str] = "".join(traceback.format_exception(error, limit=-8)).splitlines()
    cut = [line if len(line) < _MOST_COLUMNS else f"{line[:_MOST_COLUMNS]} ..." for line in lines]
    return "\n".join(f"    {line}" for line in cut[-_MOST_LINES:])
