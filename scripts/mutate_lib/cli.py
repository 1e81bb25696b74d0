"""The command line of scripts/mutate."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

from chaos_lib.page import put_into

from mutate_lib.campaign import Campaign
from mutate_lib.equivalents import FILE, parse
from mutate_lib.judge import Fate
from mutate_lib.modules import DECIDING
from mutate_lib.mutants import Source, draw
from mutate_lib.project import Project, UnknownModuleError, module_name
from mutate_lib.table import render, total

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = "docs/mutation.md"
DESCRIPTION = """\
Put one small fault after the other into the code, each into a copy of the repository, and see whether the
fast tests notice: first those about the module, then those of its package and of the modules that import it;
of these only tests that run the changed line. The exit code is 1 if a fault is not noticed that
tests/mutation/equivalent.toml does not explain.
"""


def main(argv: list[str]) -> int:
    """Judge mutants and return the exit code."""
    options = _parser().parse_args(argv)
    project = Project.find(options.root.resolve(), options.package)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    try:
        files = dict.fromkeys(project.file_of(module) for module in options.modules or DECIDING)
    except UnknownModuleError as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    sources = [Source(module_name(project, file), project.read(file)) for file in files]
    everything = draw(sources, options.count if not options.match else sys.maxsize, seed)
    mutants = [mutant for mutant in everything if options.match in mutant.text()]
    if options.list:
        print("\n".join(mutant.text() for mutant in mutants))
        return 0
    _say(f"seed {seed}, {len(mutants)} mutants of {len(sources)} modules")
    for number in (signal.SIGINT, signal.SIGTERM):  # also where it runs in the background
        signal.signal(number, signal.default_int_handler)
    began = time.time()
    explained = parse(project.read(FILE)) if (project.root / FILE).exists() else []
    verdicts = Campaign(project, options.jobs, options.wide, _say).run(mutants, explained)
    print(f"\n{total(verdicts)}\n\n{render(verdicts)}")
    if options.write:
        command = f"`scripts/mutate --count {options.count} --seed {seed}`"
        what = f"{command}, {(time.time() - began) / 60:.0f} minutes on {os.cpu_count()} cores."
        page = project.root / PAGE
        text = f"{what}\n{total(verdicts)}\n\n{render(verdicts)}"
        page.write_text(put_into(page.read_text(encoding="utf-8"), "mutate", text), encoding="utf-8")
    return 1 if any(verdict.fate is Fate.SURVIVED for verdict in verdicts) else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutate", description=DESCRIPTION)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as store.files; all that decide")
    parser.add_argument("--count", type=int, default=225, metavar="N", help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="gives which mutants; random")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="of pytest at once"
    )
    parser.add_argument("--match", default="", metavar="TEXT", help="all mutants whose line has this text")
    parser.add_argument(
        "--wide", type=float, default=120.0, metavar="S", help="limit of wider tests; 0: none run"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument("--root", type=Path, default=REPOSITORY, metavar="DIR", help="another repository")
    parser.add_argument("--package", default="hpc_elastic", metavar="NAME", help="its package")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
