"""The state of a rendezvous under one key of a key-value store, the key that torch uses.

The store is one of `hpc_elastic.store`, or one of torch's that the caller has opened. The value
there is our state and not torch's: all nodes of a run need this package.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from hpc_elastic.errors import RendezvousConnectionError, RendezvousStateError
from hpc_elastic.rendezvous.dynamic_executor import RendezvousBackend, Token
from hpc_elastic.rendezvous.other_names import check_c10d, directory_of
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.utils import matches_this_machine as _matches_machine_hostname
from hpc_elastic.rendezvous.utils import parse_rendezvous_endpoint
from hpc_elastic.store.kv import open_round_store

__all__ = [
    "DEFAULT_PORT",
    "C10dRendezvousBackend",
    "_matches_machine_hostname",
    "create_backend",
    "parse_rendezvous_endpoint",
]

DEFAULT_PORT = 29400
_NOTHING = b"Y2FuaW1hZGFt"  # stands for no state, since reading an absent key waits for it
_READ_TIMEOUT_S = 60


class C10dRendezvousBackend(RendezvousBackend):
    """Holds the state of a rendezvous in a key-value store with `get` and `compare_set`.

    Two states differ if their content differs: a node that writes the same content as another node has just
    written gets the answer that its own write succeeded.

    Args:
        store: the store.
        run_id: the id of the run; several runs may share a store.

    Raises:
        ValueError: there is no run id.
        RendezvousConnectionError: the store did not answer.
    """

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store = store
        self._key = f"torch.rendezvous.{run_id}"
        self._ask(lambda: store.compare_set(self._key, "", _NOTHING.decode()))

    @property
    def name(self) -> str:
        """The name of the backend."""
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None; see `RendezvousBackend.get_state`."""
        return _decoded(self._ask(lambda: self._store.get(self._key)))

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state; see `RendezvousBackend.set_state`."""
        if token is not None and not isinstance(token, bytes):  # never was one
            found = self.get_state()
            return (*found, False) if found is not None else None
        before = (_NOTHING if token is None else token).decode("ascii", "replace")
        wish = b64encode(state).decode()
        found = _decoded(self._ask(lambda: self._store.compare_set(self._key, before, wish)))
        return (*found, found[0] == state) if found is not None else None

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (ValueError, RuntimeError, TimeoutError) as error:
            raise RendezvousConnectionError(
                "The connection to the C10d store has failed. See inner exception for details."
            ) from error


def _decoded(value: bytes) -> tuple[bytes, Token] | None:
    if value == _NOTHING:
        return None
    try:
        return b64decode(value), value
    except ValueError as error:
        raise RendezvousStateError("The state object is corrupt. See inner exception for details.") from error


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """Return a backend and its key-value store in a directory; see `other_names.directory_of` for which.

    Option: ``read_timeout``, how long reading waits for keys (60) [s].

    Raises:
        ValueError: the endpoint or an option cannot be used.
        RunDirError: the directory cannot be used.
        RendezvousConnectionError: the directory does not answer.
    """
    from hpc_elastic.paths import RunPaths  # noqa: PLC0415 - only if a backend is made by parameters
    from hpc_elastic.record.run_directory import prepare_run_dir  # noqa: PLC0415

    check_c10d(params)
    paths = RunPaths(directory_of(params))
    prepare_run_dir(paths)
    timeout = params.get_as_int("read_timeout", _READ_TIMEOUT_S) or _READ_TIMEOUT_S
    store = open_round_store(paths.root, f"c10d-{params.run_id}", timeout)
    return C10dRendezvousBackend(store, params.run_id), store
