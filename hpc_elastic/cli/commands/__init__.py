"""The commands that people type. Each is listed here, and its module is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpc_elastic.named_tuple import NamedTuple

_START, _LOOK_AFTER, _CLUSTER = "Start a run", "Look after a run", "The cluster and this installation"


class Home(NamedTuple):
    """Where the function of a command is; it has the name of the command.

    Args:
        module: in `hpc_elastic.cli.commands`.
        panel: where the help shows it.
        takes_job: it has the options that describe a job, too.
    """

    module: str
    panel: str
    takes_job: bool = False


# One line per command. A fault that the user can mend is raised as HpcElasticError and printed as one block.
COMMANDS: Mapping[str, Home] = {
    "submit": Home("submitting.submit", _START, takes_job=True),
    "render": Home("submitting.render", _START, takes_job=True),
    "adopt": Home("submitting.adopt", _START),
    "lint": Home("submitting.lint", _START),
    "status": Home("looking.status", _LOOK_AFTER),
    "watch": Home("looking.watch", _LOOK_AFTER),
    "explain": Home("looking.explain", _LOOK_AFTER),
    "report": Home("looking.report", _LOOK_AFTER),
    "timeline": Home("looking.status", _LOOK_AFTER),
    "logs": Home("looking.logs", _LOOK_AFTER),
    "checkpoints": Home("looking.checkpoints", _LOOK_AFTER),
    "stop": Home("ending.stop", _LOOK_AFTER),
    "cancel": Home("ending.stop", _LOOK_AFTER),
    "scale": Home("ending.scale", _LOOK_AFTER),
    "drill": Home("ending.drill", _LOOK_AFTER),
    "doctor": Home("site.doctor", _CLUSTER),
    "nodes": Home("site.nodes", _CLUSTER),
}


def function_of(name: str) -> Callable[..., object]:
    """Import the function of a command."""
    from importlib import import_module  # noqa: PLC0415 - not on nodes

    function: Callable[..., object] = getattr(
        import_module(f"hpc_elastic.cli.commands.{COMMANDS[name].module}"), name
    )
    return function
