"""The fake store and the real one cannot be told apart."""

from __future__ import annotations

import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.shared_dir import SharedDirStore

DIRECTORIES = ("members", "nodes")
NAMES = st.sampled_from(("a", "b", "c+1"))


class BothStores(RuleBasedStateMachine):
    """Does the same to both stores and compares every answer."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.mkdtemp(prefix="hpc_elastic-agreement-")
        for directory in DIRECTORIES:
            os.mkdir(os.path.join(self._root, directory))
        self._real = SharedDirStore(self._root)
        self._fake = MemoryStore()
        self._last = 0

    @rule(value=st.binary(max_size=20), back=st.integers(0, 3))
    def append(self, value: bytes, back: int) -> None:
        """Add a record, or try for a number that is taken."""
        number = max(1, self._last + 1 - back)
        won = self._real.append("journal", number, value)
        assert won == self._fake.append("journal", number, value) == (number > self._last)
        self._last = max(self._last, number)

    @rule(after=st.integers(0, 12))
    def read_after(self, after: int) -> None:
        """Read from somewhere."""
        assert self._fake.read_after("journal", after) == self._real.read_after("journal", after)

    @rule(directory=st.sampled_from(DIRECTORIES), name=NAMES, value=st.binary(max_size=20))
    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a file."""
        self._real.put(directory, name, value)
        self._fake.put(directory, name, value)

    @rule(directory=st.sampled_from((*DIRECTORIES, "made/late")), name=NAMES, value=st.binary(max_size=20))
    def create(self, directory: str, name: str, value: bytes) -> None:
        """Create a file, or find its name taken."""
        created = self._real.create(directory, name, value)
        assert created == self._fake.create(directory, name, value)
        assert self._fake.get(directory, name) == self._real.get(directory, name)

    @rule(directory=st.sampled_from((*DIRECTORIES, "made/late")), known=st.lists(NAMES, unique=True))
    def wait(self, directory: str, known: list[str]) -> None:
        """Look for something else than what is known, without patience."""
        assert self._fake.wait(directory, sorted(known), 0) == self._real.wait(directory, sorted(known), 0)

    @rule(directory=st.sampled_from(DIRECTORIES), name=NAMES)
    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self._real.unmark(directory, name)
        self._fake.unmark(directory, name)

    @rule(directory=st.sampled_from(DIRECTORIES), name=NAMES)
    def get(self, directory: str, name: str) -> None:
        """Read a file."""
        assert self._fake.get(directory, name) == self._real.get(directory, name)

    @rule(counter=st.integers(0, 3))
    def mark(self, counter: int) -> None:
        """Advance a mark, whether its predecessor is there or not."""
        for store in (self._real, self._fake):
            store.mark("members", f"m+{counter + 1}", instead_of=f"m+{counter}")

    @rule(directory=st.sampled_from(DIRECTORIES))
    def list(self, directory: str) -> None:
        """List a directory."""
        assert self._fake.list(directory) == self._real.list(directory)

    def teardown(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._root)


TestAgreement = BothStores.TestCase
TestAgreement.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
