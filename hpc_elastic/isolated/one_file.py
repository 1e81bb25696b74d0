"""Writes the file from which `hpc_elastic.isolated.start` starts this package; a program of its own.

It runs in the interpreter that the agents will have, and prints the file's content.
"""

from __future__ import annotations

import importlib
import marshal
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Final

from hpc_elastic.isolated.start import ModuleCode, packed

AGENTS: Final = (
    "hpc_elastic.cli.main",
    "hpc_elastic.cli.run.command",
    "hpc_elastic.cli.run.flags",
    "hpc_elastic.cli.run.options",
    "hpc_elastic.start.agent",
    "hpc_elastic.account.facts",
    "hpc_elastic.node.setup.agent_log",
    "hpc_elastic.node.setup.work_log",
    "hpc_elastic.isolated.search_path",
    "locale",  # by argparse, for the language of its texts
    "socket",
)
"""The modules whose imports are all that an agent needs at its start."""

OTHERS: Final = ("hpc_elastic.cli.commands.ending.finish",)
"""The same for the other commands of a job."""

_FUNCTION: Final = 1
"""The flag of a function's code; `inspect`, which names it CO_OPTIMIZED, is no module of an agent."""


def content() -> bytes:
    """Return the content of the file."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    codes: dict[str, ModuleCode] = {}
    sizes = []
    for names in (AGENTS, OTHERS):
        for name in names:
            importlib.import_module(name)
        for name in sorted(sys.modules.keys() - codes.keys()):
            code = _code_of(name, home)
            if code is not None:
                codes[name] = code
        sizes.append(len(codes))
    return packed(home, codes, sizes[0])


def _code_of(name: str, home: str) -> ModuleCode | None:
    """Return file, kind and code of a module; None unless it is source code of ours or of Python's."""
    module, library = sys.modules[name], os.path.dirname(os.__file__)
    spec = getattr(module, "__spec__", None)
    loader, origin = getattr(spec, "loader", None), getattr(spec, "origin", None)
    if spec is None or spec.name != name or origin is None or not isinstance(loader, SourceFileLoader):
        return None
    is_ours = name.partition(".")[0] == "hpc_elastic" and origin.startswith(f"{home}/")
    is_pythons = origin.startswith(f"{library}/") and "-packages/" not in origin
    if not (is_ours or is_pythons):
        return None
    code = loader.get_code(name)
    if code is None:
        return None
    return origin, spec.submodule_search_locations is not None, marshal.dumps(unexplained(code))


def unexplained(code: CodeType) -> CodeType:
    """Return code without the docstrings of functions, which take a sixth of the file; no agent shows one.

    The first constant of a function is its docstring, unless the function loads it, too.
    """
    from opcode import hasconst  # noqa: PLC0415 - else an agent's file would have it

    first, *others = (
        unexplained(one) if isinstance(one, CodeType) else one for one in code.co_consts or (None,)
    )
    loads_first = any(
        operation in hasconst and not place
        for operation, place in zip(code.co_code[::2], code.co_code[1::2], strict=True)
    )
    is_function = code.co_flags & _FUNCTION and not code.co_name.startswith("<")
    if is_function and isinstance(first, str) and not loads_first:
        first = None
    return code.replace(co_consts=(first, *others))


if __name__ == "__main__":
    sys.stdout.buffer.write(content())
