"""The simulated shared directory does what the store in memory does."""

from __future__ import annotations

import random

from hpc_elastic.store.memory import MemoryStore
from tests.simulation.content import Content

NAMES = ("a", "b", "c")


def _do(store: MemoryStore | Content, dice: random.Random) -> object:
    """Do something at random and return what came of it."""
    number, name, other = dice.randint(1, 6), dice.choice(NAMES), dice.choice(NAMES)
    operations = (
        lambda: store.append("log", number, name.encode()),
        lambda: store.read_after("log", number),
        lambda: store.put("d", name, other.encode()),
        lambda: store.get("d", name),
        lambda: store.create("d", name, other.encode()),
        lambda: store.list("d"),
        lambda: store.mark("d", name, instead_of=other if other != name else None),
        lambda: store.unmark("d", name),
    )
    return dice.choice(operations)()


def test_it_is_like_the_store_in_memory() -> None:
    """The same operations give the same results, whatever they are."""
    for seed in range(50):
        memory, content = MemoryStore(), Content()
        one, two = random.Random(seed), random.Random(seed)
        for _ in range(60):
            assert _do(memory, one) == _do(content, two)


def test_a_copy_goes_its_own_way() -> None:
    """What is done to a copy is not seen in the original."""
    content = Content()
    content.append("log", 1, b"x")
    copy = content.copy()
    assert content.key() == copy.key()
    copy.put("d", "a", b"")
    assert content.key() != copy.key()
