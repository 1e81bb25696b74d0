"""The command ``hpc-elastic``: routes to the light commands of the nodes, or to the app.

Imports nothing before `main` has taken the caller's directories out of the search path.
"""

import sys

TYPE_CHECKING = False  # typing may be a file of the caller's
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run a command and return its exit code.

    A job script calls `run` and `finish` on every node, so nothing that only the other
    commands need is imported for them.

    Args:
        argv: the arguments without the program's name; by default those of this process, which then is a
            program of ours and no longer searches its caller's directories for modules.
    """
    if argv is None:
        from hpc_elastic.isolated.callers_path import drop_callers_places  # noqa: PLC0415 - not on nodes

        drop_callers_places()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        from hpc_elastic.cli.run.command import main as run  # noqa: PLC0415 - light on nodes

        return run(words[1:], owns_process=True)
    if words[:1] == ["finish"]:
        from hpc_elastic.cli.commands.ending.finish import main as finish  # noqa: PLC0415 - light on nodes

        return finish(words[1:])
    from hpc_elastic.cli.app import run as run_app  # noqa: PLC0415 - not for nodes

    return run_app(words)


if __name__ == "__main__":
    sys.exit(main())
