"""Our rendezvous for torch's own launcher: ``torchrun --rdzv-backend=hpc_elastic --rdzv-endpoint=DIR``.

Torch finds `get_handler` by the entry-point group ``torchrun.handlers``. Nothing here is imported
unless torch asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpc_elastic.errors import HpcElasticError, RendezvousError
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.shared_fs import SharedFsHandler, create_handler

BACKEND = "hpc_elastic"


def get_handler() -> Callable[[Any], Any]:
    """Return the function that torch's registry calls with its parameters to get a handler.

    The handler is one of torch's own kind, and raises torch's errors, which torch's agent acts on.
    """
    from torch.distributed.elastic.rendezvous import api  # noqa: PLC0415 - 1 s; torch is there if it asks

    class Handler(_Handler, api.RendezvousHandler):
        """A `SharedFsHandler` as torch's agent knows handlers."""

    def create(params: Any) -> Any:
        ours = RendezvousParameters(
            params.backend,
            params.endpoint,
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            **{**restart_of(params.run_id, os.environ), **params.config},
        )
        with _as_torchs(api):
            return Handler(create_handler(ours), api)

    return create


def restart_of(run_id: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the option that tells which start of its job a run is in, if the run is that of the job.

    Agents of an earlier start are then known to be gone, or are sent away, without waiting for a lease.
    A run with an id of its own may be shared by several jobs, whose restarts mean nothing to one another.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    # the last task of an array has the id of the whole array
    job = f"{array}_{task}" if array else environ.get("SLURM_JOB_ID")
    return {"restart": environ.get("SLURM_RESTART_COUNT") or "0"} if run_id == job else {}


class _Handler:
    """The interface of torch's `RendezvousHandler`.

    Args:
        handler: ours.
        api: the module with torch's errors.
    """

    use_agent_store = False  # the store of a round is ours; workers make one of their own kind

    def __init__(self, handler: SharedFsHandler, api: Any) -> None:
        self._handler = handler
        self._api = api

    def get_backend(self) -> str:
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    def next_rendezvous(self) -> Any:
        with _as_torchs(self._api):
            info = self._handler.next_rendezvous()
            return self._api.RendezvousInfo(info.store, info.rank, info.world_size, info.bootstrap_store_info)

    def is_closed(self) -> bool:
        with _as_torchs(self._api):
            return self._handler.is_closed()

    def set_closed(self) -> None:
        with _as_torchs(self._api):
            self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        with _as_torchs(self._api):
            return self._handler.num_nodes_waiting()

    def shutdown(self) -> bool:
        with _as_torchs(self._api):
            return self._handler.shutdown()


@contextmanager
def _as_torchs(api: Any) -> Iterator[None]:
    """Raise errors as torch's of the same name; others become its `RendezvousError`."""
    try:
        yield
    except RendezvousError as error:
        same = (getattr(api, kind.__name__, None) for kind in type(error).__mro__)
        raise next(kind for kind in same if kind is not None)(str(error)) from error
    except HpcElasticError as error:
        raise api.RendezvousError(str(error)) from error
