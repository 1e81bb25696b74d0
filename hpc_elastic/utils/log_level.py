"""The level that loggers of `get_logger` have unless the environment says otherwise."""

from __future__ import annotations

__all__ = ["get_log_level"]


def get_log_level() -> str:
    """Return the name of the level."""
    return "WARNING"
