"""A stand-in for sbatch, squeue, scontrol and scancel; started by the fixture `slurm_dir`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.slurm.forms import job_row, printed

STATE = Path(os.environ["STAND_IN_SLURM"])
HELP = Path(__file__).parent / "recorded" / "22.05" / "sbatch_help.txt"


def load(name: str, default: object) -> object:
    """Return the content of a file of the state."""
    path = STATE / name
    return json.loads(path.read_text()) if path.exists() else default


def next_behaviour() -> str:
    """Return how this call goes."""
    left = load("behaviour.json", [])
    assert isinstance(left, list)
    if not left:
        return "ok"
    (STATE / "behaviour.json").write_text(json.dumps(left[1:]))
    return str(left[0])


def queue(argv: list[str]) -> str:
    """Add a job and return its id."""
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    job_id = str(1000 + len(jobs))
    comment = next((word.partition("=")[2] for word in argv if word.startswith("--comment=")), "")
    jobs[job_id] = {"JobState": "PENDING", "Comment": comment}
    (STATE / "jobs.json").write_text(json.dumps(jobs))
    return job_id


def say(text: str) -> None:
    """Write a line to stdout."""
    sys.stdout.write(text + "\n")


def refuse(text: str) -> int:
    """Write a line to stderr and return the exit code of a refusal."""
    sys.stderr.write(text + "\n")
    return 1


def asked_about(word: str) -> int:
    """Say about an option and an empty script what sbatch says; it has one that its help does not list."""
    name, equals, _ = word.removeprefix("--").partition("=")
    if name != "hint":
        return refuse(f"sbatch: unrecognized option '{word}'")
    return refuse(
        "sbatch: error: Batch script is empty!" if equals else f"sbatch: option '{word}' requires an argument"
    )


def sbatch(argv: list[str]) -> int:
    """Queue a job, or not."""
    if "--help" in argv:
        say(HELP.read_text())
        return 0
    if "--test-only" in argv:
        if (load("behaviour.json", []) or ["ok"])[0] == "refuse-test":  # type: ignore[index]
            return refuse(
                "sbatch: error: invalid partition specified: nosuch\nallocation failure: no partition"
            )
        return asked_about(argv[1]) if argv[0] == "--test-only" and len(argv) > 1 else 0
    return sbatch_as(next_behaviour(), argv)


def sbatch_as(kind: str, argv: list[str]) -> int:
    """Queue a job the way a test wants it."""
    if kind == "refuse":
        return refuse("sbatch: error: Batch job submission failed: Invalid account")
    if kind == "no-nodes-yet":
        return refuse(
            "sbatch: error: Batch job submission failed: Requested node configuration is not available"
        )
    if kind in ("socket-timeout", "queue-hang", "twin"):
        queue(argv)
    if kind in ("hang", "queue-hang"):
        signal.pause()
    if kind in ("socket-timeout", "lost"):
        return refuse("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    say(queue(argv) + ";dev")
    return 0


def main() -> int:
    """Be one of the programs."""
    program, *argv = sys.argv[1:]
    stdin = sys.stdin.read() if "--test-only" in argv or "/dev/stdin" in argv else ""
    with (STATE / "calls.jsonl").open("a") as file:
        record = {"program": program, "argv": argv, "env": dict(os.environ), "stdin": stdin}
        file.write(json.dumps(record) + "\n")
    jobs = load("jobs.json", {})
    assert isinstance(jobs, dict)
    if program == "sbatch":
        return sbatch(argv)
    asked = next((word[7:] for word in argv if word.startswith("--jobs=")), None)
    if program == "squeue" and asked is None:
        sys.stdout.write(printed(argv, [job_row({"JobId": job_id, **job}) for job_id, job in jobs.items()]))
        return 0
    job_id = asked or argv[-1]
    if job_id not in jobs:
        return refuse("slurm_load_jobs error: Invalid job id specified")
    if program == "scancel":
        jobs[job_id]["JobState"] = "CANCELLED"
        (STATE / "jobs.json").write_text(json.dumps(jobs))
        return 0
    sys.stdout.write(printed(argv, [job_row({"JobId": job_id, **jobs[job_id]})]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
