"""What a cluster directory remembers between two commands."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from . import state_file
from .addresses import CONTROLLER, AddressPlan
from .layout import Layout
from .namespaces import Host
from .processes import ProcessId
from .settings import Settings, Tracker

FORMAT = "hpc-elastic-devcluster/1"


@dataclass(frozen=True)
class State:
    """One cluster as its directory knows it.

    Attributes:
        settings: what the user asked for at the last start.
        plan: names and addresses; None while the cluster is stopped.
        inits: PID 1 of each host that was booted, `ctl` included; it may be dead by now.
        first_job_id: of the last start; 0 before the first.
    """

    settings: Settings
    plan: AddressPlan | None = None
    inits: dict[str, ProcessId] = field(default_factory=dict)
    first_job_id: int = 0

    def is_running(self) -> bool:
        """Whether the controller is alive."""
        controller = self.inits.get(CONTROLLER)
        return controller is not None and controller.is_alive()

    def host(self, name: str) -> Host | None:
        """The host if it is alive."""
        init = self.inits.get(name)
        if init is None or not init.is_alive():
            return None
        return Host(name, init, Tracker.LINUXPROC if name == CONTROLLER else self.settings.tracker)

    def with_hosts(self, hosts: list[Host]) -> State:
        """The same cluster after some hosts were booted."""
        return replace(self, inits={**self.inits, **{host.name: host.init for host in hosts}})


def write(layout: Layout, state: State) -> None:
    """Publish the state in one step."""
    data = {
        "settings": state.settings.to_json(),
        "slot": state.plan.slot if state.plan else None,
        "inits": {name: asdict(init) for name, init in state.inits.items()},
        "first_job_id": state.first_job_id,
    }
    state_file.write(layout.state_file, FORMAT, data)


def read(layout: Layout) -> State | None:
    """The remembered state; None if no cluster was ever started in this directory.

    Raises:
        DevClusterError: another version of this program wrote the file.
    """
    data = state_file.read(layout.state_file, FORMAT)
    if data is None:
        return None
    return State(
        settings=Settings.from_json(data["settings"]),
        plan=None if data["slot"] is None else AddressPlan(data["slot"]),
        inits={name: ProcessId(**init) for name, init in data["inits"].items()},
        first_job_id=data["first_job_id"],
    )
