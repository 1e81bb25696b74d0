"""The errors of runs without a result."""

from __future__ import annotations

import shlex

from hpc_elastic.errors import HpcElasticError


class NotDoneError(HpcElasticError):
    """A run is over, or its job is gone, and it is not done; no worker's failure tells why.

    Args:
        root: the run directory.
        text: where the run stands, in words.
    """

    def __init__(self, root: str, text: str) -> None:
        super().__init__(root, text)
        self.root = root
        self.text = text

    def __str__(self) -> str:
        root = shlex.quote(self.root)
        return (
            f"the run in {self.root} is not done: {self.text}\n"
            f"  fix: hpc-elastic timeline {root} tells what happened; "
            f"to take it up again: hpc-elastic submit --resume {root}"
        )
