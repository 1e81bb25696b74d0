"""Loggers named for the module that asks, with the level of the environment variable LOGLEVEL."""

from __future__ import annotations

import logging
import os
import sys

from hpc_elastic.utils.log_level import get_log_level

__all__ = ["get_logger"]


def get_logger(name: str | None = None) -> logging.Logger:
    """Return a logger with the level of LOGLEVEL, without it WARNING.

    Args:
        name: its name; by default that of the calling module.

    Raises:
        ValueError: LOGLEVEL names no level.
    """
    logger = logging.getLogger(name or _derive_module_name(depth=2))
    level = os.environ.get("LOGLEVEL", get_log_level())  # noqa: TID251 - as torch does
    try:
        logger.setLevel(level)
    except ValueError as error:
        raise ValueError(
            f"{error}: the environment variable LOGLEVEL must be one of "
            "CRITICAL, ERROR, WARNING, INFO and DEBUG"
        ) from None
    return logger


def _derive_module_name(depth: int = 1) -> str | None:
    """Return the name of a calling module; that of its file where code has no module.

    Args:
        depth: 1 for the caller, 2 for the caller's caller, and so on.

    Returns:
        None if there are not so many callers.
    """
    try:
        frame = sys._getframe(depth)  # noqa: SLF001 - inspect.stack() reads source files on every call
    except ValueError:
        return None
    name = frame.f_globals.get("__name__")
    if isinstance(name, str):
        return name
    return os.path.splitext(os.path.basename(frame.f_code.co_filename))[0]
