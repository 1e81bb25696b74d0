"""The value of a function, on its way back: a value that cannot be sent ends the run.

The next call would return the like after as much work, so that no restart is tried.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpc_elastic.api import function
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, RunDirError, StoreError
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.errors.error_handler import describe, middle_out
from hpc_elastic.paths import RunPaths

_MOST_WORDS = 2000  # characters of what pickle says
_MOST_LINES = 10_000  # characters of a traceback


def keep(paths: RunPaths, value: Any, environ: Mapping[str, str]) -> None:
    """Keep the value that this worker has returned; without that it ends the run as failed.

    Args:
        paths: the files of the run.
        value: the value of the function.
        environ: of this worker, as its agent has made it.

    Raises:
        InputError: it cannot be pickled; the run has failed.
    """
    rank = int(environ.get("RANK", "0"))
    try:
        function.save(paths, rank, value)
    except RunDirError:
        raise
    except InputError as error:
        with suppress(StoreError):  # then it is a failure like any other
            _end_run(paths, rank, error, environ)
        raise


def _end_run(paths: RunPaths, rank: int, error: InputError, environ: Mapping[str, str]) -> None:
    """Record that the run has failed, unless its round is over."""
    from hpc_elastic.multiprocessing.errors.summary import FailureRecord  # noqa: PLC0415 - rare
    from hpc_elastic.record.journal import Decision, RunEnded  # noqa: PLC0415 - the same
    from hpc_elastic.record.run_log import open_log  # noqa: PLC0415 - the same
    from hpc_elastic.record.state import RunState  # noqa: PLC0415 - the same

    node, number = environ.get(Env.NODE, ""), int(environ.get(Env.ROUND, "0"))
    failure = FailureRecord(
        rank=rank,
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        node=node,
        pid=os.getpid(),
        message=middle_out(describe(error), _MOST_WORDS),
        traceback=middle_out("".join(traceback.format_exception(error)), _MOST_LINES),
        log=os.path.join(paths.attempt_logs(number), str(rank), "stderr.log"),
        timestamp=SystemClock().wall(),
    )
    what = middle_out(error.message, _MOST_WORDS)
    reason = f"{what}; another try would not help: {error.fix}"

    def ending(state: RunState) -> RunEnded | None:
        running = state.running
        if running is None or running.number != number:
            return None
        return RunEnded(Decision.FAILED, failure.exit_status, reason, failure.to_json(), state.epoch)

    open_log(paths, node or os.uname().nodename).commit(ending)
