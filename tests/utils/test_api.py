"""Small things that users of torch's utils import."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.utils import get_env_variable_or_raise, get_socket_with_port, macros
from hpc_elastic.utils.distributed import create_c10d_store, get_free_port
from hpc_elastic.utils.process_state import is_uninterruptible_state, read_proc_state


def test_a_variable_that_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value, also an empty one; without it an error that names it."""
    monkeypatch.setenv("SOME_NAME", "")
    assert "" == get_env_variable_or_raise("SOME_NAME")
    monkeypatch.delenv("SOME_NAME")
    with pytest.raises(ValueError, match=r"^Environment variable SOME_NAME expected, but not set$"):
        get_env_variable_or_raise("SOME_NAME")


def test_a_socket_keeps_its_port() -> None:
    """The socket listens, so nobody else gets the port."""
    with closing(get_socket_with_port()) as listener:
        port = listener.getsockname()[1]
        with closing(socket.create_connection(("localhost", port), timeout=20)):
            assert port not in {get_free_port() for _ in range(3)}


def test_an_address_that_cannot_be_used_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without IPv6 lists ::1 all the same; if no address works, the error says why."""
    found = [
        (12345, socket.SOCK_STREAM, 0, "", ("::1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
    with closing(get_socket_with_port()) as listener:
        assert socket.AF_INET == listener.family
    del found[1]
    with pytest.raises(RuntimeError, match=r"^Failed to create a socket: .*not supported"):
        get_socket_with_port()


@pytest.mark.parametrize(
    ("arg", "expected"),
    [
        ("--rank=${local_rank}", "--rank=7"),
        ("$local_rank/$other/$$5", "7/$other/$5"),
        ("plain", "plain"),
        (5, 5),
    ],
)
def test_macros(arg: object, expected: object) -> None:
    """The local rank is put in, other names stay, and what is no text is left alone."""
    assert [expected] == macros.substitute([arg], "7")
    assert "${local_rank}" == macros.local_rank


def test_states_of_processes() -> None:
    """A running process has a state, one that is not there has none, whatever its name looks like."""
    code = "open('/proc/self/comm', 'w').write('x) D (y'); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert "ready\n" == child.stdout.readline()
        assert read_proc_state(child.pid) in {"S", "R"}
        child.communicate("\n")
        assert read_proc_state(child.pid) is None
    assert [True, True, False, False] == [is_uninterruptible_state(one) for one in ("D", "D+", "S", None)]


def test_a_store_by_tcp_needs_torch() -> None:
    """Without torch the error says what to use."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hpc_elastic.utils.distributed import create_c10d_store; create_c10d_store(True, 'localhost')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{InputError.__name__}: create_c10d_store: a store by TCP is torch's" in done.stderr
    assert "fix: use hpc_elastic.store.open_store(directory, scope)" in done.stderr


def _refused(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the kind is compared
        call()
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.torch
def test_a_store_by_tcp_is_torchs() -> None:
    """With torch it is torch's own, errors included."""
    store = create_c10d_store(True, "localhost", timeout=20)
    store.set("key", "value")
    assert b"value" == store.get("key")
    kind, text = _refused(lambda: create_c10d_store(True, "localhost", world_size=2))
    assert ("ValueError", True) == (
        kind,
        text.startswith("server_port must be specified when world_size > 1"),
    )
