"""Numbers in sentences."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are_text(number: int, noun: str) -> str:
    """Return ``1 node is``, ``2 nodes are``."""
    return f"{count_text(number, noun)} {'is' if number == 1 else 'are'}"
