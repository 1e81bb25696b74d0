"""Asking a worker while it runs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.control_plane import (
    TORCH_WORKER_SERVER_SOCKET,
    Response,
    handlers,
    register_handler,
    worker_main,
)
from hpc_elastic.control_plane.handlers import HandlerCall, _Handlers, answer
from hpc_elastic.control_plane.server import WorkerServer
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env

FIRST_PAGE = b'<h1>torch.distributed.WorkerServer</h1>\n<a href="/handler/">Handler names</a>\n'


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("worker", timeout=20)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(self._path)


def ask(path: str, method: str, what: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return status and content of an answer."""
    connection = _Connection(path)
    try:
        connection.request(method, what, body=body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def _handlers_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers."""
    monkeypatch.setattr(handlers._handlers, "_by_name", {**handlers._handlers._by_name})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a worker's server listens."""
    path = str(tmp_path / "new" / "worker.sock")
    monkeypatch.setenv(TORCH_WORKER_SERVER_SOCKET, path)
    return path


@pytest.fixture
def server(path: str) -> Iterator[str]:
    """Return where a server listens that runs during the test."""
    with worker_main():
        yield path


def test_a_worker_answers(server: str) -> None:
    """The pages of torch's server, and its words where there is nothing."""
    assert (200, FIRST_PAGE) == ask(server, "GET", "/")
    assert (200, b"pong") == ask(server, "POST", "/handler/ping")
    assert {"ping", "dump_traceback"} <= set(json.loads(ask(server, "GET", "/handler/")[1]))
    status, text = ask(server, "POST", "/handler/nonexistent")
    assert 404 == status
    assert text.startswith(b"Handler nonexistent not found: Failed to find handler nonexistent")
    for method, what in (("GET", "/x"), ("GET", "/handler/ping"), ("POST", "/"), ("POST", "/handler/ping/x")):
        assert 404 == ask(server, method, what)[0]


def test_stacks_of_all_threads(server: str) -> None:
    """Whatever the threads of a worker do, somebody else can see where they are."""
    go_on, is_there = threading.Event(), threading.Event()

    def wait_in_a_thread() -> None:
        is_there.set()
        go_on.wait()

    thread = threading.Thread(target=wait_in_a_thread)
    thread.start()
    is_there.wait()
    status, text = ask(server, "POST", "/handler/dump_traceback")
    go_on.set()
    thread.join()
    assert 200 == status
    assert b"in test_stacks_of_all_threads\n" in text
    assert b"in wait_in_a_thread\n" in text


def test_the_socket_is_private(server: str) -> None:
    """Directory and socket are for their user alone, and the socket goes with the server."""
    assert 0o600 == stat.S_IMODE(os.stat(server).st_mode)
    assert 0o700 == stat.S_IMODE(os.stat(os.path.dirname(server)).st_mode)


def test_the_server_ends_with_the_main_part(path: str) -> None:
    """A decorated function may be called again; afterwards nothing is left."""

    @worker_main()
    def main(depth: int) -> bytes:
        return ask(path, "POST", "/handler/ping")[1] if depth == 0 else b"?"

    assert [b"pong", b"?", b"pong"] == [main(0), main(1), main(0)]
    assert [] == os.listdir(os.path.dirname(path))


def test_without_the_variable_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sets nothing pays for nothing."""
    monkeypatch.delenv(TORCH_WORKER_SERVER_SOCKET, raising=False)
    before = set(threading.enumerate())
    with worker_main():
        assert set() == set(threading.enumerate()) - before


def test_each_worker_has_a_path_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting for all workers of a node names a socket for each."""
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("LOCAL_RANK", "3")
    found = WorkerServer(f"{tmp_path}/${{rank}}-${{local_rank}}-$other.sock")
    found.shutdown()
    assert f"{tmp_path}/7-3-$other.sock" == found.path


def test_what_a_dead_worker_left_is_replaced(path: str) -> None:
    """A worker that is started again takes its place; a living one keeps it."""
    Path(path).parent.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    with worker_main():
        with pytest.raises(RuntimeError, match=r"already exists, .* each worker needs a socket of its own"):
            WorkerServer(path)
        assert (200, b"pong") == ask(path, "POST", "/handler/ping")


def test_a_worker_that_hangs_keeps_its_place(path: str) -> None:
    """Nobody waits for one that takes no connection any more."""
    Path(path).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as hanging, socket.socket(socket.AF_UNIX) as first:
        hanging.bind(path)
        hanging.listen(0)
        first.connect(path)
        with pytest.raises(RuntimeError, match="already exists"):
            WorkerServer(path)


@pytest.mark.parametrize("name", ["x" * 120, "file", "no/dir"])
def test_a_path_that_cannot_be_a_socket(tmp_path: Path, name: str) -> None:
    """What is there already stays, and the error names path and variable."""
    (tmp_path / "file").write_text("keep")
    (tmp_path / "no").write_text("")
    with pytest.raises(InputError, match=f"(?s)TORCH_WORKER_SERVER_SOCKET.*{tmp_path}.*fix: "):
        WorkerServer(str(tmp_path / name))
    assert "keep" == (tmp_path / "file").read_text()


def test_own_handlers(server: str) -> None:
    """A handler gets body and parameters, and decides about status, type and content."""

    def handle(request: Any, response: Response) -> None:
        response.set_status(202)
        text = [
            request.body().decode(),
            request.get_param("a"),
            request.get_param("b"),
            request.get_param("c"),
        ]
        response.set_content(json.dumps(text), "application/json")

    register_handler("mine", handle)
    register_handler("mine", handle)
    status, text = ask(server, "POST", "/handler/mine?a=1&a=2&b=", b"hello")
    assert (202, ["hello", "1", "", ""]) == (status, json.loads(text))
    assert "mine" in json.loads(ask(server, "GET", "/handler/")[1])


def _nothing(_request: Any, _response: Response) -> None:
    """Answer nothing."""


class _Mine:
    def handle(self, _request: Any, _response: Response) -> None:
        """Answer nothing."""


def test_a_method_is_registered_as_often_as_anybody_likes() -> None:
    """It is another object each time, but still the same handler."""
    mine = _Mine()
    for _ in range(2):
        register_handler("a method", mine.handle)
    with pytest.raises(ValueError, match="already registered"):
        register_handler("a method", _Mine().handle)


@pytest.mark.parametrize("name", ["", "a/b", "ping"])
def test_a_name_is_given_once(name: str) -> None:
    """Names that cannot be asked for, and those that are taken, are refused."""
    with pytest.raises(ValueError, match="register"):
        register_handler(name, _nothing)


def test_a_handler_that_fails_is_told_of(server: str) -> None:
    """Its error is the answer, and the worker goes on."""

    def fail(_request: Any, _response: Response) -> None:
        raise ValueError("why")

    register_handler("fails", fail)
    assert (500, b"Handler fails failed: ValueError: why") == ask(server, "POST", "/handler/fails")


def test_too_much_is_refused(server: str) -> None:
    """Nobody fills a worker's memory."""
    connection = _Connection(server)
    connection.putrequest("POST", "/handler/ping")
    connection.putheader("Content-Length", str(2**40))
    connection.endheaders()
    assert 413 == connection.getresponse().status
    connection.close()


def test_a_client_that_says_nothing_holds_nobody_up(server: str) -> None:
    """Others are answered meanwhile, and who talks nonsense gets an error."""
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as odd:
        silent.connect(server)
        odd.connect(server)
        odd.sendall(b"nonsense\r\n\r\n")
        assert b"400" in odd.recv(1000)
        assert (200, b"pong") == ask(server, "POST", "/handler/ping")


def test_an_error_goes_to_the_error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends the main part is recorded, with its own traceback, and goes on."""
    monkeypatch.setenv(Env.ERROR_FILE, str(tmp_path / "error.json"))

    def main() -> None:
        with worker_main():
            raise KeyError("step 7")

    for function in (main, worker_main()(main)):
        with pytest.raises(KeyError):
            function()
        message = json.loads((tmp_path / "error.json").read_text())["message"]
        assert "KeyError: 'step 7'" == message["message"]
        assert "in main" in message["extraInfo"]["py_callstack"]
        os.unlink(tmp_path / "error.json")


def test_leaving_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sys.exit(0)`` leaves no error file, and still leaves."""
    monkeypatch.setenv(Env.ERROR_FILE, str(tmp_path / "error.json"))
    with pytest.raises(SystemExit), worker_main():
        sys.exit(0)
    assert [] == os.listdir(tmp_path)


HANGS = """
import sys, time
from hpc_elastic.control_plane import worker_main
with worker_main():
    print("ready", flush=True)
    sum(iter(int, 1))
"""


def test_a_signal_gets_the_stacks_out_of_a_hanging_call() -> None:
    """A call that lets no other Python code run does not hide where it is."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        try:
            assert "ready\n" == worker.stdout.readline()
            where = ""
            while "line 6" not in where:  # at first it may not be there yet
                worker.send_signal(signal.SIGRTMIN + 8)
                where = next(line for line in worker.stderr if 'File "<string>"' in line)
        finally:
            worker.kill()


def test_handlers_of_torch_need_torch() -> None:
    """Asking for one in a process without torch says why it is not there, and does not load torch."""
    code = (
        "import sys; from hpc_elastic.control_plane.handlers import answer, HandlerCall, handler_names\n"
        "found = answer('wait_counter_values', HandlerCall())\n"
        "print(found.status, found.content.decode(), handler_names(), 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    why = "it is one of torch's, and this process has not imported torch.distributed"
    assert f"404 Handler wait_counter_values not found: {why} ['dump_traceback', 'ping'] False\n" == said


@pytest.mark.torch
def test_handlers_of_torch() -> None:
    """Where torch is loaded its handlers answer here, too, and its names are listed."""
    code = (
        "import torch.distributed\n"
        "from hpc_elastic.control_plane.handlers import answer, HandlerCall, handler_names\n"
        "found = answer('wait_counter_values', HandlerCall())\n"
        "assert {'ping', 'dump_traceback', 'wait_counter_values'} <= set(handler_names())\n"
        "print(found.status, found.content.decode(), found.content_type)\n"
        "print(answer('dump_nccl_trace_json', HandlerCall()).status)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "200 {} application/json\n" == said.splitlines(keepends=True)[0]


def test_handlers_know_only_theirs() -> None:
    """A table of handlers finds what was put there."""
    table = _Handlers({"one": _nothing})
    assert (_nothing, None) == (table.find("one"), table.find("two"))
    assert (200, b"pong", "text/plain") == (
        answer("ping", HandlerCall()).status,
        answer("ping", HandlerCall()).content,
        answer("ping", HandlerCall()).content_type,
    )
