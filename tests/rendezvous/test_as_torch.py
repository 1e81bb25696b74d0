"""The same calls on torch's classes and ours: the same results, the same messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.rendezvous import api, dynamic_rendezvous, static_tcp_rendezvous, utils
from tests.rendezvous.test_endpoint import BAD_CONFIGS, BAD_ENDPOINTS, CONFIGS, ENDPOINTS

pytestmark = pytest.mark.torch
_OURS = SimpleNamespace(api=api, dynamic=dynamic_rendezvous, static=static_tcp_rendezvous, utils=utils)


@pytest.fixture(scope="module")
def torchs() -> SimpleNamespace:
    """Return torch's modules."""
    import torch.distributed.elastic.rendezvous.dynamic_rendezvous as dynamic  # noqa: PLC0415
    import torch.distributed.elastic.rendezvous.static_tcp_rendezvous as static  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import api as their_api  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import utils as their_utils  # noqa: PLC0415

    return SimpleNamespace(api=their_api, dynamic=dynamic, static=static, utils=their_utils)


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the kind and the text of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared with another one
        return type(error).__name__, str(error)


def both(torchs: SimpleNamespace, call: Callable[[SimpleNamespace], object]) -> tuple[object, object]:
    """Return the outcomes of a call on torch's modules and on ours."""
    return outcome(lambda: call(torchs)), outcome(lambda: call(_OURS))


def _params(where: SimpleNamespace, *args: Any, **config: Any) -> Any:
    return where.api.RendezvousParameters(*(args or ("b", "e", "r", 1, 2)), **config)


@pytest.mark.parametrize(
    "args", [("b", "e", "r", 1, 1, "a"), ("", "e", "r", 1, 1), ("b", "", "", 0, 1), ("b", "e", "r", 3, 2)]
)
def test_parameters(torchs: SimpleNamespace, args: tuple[Any, ...]) -> None:
    """What is kept, and what is refused."""

    def call(where: SimpleNamespace) -> object:
        return vars(_params(where, *args))

    theirs, ours = both(torchs, call)
    assert theirs == ours


_VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 1.0, 1.5, "", "0", "1", "2", " 1", "t", "T", "true", "TRUE", "yes", "Y",
    "f", "False", "n", "No", "on", "1.5", "x", "-3", "1e3", [],
]  # fmt: skip


@pytest.mark.parametrize("default", [None, True, 7])
@pytest.mark.parametrize("value", _VALUES, ids=repr)
@pytest.mark.parametrize("method", ["get", "get_as_bool", "get_as_int"])
def test_options(torchs: SimpleNamespace, method: str, value: object, default: object) -> None:
    """How a value is read, given or not."""
    for config in ({"x": value}, {}):

        def call(where: SimpleNamespace, config: dict[str, Any] = config) -> object:
            return getattr(_params(where, **config), method)("x", default)

        theirs, ours = both(torchs, call)
        assert (type(theirs), theirs) == (type(ours), ours)


@pytest.mark.parametrize("text", [*CONFIGS, *BAD_CONFIGS], ids=repr)
def test_configuration_strings(torchs: SimpleNamespace, text: str) -> None:
    """Options in one string."""
    theirs, ours = both(torchs, lambda where: where.utils._parse_rendezvous_config(text))
    assert theirs == ours


@pytest.mark.parametrize("text", [*ENDPOINTS, *BAD_ENDPOINTS], ids=repr)
def test_endpoints(torchs: SimpleNamespace, text: str | None) -> None:
    """Host and port; bare IPv6 addresses, which torch takes apart wrongly, are not among them."""
    theirs, ours = both(torchs, lambda where: where.utils.parse_rendezvous_endpoint(text, 29_400))
    assert theirs == ours


@pytest.mark.parametrize(
    "text", ["", "0", "80", "65536", "99999", "123456", "-1", "+1", " 1", "1 ", "x", "\uff11"]
)
def test_ports(torchs: SimpleNamespace, text: str) -> None:
    """What a port is."""
    theirs, ours = both(torchs, lambda where: where.utils._try_parse_port(text))
    assert theirs == ours


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "192.0.2.1", "no-such-host.invalid"])
def test_this_machine(torchs: SimpleNamespace, host: str) -> None:
    """Which names are this machine's."""
    theirs, ours = both(torchs, lambda where: where.utils._matches_machine_hostname(host))
    assert theirs == ours


def _one(_params: object) -> object:
    return SimpleNamespace(get_backend=lambda: "one")


def _two(_params: object) -> object:
    return SimpleNamespace(get_backend=lambda: "one")


_STEPS: dict[str, Callable[[Any, Callable[..., Any]], object]] = {
    "nameless": lambda registry, _: registry.register("", _one),
    "known": lambda registry, params: registry.create_handler(params("one")).get_backend(),
    "again": lambda registry, _: registry.register("one", _one),
    "taken": lambda registry, _: registry.register("one", _two),
    "other": lambda registry, params: registry.create_handler(params("other")),
}


@pytest.mark.parametrize("step", _STEPS)
def test_registry(torchs: SimpleNamespace, step: str) -> None:
    """Registering and making handlers."""

    def call(where: SimpleNamespace) -> object:
        registry = where.api.RendezvousHandlerRegistry()
        registry.register("one", _one)
        registry.register("other", _one)
        return _STEPS[step](registry, lambda name: _params(where, name, "e", "r", 1, 1))

    theirs, ours = both(torchs, call)
    assert theirs == ours


