"""The pitfalls of a training script: marks, requests to stop, signal handlers of its own. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hpc_elastic.slurm.lint.pitfalls import LintFinding, Pitfall

_CALLS = {
    Pitfall.NO_TICK: "tick",
    Pitfall.NO_MARK: "checkpoint_saved",
    Pitfall.NO_STOP: "should_stop",
}
_SIGNALS = {"SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"}
_HELPERS = "hpc_elastic.frameworks"  # they call the functions of the worker


def training_findings(text: str) -> list[LintFinding]:
    """Return the pitfalls of a training script, in the order of its lines."""
    tree = _read(text)
    if isinstance(tree, LintFinding):
        return [tree]
    return sorted([*_own_handlers(tree), *_missing_calls(tree)])


def python_syntax(text: str) -> list[LintFinding]:
    """Return the line at which Python cannot read a script, if there is one."""
    tree = _read(text)
    return [tree] if isinstance(tree, LintFinding) else []


def _read(text: str) -> ast.AST | LintFinding:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two of nested brackets
        line = getattr(error, "lineno", None) or 1
        said = error.args[0] if error.args else "too many brackets inside each other"
        return LintFinding(line, Pitfall.PYTHON_SYNTAX, f"Python cannot read the script: {said}")


def _own_handlers(tree: ast.AST) -> Iterator[LintFinding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "signal" and node.args:
            name = _name(node.args[0])
            if name in _SIGNALS:
                yield LintFinding(
                    node.lineno, Pitfall.OWN_HANDLER, f"the script has a handler of its own for {name}"
                )


def _missing_calls(tree: ast.AST) -> Iterator[LintFinding]:
    if any(name.startswith(_HELPERS) for name in _imported(tree)):
        return
    called = {_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for pitfall, name in _CALLS.items():
        if name not in called:
            yield LintFinding(1, pitfall)
    if "checkpoint_saved" in called and "latest_checkpoint" not in called:
        yield LintFinding(1, Pitfall.NO_RESUME)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
