"""The changes that make a mutant: what a slip of the hand or of the mind does to code. Pure.

What only shapes a text for people is left alone: strings, what is put into one, lines of a log.
So are the decimals that `round` keeps.
So is what the types check already: annotations, the settings of data classes, `strict` of `zip`.
So is a number that has a name at the top of its module: how long and how many are choices, and a test that
repeats one would only be changed along with it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_FLIPS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,  # codespell:ignore notin
    ast.NotIn: ast.In,  # codespell:ignore notin
}
_SWAPS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_OTHER_ENDS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TALK = {"critical", "debug", "echo", "error", "exception", "info", "print", "say", "warn", "warning"}
_WORDS = {"are_text", "count_text"}  # of hpc_elastic.text: a number and a noun
_Parents = Mapping[ast.AST, ast.AST]


class Change(NamedTuple):
    """Other code in the place of a node.

    Attributes:
        node: what is replaced.
        kind: of change, a word.
        text: what stands there instead.
    """

    node: ast.AST
    kind: str
    text: str


def changes(node: ast.AST, parents: _Parents) -> Iterator[Change]:
    """Yield the faults that can be put in the place of one node."""
    if _is_left_alone(node, parents):
        return
    if isinstance(node, ast.expr):
        yield from _of_expression(node)
        if _is_condition(node, parents):
            yield from _of_condition(node)
    elif isinstance(node, ast.stmt):
        yield from _of_statement(node)


def _of_expression(node: ast.expr) -> Iterator[Change]:
    for kind, of in _BY_KIND.items():
        if isinstance(node, kind):
            yield from of(node)


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    for index, operator in enumerate(node.ops):
        other = [*node.ops[:index], _FLIPS[type(operator)](), *node.ops[index + 1 :]]
        yield _change(node, "flip", ast.Compare(node.left, other, node.comparators))


def _of_and_or(node: ast.BoolOp) -> Iterator[Change]:
    for index in range(len(node.values)):
        left = [*node.values[:index], *node.values[index + 1 :]]
        yield _change(node, "drop", left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield _change(node, "andor", ast.BoolOp(other, node.values))


def _of_constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield Change(node, "notbool", repr(not node.value))
    elif isinstance(node.value, int | float):
        yield Change(node, "plus1", f"({node.value + 1!r})")
        yield Change(node, "minus1", f"({node.value - 1!r})")


def _of_not(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not):
        yield _change(node, "unnot", node.operand)


def _of_operation(node: ast.BinOp) -> Iterator[Change]:
    if type(node.op) in _SWAPS and not _is_text(node):
        yield _change(node, "swapop", ast.BinOp(node.left, _SWAPS[type(node.op)](), node.right))


def _of_choice(node: ast.IfExp) -> Iterator[Change]:
    if not (_is_text(node.body) and _is_text(node.orelse)):
        yield _change(node, "iftrue", node.body)
        yield _change(node, "iffalse", node.orelse)


def _of_call(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in _OTHER_ENDS:
        yield Change(node.func, _OTHER_ENDS[node.func.id], _OTHER_ENDS[node.func.id])


def _of_comprehension(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Iterator[Change]:
    for part in node.generators:
        for condition in part.ifs:
            yield Change(condition, "dropif", "(True)")


_BY_KIND: Mapping[type[ast.expr], Callable[[Any], Iterator[Change]]] = {
    ast.Compare: _of_comparison,
    ast.BoolOp: _of_and_or,
    ast.Constant: _of_constant,
    ast.UnaryOp: _of_not,
    ast.BinOp: _of_operation,
    ast.IfExp: _of_choice,
    ast.Call: _of_call,
    ast.ListComp: _of_comprehension,
    ast.SetComp: _of_comprehension,
    ast.GeneratorExp: _of_comprehension,
    ast.DictComp: _of_comprehension,
}


def _of_condition(node: ast.expr) -> Iterator[Change]:
    """Yield the opposite of a condition where no smaller change says the same."""
    if not isinstance(node, ast.Compare | ast.BoolOp | ast.Constant) and not _is_not(node):
        yield _change(node, "not", ast.UnaryOp(ast.Not(), node))


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_talk(node.value):
        yield Change(node, "delcall", "pass")
    elif isinstance(node, ast.Raise) and node.exc is not None:
        yield Change(node, "delraise", "pass")
    elif isinstance(node, ast.If) and not _is_for_types(node.test):
        yield Change(node.test, "iftrue", "(True)")
        yield Change(node.test, "iffalse", "(False)")
    elif isinstance(node, ast.Return) and node.value is not None and not _is_nothing(node.value):
        yield Change(node.value, "return", _empty(node.value))


def _change(node: ast.expr, kind: str, other: ast.expr) -> Change:
    return Change(node, kind, f"({ast.unparse(ast.fix_missing_locations(other))})")


def _empty(value: ast.expr) -> str:
    """Return nothing of the kind that a value is, as far as one sees it."""
    if isinstance(value, ast.Dict | ast.DictComp):
        return "({})"
    if isinstance(value, ast.List | ast.ListComp):
        return "([])"
    if isinstance(value, ast.Tuple | ast.GeneratorExp):
        return "(())"
    return "(None)"


def _is_nothing(value: ast.expr) -> bool:
    """Tell whether there is nothing to take away, or another change says the same."""
    if isinstance(value, ast.Constant):
        return value.value is None or isinstance(value.value, bool | int | float | str)
    return ast.unparse(value) == _empty(value)[1:-1] or _is_text(value)


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_condition(node: ast.expr, parents: _Parents) -> bool:
    parent = parents[node]
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    return isinstance(parent, ast.If | ast.While | ast.IfExp) and parent.test is node


def _is_text(node: ast.expr) -> bool:
    """Tell whether an expression is seen to be a string."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Call):
        return _is_call_of(node, _WORDS) or _is_join(node.func)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_join(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "join" and _is_text(function.value)


def _is_call_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_talk(call: ast.Call) -> bool:
    """Tell whether a call only says something to people."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return name.lstrip("_") in _TALK


def _is_for_types(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _is_left_alone(node: ast.AST, parents: _Parents) -> bool:
    """Tell whether a node is for people or for the type checker, or is part of what is."""
    while (parent := parents.get(node)) is not None:
        if _is_for_people(node, parent) or _is_for_checker(node, parent):
            return True
        node = parent
    return False


def _is_for_people(node: ast.AST, parent: ast.AST) -> bool:
    if isinstance(parent, ast.Module) and _is_setting(node):
        return True
    if isinstance(node, ast.JoinedStr) or (isinstance(parent, ast.Raise) and node is parent.exc):
        return True
    if isinstance(parent, ast.IfExp):
        return _is_text(parent.body) and _is_text(parent.orelse)
    if isinstance(parent, ast.Call) and _is_call_of(parent, {"round"}):
        return node in parent.args[1:]
    return isinstance(parent, ast.Call) and (_is_call_of(parent, _WORDS) or _is_talk(parent))


def _is_for_checker(node: ast.AST, parent: ast.AST) -> bool:
    if isinstance(parent, ast.ClassDef | ast.FunctionDef) and node in parent.decorator_list:
        return True
    if isinstance(parent, ast.Call) and _is_strict(node, parent):
        return True
    return _is_annotation(node, parent) or (isinstance(node, ast.If) and _is_for_types(node.test))


def _is_setting(node: ast.AST) -> bool:
    """Tell whether a statement of a module only gives numbers a name."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    parts = [part for part in ast.walk(node.value) if isinstance(part, ast.expr)]
    return all(isinstance(part, ast.BinOp | ast.UnaryOp | ast.Constant | ast.Tuple) for part in parts)


def _is_strict(node: ast.AST, call: ast.Call) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "strict" and ast.unparse(call.func) == "zip"


def _is_annotation(node: ast.AST, parent: ast.AST) -> bool:
    return node is getattr(parent, "annotation", None) or node is getattr(parent, "returns", None)
