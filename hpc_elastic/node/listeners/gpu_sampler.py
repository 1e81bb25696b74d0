"""Samples the GPUs of a node with ``nvidia-smi`` while its workers run, if a setting asks for it.

The agent never waits for the program: it starts it, goes on, and reads its answer at a later turn. A program
that does not answer is killed; as long as it hangs in the kernel, no other one is started.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress

from hpc_elastic.account.gpus import GpuSample, NodeGpus, encode_gpus, noted
from hpc_elastic.account.read import read_gpu_file
from hpc_elastic.clock import Clock
from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes import nvidia_smi
from hpc_elastic.processes.process import UNKNOWN_EXIT_CODE, ChildProcess, ProcessSpec, spawn
from hpc_elastic.store import files

_FIELDS = ("utilization.gpu", "memory.used", "memory.total")
_COMMAND = nvidia_smi.question(*_FIELDS)
_ANSWER_S = 30.0  # for the answer
_MIB = 1 << 20  # unit of the answer's memory [bytes]
_MOST_FAILURES = 3  # in a row, after which the GPUs are left alone
_MOST_BYTES = 64 << 10  # of an answer


class SampledNode(NamedTuple):
    """The node whose GPUs are sampled."""

    node: str
    path: str  # of its file in the run directory
    scratch: str  # private node-local directory
    environ: Mapping[str, str]
    clock: Clock
    say: Callable[[str], None]  # shows a line in the agent's log
    has_gpus: bool = True  # False: as far as is known it has none


class GpuSampler:
    """Samples the GPUs of this node; a sample that fails is missing.

    Args:
        every_s: time between two samples [s].
        place: the node.
        answer_s: how long the program may take [s].
    """

    def __init__(self, every_s: float, place: SampledNode, answer_s: float = _ANSWER_S) -> None:
        self._every_s, self._place, self._answer_s = every_s, place, answer_s
        self._output = os.path.join(place.scratch, "gpus.out")
        self.idle_since = place.clock.monotonic()  # when a GPU was last in use, or that was not known [s]
        self._due = -1.0  # when the next sample is to be taken (monotonic time [s])
        self._until = 0.0  # when the program that runs is to be killed, the same
        self._process: ChildProcess | None = None
        self._is_killed = False
        self._failures = 0
        self._said: set[str] = set()
        self._known = read_gpu_file(place.path) or NodeGpus(place.node, 0.0)
        self.pids: set[int] = set()  # of the program, which is no worker and no leftover of one
        self.is_off = shutil.which(_COMMAND[0], path=place.environ.get("PATH")) is None
        self._may_work = place.has_gpus or not self.is_off  # GPUs whose use is not known
        if self.is_off:
            place.say(f"the GPUs are not sampled: there is no {nvidia_smi.PROGRAM} on this node")

    def look(self, now: float) -> tuple[GpuSample, ...]:
        """Start the program if it is time to, or read its answer; never waits.

        Args:
            now: monotonic time [s].

        Returns:
            The new samples.
        """
        if self.is_off and self._may_work:
            self.idle_since = now
        if self._process is not None:
            return self._look_at(self._process, now)
        if not self.is_off and now >= self._due:
            self._due = now + self._every_s
            self._start(now)
        return ()

    def close(self) -> None:
        """Kill a program that runs; one that hangs in the kernel is left to itself."""
        process = self._process
        if process is not None and process.poll() is None:
            process.signal_group(signal.SIGKILL)
        if process is not None and process.poll() is not None:
            self._reap(process)

    def _start(self, now: float) -> None:
        place = self._place
        with suppress(FileNotFoundError):
            os.unlink(self._output)
        try:
            self._process = spawn(
                ProcessSpec(_COMMAND, place.environ, stdout=self._output, stderr=self._output)
            )
        except InputError as error:
            self._fail(error.message)
            return
        self.pids.add(self._process.pid)
        self._until, self._is_killed = now + self._answer_s, False

    def _look_at(self, process: ChildProcess, now: float) -> tuple[GpuSample, ...]:
        exit_code = process.poll()
        if exit_code is not None:
            self._reap(process)
            return () if self._is_killed else self._take(exit_code)
        if now >= self._until and not self._is_killed:
            self._is_killed = True
            process.signal_group(signal.SIGKILL)
            self._fail(f"{nvidia_smi.PROGRAM} did not answer within {self._answer_s:g} s")
        return ()

    def _reap(self, process: ChildProcess) -> None:
        process.reap()
        self.pids.discard(process.pid)
        self._process = None

    def _take(self, exit_code: int) -> tuple[GpuSample, ...]:
        output = self._read_output()
        if exit_code != 0:
            if exit_code != UNKNOWN_EXIT_CODE:  # else another part of this process has reaped it
                self._fail(nvidia_smi.failure_text(exit_code, output))
            return ()
        gpus = nvidia_smi.mine(
            nvidia_smi.gpus_of(output, len(_FIELDS)), self._place.environ.get("CUDA_VISIBLE_DEVICES", "")
        )
        if not gpus:
            self._fail(f"{nvidia_smi.PROGRAM} lists no GPU")
            return ()
        samples = tuple(_sample_of(gpu) for gpu in gpus)
        if any(sample.busy != 0 for sample in samples):
            self.idle_since = self._place.clock.monotonic()
        self._known = noted(self._known, samples, self._place.clock.wall())
        self._failures = 0
        with suppress(OSError):
            files.make_directory(os.path.dirname(self._place.path))
            files.replace(self._place.path, encode_gpus(self._known), durable=False)
        return samples

    def _read_output(self) -> str:
        try:
            with open(self._output, "rb") as file:
                return file.read(_MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def _fail(self, text: str) -> None:
        self._failures += 1
        self.idle_since = self._place.clock.monotonic()
        self.is_off = self._failures >= _MOST_FAILURES
        then = "; the GPUs are not sampled any more" if self.is_off else ""
        if self.is_off or text not in self._said:
            self._said.add(text)
            self._place.say(f"no sample of the GPUs: {text}{then}")


def _sample_of(gpu: nvidia_smi.Gpu) -> GpuSample:
    busy, memory, limit = (int(word) if word.isdecimal() else None for word in gpu.values)
    return GpuSample(
        gpu.number,
        gpu.uuid,
        busy,
        None if memory is None else memory * _MIB,
        None if limit is None else limit * _MIB,
    )
