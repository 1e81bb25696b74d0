"""A stand-in for sbatch, squeue, scontrol and scancel; started by the fixture `slurm_dir`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

STATE = Path(os.environ["STAND_IN_SLURM"])
HELP = Path(__file__).parent / "recorded" / "22.05" / "sbatch_help.txt"


def load(name: str, default: object) -> object:
    path = STATE / name
    return json.loads(path.read_text()) if path.exists() else default


def next_behaviour() -> str:
    left = load("behaviour.json", [])
    assert isinstance(left, list)
    if not left:
        return "ok"
    (STATE / "behaviour.json").write_text(json.dumps(left[1:]))
    return str(left[0])


def queue(argv: list[str]) -> str:
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    job_id = str(1000 + len(jobs))
    comment = next((word.partition("=")[2] for word in argv if word.startswith("--comment=")), "")
    jobs[job_id] = {"JobState": "PENDING", "Comment": comment}
    (STATE / "jobs.json").write_text(json.dumps(jobs))
    return job_id


def sbatch(argv: list[str]) -> int:
    if "--help" in argv:
        print(HELP.read_text())
        return 0
    if "--test-only" in argv:
        if (load("behaviour.json", []) or ["ok"])[0] == "refuse-test":  # type: ignore[index]
            print("sbatch: error: invalid partition specified: nosuch", file=sys.stderr)
            print("allocation failure: Invalid partition name specified", file=sys.stderr)
            return 1
        return 0
    kind = next_behaviour()
    if kind == "refuse":
        print("sbatch: error: Batch job submission failed: Invalid account", file=sys.stderr)
        return 1
    if kind == "socket-timeout":
        queue(argv)
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv", file=sys.stderr)
        return 1
    if kind == "hang":
        signal.pause()
    if kind == "queue-hang":
        queue(argv)
        signal.pause()
    if kind == "twin":
        queue(argv)
    print(queue(argv) + ";dev")
    return 0


def main() -> int:
    program, *argv = sys.argv[1:]
    stdin = sys.stdin.read() if "--test-only" in argv else ""
    with (STATE / "calls.jsonl").open("a") as file:
        record = {"program": program, "argv": argv, "env": dict(os.environ), "stdin": stdin}
        file.write(json.dumps(record) + "\n")
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if program == "sbatch":
        return sbatch(argv)
    if program == "squeue":
        for job_id, job in jobs.items():
            print(f"{job_id}|{job['Comment']}")
        return 0
    job_id = argv[-1]
    if job_id not in jobs:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    if program == "scancel":
        jobs[job_id]["JobState"] = "CANCELLED"
        (STATE / "jobs.json").write_text(json.dumps(jobs))
        return 0
    print(f"JobId={job_id} JobState={jobs[job_id]['JobState']} Comment={jobs[job_id]['Comment']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
