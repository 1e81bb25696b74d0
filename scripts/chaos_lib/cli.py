"""The command line of scripts/chaos."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from chaos_lib.course import draw_seed
from chaos_lib.disk import Disk, DiskError
from chaos_lib.faults import FAULTS
from chaos_lib.one_run import Ground, Verdict, run_one
from chaos_lib.own_cluster import NODES, SLURM_HELP, TRACKERS, cluster_in, directory, load_text, may_run
from chaos_lib.page import put_into, shown
from chaos_lib.processes import EXAMPLES
from chaos_lib.summary import table, to_json, total
from tests.real_slurm.cluster import REPOSITORY, Cluster

PAGE = REPOSITORY / "docs" / "faults.md"
EXPEDITES = "enable_expedited_requeue"
LAST_START_S = 45.0  # a run needs about that long even without a fault
DESCRIPTION = """\
Train on a real Slurm (scripts/devcluster) for a given time, as an unprivileged user, while workers,
agents, srun, nodes, links, the disk and Slurm's daemons fail at random, and other users preempt. Every
run must finish with the result of an undisturbed one, or fail for a reason that its faults explain;
every restart must go on from the newest durable checkpoint; nothing may be left behind.
The exit code is 1 if a promise was broken; what tells why is then kept in --evidence.
"""


def main(argv: list[str]) -> int:
    """Run trainings under faults and return the exit code."""
    options = _parser().parse_args(argv)
    if not may_run("chaos"):
        return 2
    seed = draw_seed() if options.seed is None else options.seed
    _say(f"seed {seed}, {options.minutes:g} minutes, {options.mode} mode, {options.tracker}")
    began = time.time()
    try:
        with directory("chaos") as root:
            verdicts = _on_a_cluster(options, seed, root)
    except DiskError as error:
        _say(f"chaos: there is no disk to break: {error}")
        return 2
    except KeyboardInterrupt as stop:
        _say(f"chaos: ended by {stop}")
        return 130
    took_s = time.time() - began
    text = f"{_where(argv)}\n{total(verdicts, seed, took_s)}\n\n{table(verdicts)}"
    print(f"\n{text}")
    if options.write:
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), "chaos", text), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(to_json(verdicts, seed, took_s), indent=1) + "\n")
    bad = [verdict for verdict in verdicts if verdict.broken]
    for verdict in bad:
        print(f"BROKEN in {verdict.name} (seed {seed}): " + "; ".join(verdict.broken))
    return 1 if bad or not verdicts else 0


def _where(argv: list[str]) -> str:
    """Return date, command and machine in one line."""
    return f"`scripts/chaos{shown(argv)}` on {time.strftime('%Y-%m-%d')}, {NODES} nodes on {load_text()}."


def _on_a_cluster(options: argparse.Namespace, seed: int, root: Path) -> list[Verdict]:
    disk = Disk.make(root / "disk.img", root / "disk")  # before the nodes, which see what is mounted then
    try:
        with cluster_in(root, options.tracker, EXPEDITES if options.expedite else "") as cluster:
            try:
                return _runs(options, seed, cluster, disk)
            finally:
                disk.go_on()
    finally:
        disk.remove()


def _runs(options: argparse.Namespace, seed: int, cluster: Cluster, disk: Disk) -> list[Verdict]:
    evidence = options.evidence.absolute()
    kinds = options.only.split(",") if options.only else list(FAULTS)
    flags = ("--preload", options.preload) if options.preload else ()
    ground = Ground(cluster, disk, kinds, options.example, options.mode, flags, evidence, {}, _say)
    stop_at = time.time() + options.minutes * 60
    verdicts: list[Verdict] = []
    number = options.first
    while time.time() < stop_at - LAST_START_S or not verdicts:
        verdict = run_one(ground, number, seed, stop_at)
        _say(f"  {verdict.decision} after {verdict.took_s:.0f} s, {dict(verdict.counts)}")
        for text in verdict.broken:
            _say(f"  BROKEN: {text}")
        verdicts.append(verdict)
        number += 1
    return verdicts


def _say(text: str) -> None:
    print(text, flush=True)


def _kinds(text: str) -> str:
    unknown = [kind for kind in text.split(",") if kind not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(FAULTS)}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=DESCRIPTION)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="gives the runs and their faults; random")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with run N of the seed")
    parser.add_argument("--mode", choices=["step", "array"], default="step", help="how runs are deployed")
    parser.add_argument("--tracker", choices=TRACKERS, default="linuxproc")
    parser.add_argument("--slurm", metavar="VERSION", help=SLURM_HELP)
    parser.add_argument(
        "--expedite", action="store_true", help="the site allows expedited requeues (Slurm 25.11 or later)"
    )
    parser.add_argument("--example", choices=EXAMPLES, default="plain")
    parser.add_argument(
        "--preload", metavar="NAMES", help="the workers are forked warm, those of the undisturbed run are not"
    )
    parser.add_argument("--only", type=_kinds, metavar="FAULT,...", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--write", action="store_true", help=f"put the summary into {PAGE.name}")
    parser.add_argument("--evidence", type=Path, default=Path("chaos-evidence"), metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
