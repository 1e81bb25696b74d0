"""What torch itself does with odd error files, ranks and failures, as JSON on stdout."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.distributed.run
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def outcome(call: Callable[[], object]) -> str:
    """Return the kind of the error that a call ends in, empty if it does not."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    return ""


def with_file(content: bytes) -> Callable[[], object]:
    """Return what makes a failure of an error file with this content."""
    path = Path(tempfile.mkdtemp(), "error.json")
    path.write_bytes(content)
    return lambda: ProcessFailure(0, 1, 1, str(path))


first, second = (ProcessFailure(rank, 1, 1, "/nowhere") for rank in (0, 1))
found = {
    "empty": outcome(with_file(b"")),
    "cut": outcome(with_file(b'{"message": ')),
    "foreign": outcome(with_file(b'{"unknown": 1}')),
    "rank 10": outcome(lambda: Std.from_str("10:1")),
    "shared": first.error_file_data is second.error_file_data,
    "modules": len(sys.modules),
    "launcher": torch.distributed.run.__name__,
}
print(json.dumps(found))  # noqa: T201
