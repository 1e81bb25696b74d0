"""What the tests of torch's agent share with those of a node."""

from __future__ import annotations

from tests.node.conftest import own_handlers, put, recorded

__all__ = ["own_handlers", "put", "recorded"]
