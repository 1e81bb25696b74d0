"""Small things that users of torch.distributed.elastic.utils import, under the same names."""

from __future__ import annotations

from hpc_elastic.lazy_names import lazy_names
from hpc_elastic.utils.api import get_env_variable_or_raise, get_socket_with_port, macros

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]


__getattr__, __dir__ = lazy_names(__name__, {})
