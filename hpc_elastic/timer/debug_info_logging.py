"""Saying which timers of a run expired."""

from __future__ import annotations

import logging

__all__ = ["log_debug_info_for_expired_timers"]

logger = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log the timers that expired, by pid of the worker, as JSON; nothing when there are none."""
    if expired_timers:
        logger.info("Timers expired for run:[%s] [%s].", run_id, expired_timers)
