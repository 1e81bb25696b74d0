"""Spelling of the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster_lib.errors import DevClusterError
from devcluster_lib.processes import require_root

from . import commands, faults, node_main, packages
from .layout import Kind, Layout, default_directory

DESCRIPTION = """\
Mount a real shared file system on several clients of one Debian or Ubuntu machine (root needed).

  gluster   GlusterFS through FUSE; every node is a set of namespaces
  nfs3      NFS 3, Linux's own server and clients; every node is a user-mode Linux
  nfs4      NFS 4.2, likewise

A client sees the machine's whole disk (nfs3, nfs4: read-only), so it runs the same programs from the
same places. The shared file system is at the same path on each client and not visible outside; the
directory `results` beside it is the machine's own, and clients can write to it.
The network of the nodes leads nowhere else. Several file systems run side by side, each in its --dir.
"""

EPILOG = """\
CLIENT is a number: 1, 2, ... Examples:
  sudo scripts/shared-fs start nfs4 --dir /tmp/nfs4 --clients 3
  mnt=$(sudo scripts/shared-fs mount-point --dir /tmp/nfs4)
  sudo scripts/shared-fs exec --dir /tmp/nfs4 1 -- sh -c "echo hello >$mnt/a"
  sudo scripts/shared-fs exec --dir /tmp/nfs4 2 -- cat $mnt/a
  sudo scripts/shared-fs kill --dir /tmp/nfs4 2; sudo scripts/shared-fs boot --dir /tmp/nfs4 2
  sudo scripts/shared-fs stop --dir /tmp/nfs4
"""

CLIENT_COMMANDS: dict[str, tuple[Callable[[Layout, int], None], str]] = {
    "freeze": (faults.freeze, "stop all that runs on a client; its link stays"),
    "thaw": (faults.thaw, "let a frozen client run on"),
    "cut": (faults.cut, "cut a client off the network; `exec` still reaches it"),
    "heal": (faults.heal, "end a cut"),
    "kill": (faults.kill, "power loss of a client"),
    "boot": (faults.boot, "boot a client that lost its power, and mount"),
}
SERVER_COMMANDS: dict[str, tuple[Callable[[Layout], None], str]] = {
    "server-freeze": (faults.freeze_server, "stall the file system: every access hangs"),
    "server-thaw": (faults.thaw_server, "end a stall"),
}


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Returns:
        Exit code: 0 done, 1 not possible now, 2 wrong usage; of `exec` the program's,
        or 255 when the client went down under it.
    """
    if argv[:1] == [node_main.HELPER]:
        node_main.main(list(argv[1:]))
    options = _parser().parse_args(argv)
    layout = Layout(options.dir.absolute())
    os.umask(0o022)
    try:
        return _dispatch(options, layout)
    except DevClusterError as error:
        _say(f"shared-fs: {error}")
        return 1
    except KeyboardInterrupt:
        _say("shared-fs: interrupted")
        return 130


def _dispatch(options: argparse.Namespace, layout: Layout) -> int:
    command: str = options.command
    if command == "mount-point":
        print(layout.mount_point)
        return 0
    require_root()
    if command == "exec":
        return faults.execute(layout, options.client, _program(options))
    if command in CLIENT_COMMANDS:
        CLIENT_COMMANDS[command][0](layout, options.client)
        return 0
    if command in SERVER_COMMANDS:
        SERVER_COMMANDS[command][0](layout)
        return 0
    handlers: dict[str, Callable[[], object]] = {
        "install": _install,
        "start": lambda: _start(layout, Kind(options.kind), options.clients),
        "status": lambda: print(commands.describe(layout)),
        "stop": lambda: _stop(layout),
    }
    handlers[command]()
    return 0


def _program(options: argparse.Namespace) -> list[str]:
    words: list[str] = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not words:
        raise DevClusterError(f"Say what to run, for example `exec {options.client} hostname`.")
    return words


def _install() -> None:
    wanted = packages.missing()
    if wanted:
        _say(f"installing {' '.join(wanted)}")
    packages.install()


def _start(layout: Layout, kind: Kind, clients: int) -> None:
    commands.prepare_root(layout)  # before anything is installed
    _install()
    took_s = commands.start(layout, kind, clients)
    _say(f"{kind.value} is mounted on {clients} clients after {took_s:.2f} s")
    print(layout.mount_point, flush=True)


def _stop(layout: Layout) -> None:
    _say("stopped" if commands.stop(layout) else f"nothing runs in {layout.root}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shared-fs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = subparsers.add_parser(name, help=text, description=text)
        command.add_argument(
            "--dir",
            type=Path,
            default=default_directory(),
            help="one file system per directory (default: %(default)s)",
        )
        return command

    add("install", "install the Debian packages only; no service is started")
    start = add("start", "bring server and clients up; prints the mount point")
    start.add_argument("kind", choices=[kind.value for kind in Kind])
    start.add_argument("--clients", type=int, default=3, metavar="N", help="(default: %(default)s)")
    add("stop", "end everything; logs and results stay, what was stored is gone")
    add("status", "nodes with their power and link")
    add("mount-point", "where clients have the file system")
    for name, (_, text) in CLIENT_COMMANDS.items():
        add(name, text).add_argument("client", type=int, metavar="CLIENT")
    for name, (_, text) in SERVER_COMMANDS.items():
        add(name, text)
    execute = add("exec", "run a program as root on a client; input, output and exit code are its own")
    execute.add_argument("client", type=int, metavar="CLIENT")
    execute.add_argument("argv", metavar="COMMAND", nargs=argparse.REMAINDER)
    return parser
