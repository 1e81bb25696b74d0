"""Rendezvous handlers by name: the built-in ones, those of plug-ins and those that users register."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from hpc_elastic.meet.interface import RendezvousHandler
from hpc_elastic.rendezvous.parameters import RendezvousParameters

__all__ = [
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

PLUGIN_GROUPS = ("hpc_elastic.handlers", "torchrun.handlers")
_NEED_A_SERVER = ("c10d", "etcd", "etcd-v2")  # in torch

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class Plugin(Protocol):
    """An installed package's offer of a handler; its `load()` returns a function that returns the creator."""

    @property
    def name(self) -> str:
        """The name of the backend."""
        ...

    def load(self) -> Callable[[], RendezvousHandlerCreator]:
        """Import the object that the plug-in names."""
        ...


class RendezvousHandlerRegistry:
    """Knows how to make the handler of each backend.

    Args:
        plugins: finds the plug-ins; asked once, when a name is not known.
    """

    def __init__(self, plugins: Callable[[], Iterable[Plugin]] = tuple) -> None:
        self._registry: dict[str, RendezvousHandlerCreator] = {}
        self._plugins: Callable[[], Iterable[Plugin]] | None = plugins

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Make a handler known by name.

        Raises:
            ValueError: there is no name, or another creator has it.
        """
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        known = self._registry.get(backend, creator)
        if known != creator:
            raise ValueError(
                f"The rendezvous backend '{backend}' cannot be registered with '{creator}' as it "
                f"is already registered with '{known}'."
            )
        self._registry[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Return a new handler.

        Raises:
            ValueError: the backend is not registered, or its parameters cannot be used.
            RuntimeError: its creator returned none, or it says that it is of another backend.
        """
        if params.backend not in self._registry:
            self._register_plugins()
        creator = self._registry.get(params.backend)
        if creator is None:
            raise ValueError(
                f"The rendezvous backend '{params.backend}' is not registered. Did you forget to call "
                "`register`?"  # torch's whole text
            ) from LookupError(self._known())
        handler = creator(params)
        if not hasattr(handler, "get_backend"):
            raise RuntimeError(
                f"The creator '{creator}' of the rendezvous backend '{params.backend}' must return a "
                f"RendezvousHandler, not {handler!r}."
            )
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"The rendezvous backend '{handler.get_backend()}' does not match the requested "
                f"backend '{params.backend}'."
            )
        return handler

    def _register_plugins(self) -> None:
        """Register the handlers of installed packages; one that fails is reported and left out."""
        find, self._plugins = self._plugins, None
        for plugin in find() if find is not None else ():
            try:
                self.register(plugin.name, plugin.load()())
            except Exception:
                import logging  # noqa: PLC0415 - rare

                logging.getLogger(__name__).warning(
                    "Exception while registering out of tree plugin %s: ", plugin.name, exc_info=True
                )

    def look_for_plugins(self, plugins: Callable[[], Iterable[Plugin]]) -> None:
        """Register the handlers of installed packages again."""
        self._plugins = plugins
        self._register_plugins()

    def _known(self) -> str:
        return f"registered are {', '.join(map(repr, sorted(self._registry))) or 'none'}"


def _shared_fs(params: RendezvousParameters) -> RendezvousHandler:
    from hpc_elastic.rendezvous.shared_fs import create_handler  # noqa: PLC0415 - only if it is asked for

    return create_handler(params)


def _other_name(params: RendezvousParameters) -> RendezvousHandler:
    from hpc_elastic.rendezvous.other_names import create_handler  # noqa: PLC0415 - only if it is asked for

    return create_handler(params)


def _static(params: RendezvousParameters) -> RendezvousHandler:
    from hpc_elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler  # noqa: PLC0415 - only if it is asked for

    return create_rdzv_handler(params)


def installed_plugins() -> list[Plugin]:
    """Return the handlers in the entry points of other packages, our group before torch's."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - 30 ms

    offers = (plugin for group in PLUGIN_GROUPS for plugin in entry_points(group=group))
    return [plugin for plugin in offers if not plugin.value.startswith("hpc_elastic.")]


def _with_built_in(registry: RendezvousHandlerRegistry) -> RendezvousHandlerRegistry:
    registry.register("shared_fs", _shared_fs)
    registry.register("hpc_elastic", _shared_fs)  # as torchrun knows it
    registry.register("static", _static)
    for name in _NEED_A_SERVER:
        registry.register(name, _other_name)
    return registry


rendezvous_handler_registry = _with_built_in(RendezvousHandlerRegistry(installed_plugins))
"""The registry that launchers use; `register` adds to it."""

handler_registry = rendezvous_handler_registry  # how torch's module calls it


def _register_out_of_tree_handlers() -> None:
    """Look for plug-ins again: some may have been installed meanwhile (torch's name)."""
    rendezvous_handler_registry.look_for_plugins(installed_plugins)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return a new handler of the backend that the parameters name.

    Raises:
        ValueError: the backend is not registered, or its parameters cannot be used.
    """
    return rendezvous_handler_registry.create_handler(params)
