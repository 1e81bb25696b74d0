"""How a worker's failure is recorded, read and told.

main() raises  -> record -> ErrorHandler -> error.json     in the worker
error.json     -> ProcessFailure -> FailureRecord          in the agent of its node
FailureRecords -> failure_summary                          in every agent and the batch script
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors.error_handler import ErrorHandler, get_error_handler, record
    from hpc_elastic.multiprocessing.errors.failure import (
        ChildFailedError,
        FailureRecord,
        ProcessFailure,
        failure_record,
        failure_summary,
        first_failures,
        one_line,
        signal_name,
    )

_HOMES = {
    "ChildFailedError": "failure",
    "ProcessFailure": "failure",
    "signal_name": "failure",
    "_NOT_AVAILABLE": "failure:NOT_AVAILABLE",  # torch's name of it
    "ErrorHandler": "error_handler",
    "get_error_handler": "error_handler",
    "record": "error_handler",
    "FailureRecord": "failure",
    "failure_record": "failure",
    "failure_summary": "failure",
    "first_failures": "failure",
    "one_line": "failure",
}

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "FailureRecord",
    "ProcessFailure",
    "failure_record",
    "failure_summary",
    "first_failures",
    "get_error_handler",
    "one_line",
    "record",
    "signal_name",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
