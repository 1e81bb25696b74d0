"""A group of flags of ``hpc-elastic run``."""

from __future__ import annotations

import argparse
from typing import Any

from hpc_elastic.argparse_util import check_env, env


class FlagGroup:
    """A group of flags, each in both spellings, with dashes and with underscores."""

    def __init__(self, group: argparse._ArgumentGroup) -> None:
        self._group = group

    def add(self, *names: str, **options: Any) -> None:
        """Add a flag that takes a value."""
        self._add(names, {"action": env, **options})

    def switch(self, *names: str, **options: Any) -> None:
        """Add a flag that takes none."""
        self._add(names, {"action": check_env, **options})

    def _add(self, names: tuple[str, ...], options: dict[str, Any]) -> None:
        longest = max(names, key=len)
        dest = longest.lstrip("-").replace("-", "_")
        spellings = dict.fromkeys((*names, f"--{dest}"))
        self._group.add_argument(*spellings, dest=dest, **options)
