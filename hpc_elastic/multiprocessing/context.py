"""A group of workers that run a program (names as in torch.distributed.elastic)."""

from __future__ import annotations

from hpc_elastic.multiprocessing.group import ProcessGroup
from hpc_elastic.multiprocessing.pcontext import PContext, RunProcsResult, SignalException, StartSettings
from hpc_elastic.multiprocessing.process import Process, spawn

__all__ = ["PContext", "RunProcsResult", "SignalException", "StartSettings", "SubprocessContext"]


class SubprocessContext(ProcessGroup):
    """A group of workers that run a program; arguments become texts."""

    def _spawn(self, rank: int) -> Process:
        return spawn(
            self._spec(rank, (str(self.entrypoint), *(str(arg) for arg in self.args[rank])), self._marker)
        )
