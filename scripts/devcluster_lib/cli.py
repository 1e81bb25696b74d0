"""Spelling of the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import boxes, cgroups, cluster, faults, packages, processes
from .errors import DevClusterError, MovingSuiteError
from .layout import Layout, default_directory
from .settings import Auth, Preempt, Settings, Tracker
from .suites import SUITES

DESCRIPTION = """\
Run a real multi-node Slurm on one Debian or Ubuntu machine (root needed).

Each node has its own network, host name, processes and /dev/shm. The disk is the machine's:
it stays reachable for every node, also for one that is cut off the network.
Partitions: low (default, with grace time), low0 (no grace time), high (preempts both).
"""

EPILOG = """\
NODE is a name such as node3. Examples:
  eval "$(sudo scripts/devcluster start --nodes 4 --gpus 2)"
  sudo runuser -u alice -- env SLURM_CONF=$SLURM_CONF sbatch --wrap 'srun hostname'
  sudo scripts/devcluster crash node3; sudo scripts/devcluster boot node3
  sudo scripts/devcluster purge

Another Slurm than this machine's, of another Debian, which is fetched when it is first asked for:
  sudo scripts/devcluster --slurm VERSION COMMAND...     any of the commands below, in a box of its own
  sudo scripts/devcluster --slurm VERSION open           make the box only; says what it has
  sudo scripts/devcluster --slurm VERSION run CMD...     run a command there (run --network: with its network)
  sudo scripts/devcluster --slurm VERSION close          end everything in it, and delete what it has written
VERSION is one of {versions}. Boxes see the repository, have a /tmp of their own, and run side by side.
"""

NODE_COMMANDS: dict[str, tuple[Callable[[Layout, str], None], str]] = {
    "crash": (faults.crash, "power loss: link down, then SIGKILL of every process of the node"),
    "boot": (faults.power_on, "boot a crashed node again"),
    "cut": (faults.cut, "network partition (the shared disk stays reachable)"),
    "heal": (faults.heal, "end a network partition"),
    "kill-slurmd": (faults.kill_slurmd, "SIGKILL slurmd only; jobs run on"),
    "start-slurmd": (faults.start_slurmd, "start slurmd again"),
}
CONTROLLER_COMMANDS: dict[str, tuple[Callable[[Layout], None], str]] = {
    "kill-slurmctld": (faults.kill_slurmctld, "SIGKILL slurmctld; nodes and jobs go on without it"),
    "start-slurmctld": (faults.start_slurmctld, "start slurmctld again"),
}


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Returns:
        Exit code: 0 done, 1 not possible now, 2 wrong usage, 3 a Debian that moves is not to be had today.
    """
    os.umask(0o022)  # unprivileged users must be able to read the configuration
    try:
        version, words = slurm_asked_for(argv)
        if version is not None:
            _elsewhere(version, words)
            return 0
        options = _parser().parse_args(words)
        _dispatch(options, Layout(options.dir.absolute()))
    except DevClusterError as error:
        _say(f"devcluster: {error}")
        return 3 if isinstance(error, MovingSuiteError) else 1
    except KeyboardInterrupt:
        _say("devcluster: interrupted")
        return 130
    return 0


