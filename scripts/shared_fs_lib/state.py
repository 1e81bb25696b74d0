"""What a directory remembers between two commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from devcluster_lib import state_file
from devcluster_lib.processes import ProcessId

from .layout import SERVER, Kind, Layout, client_name

FORMAT = "hpc-elastic-shared-fs/1"


@dataclass(frozen=True)
class State:
    """One shared file system as its directory knows it.

    Attributes:
        kind: what is served.
        clients: how many clients there are.
        nodes: the process that is a node's power supply; it may be dead by now.
    """

    kind: Kind
    clients: int
    nodes: Mapping[str, ProcessId] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of all nodes, the server first."""
        return [SERVER, *(client_name(number) for number in range(1, self.clients + 1))]

    def is_up(self, node: str) -> bool:
        """Whether a node has power."""
        process = self.nodes.get(node)
        return process is not None and process.is_alive()

    def with_nodes(self, nodes: Mapping[str, ProcessId]) -> State:
        """The same file system after some nodes were booted."""
        return replace(self, nodes={**self.nodes, **nodes})


def write(layout: Layout, state: State) -> None:
    """Publish the state in one step."""
    data = {
        "kind": state.kind.value,
        "clients": state.clients,
        "nodes": {name: asdict(process) for name, process in state.nodes.items()},
    }
    state_file.write(layout.state_file, FORMAT, data)


def read(layout: Layout) -> State | None:
    """The remembered state; None if nothing was ever started in this directory.

    Raises:
        DevClusterError: another version of this program wrote the file.
    """
    data = state_file.read(layout.state_file, FORMAT)
    if data is None:
        return None
    nodes = {name: ProcessId(**process) for name, process in data["nodes"].items()}
    return State(Kind(data["kind"]), data["clients"], nodes)
