"""A worker of a run whose work is a function; `hpc_elastic.isolated.argv.call_argv` starts it.

A callable with submitit's hook `checkpoint` returns its successor when this worker gets the signal to end.
Rank 0 puts it in place of the call, for the next start of the workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from hpc_elastic.api import function, value
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.errors import record
from hpc_elastic.paths import RunPaths
from hpc_elastic.store import files

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

HOOKS = ("__submitit_checkpoint__", "checkpoint")  # submitit's names of the hook, in its order


@record
def main(search_path: Sequence[str] | None = None) -> None:
    """Call the function of the run, and keep its value.

    Args:
        search_path: where the function's modules are looked for; by default where ours are.
    """
    place = os.environ.get(Env.RUN_DIR)
    if not place:
        sys.exit("error: this is a worker of a run; start it with hpc_elastic.submit(function, ...)")
    if os.environ.pop(Env.STDERR_TO_STDOUT, ""):
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    paths, rank = RunPaths(place), int(os.environ.get("RANK", "0"))
    if search_path is not None:
        function.import_what_it_needs()
        sys.path[:] = search_path
    call = function.load(paths)
    if has_hook(call):
        heed_sigterm(paths.function, rank, call)
    value.keep(paths, call.result(), os.environ)


def has_hook(call: DelayedSubmission) -> bool:
    """Tell whether a callable has a successor."""
    return any(hasattr(call.function, name) for name in HOOKS)


def heed_sigterm(file: str, rank: int, call: DelayedSubmission) -> None:
    """Make SIGTERM ask the callable for its successor.

    Args:
        file: where rank 0 puts the answer.
        rank: of this worker.
        call: the callable and its arguments.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if rank == 0:
            following = call._checkpoint_function()  # noqa: SLF001 - submitit's own plug-ins call it
            if following is not None:
                files.replace(file, function.pickled_call(following))
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


if __name__ == "__main__":
    main()
