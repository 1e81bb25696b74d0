"""How fast one process hears of another through a shared directory.

    python -m bench_lib.set_wait ROLE WAY DIRECTORY TRIPS

ROLE ``caller`` sets a key, waits for the answer, and prints how long each took; ``answerer`` answers.
WAY ``store``: the key-value store; ``floor``: a file is linked to its name, and the other lists the
directory without pause until it sees it; ``durable``: likewise, but what was told survives a crash, as
in the store. Going there and back needs no common clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from bench_lib.scale_group import Place, ScaleError, module_argv, scratch, started
from bench_lib.scale_measures import Scale
from bench_lib.series import Series

_LIMIT_S = 120.0
_FIRST_TRIPS = 3  # warm up
_WHAT = "one process sets, another one has it [ms] (half of there and back)"
_WAYS = {
    "store": "KeyValueStore.set -> get",
    "durable": "write, fsync, link, fsync -> listdir without pause",
    "floor": "link -> listdir without pause",
}


class Channel(Protocol):
    """A way to tell a name and to wait for one."""

    def tell(self, name: str) -> None:
        """Make a name known."""

    def wait(self, name: str) -> None:
        """Return when a name is known."""


class StoreChannel:
    """The key-value store.

    Args:
        directory: stands for a run directory.
    """

    def __init__(self, directory: str) -> None:
        from hpc_elastic.store import open_store  # noqa: PLC0415 - the floor goes without

        self._store = open_store(directory, "bench", timeout=_LIMIT_S)

    def tell(self, name: str) -> None:
        """Set a key."""
        self._store.set(name, b"x")

    def wait(self, name: str) -> None:
        """Get a key that may not be there yet."""
        self._store.get(name)


_HIDDEN_S = 1.0  # a name that is not listed for so long is hidden by the client's cache


class FloorChannel:
    """The least that any protocol in a directory must do.

    Args:
        directory: an existing directory.
        durable: what was told survives a crash.
    """

    def __init__(self, directory: str, *, durable: bool) -> None:
        self._directory = directory
        self._durable = durable

    def tell(self, name: str) -> None:
        """Link a file to its name."""
        private = os.path.join(self._directory, f".private.{name}")
        with open(private, "xb", buffering=0) as file:
            file.write(b"x")
            if self._durable:
                os.fsync(file)
        os.link(private, os.path.join(self._directory, name))
        os.unlink(private)
        if self._durable:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(directory)
            os.close(directory)

    def wait(self, name: str) -> None:
        """List the directory until the name is there; NFS 3 may have to be told that it has changed."""
        stir_at = time.monotonic() + _HIDDEN_S
        while name not in os.listdir(self._directory):
            if time.monotonic() >= stir_at:
                os.utime(self._directory)
                stir_at = time.monotonic() + _HIDDEN_S


def set_wait(scale: Scale) -> Iterator[Series]:
    """Time from setting a key to having it in another process, beside the floor of that file system."""
    for place in scale.places:
        if place.delay_s:
            continue  # the floor would be the delay
        ways: dict[str, Series] = {}
        for way, system in _WAYS.items():
            scale.say(f"set-wait: {system}, {place.name} ...")
            ways[way] = Series("set-wait", _WHAT, system, place.name)
            try:
                ways[way].samples[2] = [trip_s * 500 for trip_s in _trips(place, way, scale.effort.trips)]
            except ScaleError as error:
                ways[way].stopped[2] = "failed"
                scale.failures.append(f"set-wait, {system}, {place.name}: {error}")
        yield from ways.values()
        for floor in ("durable", "floor"):
            ratio = Series("set-wait", "set -> get, times the floor", _WAYS[floor], place.name)
            if all(2 in ways[way].samples for way in ("store", floor)):  # noqa: PLR2004 - processes
                ratio.add(2, ways["store"].medians()[2] / ways[floor].medians()[2])
            yield ratio


def _trips(place: Place, way: str, trips: int) -> list[float]:
    """Return how long each way there and back took [s]."""
    with scratch(place) as directories:
        argvs = [
            module_argv("set_wait", role, way, directories.shared, str(trips + _FIRST_TRIPS))
            for role in ("caller", "answerer")
        ]
        with started(place, argvs) as (caller, answerer):
            try:
                printed, errors = caller.communicate(timeout=_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise ScaleError(f"no end within {_LIMIT_S:g} s") from None
            if caller.returncode:
                answerer.kill()
                raise ScaleError(f"{errors[-500:]}\n{answerer.communicate()[1][-500:]}")
    times: list[float] = json.loads(printed)
    return times[_FIRST_TRIPS:]


def main(argv: list[str]) -> int:
    """Call or answer."""
    role, way, directory, trips = argv
    channel: Channel
    channel = StoreChannel(directory) if way == "store" else FloorChannel(directory, durable=way != "floor")
    took = []
    for trip in range(int(trips)):
        began_s = time.monotonic()
        if role == "caller":
            channel.tell(f"there{trip}")
            channel.wait(f"back{trip}")
        else:
            channel.wait(f"there{trip}")
            channel.tell(f"back{trip}")
        took.append(time.monotonic() - began_s)
    if role == "caller":
        print(json.dumps(took))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
