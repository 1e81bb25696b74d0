"""Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss.

Importing this package is cheap on purpose: a thousand nodes may import it from one shared file
system at the same moment. Everything is imported where it is used.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.api import Run as Run
    from hpc_elastic.api import submit as submit

_RUNS = ("Run", "submit")


def __getattr__(name: str) -> object:
    """Import a part of the package that a program names without having imported it."""
    if name in _RUNS:
        from importlib import import_module  # noqa: PLC0415 - only for programs that submit runs

        return getattr(import_module("hpc_elastic.api"), name)
    from hpc_elastic.lazy_names import submodule  # noqa: PLC0415 - importing the package loads nothing

    return submodule(__name__, name)
