"""Handlers by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.meet.interface import RendezvousStoreInfo
from hpc_elastic.rendezvous import (
    RendezvousHandler,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)
from hpc_elastic.rendezvous.registry import RendezvousHandlerCreator, installed_plugins


class _Handler(RendezvousHandler):
    """A handler that does nothing."""

    def get_backend(self) -> str:
        """Return its name."""
        return "mine"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a world of one."""
        return RendezvousInfo(None, 0, 1, RendezvousStoreInfo("a", 1))

    def is_closed(self) -> bool:
        """Return False."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def num_nodes_waiting(self) -> int:
        """Return 0."""
        return 0

    def get_run_id(self) -> str:
        """Return an id."""
        return "r"

    def shutdown(self) -> bool:
        """Do nothing."""
        return True


def _create(_params: RendezvousParameters) -> RendezvousHandler:
    return _Handler()


def _create_other(_params: RendezvousParameters) -> RendezvousHandler:
    return _Handler()


def params(backend: str = "mine") -> RendezvousParameters:
    """Return parameters for a backend."""
    return RendezvousParameters(backend, "e", "r", 1, 1)


class _Plugin:
    """An entry point that needs no installed package."""

    def __init__(self, name: str, load: Callable[[], Callable[[], RendezvousHandlerCreator]]) -> None:
        self.name = name
        self._load = load

    def load(self) -> Callable[[], RendezvousHandlerCreator]:
        """Return what the entry point names."""
        return self._load()


def test_a_registered_handler_is_made() -> None:
    """A handler is found by its name; registering the same one again is no error."""
    registry = RendezvousHandlerRegistry()
    registry.register("mine", _create)
    registry.register("mine", _create)
    assert isinstance(registry.create_handler(params()), _Handler)


def test_a_name_is_given_once() -> None:
    """Another creator does not get a name that is taken."""
    registry = RendezvousHandlerRegistry()
    registry.register("mine", _create)
    text = "^The rendezvous backend 'mine' cannot be registered with '.*_create_other.*' as it is already"
    with pytest.raises(ValueError, match=text):
        registry.register("mine", _create_other)


def test_a_name_is_needed() -> None:
    """An empty name is refused."""
    with pytest.raises(ValueError, match=r"^The rendezvous backend name must be a non-empty string.$"):
        RendezvousHandlerRegistry().register("", _create)


def test_an_unknown_name_tells_the_known_ones() -> None:
    """Torch's message, and what there is as its cause."""
    text = r"^The rendezvous backend 'x' is not registered. Did you forget to call `register`\?$"
    registry = RendezvousHandlerRegistry()
    registry.register("mine", _create)
    with pytest.raises(ValueError, match=text) as raised:
        registry.create_handler(params("x"))
    assert "registered are 'mine'" == str(raised.value.__cause__)


def test_a_handler_of_another_backend_is_refused() -> None:
    """What a handler calls itself must be what was asked for."""
    registry = RendezvousHandlerRegistry()
    registry.register("other", _create)
    text = "^The rendezvous backend 'mine' does not match the requested backend 'other'.$"
    with pytest.raises(RuntimeError, match=text):
        registry.create_handler(params("other"))


def test_built_in_handlers() -> None:
    """Those that need no server are there, also by the names of those that would; a user adds to them."""
    built_in = {"shared_fs", "static", "c10d", "etcd", "etcd-v2"}
    assert built_in <= set(rendezvous_handler_registry._registry)
    made = get_rendezvous_handler(RendezvousParameters("static", "h:1", "r", 1, 2, rank=1))
    assert "static" == made.get_backend()


def test_plugins_are_looked_for_when_a_name_is_not_known() -> None:
    """Finding plug-ins takes time, so it is done once, and only if it is needed."""
    asked: list[int] = []

    def plugins() -> list[_Plugin]:
        asked.append(1)
        return [_Plugin("mine", lambda: lambda: _create)]

    registry = RendezvousHandlerRegistry(plugins)
    registry.register("own", _create)
    assert [] == asked
    assert isinstance(registry.create_handler(params("mine")), _Handler)
    with pytest.raises(ValueError, match="is not registered"):
        registry.create_handler(params("x"))
    assert [1] == asked


def test_a_broken_plugin_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A plug-in that fails is left out; the others work."""

    def fail() -> Callable[[], RendezvousHandlerCreator]:
        raise RuntimeError("not today")

    found = [_Plugin("bad", fail), _Plugin("mine", lambda: lambda: _create)]
    registry = RendezvousHandlerRegistry(lambda: found)
    with caplog.at_level(logging.WARNING):
        assert isinstance(registry.create_handler(params("mine")), _Handler)
    assert "Exception while registering out of tree plugin bad: " in caplog.text
    assert "not today" in caplog.text


@pytest.mark.parametrize("group", ["hpc_elastic.handlers", "torchrun.handlers"])
def test_installed_plugins_are_found(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that names a handler in its entry points is all it takes, written for us or for torch."""
    (tmp_path / "their_handlers.py").write_text(
        "def plugin():\n    return lambda params: params.config['it']\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = their_handlers:plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    handler = _Handler()
    given = RendezvousParameters("mine", "e", "r", 1, 1, it=handler)
    assert handler is RendezvousHandlerRegistry(installed_plugins).create_handler(given)
    looked_before = RendezvousHandlerRegistry(tuple)
    with pytest.raises(ValueError, match="is not registered"):
        looked_before.create_handler(given)
    looked_before.look_for_plugins(installed_plugins)
    assert handler is looked_before.create_handler(given)
