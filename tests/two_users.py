"""Two users of one group, and a directory in which both may write: what one does while the other works."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ALICE, BOB, GROUP = 61001, 61002, 61000
ACL = "system.posix_acl_access"
_NO_ID = 0xFFFFFFFF  # in an ACL: no user or group of its own
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


class TwoUsers:
    """A directory of the group of two users, and a private one of each.

    Args:
        root: the directory that holds them.

    Attributes:
        shared: both can write to it.
    """

    def __init__(self, root: Path) -> None:
        self.shared = root / "shared"
        self.shared.mkdir()
        os.chown(self.shared, 0, GROUP)
        self.shared.chmod(0o2775)
        self._homes = {uid: root / f"home-{uid}" for uid in (ALICE, BOB)}
        for uid, home in self._homes.items():
            home.mkdir(mode=0o700)
            os.chown(home, uid, GROUP)

    def home(self, uid: int) -> Path:
        """Return the private directory of a user."""
        return self._homes[uid]

    def act(self, uid: int, act: Callable[[], Any]) -> Any:
        """Have a user do something in a process of their own, with umask 002, and return the value.

        Raises:
            AssertionError: it raised; the text has the traceback.
        """
        return self.begin(uid, act)()

    def begin(self, uid: int, act: Callable[[], Any]) -> Callable[[], Any]:
        """Have a user begin something, and return the function that waits for its value, as `act` does."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            # Objects of earlier tests are not collected here: torch's process groups would wait for their
            # threads, which no fork has.
            gc.freeze()
            try:  # a forked child must never return into pytest
                os.close(reader)
                value = _value_of(uid, act)
                with open(writer, "wb") as pipe:
                    pickle.dump(value, pipe)
            finally:
                os._exit(0)
        os.close(writer)
        return lambda: _told(reader, child)


def _told(reader: int, child: int) -> Any:
    with open(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    is_done, value = pickle.loads(told)  # noqa: S301 - of a child of this process
    assert is_done, value
    return value


def _value_of(uid: int, act: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        os.setgroups([GROUP])
        os.setgid(GROUP)
        os.setuid(uid)
        os.umask(0o002)
        return True, act()
    except BaseException:  # noqa: BLE001 - all of it is told
        return False, traceback.format_exc()


def acl_for(uid: int) -> bytes:
    """Return the value of `ACL` with which one more user may write, and the group may only read."""
    entries = [(1, 7, _NO_ID), (2, 7, uid), (4, 5, _NO_ID), (16, 7, _NO_ID), (32, 5, _NO_ID)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.fixture
def two_users() -> Iterator[TwoUsers]:
    """Return two users; the directories of pytest are closed to them."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    yield TwoUsers(root)
    shutil.rmtree(root)
