"""Makes programs at random from the idioms of the zoo, and shows a small one that ends otherwise.

``python -m tests.harmless.generate [--examples 200] [--seed N]``. A program is a `Recipe`; its text is
printed where it is wrong, and becomes a row of the zoo with `tests.harmless.recipes.make`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.harmless import warm
from tests.harmless.recipes import AVERAGES, BODIES, EVALUATIONS, OPTIMIZERS, SCHEDULES, Recipe
from tests.harmless.table import row_of
from tests.harmless.verdict import RIGHT, began_at, outcome, told

ROWS = ("memory", "all")


def recipes() -> Any:
    """Return the strategy of all programs."""
    return st.builds(
        Recipe,
        optimizers=st.lists(st.sampled_from(sorted(OPTIMIZERS)), min_size=1, max_size=3).map(tuple),
        every=st.integers(1, 6),
        schedule=st.sampled_from(sorted(SCHEDULES)),
        body=st.sampled_from(sorted(BODIES)),
        average=st.sampled_from(sorted(AVERAGES)),
        evaluation=st.sampled_from(sorted(EVALUATIONS)),
        width=st.sampled_from([6, 200, 4000]),
        frozen_until=st.integers(0, 8),
        accumulates=st.integers(1, 3),
    )


def wrong_rows(recipe: Recipe, place: Path) -> dict[str, str]:
    """Run a program, and return the rows in which it ends otherwise."""
    name = f"recipe:{json.dumps(recipe._asdict())}"
    asked = [warm.Asked(name, row, str(place / row)) for row in ("bare", *ROWS)]
    warm.run_all(asked, 1, lambda _: None)
    bare = told(place / "bare", 1)
    assert None not in bare.ends, bare.log[-2000:]
    found = {row: told(place / row, 1) for row in ROWS}
    results = {row: outcome(row_of(row), bare, seen) for row, seen in found.items()}
    return {row: f"{one} {began_at(found[row])}" for row, one in results.items() if one not in RIGHT}


def search(examples: int, number: int) -> None:
    """Try programs; the smallest wrong one is raised.

    Raises:
        AssertionError: names it.
    """

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(recipes())
    def tried(recipe: Recipe) -> None:
        place = Path(tempfile.mkdtemp(prefix="zoo-recipe-"))
        try:
            wrong = wrong_rows(recipe, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if wrong:
            print(recipe, wrong, flush=True)
        assert not wrong, f"{recipe}: {wrong}"

    tried()


def main(words: Sequence[str] | None = None) -> int:
    """Search."""
    parser = argparse.ArgumentParser(prog="python -m tests.harmless.generate", description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="programs to try")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    warm.prepare()
    search(options.examples, options.seed)
    print(f"{options.examples} programs end as without the product")
    return 0


if __name__ == "__main__":
    sys.exit(main())