def test_registry_unknown(torchs: SimpleNamespace) -> None:
    """The message is torch's."""

    def call(where: SimpleNamespace) -> object:
        return where.api.RendezvousHandlerRegistry().create_handler(_params(where))

    theirs, ours = both(torchs, call)
    assert theirs == ours


_TIMES = [None, timedelta(0), timedelta(seconds=-1), timedelta(milliseconds=1), timedelta(hours=1)]


@pytest.mark.parametrize(
    "times", [*itertools.product(_TIMES, repeat=2), (None,) * 4, (timedelta(days=1),) * 4]
)
def test_timeouts(torchs: SimpleNamespace, times: tuple[timedelta | None, ...]) -> None:
    """Defaults, and what is refused."""

    def call(where: SimpleNamespace) -> object:
        made = where.dynamic.RendezvousTimeout(*times)
        return made.join, made.last_call, made.close, made.heartbeat

    theirs, ours = both(torchs, call)
    assert theirs == ours


@pytest.mark.parametrize(
    ("run_id", "low", "high", "config"),
    [
        ("r", 1, 2, {}),
        ("", 1, 2, {}),
        ("r", 1, 2, {"join_timeout": "0"}),
        ("r", 1, 2, {"close_timeout": "-5"}),
        (
            "r",
            1,
            2,
            {"join_timeout": "7", "last_call_timeout": 8, "close_timeout": 9, "heartbeat_timeout": "3"},
        ),
        ("r", 2, 3, {"keep_alive_interval": "7", "keep_alive_max_attempt": "9"}),
    ],
)
def test_dynamic_settings(
    torchs: SimpleNamespace, run_id: str, low: int, high: int, config: dict[str, Any]
) -> None:
    """What a handler makes of its parameters."""

    def call(where: SimpleNamespace) -> object:
        backend = SimpleNamespace(name="mine")
        params = _params(where, "mine", "", run_id, low, high, "addr", **config)
        handler = where.dynamic.create_handler(None, backend, params)
        settings, timeout = handler.settings, handler.settings.timeout
        return (
            handler.get_backend(), handler.get_run_id(), settings.min_nodes, settings.max_nodes, timeout.join,
            timeout.last_call, timeout.close, timeout.heartbeat, settings.keep_alive_interval,
            settings.keep_alive_max_attempt,
        )  # fmt: skip

    theirs, ours = both(torchs, call)
    assert theirs == ours


@pytest.mark.parametrize(
    ("endpoint", "config"),
    [
        ("host:1", {"rank": 1}),
        ("[::1]:29500", {"rank": 0, "timeout": 9}),
        ("host:1", {}),
        ("", {"rank": 0}),
        ("host", {"rank": 0}),
        ("host:x", {"rank": 0}),
    ],
)
def test_static(torchs: SimpleNamespace, endpoint: str, config: dict[str, Any]) -> None:
    """What a static rendezvous knows and refuses; torch's keeps the timeout as a timedelta."""

    def call(where: SimpleNamespace) -> object:
        handler = where.static.create_rdzv_handler(_params(where, "static", endpoint, "r", 1, 2, **config))
        timeout = handler.timeout
        return (
            handler.get_backend(), handler.get_run_id(), handler.master_addr, handler.master_port,
            handler.rank, handler.world_size, handler.is_closed(), handler.num_nodes_waiting(),
            handler.shutdown(),
            timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout),
        )  # fmt: skip

    theirs, ours = both(torchs, call)
    assert theirs == ours


class _Dict:
    """A key-value store for one node, and a record of what was written."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self.values[key] = value

    def get(self, key: str) -> bytes:
        """Return a value."""
        return self.values[key]


def test_store_info(torchs: SimpleNamespace) -> None:
    """Keys and values by which nodes agree on a master are torch's, so they understand each other."""

    def call(where: SimpleNamespace) -> object:
        store = _Dict()
        kind = where.api.RendezvousStoreInfo
        first = kind.build(0, store, "10.0.0.1", 1234)
        other = kind.build(1, store, None)
        keys = kind.MASTER_ADDR_KEY, kind.MASTER_PORT_KEY
        return store.values, first == other, first.master_addr, first.master_port, keys

    theirs, ours = both(torchs, call)
    assert theirs == ours


def test_public_names(torchs: SimpleNamespace) -> None:
    """Every public name of torch's is there."""
    for name in ("api", "dynamic", "static", "utils"):
        assert set(getattr(torchs, name).__all__) <= set(getattr(_OURS, name).__all__)
    handler = torchs.api.RendezvousHandler
    missing = handler.__abstractmethods__ ^ api.RendezvousHandler.__abstractmethods__
    assert set() == missing


@pytest.mark.parametrize("names", [("n1", "n2"), ("n2", "n10", "n1")])
def test_a_torch_backend_carries_a_rendezvous(names: tuple[str, ...]) -> None:
    """Our handler works over torch's own backend."""
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: PLC0415
        C10dRendezvousBackend,
    )

    from tests.rendezvous.nodes import agree, join_all  # noqa: PLC0415

    store = HashStore()
    count = len(names)
    backends: list[Any] = [C10dRendezvousBackend(store, "r") for _ in names]
    handlers = [
        dynamic_rendezvous.DynamicRendezvousHandler.from_backend(
            "r", store, backend, count, count, name, keep_alive_interval=0.5
        )
        for name, backend in zip(names, backends, strict=True)
    ]
    infos = join_all(handlers)
    assert agree(infos)
    infos[0].store.set("key", "value")
    assert b"value" == infos[1].store.get("key")
    assert all(handler.shutdown() for handler in handlers)
