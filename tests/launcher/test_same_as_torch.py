"""The same launches with torch and with this package come to the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("same_launches.py")
REPOSITORY = PROGRAM.parents[2]


def launches(package: str, directory: Path) -> dict[str, Any]:
    """Make all launches with one package and return what came of them."""
    directory.mkdir()
    subprocess.run(
        [sys.executable, str(PROGRAM), package, str(directory)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
        timeout=150,
    )
    return dict(json.loads((directory / "found.json").read_text()))


@pytest.mark.torch
@pytest.mark.slow
def test_launches_come_to_the_same(tmp_path: Path) -> None:
    """Values, failures and refusals, that of a backend that does not exist too."""
    theirs = launches("torch.distributed", tmp_path / "theirs")
    ours = launches("hpc_elastic", tmp_path / "ours")
    assert theirs == ours
