"""The command line of scripts/fuzz."""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz_lib.engine import Fuzzer, Tally
from fuzz_lib.target import Target

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "fuzzing.md"
CORPUS = REPOSITORY / "tests" / "fuzz" / "corpus"
SEED = 12  # of runs that are not told another one, so that they are all alike
_MEMORY = 3 << 30  # bytes of address space: who reads without end is found, and the machine lives
DESCRIPTION = """\
Give every reader and parser damaged, hostile and senseless input, and have the commands, and what ends a
job, work on damaged run directories. Nothing may end in a traceback, take more than 5 seconds, print
control characters, or say something that is not so: no run is done that has not recorded it, no cancelled
job is brought back. Kept inputs come first, then new ones from the seed. An input that breaks a promise is
made smaller, printed and kept. The exit code is 1 if there was one.
"""


def main(argv: Sequence[str], targets: Sequence[Target] | None = None) -> int:
    """Fuzz for a given time and return the exit code."""
    known = _all() if targets is None else targets
    options = _parser(known).parse_args(argv)
    wanted = [target for target in known if not options.target or target.name in options.target]
    _guard()
    _say(f"seed {options.seed}, {options.minutes:g} minutes, {len(wanted)} targets")
    fuzzer = Fuzzer(options.corpus, _say)
    try:
        _fuzz(fuzzer, wanted, options)
    except KeyboardInterrupt:
        _say("ended by the user")
    tallies = [fuzzer.tallies[target.name] for target in wanted if target.name in fuzzer.tallies]
    failures = [failure for tally in tallies for failure in tally.failures]
    text = f"{_where(options)}\n\n{table(tallies)}"
    _say(f"\n{text}")
    if options.write:
        PAGE.write_text(_put_into(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    for failure in failures:
        _say(f"FAILED {failure.target}: {failure.sign}")
    return 1 if failures else 0


def _all() -> Sequence[Target]:
    from fuzz_lib import commands, finish, records, texts  # noqa: PLC0415 - read all that is tested

    return (*records.TARGETS, *texts.TARGETS, *commands.TARGETS, *finish.TARGETS)


def _fuzz(fuzzer: Fuzzer, targets: Sequence[Target], options: argparse.Namespace) -> None:
    stop_at = time.monotonic() + options.minutes * 60
    for target in targets:
        fuzzer.replay(target)
    number = 0
    while not options.replay and (time.monotonic() < stop_at or number == 0):
        for target in _in_turn(fuzzer, targets):
            if time.monotonic() > stop_at and number:
                break
            fuzzer.run(target, number, options.seed)
        number += 1


def _in_turn(fuzzer: Fuzzer, targets: Sequence[Target]) -> list[Target]:
    """Return the targets that are to have a slice now: none gets much more time than the others."""
    took = {name: tally.seconds for name, tally in fuzzer.tallies.items()}
    least = min((took.get(target.name, 0.0) for target in targets), default=0.0)
    return [target for target in targets if took.get(target.name, 0.0) <= 2 * least + 1]


def table(tallies: Sequence[Tally]) -> str:
    """Return what came of each target, as a table. Pure."""
    lines = ["| target | inputs | seconds | faults |", "|---|---:|---:|---:|"]
    lines += [
        f"| {one.target} | {one.inputs:,} | {one.seconds:.0f} | {len(one.failures)} |" for one in tallies
    ]
    inputs, took_s = sum(one.inputs for one in tallies), sum(one.seconds for one in tallies)
    faults = sum(len(one.failures) for one in tallies)
    return "\n".join([*lines, f"| all | {inputs:,} | {took_s:.0f} | {faults} |"])


def _where(options: argparse.Namespace) -> str:
    """Return date, command and machine in one line."""
    some = "".join(f" --target {name}" for name in options.target or ())
    command = f"scripts/fuzz --minutes {options.minutes:g} --seed {options.seed}{some}"
    cores = len(os.sched_getaffinity(0))
    return f"`{command}` on {time.strftime('%Y-%m-%d')}, {cores} CPUs, Python {sys.version.split()[0]}."


def _put_into(page: str, text: str) -> str:
    begin, end = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def _guard() -> None:
    """Keep the machine whole whatever an input does."""
    faulthandler.enable()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, most))


def _say(text: str) -> None:
    print(text.encode("utf-8", "backslashreplace").decode(), flush=True)


def _parser(targets: Sequence[Target]) -> argparse.ArgumentParser:
    names = [target.name for target in targets]
    parser = argparse.ArgumentParser(prog="fuzz", description=DESCRIPTION)
    parser.add_argument("--minutes", type=float, default=2.0, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="gives the inputs (%(default)s)")
    parser.add_argument(
        "--target",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"this one alone; of {', '.join(names)}",
    )
    parser.add_argument("--replay", action="store_true", help="give the kept inputs, and no new ones")
    parser.add_argument(
        "--corpus", type=Path, default=CORPUS, metavar="DIR", help="the kept inputs (tests/fuzz/corpus)"
    )
    parser.add_argument("--write", action="store_true", help=f"put the summary into {PAGE.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
