"""Small things that users of torch.distributed.elastic.utils import, under the same names."""

from __future__ import annotations

from hpc_elastic.utils.api import get_env_variable_or_raise, get_socket_with_port, macros

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]
