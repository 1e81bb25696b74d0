"""Starts batch scripts and tasks: files, environment, step daemons."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpc_elastic.testing.fake_slurm.cluster import job_environ, outputs
from hpc_elastic.testing.fake_slurm.cluster.model import Job, Place, Step, Task, World
from hpc_elastic.testing.fake_slurm.commands.srun import SrunCall
from hpc_elastic.testing.fake_slurm.processes.channels import Daemon
from hpc_elastic.testing.fake_slurm.processes.step_daemon import Launch

_Files = dict[str, int]


class ScriptLauncher:
    """Starts what the controller tells.

    Args:
        directory: where the cluster's files are.
        user: USER, UID and GID of everybody.
    """

    def __init__(self, directory: str, user: Mapping[str, str]) -> None:
        self._directory = directory
        self._user = user
        self._asked: dict[tuple[int, int, int], SrunCall] = {}

    def remember(self, job: Job, step: Step, asked: SrunCall) -> None:
        """Keep what srun was asked for, for the nodes of the step."""
        self._asked[job.id, job.start, step.number] = asked

    def script(self, world: World, job: Job, place: Place) -> Daemon:
        """Start a batch script.

        Raises:
            OSError: a file cannot be opened.
        """
        path = os.path.join(self._directory, "spool", f"job{job.id:05d}.{job.start}")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(job.request.script)
        os.chmod(path, 0o700)
        stdin, out, error = outputs.of_script(job, self._user["USER"])
        mode = os.O_APPEND if job.request.append else os.O_TRUNC
        fds: _Files = {}
        try:
            names = (_open(fds, stdin, os.O_RDONLY), _open(fds, out, mode), _open(fds, error, mode))
            environ = self._complete({**job.request.environ, **job_environ.of_script(world, job, self._user)})
            words = (path, *job.request.words)
            launch = Launch(0, words, environ, job.request.directory, names)
            tracks_all = world.settings.tracker == "linuxproc"
            return Daemon.fork(place, [launch], tracks_all=tracks_all, is_batch=True)
        finally:
            _close(fds)

    def _complete(self, environ: dict[str, str]) -> dict[str, str]:
        """Return an environment in which the cluster's programs are found."""
        programs = os.path.join(self._directory, "bin")
        path = environ.get("PATH", os.defpath)
        if programs not in path.split(os.pathsep):
            environ["PATH"] = f"{programs}{os.pathsep}{path}"
        environ["SLURM_CONF"] = os.path.join(self._directory, "slurm.conf")
        return environ

    def tasks(self, world: World, place: Place, tasks: tuple[Task, ...], own: list[int]) -> Daemon:
        """Start the tasks of a step on one node.

        Args:
            world: the cluster.
            place: the step and the node.
            tasks: those on this node.
            own: stdin, stdout and stderr of srun.

        Raises:
            OSError: a file cannot be opened.
        """
        job = world.jobs[place.job]
        step = job.steps[int(place.step)]
        asked = self._asked[job.id, job.start, step.number]
        fds: _Files = {}
        try:
            launches = [self._launch(world, (job, step, task), asked, own, fds) for task in tasks]
            tracks_all = world.settings.tracker == "linuxproc"
            return Daemon.fork(place, launches, tracks_all=tracks_all, is_batch=False)
        finally:
            _close(fds)

    def _launch(
        self, world: World, which: tuple[Job, Step, Task], asked: SrunCall, own: list[int], fds: _Files
    ) -> Launch:
        job, step, task = which
        added = job_environ.of_task(world, job, step, task, self._user)
        stdin = own[0] if task.rank == 0 and asked.has_stdin else _open(fds, os.devnull, os.O_RDONLY)
        streams = [self._stream(which, asked, pattern, fds) for pattern in (asked.output, asked.error)]
        out = streams[0] if streams[0] is not None else own[1]
        error = streams[1] if streams[1] is not None else out if asked.output else own[2]
        environ = self._complete({**asked.environ, **added})
        return Launch(task.rank, asked.words, environ, asked.directory, (stdin, out, error))

    def _stream(
        self, which: tuple[Job, Step, Task], asked: SrunCall, pattern: str, fds: _Files
    ) -> int | None:
        """Open a file of ``srun --output``; None where it names none.

        A file that several tasks share is emptied by the first of them.
        """
        if not pattern:
            return None
        job, step, task = which
        path = outputs.fill(pattern, job, self._user["USER"], step, task)
        first = outputs.is_per_task(pattern) or task.rank == 0
        return _open(fds, path, os.O_TRUNC if first and not asked.append else os.O_APPEND)


def _open(fds: _Files, path: str, mode: int) -> int:
    """Open a file once."""
    if path not in fds:
        flags = mode if path == os.devnull or mode == os.O_RDONLY else os.O_WRONLY | os.O_CREAT | mode
        if path == os.devnull:
            flags = os.O_RDWR
        elif flags & os.O_TRUNC:  # then appends, as several tasks may write to it
            os.close(os.open(path, flags | os.O_CLOEXEC, 0o644))
            flags = os.O_WRONLY | os.O_APPEND
        fds[path] = os.open(path, flags | os.O_CLOEXEC, 0o644)
    return fds[path]


def _close(fds: _Files) -> None:
    for fd in fds.values():
        os.close(fd)
