"""The tests of `tests/real_slurm/test_slurm_answers.py`, run against the fake."""

from __future__ import annotations

from tests.real_slurm import test_slurm_answers as real

globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})
