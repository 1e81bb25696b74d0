"""Start workers from a thread that may end before them.

The kernel ties a child's parent-death signal to the *thread* that forked it, not to its process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class LastingThread:
    """Runs a function in a thread that then waits until it is released."""

    def __init__(self) -> None:
        self._release = threading.Event()

    def call(self, work: Callable[[], None]) -> None:
        """Run a function; its exception is raised here."""
        ended = threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                errors.append(error)
            finally:
                ended.set()
            self._release.wait()

        threading.Thread(target=run, name="hpc-elastic parent", daemon=True).start()
        ended.wait()
        if errors:
            raise errors[0]

    def release(self) -> None:
        """Let the thread end."""
        self._release.set()


def is_main_thread() -> bool:
    """Return whether this is the thread that ends with the process."""
    return threading.current_thread() is threading.main_thread()
