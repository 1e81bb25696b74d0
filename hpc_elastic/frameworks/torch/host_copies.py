"""Copies of states in host memory, which are written while the training goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_elastic.frameworks.torch.train_state import Torch


class HostCopies:
    """Copies states into buffers in host memory, which stay for the next copy.

    PyTorch's ``DefaultStager`` does so too, but that of version 2.11 is of no use for a second copy.

    Args:
        lib: PyTorch's modules.
    """

    def __init__(self, lib: Torch) -> None:
        self._cuda = lib.torch.cuda if lib.torch.cuda.is_available() else None
        self._stager = lib.stager.StateDictStager(pin_memory=self._cuda is not None, share_memory=False)

    def stage(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy in host memory, which is the same memory each time."""
        copied: dict[str, Any] = self._stager.stage(content, non_blocking=self._cuda is not None)
        if self._cuda is not None:
            self._cuda.current_stream().synchronize()
        return copied
