"""What every store must do; each implementation runs these tests."""

from __future__ import annotations

import threading

import pytest

from hpc_elastic.store.protocol import Store

BOUNDARY = 256  # records per segment of the shared directory
LONG_S = 50.0  # longer than any test may take


class StoreContract:
    """Tests of `Store`; a subclass provides the fixture `store`, empty at the start."""

    def test_a_new_log_is_empty(self, store: Store) -> None:
        """Reading a log that nobody has written gives nothing."""
        assert [] == store.read_after("journal", 0)

    def test_a_record_is_read_back(self, store: Store) -> None:
        """A record comes back with its number, byte for byte."""
        assert store.append("journal", 1, b"\x00\xffone")
        assert [(1, b"\x00\xffone")] == store.read_after("journal", 0)

    def test_a_number_is_given_once(self, store: Store) -> None:
        """The second writer of a number is told so, and the first one's record stays."""
        assert store.append("journal", 1, b"first")
        assert not store.append("journal", 1, b"second")
        assert [(1, b"first")] == store.read_after("journal", 0)

    def test_a_late_number_is_taken(self, store: Store) -> None:
        """A number far behind the end is taken, too."""
        for number in (1, 2, 3):
            assert store.append("journal", number, b"x")
        assert not store.append("journal", 1, b"late")

    def test_only_what_follows_is_read(self, store: Store) -> None:
        """Reading after a number leaves out that record and all before it."""
        for number in (1, 2, 3):
            store.append("journal", number, str(number).encode())
        assert [(3, b"3")] == store.read_after("journal", 2)
        assert [] == store.read_after("journal", 3)

    def test_logs_are_separate(self, store: Store) -> None:
        """Each log counts for itself."""
        assert store.append("journal", 1, b"a")
        assert store.append("submissions", 1, b"b")
        assert [(1, b"b")] == store.read_after("submissions", 0)

    @pytest.mark.parametrize("after", [0, 1, 254, 255, 256, 257, 510, 511, 512, 513, 520])
    def test_long_logs_have_no_gap(self, store: Store, after: int) -> None:
        """Wherever a reader stands, it gets all that follows, over the ends of segments."""
        last = 2 * BOUNDARY + 8
        for number in range(1, last + 1):
            assert store.append("journal", number, str(number).encode())
        expected = [(number, str(number).encode()) for number in range(after + 1, last + 1)]
        assert expected == store.read_after("journal", after)

    @pytest.mark.parametrize("last", [254, 255, 256, 257])
    def test_logs_grow_across_a_boundary(self, store: Store, last: int) -> None:
        """A reader who is up to date sees the next record, in the old segment or the new one."""
        for number in range(1, last + 1):
            store.append("journal", number, b"")
        assert [] == store.read_after("journal", last)
        assert store.append("journal", last + 1, b"next")
        assert [(last + 1, b"next")] == store.read_after("journal", last)

    def test_a_file_is_read_back(self, store: Store) -> None:
        """A file has the value it was given last; a value may be empty."""
        store.put("nodes", "a.json", b"1")
        assert b"1" == store.get("nodes", "a.json")
        store.put("nodes", "a.json", b"")
        assert b"" == store.get("nodes", "a.json")

    def test_replaced_files_are_read(self, store: Store) -> None:
        """Whoever reads a file just as it is replaced gets an old value or the new one, never an error."""
        for number in range(40):
            for value in (b"1", b"22"):
                store.put("nodes", f"{number}.json", value)
                assert value == store.get("nodes", f"{number}.json")

    def test_a_missing_file_is_none(self, store: Store) -> None:
        """A file that nobody has written has no value."""
        assert store.get("nodes", "a.json") is None

    def test_names_are_listed_in_order(self, store: Store) -> None:
        """A listing holds files and marks of this directory alone, sorted."""
        store.put("nodes", "b", b"1")
        store.mark("nodes", "c")
        store.mark("nodes", "a")
        store.mark("members", "d")
        assert ["a", "b", "c"] == store.list("nodes")

    def test_an_empty_directory_has_no_names(self, store: Store) -> None:
        """Listing what nobody has written to gives nothing."""
        assert [] == store.list("members")

    def test_a_mark_replaces_its_predecessor(self, store: Store) -> None:
        """A writer's new mark takes the place of its old one."""
        store.mark("members", "n1+0")
        store.mark("members", "n1+1", instead_of="n1+0")
        assert ["n1+1"] == store.list("members")

    def test_a_mark_survives_the_loss_of_its_predecessor(self, store: Store) -> None:
        """If somebody took the old mark away, the new one is made all the same."""
        store.mark("members", "n1+0")
        store.unmark("members", "n1+0")
        store.mark("members", "n1+1", instead_of="n1+0")
        assert ["n1+1"] == store.list("members")

    def test_marking_twice_is_marking_once(self, store: Store) -> None:
        """A mark that is there already stays, with and without a predecessor."""
        store.mark("members", "n1+0")
        store.mark("members", "n1+0")
        store.mark("members", "n1+0", instead_of="n1+0")
        assert ["n1+0"] == store.list("members")

    def test_a_mark_is_taken_away(self, store: Store) -> None:
        """A mark can be taken away, and taking it away again does no harm."""
        store.mark("members", "n1+0")
        store.unmark("members", "n1+0")
        store.unmark("members", "n1+0")
        assert [] == store.list("members")

    def test_a_created_file_is_read_back(self, store: Store) -> None:
        """A file is created once, byte for byte; whoever comes later is told so and changes nothing."""
        assert store.create("kv", "a+1", b"\x00\xffone")
        assert not store.create("kv", "a+1", b"two")
        assert b"\x00\xffone" == store.get("kv", "a+1")
        assert ["a+1"] == store.list("kv")

    def test_directories_are_made_when_needed(self, store: Store) -> None:
        """The directory of a created file, and those above it, need not exist; each has its own names."""
        assert store.create("kv/round-1", "a", b"")
        assert store.create("kv/round-2", "a", b"2")
        assert b"" == store.get("kv/round-1", "a")
        assert ["a"] == store.list("kv/round-1")

    def test_a_name_that_was_taken_away_is_free(self, store: Store) -> None:
        """A name can be created again once it has been taken away."""
        assert store.create("kv", "a", b"1")
        store.unmark("kv", "a")
        assert store.get("kv", "a") is None
        assert store.create("kv", "a", b"2")
        assert b"2" == store.get("kv", "a")

    def test_one_of_many_creates(self, store: Store) -> None:
        """Of threads that want the same name at once, one gets it, and the value is that one's."""
        start = threading.Barrier(4)
        won: list[bytes] = []

        def race(value: bytes) -> None:
            start.wait()
            if store.create("kv", "a", value):
                won.append(value)

        racers = [threading.Thread(target=race, args=(b"%d" % number,)) for number in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert [store.get("kv", "a")] == won

    def test_what_is_news_is_not_waited_for(self, store: Store) -> None:
        """If the names differ from what is known already, they are returned at once."""
        store.mark("members", "b")
        store.mark("members", "a")
        assert ["a", "b"] == store.wait("members", [], LONG_S)
        assert ["a", "b"] == store.wait("members", ["a", "c"], LONG_S)
        store.unmark("members", "a")
        assert ["b"] == store.wait("members", ("a", "b"), LONG_S)

    @pytest.mark.parametrize("timeout", [-1.0, 0.0, 0.01])
    def test_waiting_ends(self, store: Store, timeout: float) -> None:
        """When the time is over, the names are returned although they are known."""
        store.mark("members", "a")
        assert ["a"] == store.wait("members", ["a"], timeout)
        assert [] == store.wait("absent", [], timeout)

    @pytest.mark.parametrize("directory", ["members", "made/late"])
    def test_a_new_name_ends_waiting(self, store: Store, directory: str) -> None:
        """Whoever waits is told of a name that another writer makes, also in a directory made later."""
        heard: list[list[str]] = []
        listener = threading.Thread(target=lambda: heard.append(store.wait(directory, [], LONG_S)))
        listener.start()
        assert store.create(directory, "a", b"")
        listener.join()
        assert [["a"]] == heard

    def test_a_name_taken_away_ends_waiting(self, store: Store) -> None:
        """Whoever waits is told of a name that is taken away."""
        store.mark("members", "a")
        heard: list[list[str]] = []
        listener = threading.Thread(target=lambda: heard.append(store.wait("members", ["a"], LONG_S)))
        listener.start()
        store.unmark("members", "a")
        listener.join()
        assert [[]] == heard
