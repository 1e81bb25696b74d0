"""The faults that scripts/mutate puts into code."""

from __future__ import annotations

import pytest
from mutate_lib.mutants import Source, draw

FUNCTION = "def f(a, b=None):\n    {}\n"


def faults(source: str) -> set[str]:
    """Return what stands in the place of a piece of a module."""
    return {mutant.after for mutant in Source("module", source).mutants()}


def faults_of(statement: str) -> set[str]:
    """Return what stands in the place of a statement of a function."""
    return faults(FUNCTION.format(statement))


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("return a < b", "return (a <= b)"),
        ("return a == b", "return (a != b)"),
        ("return a is b", "return (a is not b)"),
        ("return a in b", "return (a not in b)"),
        ("return a and b", "return (a)"),
        ("return a and b", "return (b)"),
        ("return a and b", "return (a or b)"),
        ("return not a", "return (a)"),
        ("return a + 2", "return a + (3)"),
        ("return a + 2", "return a + (1)"),
        ("return a + 2", "return (a - 2)"),
        ("return True", "return False"),
        ("return [a]", "return ([])"),
        ("return f(a)", "return (None)"),
        ("return a if b else 3", "return (a)"),
        ("return a if b else 3", "return (3)"),
        ("return a if b else 3", "return a if (not b) else 3"),
        ("return min(a, b)", "return max(a, b)"),
        ("return {x for x in a if x < b}", "return {x for x in a if (True)}"),
        ("a.append(b)", "pass"),
        ("raise ValueError(a)", "pass"),
    ],
)
def test_a_slip_is_made(statement: str, after: str) -> None:
    """Each kind of fault is found where it can be made."""
    assert after in faults_of(statement)


@pytest.mark.parametrize("after", ["(True)", "(False)", "(not a)"])
def test_a_condition_is_made_useless(after: str) -> None:
    """An `if` is taken always, never, and the other way round."""
    assert after in faults_of("if a: return b")


@pytest.mark.parametrize(
    "statement",
    [
        'raise ValueError(f"{a + 1} of {b}")',
        "log.say(a, 1)",
        'x = "one" + a',
        'x = "node" if a == 1 else "nodes"',
        "x: int | None = None",
        "return None",
        'return f"{a + 1}"',
        'return count_text(a + 1, "node")',
    ],
)
def test_what_is_said_to_people_is_left_alone(statement: str) -> None:
    """Texts, annotations and what is nothing already are not changed; a `raise` can only be left out."""
    assert faults_of(statement) <= {"pass"}


def test_how_many_decimals_are_kept_is_a_choice() -> None:
    """What is rounded is not."""
    assert {"return (None)", "return round((a - b), 3)"} == faults_of("return round(a + b, 3)")


@pytest.mark.parametrize(
    "line", ["WAIT_S = 5.0", "SIZE: int = 64 << 10", "BELOW = -1", "PAUSES_S = (0.1, 1.0)"]
)
def test_a_number_with_a_name_is_a_choice(line: str) -> None:
    """How long and how many, named at the top of a module, is not changed."""
    assert set() == faults(f"{line}\n")


def test_what_compiles_to_the_same_is_no_fault() -> None:
    """A fault that the compiler removes is not there."""
    assert not any("(0.0)" in after for after in faults_of("x = 1 if 0 else b"))
    kinds = [one.kind for one in Source("module", "def f(a):\n    if True:\n        return a\n").mutants()]
    assert {"notbool", "iffalse", "return"} >= set(kinds)


def test_a_fault_says_where_it_is() -> None:
    """The scope and the lines of the statement are known, of an `if` those of its head."""
    text = "class A:\n  def f(self, a):\n    if (\n      a < b\n    ):\n      return [a]\n"
    mutants = Source("module", text).mutants()
    assert {"A.f"} == {mutant.scope for mutant in mutants}
    assert {(3, 4, 5), (6,)} == {mutant.lines for mutant in mutants}


def test_what_runs_at_import_has_no_lines() -> None:
    """A default belongs to no test in particular."""
    (plus, minus) = Source("module", "def f(a=1):\n    pass\n").mutants()
    assert ((), ()) == (plus.lines, minus.lines)


def test_the_lines_below_a_fault_keep_their_numbers() -> None:
    """A fault in an expression of several lines leaves their count as it was."""
    text = "def f(a, b):\n    return (\n        a\n        and b\n    )\n\n\nprint(f)\n"
    assert {text.count("\n")} == {mutant.source.count("\n") for mutant in Source("module", text).mutants()}


def test_characters_of_several_bytes_do_no_harm() -> None:
    """A place in a line is counted in bytes."""
    assert 'return "größer", (a <= b)' in faults_of('return "größer", a < b')


def test_a_seed_draws_the_same_from_a_module_whatever_stands_beside_it() -> None:
    """The first mutants of a module depend on the seed and the module alone."""
    one, other = (Source(name, FUNCTION.format("return a < 1 and b > 2 or a + b")) for name in "ab")
    alone = draw([one], 4, 7)
    assert alone == [mutant for mutant in draw([one, other], 8, 7) if mutant.module == "a"]
    assert alone != draw([one], 4, 8)
    assert 4 == len(alone)


def test_as_many_are_drawn_as_there_are() -> None:
    """A module with few gives all of them, and the others make up for it."""
    small = Source("small", "def f(a):\n    return not a\n")
    large = Source("large", FUNCTION.format("return a < 1 and b > 2 or a + b"))
    counts = [mutant.module for mutant in draw([small, large], 9, 1)]
    assert (2, 7) == (counts.count("small"), counts.count("large"))
