"""The random numbers of a forked worker: its own, as those of a worker that Python starts.

Runs in the workers' interpreter, with the standard library alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
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
        is_numpy_drawn: whether numbers have been drawn from NumPy's since it was made.
    """

    python: Any = None
    is_numpy_seeded: bool = False
    torch: int | None = None
    is_numpy_drawn: bool = False


def generators() -> Generators:
    """Return the present states."""
    python: Any = sys.modules.get("random")
    torch = _torchs()
    return Generators(
        python.getstate() if hasattr(python, "getstate") else None,
        _is_numpy_seeded(),
        None if torch is None else torch.initial_seed(),
        _is_numpy_drawn(),
    )


def touched(before: Generators, after: Generators) -> str:
    """Return the effect of an import on common generators that no copy may have; empty if there is none."""
    name = seeded(before, after)
    if name:
        return f"gives a seed to the random numbers of {name}"
    if after.is_numpy_drawn and not before.is_numpy_drawn:
        return "draws random numbers, which would be the same in all copies (of NumPy)"
    return ""


def seeded(before: Generators, after: Generators) -> str:
    """Return the generator to which an import has given a seed; empty if there is none. A draw is no seed."""
    if before.python is not None and not _is_continued(before.python, after.python):
        return "random"
    if after.is_numpy_seeded and not before.is_numpy_seeded:
        return "NumPy"
    if after.torch is None or after.torch == before.torch:
        return ""
    return "PyTorch" if before.torch is not None or after.torch < _SMALL else ""


def reseed(made: Sequence[Any] = ()) -> None:
    """Give this process random numbers and keys of its own; ``random`` does so by itself at a fork.

    Args:
        made: the generators of ``random`` that modules have made without a seed.
    """
    for generator in made:
        sys.modules["random"].Random.seed(generator)
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

    stepped = random.Random(0)  # noqa: S311 - it is no secret, and with a seed no import seems to have made it
    stepped.setstate(before)
    for _ in range(_MOST_STEPS):
        if stepped.getstate()[1][:-1] == after[1][:-1]:
            return True
        stepped.getrandbits(624 * 32)
    return False


def _numpys() -> Any:
    """Return the generator of bits below NumPy's common one; None if it is not loaded."""
    common = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    return getattr(common, "_bit_generator", None)


def _is_numpy_seeded() -> bool:
    """Tell whether the seed of NumPy's common generator was given, and not drawn."""
    generator = _numpys()
    return generator is not None and getattr(generator, "_seed_seq", generator) is None


def _is_numpy_drawn() -> bool:
    """Tell whether NumPy's common generator has left the state that its seed gives."""
    generator = _numpys()
    seed = getattr(generator, "_seed_seq", None)
    if seed is None:
        return False
    now, first = generator.state["state"], type(generator)(seed).state["state"]
    return bool(now["pos"] != first["pos"] or (now["key"] != first["key"]).any())


def _torchs() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)
