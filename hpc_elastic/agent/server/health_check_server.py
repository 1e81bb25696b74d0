"""Torch's names of `hpc_elastic.node.listeners.health_check`."""

from __future__ import annotations

from hpc_elastic.node.listeners.health_check import HealthCheckServer, create_healthcheck_server

__all__ = ["HealthCheckServer", "create_healthcheck_server"]
