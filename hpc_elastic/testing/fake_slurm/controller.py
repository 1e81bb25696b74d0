"""The process that plays slurmctld and all slurmd: takes calls, keeps the state, starts and kills."""

from __future__ import annotations

import json
import os
import pwd
import selectors
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from hpc_elastic.clock import Clock, clock_text
from hpc_elastic.errors import InputError
from hpc_elastic.testing.fake_slurm.cluster import schedule, steps
from hpc_elastic.testing.fake_slurm.cluster.endings import (
    Action,
    KillAll,
    SendSignals,
    StartScript,
    StartTasks,
    TellSrun,
    Turn,
)
from hpc_elastic.testing.fake_slurm.cluster.model import BATCH, NEVER, Place, Settings, State, World
from hpc_elastic.testing.fake_slurm.commands import control, queries, shown, submitting
from hpc_elastic.testing.fake_slurm.commands.options import LOST, Answer, Call, NeedStdin, Refusal, Reply
from hpc_elastic.testing.fake_slurm.launching import (
    Connection,
    Daemon,
    ScriptLauncher,
    become_the_end_of_orphans,
)

_LONGEST_S = 3600.0


class Controller:
    """Runs a fake Slurm until its parent is gone."""

    def __init__(self, directory: str, server: socket.socket, settings: Settings, clock: Clock) -> None:
        self.world = World.new(settings)
        self.daemons: dict[Place, Daemon] = {}
        self.answering = True
        self._clock = clock
        self._zero = clock.wall() - clock.monotonic()
        self._connections: dict[int, Connection] = {}
        self._steps: dict[int, submitting.SrunCall] = {}  # connections whose srun waits for nodes
        self._patience: dict[int, float] = {}
        self._count = 0
        self.acts = 0  # how many actions were carried out
        self._todo: list[Callable[[Turn], None]] = []
        self._parent = sys.stdin.fileno()  # at its end when the parent is gone
        self._ended = False
        self._doomed: set[int] = set()  # processes that end because their batch script has ended
        self._log = open(os.path.join(directory, "slurmctld.log"), "a", buffering=1)  # noqa: SIM115 - for life
        entry = pwd.getpwuid(os.getuid())
        self.user = {"USER": entry.pw_name, "UID": str(os.getuid()), "GID": str(os.getgid())}
        self._launcher = ScriptLauncher(directory, self.user)
        self._remote = Remote(self)
        self._selector = selectors.DefaultSelector()
        self._server = server
        self._watch(self._server, self._accept)
        self._watch(self._parent, self._orphaned)

    # Time

    @property
    def now(self) -> float:
        """Slurm's time."""
        return self._zero + self._clock.monotonic()

    def advance(self, seconds: float) -> None:
        """Move Slurm's time forward; everything due meanwhile happens in its order."""
        target, last = self.now + seconds, -NEVER
        while last < (due := schedule.next_due(self.world)) <= target:
            self._zero += max(0.0, due - self.now)
            last = due
            self.turn(_nothing)
        self._zero += max(0.0, target - self.now)
        self.turn(lambda turn: turn.say(f"time moved forward by {seconds:g} s"))

    # The loop

    def run(self) -> None:
        """Serve until the parent is gone, then kill everything."""
        try:
            while not self._ended:
                due = min(schedule.next_due(self.world), *self._patience.values(), NEVER)
                wait_s = min(max(0.0, due - self.now), _LONGEST_S)
                self._look(0.0 if self._undelivered() else wait_s)
                for daemon in self._undelivered():
                    self.deliver(daemon)
                self.turn(_nothing)
        finally:
            for daemon in list(self.daemons.values()):
                daemon.destroy()

    def _undelivered(self) -> list[Daemon]:
        """Return the daemons that have said something, and whose nodes answer."""
        nodes = self.world.nodes
        return [one for one in self.daemons.values() if one.unheard and nodes[one.place.node].answers]

    def _watch(self, source: int | socket.socket, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _look(self, wait_s: float) -> None:
        """Take the messages that have come; the daemons' first, as they announce ends."""
        ready = [key for key, _ in self._selector.select(wait_s)]
        channels = {id(daemon.channel) for daemon in self.daemons.values()}
        for key in sorted(ready, key=lambda key: id(key.fileobj) not in channels):
            try:
                current = self._selector.get_key(key.fileobj)
            except (KeyError, ValueError):  # ended by an earlier step
                continue
            current.data()

    def _orphaned(self) -> None:
        self._ended = not os.read(self._parent, 1)

    def turn(self, do: Callable[[Turn], Any]) -> Any:
        """Let an event happen, and carry out its consequences."""
        result = self._one_turn(do)
        while self._todo:
            self._one_turn(self._todo.pop(0))
        return result

    def _one_turn(self, do: Callable[[Turn], Any]) -> Any:
        turn = Turn(self.world, self.now)
        try:
            result = do(turn)
        except (Refusal, ValueError, InputError):
            turn = Turn(self.world, self.now)
            raise
        finally:
            schedule.run(turn)
            self._retry_steps(turn)
            self.world = turn.world
            for text in turn.story:
                self._log.write(f"[{clock_text(turn.now)}] {text}\n")
            for action in turn.actions:
                self._carry_out(action)
        return result

    # Doing

    def _carry_out(self, action: Action) -> None:
        self.acts += 1
        match action:
            case StartScript(job):
                self._start_script(job)
            case StartTasks(place, tasks):
                connection = self._connections.get(self.world.jobs[place.job].steps[int(place.step)].srun)
                self._started(
                    place,
                    lambda: self._launcher.tasks(
                        self.world, place, tasks, connection.fds if connection is not None else []
                    ),
                )
            case SendSignals(places, numbers, reach):
                for number in numbers:
                    self._order(places, f"signal {int(number)} {reach.value}")
                self._log_signals(places, numbers)
            case KillAll(places):
                self._order(places, "kill")
            case TellSrun(number, text, code):
                self._tell(number, text, code)

    def _log_signals(self, places: Iterable[Place], numbers: tuple[int, ...]) -> None:
        where = ", ".join(f"{place.job}.{place.step}@{place.node}" for place in places)
        self._log.write(
            f"[{clock_text(self.now)}] signals {' '.join(str(int(n)) for n in numbers)} -> {where}\n"
        )

    def _start_script(self, number: int) -> None:
        job = self.world.jobs[number]
        place = Place(number, job.start, BATCH, job.nodes[0])
        self._started(place, lambda: self._launcher.script(self.world, job, place))

    def _started(self, place: Place, launch: Callable[[], Daemon]) -> None:
        try:
            daemon = launch()
        except OSError as error:
            self._log.write(f"{place}: {error}\n")
            self._todo.append(partial(schedule.failed_to_start, place=place))
            return
        self.daemons[place] = daemon
        self._watch(daemon.channel, lambda: self._hear(daemon))

    def _order(self, places: Iterable[Place], text: str) -> None:
        for place in places:
            if not self.world.nodes[place.node].answers:
                continue
            daemon = self.daemons.get(place)
            if daemon is not None:
                daemon.say(text)
            else:  # its node has booted since
                self._todo.append(partial(schedule.place_gone, place=place))

    def _hear(self, daemon: Daemon) -> None:
        said = daemon.heard()
        if said is None:
            self._selector.unregister(daemon.channel)
            daemon.bury()
            said = [["gone"]]
        daemon.note(said)

    def deliver(self, daemon: Daemon) -> None:
        """Take notice of a daemon's message."""
        words_of, daemon.unheard = daemon.unheard, []
        for words in words_of:
            if words[0] == "ended":
                sruns = {one.pid for one in self._connections.values() if one.is_srun}
                self._doomed |= sruns & {int(word) for word in words[3:]}
            if words[0] == "gone" and self.daemons.get(daemon.place) is daemon:
                del self.daemons[daemon.place]
            self.turn(partial(schedule.daemon_said, place=daemon.place, words=words))

    def drop(self, daemon: Daemon) -> None:
        """Kill the processes of a daemon without taking notice of it."""
        if self.daemons.pop(daemon.place, None) is not None and daemon.channel.fileno() >= 0:
            self._selector.unregister(daemon.channel)
            daemon.destroy()

    def sruns(self, jobs: set[int]) -> list[list[object]]:
        """Return node, ``srun``, number of the step and pid of each srun of some jobs."""
        return [
            [self.world.jobs[number].nodes[0], "srun", step.number, self._connections[step.srun].pid]
            for number in jobs
            for step in self.world.jobs[number].steps
            if step.srun in self._connections
        ]

    # Calls

    def _accept(self) -> None:
        self._count += 1
        connection = Connection(self._count, self._server.accept()[0])
        self._connections[connection.number] = connection
        self._watch(connection.sock, lambda: self._read(connection))

    def _close(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self._selector.unregister(connection.sock)
            connection.close()
            self._steps.pop(connection.number, None)
            self._patience.pop(connection.number, None)

    def _read(self, connection: Connection) -> None:
        messages = connection.messages()
        if messages is None:
            self._close(connection)
            with_script = connection.pid in self._doomed
            self._doomed.discard(connection.pid)
            self.turn(lambda turn: steps.srun_gone(turn, connection.number, with_script=with_script))
            return
        for message in messages:
            if "signal" in message and connection.number in self._steps:
                self._tell(connection.number, "srun: Cancelled pending job step\n", 1)
            elif "signal" in message:
                self.turn(partial(steps.srun_signalled, srun=connection.number, number=message["signal"]))
            else:
                self._take(connection, message)

    def _take(self, connection: Connection, message: dict[str, Any]) -> None:
        if connection.first is not None:
            message = {**connection.first, **message}
        if message["program"] == "control":
            self._answer(connection, self._remote.answer(message["words"]))
            return
        call = Call(
            program=message["program"],
            words=tuple(message["words"]),
            environ=message["environ"],
            cwd=message["cwd"],
            user=self.user,
            stdin=message.get("stdin"),
        )
        if not self._is_reachable(call):
            prefix = (
                "slurm_load_jobs error"
                if call.program in ("squeue", "scontrol")
                else f"{call.program}: error"
            )
            self._answer(connection, Reply(err=f"{prefix}: {LOST}\n", code=1))
            return
        connection.is_srun = call.program == "srun"
        answer = self._answer_to(connection, call)
        if isinstance(answer, NeedStdin):
            connection.first = message
            connection.send({"need_stdin": True})
        elif answer is not None:
            self._answer(connection, answer)

    def _is_reachable(self, call: Call) -> bool:
        node = self.world.nodes.get(call.environ.get("SLURMD_NODENAME", ""))
        return self.answering and (node is None or node.answers)

    def _answer_to(self, connection: Connection, call: Call) -> Answer | None:
        try:
            if call.program == "srun":
                return self._srun(connection, call)
            if call.program == "sbatch":
                return self.turn(lambda turn: submitting.sbatch(turn, call, _read_script))  # type: ignore[no-any-return]
            if {"-V", "--version"}.intersection(call.words):
                return Reply(f"slurm {self.world.settings.full_version}\n")
            command = _COMMANDS[call.program]
            return self.turn(lambda turn: command(turn, call))  # type: ignore[no-any-return]
        except Refusal as refusal:
            return Reply(err=str(refusal), code=1)
        except (ValueError, InputError) as error:  # a value that is looked at by its use alone
            return Reply(err=f"{call.program}: error: {error}\n", code=1)

    def _answer(self, connection: Connection, reply: Answer) -> None:
        if isinstance(reply, Reply):
            connection.send(reply._asdict())
            self._close(connection)

    def _tell(self, number: int, text: str, code: int | None) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            connection.send({"err": text, "code": code})

    def _srun(self, connection: Connection, call: Call) -> Reply | None:
        asked = submitting.read(self.world, call)
        if isinstance(asked, Reply):
            return asked
        self._steps[connection.number] = asked
        if asked.patience_s is not None:
            self._patience[connection.number] = self.now + asked.patience_s
        self.turn(_nothing)
        return None

    def _retry_steps(self, turn: Turn) -> None:
        """Begin the steps that wait, or give them up."""
        for number, asked in list(self._steps.items()):
            job = turn.world.jobs[asked.job]
            step = steps.create(turn, job, asked.request, number) if job.live else steps.Refused("", 1)
            is_late = self._patience.get(number, NEVER) <= turn.now
            if isinstance(step, steps.Refused) and step.wait and not is_late:
                continue
            del self._steps[number]
            self._patience.pop(number, None)
            if isinstance(step, steps.Refused):
                turn.tell(number, step.text, step.code)
            else:
                self._launcher.remember(job, step, asked)


_COMMANDS: dict[str, Callable[[Turn, Call], Answer]] = {
    "squeue": queries.squeue,
    "sacct": queries.sacct,
    "sinfo": queries.sinfo,
    "scontrol": control.scontrol,
    "scancel": control.scancel,
    "sacctmgr": queries.sacctmgr,
}


def _nothing(_turn: Turn) -> None:
    """Let time pass only."""


def _read_script(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def main(directory: str, place: str, settings: Settings, clock: Clock) -> int:
    """Be the controller, whose parent holds its stdin open.

    Args:
        directory: where its files are.
        place: the path of its socket.
        settings: the cluster.
        clock: the time.
    """
    become_the_end_of_orphans()
    with open(os.path.join(directory, "slurm.conf"), "w", encoding="utf-8") as file:
        file.write(shown.config_text(World.new(settings)))
    server = socket.socket(socket.AF_UNIX)
    server.bind(place)
    os.chmod(place, 0o600)  # a client that may connect can run programs as this user
    server.listen(256)
    controller = Controller(directory, server, settings, clock)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    controller.run()
    return 0


class Remote:
    """Faults, time, and questions that Slurm has no words for.

    Args:
        controller: the nodes or jobs of the event.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def answer(self, words: list[str]) -> Reply:
        """Carry out one wish."""
        verb, *rest = words
        verbs = {
            "advance": self._advance,
            "skip": self._skip,
            "acts": lambda: str(self._controller.acts),
            "crash": self._crash,
            "cut": self._cut,
            "heal": self._heal,
            "answering": self._answering,
            "pids": self._pids,
            "now": lambda: repr(self._controller.now),
        }
        try:
            return Reply(verbs[verb](*rest) or "")  # type: ignore[operator]
        except InputError as error:
            return Reply(err=str(error), code=1)

    def _require_node(self, name: str) -> None:
        nodes = self._controller.world.nodes
        if name not in nodes:
            raise InputError(f"{name!r} is no node", where="FakeSlurm", fix=f"choose from {', '.join(nodes)}")

    def _advance(self, seconds: str) -> None:
        self._controller.advance(float(seconds))

    def _skip(self, longest: str, acts: str) -> str:
        """Move to the next thing that is due, unless there were acts after so many."""
        if self._controller.acts != int(acts):
            return "0.0"
        left_s = schedule.next_due(self._controller.world) - self._controller.now
        if left_s > float(longest):
            return "0.0"
        self._controller.advance(max(0.0, left_s))
        return repr(max(0.0, left_s))

    def _crash(self, name: str) -> None:
        """Kill all processes of a node; Slurm takes no notice."""
        self._require_node(name)
        self._controller.turn(lambda turn: schedule.silence(turn, name))
        for daemon in [one for one in self._controller.daemons.values() if one.place.node == name]:
            self._controller.drop(daemon)

    def _cut(self, name: str) -> None:
        """Cut a node off; its processes live on."""
        self._require_node(name)
        self._controller.turn(lambda turn: schedule.silence(turn, name))

    def _heal(self, name: str) -> None:
        """Boot a node that crashed, or connect one that was cut off: outdated processes there are killed."""
        self._require_node(name)
        self._controller.turn(lambda turn: schedule.answer(turn, name))
        for daemon in [one for one in self._controller.daemons.values() if one.place.node == name]:
            job = self._controller.world.jobs[daemon.place.job]
            if daemon.place not in job.live:
                self._controller.drop(daemon)
                continue
            if job.state is State.COMPLETING:
                daemon.say("kill")
            self._controller.deliver(daemon)

    def _answering(self, wanted: str) -> None:
        self._controller.answering = wanted == "yes"
        if self._controller.answering:
            self._controller.turn(_nothing)

    def _pids(self, name: str) -> str:
        """Return node, step, rank and pid of the processes that Slurm has started for a job."""
        jobs = {job.id for job in schedule.find_jobs(self._controller.world, name)}
        found = []
        for place, daemon in self._controller.daemons.items():
            if place.job in jobs and place in self._controller.world.jobs[place.job].live:
                step = BATCH if place.step == BATCH else place.step
                found += [[place.node, step, rank, pid] for rank, pid in daemon.pids.items()]
        return json.dumps([*found, *self._controller.sruns(jobs)])
