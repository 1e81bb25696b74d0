"""A job that writes down which of its processes hears which signal; runs with the system's Python.

``signal_probe.py batch DIRECTORY DO SRUN...`` is the batch script and starts srun,
``signal_probe.py agent DIRECTORY DO`` is a task and starts a worker in a session of its own,
``signal_probe.py worker DIRECTORY stay`` is that worker.
Each holds a lock on its file DIRECTORY/<role>.<node>.<start of the job> as long as it lives, and adds a
line for each signal, and for the end of its child. DO says what it does after SIGTERM (an agent) or
after the end of srun (the script): ``stay``, ``exit=CODE``, ``requeue=CODE`` (scontrol requeue, then
exit), ``requeue-at-once`` (the script asks for it when it hears SIGTERM).
"""

import fcntl
import os
import signal
import subprocess
import sys
import time

HEARD = (
    signal.SIGTERM,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCHLD,
)


def main(role: str, directory: str, do: str, command: list[str]) -> int:
    """Be one process of the job until somebody ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    log = _open_log(role, directory)
    child = _start_child(role, directory, command)
    _note(log, "start")
    while True:
        heard = signal.sigwaitinfo(HEARD).si_signo
        if heard != signal.SIGCHLD:
            _note(log, signal.Signals(heard).name.removeprefix("SIG"))
        elif child is not None and child.poll() is not None:
            _note(log, f"child={child.returncode}")
            child = None
            if role == "batch" and do != "stay":
                return _leave(do)
        if heard == signal.SIGTERM and role == "agent" and do.startswith("exit="):
            _end(child)
            return _leave(do)
        if heard == signal.SIGTERM and do == "requeue-at-once":
            _requeue()


def _end(child: "subprocess.Popen[bytes] | None") -> None:
    if child is not None:
        child.kill()
        child.wait()


def _open_log(role: str, directory: str) -> int:
    start = os.environ.get("SLURM_RESTART_COUNT", "0")
    path = os.path.join(directory, f"{role}.{os.environ['SLURMD_NODENAME']}.{start}")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    fcntl.lockf(log, fcntl.LOCK_EX)  # of this process alone, not of its children
    return log


def _start_child(role: str, directory: str, command: list[str]) -> "subprocess.Popen[bytes] | None":
    if role == "worker":
        return None
    own = [sys.executable, "-IS", os.path.abspath(__file__), "worker", directory, "stay"]
    # srun has to hear what Slurm sends it, so it does not inherit what is blocked here.
    # What a worker that outlives its agent keeps open would keep the step alive.
    stdio = None if command else subprocess.DEVNULL
    return subprocess.Popen(
        command or own,
        stdin=stdio,
        stdout=stdio,
        stderr=stdio,
        start_new_session=role == "agent",
        preexec_fn=_unblock,  # noqa: PLW1509 - there are no threads
    )


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def _note(log: int, word: str) -> None:
    os.write(log, f"{time.monotonic():.3f} {word}\n".encode())


def _leave(do: str) -> int:
    what, _, code = do.partition("=")
    if what == "requeue":
        _requeue()
    return int(code or 0)


def _requeue() -> None:
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
