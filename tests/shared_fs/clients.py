"""Programs on the clients of a shared file system, and stores that they serve."""

from __future__ import annotations

import ast
import builtins
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from tests.shared_fs.file_system import REPOSITORY, FileSystem

HOST = REPOSITORY / "tests" / "shared_fs" / "store_host.py"
LIMIT_S = 80.0
SETTLE_S = 70.0
"""How long a client may be behind: above what any file system here was seen to need."""

_T = TypeVar("_T")


class RemoteError(Exception):
    """A function failed on a client in another way than by a StoreError."""


class Client:
    """A program on a client that does what it is asked for (see `store_host`).

    Args:
        system: the file system.
        number: of the client.
    """

    def __init__(self, system: FileSystem, number: int) -> None:
        self.number = number
        program = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, str(HOST)]
        self._process = subprocess.Popen(
            system.argv(number, program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        assert self._process.stdout is not None
        assert "ready\n" == self._process.stdout.readline()
        threading.Thread(target=self._listen, daemon=True).start()

    def is_alive(self) -> bool:
        """Tell whether the program runs."""
        return self._process.poll() is None

    def start(self, function: str, *args: Any, **named: Any) -> Future[Any]:
        """Ask for something; the result comes later."""
        future: Future[Any] = Future()
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            self._process.stdin.write(repr((number, function, args, named)) + "\n")
            self._process.stdin.flush()
        return future

    def ask(self, function: str, *args: Any, **named: Any) -> Any:
        """Ask for something and return the result.

        Raises:
            StoreError: as on the client.
            RemoteError: anything else went wrong there.
        """
        return self.start(function, *args, **named).result(LIMIT_S)

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, error, result = ast.literal_eval(line)
            future = self._waiting.pop(number)
            if error is None:
                future.set_result(result)
            else:
                kind, text, errno = error
                is_store_error = kind == "StoreError"
                future.set_exception(
                    StoreError(text, errno=errno) if is_store_error else RemoteError(f"{kind}: {text}")
                )
        for future in self._waiting.values():
            future.set_exception(RemoteError("the program on the client has ended"))


_REMOVED: set[tuple[str, str, str]] = set()  # root, directory and name of what was taken away


class RemoteStore:
    """The store in a directory of the shared file system, as a client has it."""

    def __init__(self, client: Client, root: str) -> None:
        self._client = client
        self._root = root

    def _call(self, method: str, *args: Any, **named: Any) -> Any:
        return self._client.ask("store", self._root, method, *args, **named)

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create record `number` exclusively."""
        return bool(self._call("append", log, number, value))

    def read_after(self, log: str, number: int) -> builtins.list[tuple[int, bytes]]:
        """Return the records that follow `number`."""
        found: builtins.list[tuple[int, bytes]] = self._call("read_after", log, number)
        return found

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a one-writer file."""
        self._call("put", directory, name, value)

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        value: bytes | None = self._call("get", directory, name)
        return value

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file that never changes."""
        return bool(self._call("create", directory, name, value))

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> builtins.list[str]:
        """Return the names in a directory as soon as they differ from what is known."""
        names: builtins.list[str] = self._call("wait", directory, list(known), timeout)
        return names

    def list(self, directory: str) -> builtins.list[str]:
        """Return the names in a directory, sorted."""
        names: builtins.list[str] = self._call("list", directory)
        return names

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        self._call("mark", directory, name, instead_of=instead_of)
        _REMOVED.discard((self._root, directory, name))

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self._call("unmark", directory, name)
        _REMOVED.add((self._root, directory, name))


class TwoClientStore(RemoteStore):
    """A store that one client writes and another one reads.

    No file system promises that the reader sees at once what the writer sees. So a reader may be
    behind for a bounded time; then both must see the same, and that is what is returned.

    Args:
        writer: one client.
        reader: another one.
        root: the directory.
    """

    def __init__(self, writer: Client, reader: Client, root: str) -> None:
        super().__init__(writer, root)
        self._there = RemoteStore(reader, root)
        self.longest_s = 0.0

    def read_after(self, log: str, number: int) -> builtins.list[tuple[int, bytes]]:
        """Return the records that follow `number`, as the reader sees them."""
        return self._settled(super().read_after, self._there.read_after, log, number)

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value as the reader sees it."""
        return self._settled(super().get, self._there.get, directory, name)

    def list(self, directory: str) -> builtins.list[str]:
        """Return the names in a directory as the reader sees them, but for those that were taken away.

        It may see these for longer (NFS 3): who takes a name away does not wait until all know.
        """
        here = super().list
        return self._settled(
            lambda place: self._left(place, here(place)),
            lambda place: self._left(place, self._there.list(place)),
            directory,
        )

    def _left(self, directory: str, names: builtins.list[str]) -> builtins.list[str]:
        return [name for name in names if (self._root, directory, name) not in _REMOVED]

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> builtins.list[str]:
        """Have the reader wait, who knows what the writer knows."""
        self.list(directory)
        return self._there.wait(directory, known, timeout)

    def _settled(self, here: Callable[..., _T], there: Callable[..., _T], *args: Any) -> _T:
        clock = SystemClock()
        began = clock.monotonic()
        while (found := there(*args)) != (expected := here(*args)):
            behind_s = clock.monotonic() - began
            assert behind_s < SETTLE_S, f"the reader still sees {found!r}, the writer {expected!r}"
            self.longest_s = max(self.longest_s, behind_s)
        return found


class PeerStore(TwoClientStore):
    """A store of one client, which sees what another one sees: it writes and waits on its own.

    Args:
        client: whose store this is.
        peer: the other one.
        root: the directory.
    """

    def __init__(self, client: Client, peer: Client, root: str) -> None:
        super().__init__(client, peer, root)
        self._own = RemoteStore(client, root)

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> builtins.list[str]:
        """Wait as this client, which knows what the other one knows."""
        self.list(directory)
        return self._own.wait(directory, known, timeout)