def slurm_asked_for(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the Slurm that is asked for ahead of the command, and what follows."""
    words = list(argv)
    if not words or words[0].partition("=")[0] != "--slurm":
        return None, words
    named = words.pop(0).partition("=")
    version = named[2] if named[1] else words.pop(0) if words else ""
    return version, words


def _elsewhere(version: str, words: list[str]) -> None:
    """Run a command in the box of a version; comes back from those that are about the box itself."""
    box = boxes.of(version)
    processes.require_root()
    match words:
        case ["open"]:
            boxes.open_box(box)
            _say(f"open: {box.suite.got}")
        case ["close"]:
            _say("closed" if boxes.close_box(box) else f"there is no box of Slurm {version}")
        case ["run", "--network", *argv] if argv:
            boxes.enter(box, argv, network=True)
        case ["run", *argv] if argv:
            boxes.enter(box, argv)
        case _:
            boxes.enter(box, ("python3", str(boxes.REPOSITORY / "scripts" / "devcluster"), *words))


def _dispatch(options: argparse.Namespace, layout: Layout) -> None:
    command: str = options.command
    if command != "env":
        processes.require_root()
    if command in NODE_COMMANDS:
        NODE_COMMANDS[command][0](layout, options.node)
        return
    if command in CONTROLLER_COMMANDS:
        CONTROLLER_COMMANDS[command][0](layout)
        return
    handlers: dict[str, Callable[[], None]] = {
        "env": lambda: _env(layout),
        "exec": lambda: _execute(layout, options.node, options.argv),
        "install": lambda: _install(accounting=options.accounting),
        "purge": lambda: _purge(layout),
        "start": lambda: _start(layout, _settings(options)),
        "status": lambda: print(cluster.describe(layout)),
        "stop": lambda: _stop(layout),
        "trackers": _trackers,
    }
    handlers[command]()


def _execute(layout: Layout, node: str, argv: list[str]) -> None:
    words = argv[1:] if argv[:1] == ["--"] else argv
    if not words:
        raise DevClusterError(f"Say what to run, for example `exec {node} hostname`.")
    faults.execute(layout, node, words)


def _stop(layout: Layout) -> None:
    _say("stopped" if cluster.stop(layout) else f"nothing runs in {layout.root}")


def _purge(layout: Layout) -> None:
    _say("removed" if cluster.purge(layout) else f"there is no cluster in {layout.root}")


def _start(layout: Layout, settings: Settings) -> None:
    settings.check()
    _install(accounting=settings.accounting)
    took_s = cluster.start(layout, settings)
    _say(f"{settings.nodes} nodes with {settings.gpus} GPUs each are idle after {took_s:.2f} s")
    _print_export(layout)


def _install(*, accounting: bool) -> None:
    wanted = packages.missing(accounting=accounting)
    if wanted:
        _say(f"installing {' '.join(wanted)}")
    packages.install(accounting=accounting)


def _trackers() -> None:
    for tracker in cgroups.possible(packages.slurm_release()):
        print(tracker.value)


def _env(layout: Layout) -> None:
    cluster.running(layout)
    _print_export(layout)


def _print_export(layout: Layout) -> None:
    print(f"export SLURM_CONF={layout.slurm_conf}", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        nodes=options.nodes,
        gpus=options.gpus,
        last_gpus=options.last_gpus,
        cpus=options.cpus,
        preempt=Preempt(options.preempt),
        grace_s=options.grace,
        tracker=Tracker(options.proctrack),
        auth=Auth(options.auth),
        accounting=options.accounting,
        kill_wait_s=options.kill_wait,
        slurmd_timeout_s=options.slurmd_timeout,
        cred_expire_s=options.cred_expire,
        users=tuple(user for user in options.users.split(",") if user),
        extra=tuple(options.extra),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "devcluster",
        description=DESCRIPTION,
        epilog=EPILOG.format(versions=", ".join(SUITES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--dir",
            type=Path,
            default=default_directory(),
            help="cluster directory; clusters in different ones run side by side (default: %(default)s)",
        )
        return command

    _add_start_options(add("start", "bring a cluster up; prints one line: export SLURM_CONF=..."))
    add("stop", "end everything; logs, shared/ and accounting data stay")
    add("purge", "stop, and delete the cluster directory")
    add("status", "nodes, queue and settings in force")
    add("env", "print the export line again")
    add("install", "install the Debian packages only").add_argument("--accounting", action="store_true")
    add("trackers", "print each value of --proctrack that this machine can have, one a line")
    for name, (_, text) in NODE_COMMANDS.items():
        add(name, text).add_argument("node", metavar="NODE")
    for name, (_, text) in CONTROLLER_COMMANDS.items():
        add(name, text)
    execute = add("exec", "run a command as root on a node, or on `ctl`")
    execute.add_argument("node", metavar="NODE")
    execute.add_argument("argv", metavar="CMD", nargs=argparse.REMAINDER)
    return parser


def _add_start_options(parser: argparse.ArgumentParser) -> None:
    default = Settings()

    def number(option: str, value: int, text: str) -> None:
        text = f"{text} (default: %(default)s)"
        parser.add_argument(option, type=int, default=value, metavar="N", help=text)

    def choice(option: str, kinds: type[Preempt | Tracker | Auth], value: str, text: str) -> None:
        text = f"{text} (default: %(default)s)"
        parser.add_argument(option, choices=[kind.value for kind in kinds], default=value, help=text)

    number("--nodes", default.nodes, "compute nodes")
    number("--gpus", default.gpus, "fake GPUs per node")
    parser.add_argument("--last-gpus", type=int, metavar="N", help="those of the last node, if fewer")
    number("--cpus", default.cpus, "CPUs that a node reports")
    number("--grace", default.grace_s, "GraceTime of partition low, in seconds")
    number("--kill-wait", default.kill_wait_s, "seconds between SIGTERM and SIGKILL")
    number("--slurmd-timeout", default.slurmd_timeout_s, "seconds of silence until a node counts as down")
    number("--cred-expire", default.cred_expire_s, "seconds that a requeued job has to wait")
    choice("--preempt", Preempt, default.preempt.value, "what preemption does to a job")
    choice("--proctrack", Tracker, default.tracker.value, "how Slurm finds the processes of a step")
    choice("--auth", Auth, default.auth.value, "how Slurm's programs prove who they are")
    parser.add_argument("--accounting", action="store_true", help="run slurmdbd and MariaDB: sacct works")
    users = ",".join(default.users)
    parser.add_argument("--users", default=users, help="created when missing (default: %(default)s)")
    parser.add_argument("--extra", action="append", default=[], metavar="LINE", help="add to slurm.conf")
