"""The command line of scripts/job-scripts."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpc_elastic.cli.main import main as hpc_elastic
from job_scripts_lib.preempted import Outcome, run_preempted

_SHOWN = 5  # scripts that are named for each reason
DESCRIPTION = """\
Put each file of a folder through `hpc-elastic submit --dry-run`, on a machine that has no Slurm, and tell how
many are accepted, and for which reason the others are refused. With --run, headers of accepted ones are run
on a fake Slurm with another body, each under a preemption: it must come back, and end well. The exit code is
1 if a command ended in a way that it does not document, or a script did not come back.
"""


def main(argv: Sequence[str]) -> int:
    """Judge the scripts of a folder and return the exit code."""
    parser = argparse.ArgumentParser("job-scripts", description=DESCRIPTION)
    parser.add_argument("folder", type=Path, help="with the scripts, also in folders below it")
    parser.add_argument("--run", type=int, default=0, metavar="N", help="how many headers to run")
    options = parser.parse_args(argv)
    files = sorted(path for path in options.folder.resolve().rglob("*") if path.is_file())
    reasons: dict[str, list[Path]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place, _without_slurm(place):
        for path in files:
            reasons[_judged(path)].append(path)
    accepted = reasons.pop("", [])
    _say(f"{len(files)} files, {len(accepted)} accepted")
    for reason, refused in sorted(reasons.items(), key=lambda one: -len(one[1])):
        _say(f"{len(refused):>5} refused: {reason}")
        _say(
            "      " + ", ".join(str(path.relative_to(options.folder.resolve())) for path in refused[:_SHOWN])
        )
    wanted = _spread(accepted, options.run) if options.run else []
    has_fault = any(reason.startswith(_FAULT) for reason in reasons)
    return 1 if not _all_well(run_preempted(wanted) if wanted else ()) or has_fault else 0


_FAULT = "a fault: "


@contextlib.contextmanager
def _without_slurm(place: str) -> Iterator[None]:
    """Work in a folder of its own, where no program of Slurm is found."""
    here, path = Path.cwd(), os.environ["PATH"]
    os.chdir(place)
    os.environ["PATH"] = place
    try:
        yield
    finally:
        os.environ["PATH"] = path
        os.chdir(here)


def _judged(path: Path) -> str:
    """Return for which reason a script is refused, without its name; empty if it is accepted."""
    said, shown = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
        try:
            code = hpc_elastic(["submit", "--dry-run", "--allow-local-run-dir", str(path)])
        except Exception as error:  # noqa: BLE001 - it is told
            return f"{_FAULT}{error!r}"
    said.seek(0)
    lines = said.read().splitlines() or [""]
    if code == 0:
        return ""
    reason = re.sub(rf"{re.escape(str(path))}(:\d+)?", "it", lines[0].removeprefix("error: "))
    return reason if code == 2 else f"{_FAULT}exit code {code}: {reason}"  # noqa: PLR2004 - a usage error


def _spread(paths: Sequence[Path], number: int) -> list[Path]:
    """Return so many of the scripts, from all over the folder."""
    return [*paths[:: max(len(paths) // number, 1)]][:number]


def _all_well(outcomes: Iterable[Outcome]) -> bool:
    found = []
    for one in outcomes:
        _say(f"came back: {one.path.name}" if one.is_well else f"FAILED: {one.path.name}: {one.told}")
        found.append(one.is_well)
    if found:
        _say(f"{len(found)} headers run, {sum(found)} came back and ended well")
    return all(found)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
