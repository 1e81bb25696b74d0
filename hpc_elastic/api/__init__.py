"""Runs from Python: queue a function, a script or a job file, wait for it, get the values back."""

from hpc_elastic.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.api.run import NotDoneError, Run
    from hpc_elastic.api.start import submit

__all__ = ["NotDoneError", "Run", "submit"]

__getattr__, __dir__ = lazy_names(__name__, {"NotDoneError": "run", "Run": "run", "submit": "start"})
