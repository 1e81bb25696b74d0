"""The mutants of a module: its source with one small fault in it. Pure."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mutate_lib.codes import meaning
from mutate_lib.operators import Change, changes
from mutate_lib.text import Text

_Function = ast.FunctionDef | ast.AsyncFunctionDef
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


Key = tuple[str, str, str, str]
"""What names a mutant: module, scope, code before and after."""


class Source:
    """The source of a module, and the faults that can be put into it."""

    def __init__(self, module: str, text: str) -> None:
        self.module = module
        self._text = Text(text)
        tree = ast.parse(text)
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._meaning = meaning(compile(tree, module, "exec", dont_inherit=True))
        self.changes = [change for node in _in_order(tree) for change in changes(node, self._parents)]

    def mutant(self, change: Change) -> Mutant | None:
        """Return the module with one of the changes; None if the compiled code stays the same."""
        whole = self._text.replaced(change)
        if meaning(compile(whole, self.module, "exec", dont_inherit=True)) == self._meaning:
            return None
        module, scope, before, after = self.key(change)
        return Mutant(module, scope, change.kind, _lines(change.node, self._parents), before, after, whole)

    def mutants(self) -> list[Mutant]:
        """Return all mutants, in the order of the source."""
        found = {mutant.source: mutant for change in self.changes if (mutant := self.mutant(change))}
        return list(found.values())

    def key(self, change: Change) -> Key:
        """Return what names the mutant of a change."""
        around = _around(change.node, self._parents)
        before, after = self._text.shown(around, None), self._text.shown(around, change)
        return self.module, _scope(change.node, self._parents), before, after


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


def _scope(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str:
    """Return the functions and classes around a node, dotted."""
    names = [one.name for one in _ancestors(node, parents) if isinstance(one, _Function | ast.ClassDef)]
    return ".".join(reversed(names))


def _lines(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> tuple[int, ...]:
    """Return the lines of which one runs when a node runs; none if that is at the import of the module."""
    around = [node, *_ancestors(node, parents)]
    pairs = itertools.pairwise(around)
    if not any(isinstance(parent, _Function) and child in parent.body for child, parent in pairs):
        return ()
    statement = next(one for one in around if isinstance(one, ast.stmt))
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return tuple(range(statement.lineno, max(last, statement.lineno) + 1))


def _ancestors(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """Yield what is around a node, from the inside."""
    while (parent := parents.get(node)) is not None:
        yield parent
        node = parent
