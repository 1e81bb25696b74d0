"""For PyTorch: the store by which ranks find each other, without a port or address in the environment.

``torch.distributed.init_process_group("nccl", **bootstrap())`` is all that a script changes. Rank 0 takes
a port that is free at that moment and keeps it; its address is published in the run directory, to the
workers of this round alone.
"""

from hpc_elastic.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.frameworks.torch.stores import bootstrap, shared_store, store

__all__ = ["bootstrap", "shared_store", "store"]

_HOMES = {"bootstrap": "stores", "shared_store": "stores", "store": "stores"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
