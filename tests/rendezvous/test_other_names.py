"""Torch's backends that need a server, without one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import RendezvousClosedError
from hpc_elastic.rendezvous import RendezvousHandler, RendezvousParameters, get_rendezvous_handler
from hpc_elastic.rendezvous.other_names import options_for_shared_fs
from hpc_elastic.rendezvous.shared_fs import SharedFsHandler
from tests.rendezvous.nodes import agree, join_all

NAMES = ["c10d", "etcd", "etcd-v2"]
MakeNode = Callable[..., SharedFsHandler]


def _params(backend: str, endpoint: str = "", run_id: str = "r", **config: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, run_id, 1, 2, **config)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeNode]:
    """Return a function that makes a node's handler in the directory of the test; all leave afterwards."""
    monkeypatch.chdir(tmp_path)
    made: list[RendezvousHandler] = []

    def make(backend: str, endpoint: str = "", run_id: str = "r", **config: Any) -> SharedFsHandler:
        times = {"keep_alive_interval": 1, "last_call_timeout": 5, "join_timeout": 20}
        made.append(get_rendezvous_handler(_params(backend, endpoint, run_id, **{**times, **config})))
        assert isinstance(made[-1], SharedFsHandler)
        return made[-1]

    yield make
    for handler in made:
        handler.shutdown()


@pytest.mark.parametrize("backend", NAMES)
def test_nodes_meet_without_a_server(
    node: MakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    """An endpoint that is a host needs nobody there; the handler keeps the name it was asked for by."""
    with caplog.at_level(logging.INFO, logger="hpc_elastic"):
        handlers = [
            node(backend, "no-such-host.invalid:29400", node=name, is_host=0) for name in ("n1", "n2")
        ]
    assert agree(join_all(list(handlers)))
    assert [backend, backend] == [handler.get_backend() for handler in handlers]
    (made,) = (tmp_path / "hpc_elastic_runs").iterdir()
    assert "r_no-such-host.invalid-29400" == made.name
    told = [record for record in caplog.records if "needs no server here" in record.message]
    assert [logging.WARNING] * 2 == [record.levelno for record in told]
    assert f"{made}; if not all" in told[0].message
    assert "(ignored: is_host)" in told[0].message


@pytest.mark.parametrize("backend", NAMES)
def test_an_endpoint_may_be_a_directory(
    node: MakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    """Who names a directory is told nothing loudly."""
    with caplog.at_level(logging.INFO, logger="hpc_elastic"):
        handler = node(backend, str(tmp_path / "run"))
    assert (tmp_path / "run" / "journal").is_dir()
    assert backend == handler.get_backend()
    assert [logging.INFO] == [one.levelno for one in caplog.records if "needs no server" in one.message]


def test_a_run_that_is_over_is_followed_by_another(node: MakeNode, tmp_path: Path) -> None:
    """Who starts again under the same id does not come too late for ever; who is in the old run does."""
    first = node("c10d", last_call_timeout=0.1)
    first.next_rendezvous()
    first.set_closed()
    with pytest.raises(RendezvousClosedError):
        first.next_rendezvous()
    second = node("c10d", last_call_timeout=0.1)
    assert 0 == second.next_rendezvous().rank
    assert {"r", "r+2"} == {path.name for path in (tmp_path / "hpc_elastic_runs").iterdir()}


def test_options_of_others_are_told_and_left_out(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """As with torch they are no error; what looks like a misspelt option of ours is one."""
    assert (
        0 == node("c10d", use_libuv=0, upscaling_enabled=True, last_call_timeout=0.1).next_rendezvous().rank
    )
    assert "(ignored: upscaling_enabled, use_libuv)" in caplog.text
    with pytest.raises(ValueError, match=r"'join_timout' is not known .* Did you mean 'join_timeout'\?"):
        node("c10d", join_timout=5)


def test_a_run_id_is_no_path(node: MakeNode, tmp_path: Path) -> None:
    """Whatever the id, the directory is one below that of all runs."""
    node("c10d", run_id="../a b/c")
    (made,) = (tmp_path / "hpc_elastic_runs").iterdir()
    assert "/" not in made.name
    with pytest.raises(ValueError, match="run id must be a non-empty string"):
        node("c10d", run_id="")


@pytest.mark.parametrize(
    ("backend", "config", "text"),
    [
        (
            "c10d",
            {"store_type": "redis"},
            r"^Invalid store type given. Currently only supports file and tcp\.$",
        ),
        ("c10d", {"is_host": "perhaps"}, "^The rendezvous configuration option 'is_host' does not represent"),
        ("c10d", {"read_timeout": "0"}, r"^The read timeout must be a positive integer\.$"),
        ("etcd-v2", {"read_timeout": -1}, r"^The read timeout must be a positive integer\.$"),
        ("etcd-v2", {"protocol": "ftp"}, r"^The protocol must be HTTP or HTTPS\.$"),
        ("etcd", {"protocol": "ftp"}, r"protocol must be HTTP or HTTPS\.$"),
        ("c10d", {"join_timeot": 3}, r"'join_timeot' is not known .* Did you mean 'join_timeout'\?"),
        ("c10d", {"etcd_prefx": 3}, r"'etcd_prefx' is not known"),
    ],
)
def test_what_torch_refuses_is_refused(
    node: MakeNode, backend: str, config: dict[str, Any], text: str
) -> None:
    """Values without meaning, and names that nobody knows."""
    with pytest.raises(ValueError, match=text):
        node(backend, **config)


@pytest.mark.parametrize("endpoint", ["host:x", "host:70000", "a b", "http://host:2379"])
def test_an_endpoint_is_a_path_or_a_host(node: MakeNode, endpoint: str) -> None:
    """What is neither is refused in torch's words."""
    with pytest.raises(ValueError, match="of the rendezvous endpoint"):
        node("c10d", endpoint)


def test_options_of_servers_are_left_out() -> None:
    """The others reach the handler; etcd calls the join timeout by another name."""
    given: dict[str, Any] = {
        "protocol": "https",
        "cert": "c",
        "key": "k",
        "cacert": "a",
        "etcd_prefix": "/p",
        "timeout": "300",
    }
    assert {"timeout": "300", "join_timeout": "300"} == options_for_shared_fs(_params("etcd", **given))
    given = {"store_type": "FILE", "is_host": "1", "read_timeout": 5, "timeout": 900, "lease": 9}
    assert {"timeout": 900, "lease": 9} == options_for_shared_fs(_params("c10d", **given))
    given = {"ssl_cert": "c", "ssl_cert_key": "k", "ca_cert": "a", "join_timeout": 7}
    assert {"join_timeout": 7} == options_for_shared_fs(_params("etcd-v2", **given))
