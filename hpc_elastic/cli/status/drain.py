"""What `hpc-elastic status` tells of stopping a run: how long it takes, and what holds it up."""

from __future__ import annotations

import os

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import save_times
from hpc_elastic.report.timeline import span_text
from hpc_elastic.slurm.client.deadlines import Site, p99
from hpc_elastic.slurm.client.grace_times import read_site
from hpc_elastic.slurm.run_jobs.run_files import drain_times
from hpc_elastic.store import files
from hpc_elastic.text import count_text

_HELD = ".held"


def drain_facts(paths: RunPaths) -> list[tuple[str, str]]:
    """Return labels and texts; nothing where nothing is known."""
    facts = [("held up", text) for text in held_texts(paths)]
    saves = _saves_text(paths)
    if saves:
        facts.append(("saving", saves))
    return facts


def held_texts(paths: RunPaths) -> list[str]:
    """Return why the ends of workers wait, as their agents say it."""
    try:
        names = [name for name in files.list_names(paths.nodes) if name.endswith(_HELD)]
    except OSError:
        return []
    return [text for name in names if (text := _read(os.path.join(paths.nodes, name)))]


def _read(path: str) -> str:
    node = os.path.basename(path).removesuffix(_HELD).rpartition(".")[0]
    try:
        text = (files.read(path) or b"").decode(errors="replace")
    except OSError:
        text = ""
    return f"{node}: {text.splitlines()[0].strip()}" if text else ""  # none: it goes on


def _saves_text(paths: RunPaths) -> str:
    try:
        saves, drains = save_times(paths), drain_times(paths)
    except (OSError, HpcElasticError):
        return ""
    parts = []
    longest = p99(saves)
    if longest is not None:
        parts.append(f"takes up to {span_text(longest)} ({count_text(len(saves), 'checkpoint')})")
    longest = p99(drains)
    if longest is not None:
        parts.append(f"a drain up to {span_text(longest)} ({count_text(len(drains), 'drain')})")
    site = read_site(paths)
    if parts and site is not None:
        parts.append(_granted_text(site))
    return "; ".join(parts)


def _granted_text(site: Site) -> str:
    """Return what Slurm grants a job that it ends."""
    grace = f"GraceTime {span_text(site.grace_s)} and " if site.grace_s else ""
    return f"preempted it has {grace}KillWait {span_text(site.kill_wait_s)}"
