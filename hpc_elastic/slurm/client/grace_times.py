"""The times that the cluster grants a job that is to end: asked once, and kept in the run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from hpc_elastic.errors import DamagedError, SlurmError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import Site, seconds, site_of
from hpc_elastic.store import files
from hpc_elastic.typed_json import decode, parse_object

FORMAT = 1


def read_site(paths: RunPaths) -> Site | None:
    """Return the times that the run directory keeps, None if there are none that can be read."""
    try:
        stored = parse_object(files.read(paths.site) or b"")
        is_whole = stored.get("format") == FORMAT and stored.keys() >= set(Site._fields)
        return decode(Site, stored) if is_whole else None
    except (OSError, DamagedError):
        return None


def keep_site(paths: RunPaths, site: Site) -> None:
    """Keep the times in the run directory; a reader that does not find them asks Slurm."""
    text = json.dumps({"format": FORMAT, **site._asdict()}, indent=1)
    try:
        files.replace(paths.site, f"{text}\n".encode())
    except OSError:
        return


def ask_site(slurm: Slurm, partition: str, qos: str) -> Site | None:
    """Ask Slurm; None if it is not there or does not answer.

    Args:
        slurm: its commands.
        partition: of the job; empty for the cluster's default.
        qos: of the job; only asked for where preemption goes by QOS.
    """
    try:
        config = answers.config(slurm.show_config())
        fields = slurm.show_partition(partition)
    except SlurmError:
        return None
    return site_of(config, fields, _grace_of(slurm, qos) if _goes_by_qos(config) else None)


def _goes_by_qos(config: Mapping[str, str]) -> bool:
    return config.get("PreemptType", "").endswith("/qos")


def _grace_of(slurm: Slurm, qos: str) -> float | None:
    try:
        return seconds(slurm.qos_grace(qos)) if qos else None
    except SlurmError:
        return None


def refresh_site(paths: RunPaths, slurm: Slurm, job: Mapping[str, str]) -> Site:
    """Return the times that the run directory keeps, else those of Slurm, else its defaults.

    Args:
        paths: the run.
        slurm: its commands.
        job: the fields of ``scontrol show job``.
    """
    kept = read_site(paths)
    if kept is not None:
        return kept
    found = ask_site(slurm, job.get("Partition", ""), job.get("QOS", ""))
    if found is None:
        return Site()
    keep_site(paths, found)
    return found


def learn_site(paths: RunPaths, slurm: Slurm, partition: str, qos: str) -> None:
    """Keep the times that Slurm grants a job that has just been queued; agents ask for missing ones."""
    found = ask_site(slurm, partition, qos)
    if found is not None:
        keep_site(paths, found)
        return
    try:  # that of the job before, which may have been in another partition
        os.unlink(paths.site)
    except OSError:
        return


def discard_drain(paths: RunPaths) -> None:
    """Take a user's drain file away that no agent has heeded: the run is wanted again."""
    try:
        os.unlink(paths.drain)
    except OSError:
        return
