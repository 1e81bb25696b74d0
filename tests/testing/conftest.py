"""The fixture `fake_slurm`, which an installed package brings along by itself."""

from __future__ import annotations

from hpc_elastic.testing.pytest_plugin import fake_slurm, pytest_configure

__all__ = ["fake_slurm", "pytest_configure"]
