"""All mutants of one command: first in place, then in copies.

In the copies the tests about their modules run first, then wider ones for those that live.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mutate_lib.coverage_map import Recorder, in_threads
from mutate_lib.equivalents import Equivalent, reason_for
from mutate_lib.in_place import choose_in_place, killed_in_place
from mutate_lib.judge import Fate, Verdict, judge, tests_for
from mutate_lib.mutants import Mutant
from mutate_lib.project import Project, all_files
from mutate_lib.tree import make_base, remove


class Campaign:
    """Judges mutants.

    Args:
        project: whose mutants they are.
        jobs: how many runs of pytest at once.
        wide_s: how long the wider tests of one mutant may take together.
        say: prints a line.
    """

    def __init__(self, project: Project, jobs: int, wide_s: float, say: Callable[[str], None]) -> None:
        self._project = project
        self._jobs = jobs
        self._wide_s = wide_s
        self._say = say

    def run(self, mutants: Sequence[Mutant], explained: Sequence[Equivalent]) -> list[Verdict]:
        """Return what becomes of each mutant; explained ones are not run."""
        reasons = {mutant: reason_for(mutant, explained) for mutant in mutants}
        fates = {one: Verdict(one, Fate.EQUIVALENT, why) for one, why in reasons.items() if why is not None}
        root = Path(tempfile.mkdtemp(prefix="mutate-"))
        root.chmod(0o755)  # tests of root start programs as another user
        try:
            make_base(self._project, root / "base")
            copy = replace(self._project, root=root / "base")  # somebody may go on to work on the other one
            recorder = Recorder(copy, self._jobs, self._say)
            left = [mutant for mutant in mutants if mutant not in fates]
            killed = self._in_place(left, copy.direct_tests, recorder, root / "base")
            fates.update({verdict.mutant: verdict for verdict in killed})
            left = [mutant for mutant in left if mutant not in fates]
            stages = [(copy.direct_tests, None), (copy.wider_tests, self._wide_s)]
            for tests_of, limit_s in stages if self._wide_s else stages[:1]:
                verdicts = self._stage(left, tests_of, recorder, root / "base", limit_s)
                fates.update({verdict.mutant: verdict for verdict in verdicts})
                left = [verdict.mutant for verdict in verdicts if verdict.fate is Fate.SURVIVED]
        finally:
            remove(root)
        return [fates[mutant] for mutant in mutants]

    def _in_place(
        self, mutants: Sequence[Mutant], tests_of: Callable[[str], list[str]], recorder: Recorder, base: Path
    ) -> list[Verdict]:
        """Return which mutants tests notice in a process that has many faults, one after the other."""
        by_file: dict[str, list[Mutant]] = {}
        for mutant in mutants:
            by_file.setdefault(self._project.file_of(mutant.module), []).append(mutant)
        useful = {file: tests_of(file) for file in by_file}
        found = recorder.find(all_files(useful.values()))
        parts = []
        for file, mine in by_file.items():
            known = [found[name] for name in useful[file]]
            chosen = [(mutant, tests) for mutant in mine if (tests := choose_in_place(mutant, file, known))]
            count = -(-self._jobs // len(by_file))
            parts += [(file, part) for at in range(count) if (part := chosen[at::count])]

        def of(number: int) -> list[Verdict]:
            verdicts = killed_in_place(base, f"place{number}", *parts[number])
            for verdict in verdicts:
                self._say_of(verdict)
            return verdicts

        return [one for some in in_threads(self._jobs, of, range(len(parts))) for one in some]

    def _stage(
        self,
        mutants: Sequence[Mutant],
        tests_of: Callable[[str], list[str]],
        recorder: Recorder,
        base: Path,
        limit_s: float | None,
    ) -> list[Verdict]:
        """Judge mutants by the tests of some files, which depend on the mutant's module."""
        files = {mutant: self._project.file_of(mutant.module) for mutant in mutants}
        useful = {file: tests_of(file) for file in set(files.values())}
        found = recorder.find(all_files(useful.values()))

        def of(mutant: Mutant) -> Verdict:
            known = [found[name] for name in useful[files[mutant]]]
            verdict = judge(base, mutant, files[mutant], tests_for(mutant, files[mutant], known, limit_s))
            self._say_of(verdict)
            return verdict

        return in_threads(self._jobs, of, mutants)

    def _say_of(self, verdict: Verdict) -> None:
        self._say(f"{verdict.fate.value}: {verdict.mutant.text()}\n    {verdict.why}")
