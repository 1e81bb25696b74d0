"""Saving, stopping and resuming for training code that a framework runs, in a line or two.

`ElasticLoop` is for every loop of one's own (accelerate, Fabric, FSDP, DDP); the callbacks for Lightning's
and Hugging Face's Trainer are in `hpc_elastic.frameworks.lightning` and `.transformers`, stores for PyTorch's
process groups in `.torch`. This package loads no framework by itself.
"""

from hpc_elastic.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.frameworks.loop import ElasticLoop
    from hpc_elastic.frameworks.saving import latest

__all__ = ["ElasticLoop", "latest"]

_HOMES = {"ElasticLoop": "loop", "latest": "saving"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
