"""Writes the file from which `hpc_elastic.isolated.start` starts this package; a program of its own.

It runs in the interpreter that the agents will have, and prints the file's content.
"""

from __future__ import annotations

import importlib
import marshal
import os
import sys
from importlib.machinery import SourceFileLoader
from typing import Final

from hpc_elastic.isolated.start import ModuleCode, packed

AGENTS: Final = (
    "hpc_elastic.cli.main",
    "hpc_elastic.cli.run.command",
    "hpc_elastic.cli.run.flags",
    "hpc_elastic.cli.run.options",
    "hpc_elastic.start.agent",
    "hpc_elastic.account.facts",
    "hpc_elastic.node.setup.log_marks",
    "hpc_elastic.node.setup.work_log",
    "hpc_elastic.isolated.search_path",
)
"""The modules whose imports are all that an agent needs at its start."""
OTHERS: Final = ("hpc_elastic.cli.commands.ending.finish",)
"""The same for the other commands of a job."""


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
    return (origin, spec.submodule_search_locations is not None, marshal.dumps(code)) if code else None


if __name__ == "__main__":
    sys.stdout.buffer.write(content())
