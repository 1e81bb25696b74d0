"""Bind a worker to the CPUs near its GPU, by the facts of the kernel; needs neither numactl nor torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from hpc_elastic.named_tuple import NamedTuple

_GPU_DIRECTORIES: Final = ("proc/driver/nvidia/gpus", "sys/bus/pci/drivers/amdgpu")


class AffinityMode(str, Enum):
    """Which CPUs near its GPU a worker may use."""

    NODE = "node"  # all of the GPU's NUMA node
    SOCKET = "socket"  # all of the socket of that node
    EXCLUSIVE = "exclusive"  # the node's cores, divided among its GPUs
    CORE_COMPLEX = "core-complex"  # the cores that share one last-level cache, another for each GPU


class NumaOptions(NamedTuple):
    """How workers are bound.

    Args:
        affinity_mode: which CPUs.
        should_fall_back_if_binding_fails: start a worker unbound rather than not at all.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False


def cpus_of(
    local_rank: int, options: Any, env: Mapping[str, str] | None = None, root: str = "/"
) -> tuple[int, ...]:
    """Return the CPUs that a worker is to use; none when it is not to be bound.

    Args:
        local_rank: of the worker; its GPU is the one with this number among the visible ones.
        options: `NumaOptions`, or torch's; None binds nothing.
        env: of the worker: CUDA_VISIBLE_DEVICES says which GPUs are visible.
        root: where /proc and /sys are.

    Raises:
        RuntimeError: the kernel does not provide the facts.
        ValueError: there is no such mode.
    """
    if options is None:
        return ()
    try:
        return tuple(
            sorted(_cpus_of(local_rank, str(AffinityMode(options.affinity_mode).value), env or {}, root))
        )
    except (OSError, RuntimeError, ValueError, IndexError) as error:
        if options.should_fall_back_if_binding_fails:
            import logging  # noqa: PLC0415 - rare

            logging.getLogger(__name__).warning("local rank %s is not bound to CPUs: %s", local_rank, error)
            return ()
        if isinstance(error, (ValueError, RuntimeError)):
            raise
        raise RuntimeError(
            f"cannot bind local rank {local_rank} to the CPUs near its GPU: {error}"
        ) from error


def _cpus_of(local_rank: int, mode: str, env: Mapping[str, str], root: str) -> set[int]:
    machine = Machine(root)
    gpus = _visible(machine.gpus(), env)
    if not gpus:
        raise RuntimeError("no GPU is visible, so there is none to bind a worker to")
    place = local_rank if len(gpus) > 1 else 0
    if place >= len(gpus):
        raise RuntimeError(f"local rank {local_rank} has no GPU: only {len(gpus)} are visible")
    node = machine.node_of(gpus[place])
    neighbours = [index for index, gpu in enumerate(gpus) if machine.node_of(gpu) == node]
    cpus = machine.cpus_of_node(node)
    position = neighbours.index(place)
    if mode == AffinityMode.SOCKET:
        cpus = machine.cpus_of_socket(cpus)
    elif mode == AffinityMode.EXCLUSIVE:
        cpus = _share(_groups(cpus, machine.core_of), position, len(neighbours))
    elif mode == AffinityMode.CORE_COMPLEX:
        caches = sorted(_groups(cpus, machine.cache_of), key=lambda group: (-len(group), min(group)))
        cpus = caches[position % len(caches)]
    if not cpus:
        raise RuntimeError(f"none of the CPUs of NUMA node {node} may be used by this process")
    return cpus


def _visible(gpus: list[tuple[str, str]], env: Mapping[str, str]) -> list[str]:
    """Return the addresses of the visible GPUs in their order, from all as (address, UUID)."""
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [address for address, _ in gpus]
    found = []
    for word in (word.strip() for word in wanted.split(",") if word.strip()):
        if word.isdecimal():
            found.append(gpus[int(word)][0])
        else:
            found += [address for address, uuid in gpus if uuid.startswith(word)]
    return found


def _groups(cpus: Iterable[int], key: Callable[[int], int]) -> list[set[int]]:
    found: dict[int, set[int]] = {}
    for cpu in cpus:
        found.setdefault(key(cpu), set()).add(cpu)
    return [found[name] for name in sorted(found)]


def _share(cores: list[set[int]], position: int, of: int) -> set[int]:
    """Return the CPUs of one share of the cores; the first shares have one more where it does not divide."""
    least, more = divmod(len(cores), of)
    if least < 1:
        raise RuntimeError(f"there are only {len(cores)} cores for {of} GPUs of one NUMA node")
    start = position * least + min(position, more)
    chosen = cores[start : start + least + (1 if position < more else 0)]
    return set().union(*chosen)


class Machine:
    """The facts of /proc and /sys about GPUs, NUMA nodes, sockets, cores and caches."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._allowed = os.sched_getaffinity(0)

    def gpus(self) -> list[tuple[str, str]]:
        """Return PCI address and UUID of all GPUs, by address, as CUDA numbers equal ones."""
        for directory in _GPU_DIRECTORIES:
            try:
                names = os.listdir(os.path.join(self._root, directory))
            except OSError:
                continue
            found = sorted(name.lower() for name in names if name.count(":") == 2)  # noqa: PLR2004
            if found:
                return [(name, self._uuid(directory, name)) for name in found]
        return []

    def node_of(self, gpu: str) -> int:
        """Return the NUMA node of a GPU; 0 where the kernel says that there is only one."""
        return max(0, int(self._read(f"sys/bus/pci/devices/{gpu}/numa_node")))

    def cpus_of_node(self, node: int) -> set[int]:
        """Return the CPUs of a NUMA node that this process may use."""
        return numbers(self._read(f"sys/devices/system/node/node{node}/cpulist")) & self._allowed

    def cpus_of_socket(self, cpus: set[int]) -> set[int]:
        """Return the CPUs that this process may use on the socket of the given ones."""
        if not cpus:
            return set()
        socket = self._socket_of(min(cpus))
        return {cpu for cpu in self._allowed if self._socket_of(cpu) == socket}

    def core_of(self, cpu: int) -> int:
        """Return the number of a CPU's core: the least CPU on it."""
        return min(numbers(self._read(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))

    def cache_of(self, cpu: int) -> int:
        """Return the number of a CPU's last-level cache: the least CPU that shares it."""
        base = f"sys/devices/system/cpu/cpu{cpu}/cache"
        best, least = -1, cpu
        for name in os.listdir(os.path.join(self._root, base)):
            if not name.startswith("index") or self._read(f"{base}/{name}/type") == "Instruction":
                continue
            level = int(self._read(f"{base}/{name}/level"))
            if level > best:
                best, least = level, min(numbers(self._read(f"{base}/{name}/shared_cpu_list")))
        return least

    def _socket_of(self, cpu: int) -> int:
        return int(self._read(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def _uuid(self, directory: str, name: str) -> str:
        try:
            text = self._read(f"{directory}/{name}/information")
        except OSError:
            return ""
        return text.partition("GPU UUID:")[2].split("\n", 1)[0].strip()

    def _read(self, path: str) -> str:
        with open(os.path.join(self._root, path), encoding="utf-8") as file:
            return file.read().strip()


def numbers(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-2,7``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found
