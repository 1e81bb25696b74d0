"""Whether `explain` tells of the runs of each test why they stopped, which node is to blame, how they ended.

The answers stand in `table_of_causes`. They are written down from what a test does to its runs, not from what
is printed. A pause to take nodes in (`membership`) may come at any time in a run whose size may change; it is
looked at only where a test asks for one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from hpc_elastic.cli.commands.looking.explain import explained
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Decision, RoundFormed
from hpc_elastic.report.explain.as_json import explanation_json
from hpc_elastic.slurm.run_jobs.run_files import SlurmAnswer, read_run
from hpc_elastic.slurm.run_jobs.script_tasks import begun_tasks
from tests.real_slurm.jobs import USER
from tests.real_slurm.table_of_causes import EXPLAINED, Told, ToldRun

_FINAL = {decision.value for decision in Decision}
_QUIET_ENDINGS = ("", "done", "cancelled", "stopped")
_WISHED = ("cancel", "stop")
_BLAME = ("unfit", "taken", "setup")  # fields of a stop that are only set where a test has done that


class Seen(NamedTuple):
    """One run as `explain` tells it, in the JSON form."""

    root: Path
    document: Mapping[str, Any]
    members: Mapping[int, tuple[str, ...]]  # the nodes of each round, in rank order

    @property
    def ending(self) -> str:
        """How it ended; empty if it has not."""
        phase = str(self.document["phase"])
        return phase if phase in _FINAL else ""

    def stops(self, *, pauses: bool) -> list[Mapping[str, Any]]:
        """Return its stops one by one, oldest first.

        Args:
            pauses: also those in which nodes were only taken in or given back.
        """
        found = [stop for stop in self.document["stops"] for _ in range(stop["times"])]
        return [stop for stop in found if pauses or stop["cause"] != Cause.MEMBERSHIP.value]

    @property
    def text(self) -> str:
        """The same for the message of a failing test."""
        stops = [
            {name: value for name, value in stop.items() if value not in (None, "", [], {}, 0)}
            for stop in self.document["stops"]
        ]
        shown = "\n".join(f"    {stop}" for stop in stops)
        return f"{self.root}: {self.document['phase']}: {self.document['text']}\n{shown}"


def seen(root: Path) -> Seen:
    """Return what `explain` tells of a run by its records alone: Slurm is not asked."""
    run = read_run(RunPaths(root))
    document = json.loads(explanation_json(*explained(run, SlurmAnswer(None, {}))))
    formed = (record.entry for record in run.records if isinstance(record.entry, RoundFormed))
    return Seen(root, document, {one.number: tuple(each.node for each in one.members) for one in formed})


def runs_below(place: Path) -> Iterator[Path]:
    """Yield the directories of runs that have a journal, by name; of an array those of its tasks."""
    for here, folders, _ in os.walk(place):
        if "journal" in folders:
            root = Path(here)
            yield from [Path(task.root) for task in begun_tasks(RunPaths(root))] or [root]
            folders.clear()
        folders.sort()


class Looked:
    """The runs that were looked at, so that each one counts for the test that made it."""

    def __init__(self) -> None:
        self._known: set[tuple[Path, int]] = set()

    def new_runs(self, place: Path) -> list[Path]:
        """Return the runs of the user below a directory that were not there the last time."""
        found: dict[tuple[Path, int], Path] = {}
        for root in runs_below(place):
            with suppress(OSError, KeyError):  # another user exchanges directories just then
                if root.owner() == USER:
                    found[root, (root / "journal").stat().st_ino] = root
        fresh = [root for key, root in found.items() if key not in self._known]
        self._known.update(found)
        return fresh


def name_of(nodeid: str) -> tuple[str, str]:
    """Return the name of a test as the table has it, without and with its own parameters."""
    file, _, test = nodeid.rpartition("/")[2].partition("::")
    function, _, rest = test.partition("[")
    mine = [word for word in rest.rstrip("]").split("-") if not re.fullmatch("linuxproc|cgroup2?", word)]
    plain = f"{file.removeprefix('test_').removesuffix('.py')}.{function.removeprefix('test_')}"
    return plain, f"{plain}[{'-'.join(mine)}]" if any(mine) else plain


def expected(nodeid: str) -> tuple[ToldRun, ...] | None:
    """Return what the runs of a test are to be told as; None: nothing is to happen to them."""
    plain, own = name_of(nodeid)
    return EXPLAINED.get(own, EXPLAINED.get(plain))


def check(nodeid: str, roots: Sequence[Path]) -> None:
    """Compare what `explain` tells of the runs of a test with the table.

    Args:
        nodeid: of the test.
        roots: the directories of its runs.
    """
    wanted = expected(nodeid)
    found = list(_readable(roots))
    if wanted is None:
        odd = "\n".join(one.text for one in found if not _is_quiet_run(one))
        assert not odd, f"{nodeid} has no row in the table of causes, but something happened:\n{odd}"
        return
    shown = "\n".join(one.text for one in found) + "\nwanted:\n" + "\n".join(map(str, wanted))
    assert _fits_all(found, wanted), f"explain does not tell what was done in {nodeid}:\n{shown}"


def _readable(roots: Sequence[Path]) -> Iterator[Seen]:
    """Yield what is told of runs; a directory that another user has made to look like one is none."""
    for root in roots:
        with suppress(HpcElasticError, OSError):
            yield seen(root)


def _is_quiet_run(one: Seen) -> bool:
    stops = one.stops(pauses=False)
    is_wish = all(stop["cause"] in _WISHED for stop in stops)
    return one.ending in _QUIET_ENDINGS and len(stops) <= 1 and is_wish


def _fits_all(found: Sequence[Seen], wanted: Sequence[ToldRun]) -> bool:
    needed = [one for one in wanted if not one.may_lack]
    for chosen in {tuple(wanted), tuple(needed)}:
        if len(chosen) != len(found):
            continue
        orders = permutations(chosen) if any(one.in_any_order for one in chosen) else [chosen]
        if any(all(map(fits, found, order)) for order in orders):
            return True
    return False


def fits(one: Seen, told: ToldRun) -> bool:
    """Tell whether a run is explained as it should be."""
    endings = {"" if ending is None else ending.value for ending in told.endings}
    if one.ending not in endings or one.document["earlier_stops"]:
        return False
    stops = one.stops(pauses=any(Cause.MEMBERSHIP in part.causes for part in told.stops))

    @cache
    def rest_fits(at: int, part: int) -> bool:
        if part == len(told.stops):
            return at == len(stops)
        wanted = told.stops[part]
        number = 0
        while True:
            if number >= wanted.least and rest_fits(at + number, part + 1):
                return True
            place = at + number
            if number == wanted.most or place == len(stops) or not _fits_stop(one, stops[place], wanted):
                return False
            number += 1

    return rest_fits(0, 0)


def _fits_stop(one: Seen, stop: Mapping[str, Any], told: Told) -> bool:
    if told.otherwise is not None and _fits_stop(one, stop, told.otherwise):
        return True
    causes = {None if cause is None else cause.value for cause in told.causes}
    if stop["cause"] not in causes or (told.by and not stop.get(told.by)):
        return False
    if any(stop.get(field) for field in _BLAME if field != told.by):
        return False
    if told.at is None:
        return True
    members, blamed = one.members.get(stop["round"], ()), set(stop["nodes"])
    if isinstance(told.at, str):  # a second agent there has a number behind the name
        return {told.at} == {name.partition("-")[0] for name in blamed}
    return bool(blamed) and blamed <= {members[place] for place in told.at if place < len(members)}
