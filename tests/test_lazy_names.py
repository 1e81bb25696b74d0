"""Names that a package has from elsewhere."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = [
    "hpc_elastic.agent",
    "hpc_elastic.events",
    "hpc_elastic.metrics",
    "hpc_elastic.multiprocessing",
    "hpc_elastic.multiprocessing.errors",
    "hpc_elastic.rendezvous",
    "hpc_elastic.store",
    "hpc_elastic.utils",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    """It can be imported, and is shown to people."""
    module = import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert {*module.__all__} <= {*dir(module)}
    assert sorted(dir(module)) == dir(module)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", ["nothing", "_nothing", "__wrapped__"])
def test_a_name_that_is_not_there(package: str, name: str) -> None:
    """Python's own error, in Python's words."""
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute '{name}'$"):
        getattr(import_module(package), name)


def test_a_name_may_be_another_one_elsewhere() -> None:
    """Torch's name and ours are one class."""
    store = import_module("hpc_elastic.store")
    assert store.DistStoreError is store.StoreTimeoutError


def test_a_module_needs_no_import() -> None:
    """As with torch, whose packages import all of theirs; only what is named is loaded."""
    code = (
        "import sys, hpc_elastic\n"
        "assert hpc_elastic.store.memory.MemoryStore\n"
        "print('hpc_elastic.store.memory' in sys.modules, 'hpc_elastic.agent' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "True False\n" == said
