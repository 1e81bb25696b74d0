"""A rendezvous backend in a shared directory: one immutable file per state, its number is the token.

A node that replaces state n creates file n + 1 exclusively, so of several writers one succeeds. Old
states are taken away; a writer that slept so long that its number is free again finds that far newer
states exist, and takes its own back.
"""

from __future__ import annotations

import re
from typing import Any

from hpc_elastic.errors import RendezvousConnectionError, StoreError
from hpc_elastic.rendezvous.dynamic_executor import RendezvousBackend, Token
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.store.kv import open_round_store
from hpc_elastic.store.kv.versions import encode_key, key_bytes
from hpc_elastic.store.protocol import Store

KEPT_STATES = 64
_NUMBER = re.compile(r"[0-9]{10}", re.ASCII)
_TRIES = 10


class SharedFsRendezvousBackend(RendezvousBackend):
    """Holds the state of a rendezvous in a store.

    Each sign of life of each node replaces the state, as with torch's backends: good for some dozens
    of nodes. The handler ``shared_fs`` scales further.

    Args:
        store: the run's store, for example a `SharedDirStore`.
        run_id: the id of the run; several runs may share a store.

    Raises:
        ValueError: there is no run id.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store = store
        self._directory = f"rendezvous-{encode_key(key_bytes(run_id))}"
        self._newest: tuple[bytes, int] | None = None

    @property
    def name(self) -> str:
        """The name of the backend."""
        return "shared_fs"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None; see `RendezvousBackend.get_state`."""
        try:
            return self._read()
        except StoreError as error:
            raise self._no_answer(error) from error

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state; see `RendezvousBackend.set_state`."""
        try:
            found = self._read()
            number = found[1] if found is not None else 0
            if _names(token, number) and self._create(number + 1, state):
                self._newest = (state, number + 1)
                return state, number + 1, True
            found = self._read()
        except StoreError as error:
            raise self._no_answer(error) from error
        return (*found, False) if found is not None else None

    def _read(self) -> tuple[bytes, int] | None:
        """Return the newest state: a listing that lags behind never shows an older one than before."""
        for _ in range(_TRIES):
            number = max(self._numbers(), default=0)
            if self._newest is not None and number <= self._newest[1]:
                return self._newest
            if not number:
                return None
            data = self._store.get(self._directory, _file(number))
            if data is not None:  # else it has been taken away meanwhile: there are newer ones
                self._newest = (data, number)
                return self._newest
        raise StoreError(f"{self._directory}: the newest state vanished {_TRIES} times while it was read")

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._store.list(self._directory) if _NUMBER.fullmatch(name)]

    def _create(self, number: int, state: bytes) -> bool:
        if not self._store.create(self._directory, _file(number), state):
            return False
        present = self._numbers()
        newest = max(present, default=number)
        if newest >= number + KEPT_STATES:  # another node had the number before, and it was removed
            self._store.unmark(self._directory, _file(number))
            return False
        for old in present:
            if old <= newest - KEPT_STATES:
                self._store.unmark(self._directory, _file(old))
        return True

    def _no_answer(self, error: StoreError) -> RendezvousConnectionError:
        return RendezvousConnectionError(
            f"The connection to the shared directory has failed: {error} (rendezvous backend '{self.name}')"
        )


def create_backend(params: RendezvousParameters) -> tuple[SharedFsRendezvousBackend, Any]:
    """Return a backend in the directory that the endpoint names, and a key-value store beside it.

    Raises:
        RunDirError: the directory cannot be used.
    """
    from hpc_elastic.paths import RunPaths  # noqa: PLC0415 - only if a backend is made by parameters
    from hpc_elastic.record.run_directory import prepare_run_dir  # noqa: PLC0415
    from hpc_elastic.store.shared_dir import SharedDirStore  # noqa: PLC0415

    paths = RunPaths(params.endpoint)
    prepare_run_dir(paths)
    backend = SharedFsRendezvousBackend(SharedDirStore(paths.root), params.run_id)
    scope = f"run-{params.run_id}"
    return backend, open_round_store(paths.root, scope)


def _file(number: int) -> str:
    return f"{number:010d}"


def _names(token: Token | None, number: int) -> bool:
    """Tell whether a token names the state with a number; None names the absence of any."""
    if token is None:
        return number == 0
    return type(token) is int and token == number and number > 0
