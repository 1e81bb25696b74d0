"""``hpc-elastic version``: the version of this package."""

from __future__ import annotations

from hpc_elastic import __version__
from hpc_elastic.cli.say import say


def version() -> None:
    """Print the version."""
    say(__version__)
