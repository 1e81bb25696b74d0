"""Guards that a program may run without, to see that the zoo notices.

Each one is taken away in the process of a run alone, by a function that answers always the same.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """A guard that is taken away.

    Attributes:
        title: what it is.
        name: of the function, after its module and a colon.
        answer: that it gives always.
        killed_by: a program that shows it.
    """

    title: str
    name: str
    answer: Any
    killed_by: str

    def apply(self) -> None:
        """Take it away in this process."""
        module, _, path = self.name.partition(":")
        owner: Any = importlib.import_module(module)
        *way, last = path.split(".")
        for name in way:
            owner = getattr(owner, name)
        assert callable(getattr(owner, last)), f"{self.name} is no function any more"
        answer = self.answer
        setattr(owner, last, lambda *_, **__: answer)


_MEMORY = "hpc_elastic.frameworks.torch.memory"
MUTANTS: dict[str, Mutant] = {
    "versions": Mutant(
        "the counters of changes", f"{_MEMORY}.proof:Proof.counted", "", "memory_bank_parameter"
    ),
    "sample": Mutant("the sample of the content", f"{_MEMORY}.proof:Proof.differing", "", "ema_data"),
    "checksums": Mutant(
        "the checksums of large buffers",
        f"{_MEMORY}.layout:Layout._changes_in_places",
        False,
        "memory_bank_data",
    ),
    "comparison": Mutant(
        "the comparison of ranks", f"{_MEMORY}.node_memory:NodeMemory._compare", None, "experts_by_rank"
    ),
    "hook": Mutant("the hook before each step", f"{_MEMORY}.rescue:Rescue._begin", None, "adam"),
}
