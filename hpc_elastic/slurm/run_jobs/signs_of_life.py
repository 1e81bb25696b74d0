"""Whether the agents of a run are alive, as far as its directory tells: for the commands of a login node.

Ages rest on the file server's clock and this machine's, which may differ. They only raise a doubt;
a message after a second look rests on names that changed meanwhile, or did not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from hpc_elastic.clock import Clock
from hpc_elastic.meet.member_names import TERMINAL, MemberName, parse_name
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.run_files import RunFiles
from hpc_elastic.store.files import list_names, read

SILENT_S = 40.0  # no sign of life for so long raises a doubt; agents beat every second by default
LOOK_S = 5.0  # the second look; several heartbeats long
SCRIPT_S = 120.0  # a script that counted, and counts no more, is gone after this time
_POLL_S = 0.25


class Signs(NamedTuple):
    """When the run was heard of last."""

    agents_s: float | None  # age of the newest sign of an agent that is to beat [s]; None: there is none
    script_s: float | None = None  # age of the batch script's last count [s]; None: it never counted
    members: frozenset[str] = frozenset()  # names of the agents that are to beat


def is_in_doubt(signs: Signs) -> bool:
    """Tell whether the agents have been silent for suspiciously long. Pure."""
    if signs.agents_s is not None:
        return signs.agents_s >= SILENT_S
    return signs.script_s is not None and signs.script_s >= SCRIPT_S


def current_members(names: Iterable[str], state: RunState) -> frozenset[str]:
    """Return the names of the agents of the newest start that are to beat; lost ones are not. Pure."""
    parsed = ((name, parse_name(name)) for name in names)
    return frozenset(
        name
        for name, member in parsed
        if member is not None
        and member.epoch >= state.epoch
        and member.phase not in TERMINAL
        and not (member.node in state.lost and member.epoch == state.epoch)
    )


def signs_of(run: RunFiles, now_s: float) -> Signs:
    """Return when a run was heard of last.

    Agents that have not told their names yet are heard of by the newest record of the journal.

    Args:
        run: the files of the run.
        now_s: wall time [s since the epoch].
    """
    names = list_names(run.paths.members)
    mine = current_members(names, run.state)
    ages = [age for name in mine if (age := _age(os.path.join(run.paths.members, name), now_s)) is not None]
    told = any((member := parse_name(name)) and member.epoch >= run.state.epoch for name in names)
    if not ages and not told and run.records and not run.state.leaving and not run.is_script:
        ages = [max(now_s - run.records[-1].at, 0.0)]
    return Signs(min(ages, default=None), _age(run.paths.batch_beat, now_s), mine)


def member_times(paths: RunPaths) -> list[tuple[MemberName, float | None]]:
    """Return the own words of all agents, and their time [s since the epoch], None if that is gone."""
    names = [(name, parse_name(name)) for name in list_names(paths.members)]
    return [
        (member, _changed(os.path.join(paths.members, name))) for name, member in names if member is not None
    ]


def _changed(path: str) -> float | None:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return None


def _age(path: str, now_s: float) -> float | None:
    """Return how long ago a name was given to a file [s], None if it is gone."""
    at = _changed(path)
    return None if at is None else max(now_s - at, 0.0)


def may_live(job: JobFacts | None) -> bool:
    """Tell whether agents could give signs of life: Slurm does not answer, or their job runs. Pure."""
    return job is None or job.state in (JobState.RUNNING, JobState.COMPLETING)


def silent_for(run: RunFiles, clock: Clock, say: Callable[[str], None] = lambda _: None) -> float | None:
    """Return for how long the agents of a run have been silent [s], None if they live or none has to.

    Takes LOOK_S when in doubt, else no time.

    Args:
        run: the files of the run; one that has ended is not silent.
        clock: tells the time.
        say: gets a line about the doubt, before the second look.
    """
    if run.state.ending is not None or run.state.epoch.submission < run.submission or not run.records:
        return None
    signs = signs_of(run, clock.wall())
    if not is_in_doubt(signs):
        return None
    say(f"no sign of life from its agents lately; looking for {LOOK_S:.0f} s")
    if _moves(run.paths, clock, script_too=signs.agents_s is None):
        return None
    return signs.agents_s if signs.agents_s is not None else signs.script_s


def _moves(paths: RunPaths, clock: Clock, *, script_too: bool) -> bool:
    """Tell whether anything that shows life changes while one looks."""

    def seen() -> tuple[list[str], list[str], bytes | None]:
        beat = read(paths.batch_beat) if script_too else None
        return sorted(list_names(paths.members)), sorted(list_names(paths.journal)), beat

    first, until = seen(), clock.monotonic() + LOOK_S
    while clock.monotonic() < until:
        clock.sleep(_POLL_S)
        if seen() != first:
            return True
    return False


def script_counts(signs: Signs) -> bool:
    """Tell whether the batch script lives, so that it acts by itself once srun has ended. Pure."""
    return signs.script_s is not None and signs.script_s < SILENT_S
