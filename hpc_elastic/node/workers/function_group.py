"""The workers of one node that run a function."""

from __future__ import annotations

from collections.abc import Mapping
from pickle import PicklingError
from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError
from hpc_elastic.multiprocessing.functions import MultiprocessContext
from hpc_elastic.multiprocessing.pcontext import StartSettings
from hpc_elastic.node.workers.worker_env import substitute_texts

if TYPE_CHECKING:
    from hpc_elastic.node.workers.local_group import Command


class EntrypointError(InputError, TypeError):
    """A function or its arguments cannot be handed to a worker process."""


def start_function(
    command: Command,
    envs: Mapping[int, Mapping[str, str]],
    prefixes: Mapping[int, str],
    settings: StartSettings,
) -> MultiprocessContext:
    """Start the workers.

    Args:
        command: has a function.
        envs: environment by local rank.
        prefixes: what stands before each teed line, by local rank.
        settings: how processes are started.

    Raises:
        EntrypointError: the function or an argument cannot be pickled.
        InputError: the workers cannot be started.
        OSError: no space or no permission for logs.
    """
    function = command.function
    if function is None:
        raise ValueError("there is no function to run")
    context = MultiprocessContext(
        command.name,
        function,
        {rank: substitute_texts(command.args, rank) for rank in envs},
        envs,
        command.start_method,
        command.logs,
        prefixes,
        command.numa,
        *command.filters,
        settings=settings,
    )
    try:
        context.start()
    except (PicklingError, AttributeError, TypeError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise EntrypointError(
            f"the function {name} or one of its arguments cannot be handed to a new process: {error}",
            where=f"start_method {command.start_method!r}",
            fix="define the function at the top level of a module, or use the start method 'fork'",
        ) from error
    return context
