"""Workers that each see one GPU alone, and are local rank 0 with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from hpc_elastic.errors import InputError

DEVICES_ENV = "CUDA_VISIBLE_DEVICES"  # ROCm reads it, too


class TooFewDevicesError(InputError, ValueError):
    """A worker has no GPU of its own."""


def visible_devices(local_rank: int, environ_value: str | None, *, virtual: bool) -> str | None:
    """Return what CUDA_VISIBLE_DEVICES is to be for a worker; None leaves it unset.

    Args:
        local_rank: the worker.
        environ_value: CUDA_VISIBLE_DEVICES of the agent, if it is set.
        virtual: give the worker its own GPU alone; otherwise it sees what the agent sees.

    Raises:
        TooFewDevicesError: the agent sees no GPU for this worker.
    """
    if not virtual:
        return environ_value
    if environ_value is None:
        return str(local_rank)
    devices = [device.strip() for device in environ_value.split(",") if device.strip()]
    if local_rank >= len(devices):
        raise TooFewDevicesError(
            f"local_rank {local_rank} exceeds available GPUs in {DEVICES_ENV}={environ_value}",
            fix="start no more workers on this node than it has GPUs",
        )
    return devices[local_rank]


def give_own_device(
    env: MutableMapping[str, str], local_rank: int, environ: Mapping[str, str] | None = None
) -> None:
    """Have a worker see its own GPU alone, as local rank 0.

    Args:
        env: the worker's additional environment; changed.
        local_rank: the worker.
        environ: the agent's environment, below that.

    Raises:
        TooFewDevicesError: the agent sees no GPU for this worker.
    """
    value = env.get(DEVICES_ENV, (environ or {}).get(DEVICES_ENV))
    env[DEVICES_ENV] = visible_devices(local_rank, value, virtual=True) or str(local_rank)
    env["LOCAL_RANK"] = "0"
