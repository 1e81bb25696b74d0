"""The tests of `tests/real_slurm/test_slurm_preemption.py`, run against the fake."""

from __future__ import annotations

from tests.real_slurm import test_slurm_preemption as real

globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})
