"""A process in state D that SIGKILL still ends: one whose vfork()ed child does not go on."""

from __future__ import annotations

STUCK = """
import ctypes, time
if ctypes.CDLL(None).vfork() == 0:
    time.sleep(600)
"""
