"""A group of workers that run a program (names as in torch.distributed.elastic)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.multiprocessing.group import ProcessGroup
from hpc_elastic.multiprocessing.pcontext import PContext, RunProcsResult, StartSettings
from hpc_elastic.multiprocessing.signals import SignalException
from hpc_elastic.processes.process import ChildProcess, spawn

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler

__all__ = ["PContext", "RunProcsResult", "SignalException", "StartSettings", "SubprocessContext"]


class SubprocessContext(ProcessGroup):
    """A group of workers that run a program; arguments become texts."""

    def _spawn(self, rank: int) -> ChildProcess:
        argv = (str(self.entrypoint), *(str(arg) for arg in self.args[rank]))
        spec = self._spec(rank, argv, self._marker)
        preloader = self._settings.preloader
        return (None if preloader is None else preloader.fork(spec)) or spawn(spec)

    @property
    def subprocess_handlers(self) -> dict[int, SubprocessHandler]:
        """The started programs by local rank; look at them and signal them, the group does the rest."""
        from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler  # noqa: PLC0415 - rare

        return {rank: SubprocessHandler.of(process, rank) for rank, process in self._processes.items()}
