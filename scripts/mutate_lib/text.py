"""The text of a module, with pieces of it replaced. Pure."""

from __future__ import annotations

import ast
import itertools

from mutate_lib.operators import Change


class Text:
    """The text of a module."""

    def __init__(self, text: str) -> None:
        self._raw = text.encode()  # nodes count bytes
        lines = self._raw.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(len(line) for line in lines)]

    def shown(self, around: ast.AST, change: Change | None) -> str:
        """Return the text of a node as one line, with a change in it or without."""
        begin, end = self._span(around)
        piece = self._raw[begin:end]
        if change is not None:
            first, last = self._span(change.node)
            piece = self._raw[begin:first] + change.text.encode() + self._raw[last:end]
        return " ".join(piece.decode().split())

    def replaced(self, change: Change) -> str:
        """Return the whole text with a change; what stands for an expression keeps its number of lines."""
        begin, end = self._span(change.node)
        text = change.text
        missing = self._raw[begin:end].count(b"\n") - text.count("\n")
        if text.endswith(")"):
            text = text[:-1] + "\n" * missing + ")"
        return (self._raw[:begin] + text.encode() + self._raw[end:]).decode()

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends [bytes]."""
        if (
            not isinstance(node, ast.expr | ast.stmt)
            or node.end_lineno is None
            or node.end_col_offset is None
        ):
            raise TypeError(f"{node} has no place")
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[node.end_lineno - 1] + node.end_col_offset
