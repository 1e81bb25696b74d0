"""The random numbers of a forked worker: its own, as those of a worker that Python starts.

Runs in the workers' interpreter, with the standard library alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any, Final

from hpc_elastic.named_tuple import NamedTuple

_TORCHS_SEED: Final = 67280421310721  # of each process, in versions that draw none
_SMALL: Final = 1 << 32  # a seed that torch has drawn is less with a chance of 2^-32
_MOST_STEPS: Final = 100  # of 624 random numbers each; an import that draws more counts as one that seeds


class Generators(NamedTuple):
    """The states of the generators that a process has in common, as far as they are loaded.

    Args:
        python: the state of ``random``.
        is_numpy_seeded: whether NumPy's has been given a seed or a state.
        torch: the seed of PyTorch's.
    """

    python: Any = None
    is_numpy_seeded: bool = False
    torch: int | None = None


def load_random() -> None:
    """Load Python's own ``random``, none of the user's, so that a seed that an import sets is seen."""
    spec = importlib.util.find_spec("random")
    if spec is not None and os.path.dirname(spec.origin or "") == os.path.dirname(os.__file__):
        importlib.import_module("random")


def generators() -> Generators:
    """Return the present states."""
    python: Any = sys.modules.get("random")
    torch = _torchs()
    return Generators(
        python.getstate() if hasattr(python, "getstate") else None,
        _is_numpy_seeded(),
        None if torch is None else torch.initial_seed(),
    )


def seeded(before: Generators, after: Generators) -> str:
    """Return the generator to which an import has given a seed; empty if there is none.

    To draw numbers is no seed: a worker that Python starts begins anywhere.
    """
    if before.python is not None and not _is_continued(before.python, after.python):
        return "random"
    if after.is_numpy_seeded and not before.is_numpy_seeded:
        return "NumPy"
    if after.torch is None or after.torch == before.torch:
        return ""
    return "PyTorch" if before.torch is not None or after.torch < _SMALL else ""


def reseed() -> None:
    """Give this process random numbers and keys of its own; ``random`` does so by itself at a fork."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = _torchs()
    if torch is not None and torch.initial_seed() != _TORCHS_SEED:
        torch.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def _is_continued(before: Any, after: Any) -> bool:
    """Tell whether one state of ``random`` comes from another by draws alone."""
    if before == after:
        return True
    import random  # noqa: PLC0415 - it is loaded, and may not be Python's own in another process

    stepped = random.Random()  # noqa: S311 - it is no secret
    stepped.setstate(before)
    for _ in range(_MOST_STEPS):
        if stepped.getstate()[1][:-1] == after[1][:-1]:
            return True
        stepped.getrandbits(624 * 32)
    return False


def _is_numpy_seeded() -> bool:
    """Tell whether the seed of NumPy's common generator was given, and not drawn."""
    common = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    generator = getattr(common, "_bit_generator", None)
    return generator is not None and getattr(generator, "_seed_seq", generator) is None


def _torchs() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)
