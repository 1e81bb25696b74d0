"""For PyTorch: checkpoints in the background, and stores by which ranks find each other.

`Checkpoints` saves and loads the state of a training. ``torch.distributed.init_process_group("nccl",
**bootstrap())`` needs no port or address in the environment: rank 0 takes a port that is free at that moment
and keeps it; its address is published in the run directory, to the workers of this round alone.
"""

from hpc_elastic.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.frameworks.torch.checkpoint_files import CompleteCheckpoint
    from hpc_elastic.frameworks.torch.checkpoints import Checkpoints
    from hpc_elastic.frameworks.torch.stores import bootstrap, shared_store, store
    from hpc_elastic.frameworks.torch.train_state import Replicated, Resharded

__all__ = [
    "Checkpoints",
    "CompleteCheckpoint",
    "Replicated",
    "Resharded",
    "bootstrap",
    "shared_store",
    "store",
]

_HOMES = {
    "Checkpoints": "checkpoints",
    "Replicated": "train_state",
    "Resharded": "train_state",
    "CompleteCheckpoint": "checkpoint_files",
    "bootstrap": "stores",
    "shared_store": "stores",
    "store": "stores",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
