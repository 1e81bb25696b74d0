"""The mutants of a module: its source with one small fault in it. Pure."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

from mutate_lib.operators import Change, changes

_SHOWN = 100  # characters of the code around a change that are shown at most


class Mutant(NamedTuple):
    """A module with one fault.

    Attributes:
        module: dotted name.
        scope: function or class in it, dotted; empty at module level.
        kind: of change, a word.
        lines: numbers of the lines, of which at least one runs when the changed code runs; empty for code
            that runs when the module is imported.
        before: the changed code and some of what stands around it, on one line.
        after: the same with the fault.
        source: the whole module with the fault.
    """

    module: str
    scope: str
    kind: str
    lines: tuple[int, ...]
    before: str
    after: str
    source: str

    def text(self) -> str:
        """Return what the fault is, on one line."""
        place = f"{self.module}:{self.scope}" if self.scope else self.module
        return f"{place} [{self.kind}] {self.before!r} -> {self.after!r}"


class Source:
    """The source of a module, and the faults that can be put into it."""

    def __init__(self, module: str, text: str) -> None:
        self.module = module
        self.text = text
        tree = ast.parse(text)
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._meaning = _meaning(compile(tree, module, "exec", dont_inherit=True))
        self.changes = [change for node in _in_order(tree) for change in changes(node, self._parents)]

    def mutant(self, change: Change) -> Mutant | None:
        """Return the module with one of the changes; None if the compiled code stays the same."""
        whole = _replaced(self.text, change.node, change.text)
        if _meaning(compile(whole, self.module, "exec", dont_inherit=True)) == self._meaning:
            return None
        shown = _around(change.node, self._parents)
        before, after = _shown(self.text, shown, None), _shown(self.text, shown, change)
        scope, lines = _place(change.node, self._parents)
        return Mutant(self.module, scope, change.kind, lines, before, after, whole)

    def mutants(self) -> list[Mutant]:
        """Return all mutants, in the order of the source."""
        found = {mutant.source: mutant for change in self.changes if (mutant := self.mutant(change))}
        return list(found.values())


def draw(sources: Sequence[Source], count: int, seed: int) -> list[Mutant]:
    """Return mutants by chance, from each module about as many.

    Args:
        sources: of the modules.
        count: how many, if there are that many.
        seed: gives which. A module's first ones do not depend on the other modules.
    """
    waiting = [_shuffled(source, seed) for source in sources]
    drawn: list[list[Mutant]] = [[] for _ in sources]
    left = count
    while left > 0 and any(waiting):
        for mine, changes_left in zip(drawn, waiting, strict=True):
            left -= left > 0 and _draw_one(mine, changes_left)
    return [mutant for mine in drawn for mutant in mine]


def _shuffled(source: Source, seed: int) -> list[tuple[Source, Change]]:
    pairs = [(source, change) for change in source.changes]
    random.Random(f"{seed} {source.module}").shuffle(pairs)  # noqa: S311 - nothing to be kept secret
    return pairs


def _draw_one(mine: list[Mutant], waiting: list[tuple[Source, Change]]) -> bool:
    while waiting:
        source, change = waiting.pop()
        mutant = source.mutant(change)
        if mutant is not None and all(mutant.source != other.source for other in mine):
            mine.append(mutant)
            return True
    return False


def _in_order(tree: ast.Module) -> list[ast.expr | ast.stmt]:
    placed = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
    return sorted(placed, key=lambda node: (node.lineno, node.col_offset))


def _around(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    """Return the largest expression or simple statement around a node that is still short."""
    best = node
    while not isinstance(node, ast.stmt):
        node = parents[node]
        if isinstance(node, ast.stmt) and hasattr(node, "body"):
            break
        if isinstance(node, ast.expr | ast.stmt) and len(ast.unparse(node)) <= _SHOWN:
            best = node
    return best


def _shown(source: str, around: ast.AST, change: Change | None) -> str:
    """Return one piece of the source, with the change or without it, as one line."""
    begin, end = _span(source, around)
    raw = source.encode()
    piece = raw[begin:end]
    if change is not None:
        first, last = _span(source, change.node)
        piece = raw[begin:first] + change.text.encode() + raw[last:end]
    return " ".join(piece.decode().split())


def _span(source: str, node: ast.AST) -> tuple[int, int]:
    """Return where a node begins and ends [bytes]."""
    if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None or node.end_col_offset is None:
        raise TypeError(f"{node} has no place")
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _replaced(source: str, node: ast.AST, text: str) -> str:
    """Return the source with other code in the place of a node; the lines after it keep their numbers."""
    begin, end = _span(source, node)
    raw = source.encode()
    missing = raw[begin:end].count(b"\n") - text.count("\n")
    if missing > 0 and text.endswith(")"):  # all that stands for more than a line ends so
        text = text[:-1] + "\n" * missing + ")"
    return (raw[:begin] + text.encode() + raw[end:]).decode()


def _place(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> tuple[str, tuple[int, ...]]:
    """Return the dotted scope of a node, and the lines of which one runs when it runs."""
    names: list[str] = []
    lines: tuple[int, ...] | None = None
    runs_later = False
    while True:
        if lines is None and isinstance(node, ast.stmt):
            lines = _lines(node)
        parent = parents.get(node)
        if parent is None:
            break
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(parent.name)
            if not isinstance(parent, ast.ClassDef) and node in parent.body:
                runs_later = True
        if isinstance(parent, ast.Lambda) and lines is None:
            runs_later = True
        node = parent
    return ".".join(reversed(names)), (lines or ()) if runs_later else ()


def _lines(statement: ast.stmt) -> tuple[int, ...]:
    """Return the lines of a statement, or of its head where it has a body."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return tuple(range(statement.lineno, max(last, statement.lineno) + 1))


def _meaning(code: CodeType) -> tuple[object, ...]:
    """Return what code does, without where it stands."""
    constants = tuple(
        _meaning(one) if isinstance(one, CodeType) else (type(one).__name__, repr(one))
        for one in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_name, code.co_code, constants, names, code.co_flags, code.co_argcount)
