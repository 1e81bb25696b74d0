"""What the tests of the meeting share."""

from __future__ import annotations

from tests.rendezvous.conftest import node

__all__ = ["node"]
