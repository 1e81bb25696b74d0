"""Serve and mount GlusterFS; its daemons see a /run, a log directory and a state of their own."""

from __future__ import annotations

from . import exec_client
from .layout import SERVER, Layout, data_address
from .state import State

VOLUME = "shared"
LOGS = "/var/log/glusterfs"

CONFIGURATION = """\
volume management
    type mgmt/glusterd
    option working-directory {state}
    option transport-type socket
    option transport.socket.bind-address {address}
    option max-port 60999
end-volume
"""

SERVE = f"""
set -e
mkdir -p {LOGS} "$1" "$3"
mount --bind "$4" {LOGS}
glusterd -f "$2" -p /run/glusterd.pid
gluster() {{ command gluster --mode=script --glusterd-sock=/run/glusterd.socket "$@"; }}
for _ in $(seq 100); do gluster volume list >/dev/null 2>&1 && break; sleep 0.1; done
gluster volume create {VOLUME} "$5:$3" force
gluster volume start {VOLUME}
"""

MOUNT = f"""
set -e
mkdir -p {LOGS}
mount --bind "$1" {LOGS}
mount -t glusterfs "$2:/{VOLUME}" "$3"
"""


def serve(layout: Layout, state: State) -> None:
    """Serve a volume of one brick."""
    address = data_address(SERVER)
    configuration = layout.etc / "glusterd.vol"
    configuration.write_text(CONFIGURATION.format(state=layout.daemon_state, address=address))
    brick = layout.served / "brick"
    logs = layout.logs / "gluster" / SERVER
    logs.mkdir(parents=True, exist_ok=True)
    paths = [str(path) for path in (layout.daemon_state, configuration, brick, logs)]
    words = ["sh", "-c", SERVE, "serve", *paths, address]
    exec_client.run(layout, SERVER, state.nodes[SERVER], words)


def mount(layout: Layout, state: State, client: str) -> None:
    """Mount it on a client, with default options."""
    logs = layout.logs / "gluster" / client
    logs.mkdir(parents=True, exist_ok=True)
    words = ["sh", "-c", MOUNT, "mount", str(logs), data_address(SERVER), str(layout.mount_point)]
    exec_client.run(layout, client, state.nodes[client], words)
