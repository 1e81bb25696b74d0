"""Stores for torch's process groups, made from the run directory."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpc_elastic.errors import InputError, RunDirError, StoreError, StoreTimeoutError
from hpc_elastic.frameworks import torch as elastic
from hpc_elastic.frameworks.torch import stores
from hpc_elastic.frameworks.torch.stores import Meeting, StoreWish, decoded, machine
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.kv.store import from_env
from tests.store.kv_contract import KeyValueContract

LIMIT_S = 120.0
NO_NAME = "x" * 64  # too long for a name, so nobody is asked for it
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def environment(paths: RunPaths, rank: int = 0, world_size: int = 1, round_number: int = 1) -> dict[str, str]:
    """Return what a worker finds in its environment; where torch looks for rank 0 there is nobody."""
    return {
        "HPC_ELASTIC_RUN_DIR": paths.root,
        "HPC_ELASTIC_ROUND": str(round_number),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": NO_NAME,
        "MASTER_PORT": "1",
    }


def together(act: Callable[[int], Any], ranks: int = 2) -> list[Any]:
    """Let every rank do something, each in a thread."""
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(act, range(ranks)))


@pytest.fixture
def distributed() -> Any:
    """Return ``torch.distributed``."""
    return pytest.importorskip("torch.distributed")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"HPC_ELASTIC_RUN_DIR": ""}, "HPC_ELASTIC_RUN_DIR is not set"),
        ({"HPC_ELASTIC_ROUND": ""}, "HPC_ELASTIC_ROUND is not set"),
        ({"RANK": ""}, "RANK is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
    ],
)
def test_outside_of_a_worker_one_error_says_so(
    run_paths: RunPaths, change: dict[str, str], said: str
) -> None:
    """It names the variable and the fix."""
    with pytest.raises(InputError, match=f"is no worker of a run: {said}\n  fix: start it by hpc-elastic"):
        elastic.store({**environment(run_paths), **change})


@pytest.mark.torch
@pytest.mark.parametrize(
    ("more", "options"),
    [({"LOCAL_WORLD_SIZE": "2"}, {}), ({}, {"address": "127.0.0.1"})],
    ids=["one node", "address"],
)
def test_nobody_elsewhere_reaches_a_store_that_is_for_one_address(
    distributed: Any, run_paths: RunPaths, more: dict[str, str], options: dict[str, Any]
) -> None:
    """Torch itself would listen on all interfaces."""
    environs = [{**environment(run_paths, rank, 2), **more} for rank in range(2)]
    stores = together(lambda rank: elastic.store(environs[rank], timeout=LIMIT_S, **options))
    stores[0].set("key", "value")
    assert b"value" == stores[1].get("key")
    port = json.loads(from_env(environs[0]).get("torch/address"))["port"]
    listening = [one.laddr for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"]
    assert {"127.0.0.1"} == {place.ip for place in listening if place.port == port}


def test_a_rank_beyond_the_world_is_refused(run_paths: RunPaths) -> None:
    """At once, not after a wait."""
    with pytest.raises(InputError, match="RANK is 4, and WORLD_SIZE 4"):
        elastic.shared_store(environment(run_paths, 4, 4))


@pytest.mark.parametrize("ports", [(), 65536, [0, -1], "0"])
def test_a_port_that_is_none_is_refused(run_paths: RunPaths, ports: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(InputError, match="ports must be one or more numbers from 0 to 65535"):
        elastic.store(environment(run_paths), ports=ports)


class _Broken:
    """A store whose server has ended."""

    def __getattr__(self, name: str) -> Any:
        def fails(*_: Any) -> Any:
            raise RuntimeError(f"Connection reset by peer in {name}\nmore lines")

        return fails


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rank", "error", "words"),
    [
        (0, RuntimeError, "^Connection reset"),
        (1, StoreError, "rank 1 has lost the store of rank 0 in round 7"),
    ],
)
def test_the_end_of_rank_0_is_told_by_the_others(
    distributed: Any, run_paths: RunPaths, rank: int, error: type[Exception], words: str
) -> None:
    """Rank 0 itself has the error as it is."""
    kv = from_env(environment(run_paths))
    meeting = Meeting(distributed, kv, rank, 2, 7, LIMIT_S)
    with pytest.raises(error, match=words) as failed:
        meeting.wait_for_all(_Broken())
    assert "more lines" not in str(failed.value) or rank == 0


@pytest.mark.torch
@pytest.mark.parametrize(("timeout_s", "is_over"), [(-5.0, True), (0.0, True), (1000.0, False)])
def test_no_wait_is_shorter_than_none(
    distributed: Any, run_paths: RunPaths, timeout_s: float, *, is_over: bool
) -> None:
    """What is left of a time that is over is nothing."""
    left_s = Meeting(distributed, from_env(environment(run_paths)), 0, 2, 7, timeout_s)._left_s()
    assert (is_over, True) == (left_s == 0.0, 0.0 <= left_s <= 1000.0)


@pytest.mark.torch
def test_times_are_those_of_torch(distributed: Any) -> None:
    """Where the user names none."""
    assert stores._SHARED_TIMEOUT == distributed.HashStore().timeout
    assert stores._TIMEOUT == distributed.distributed_c10d.default_pg_timeout


@pytest.mark.torch
def test_the_environment_of_this_process_is_the_workers(
    distributed: Any, run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none is given: all three find their place there."""
    for name in (Env.RUN_DIR, Env.ROUND):
        monkeypatch.delenv(name, raising=False)
    assert {} == elastic.bootstrap()
    for name, value in environment(run_paths).items():
        monkeypatch.setenv(name, value)
    found = elastic.bootstrap(timeout=LIMIT_S)
    assert (0, 1) == (found["rank"], found["world_size"])
    for one in (found["store"], elastic.store(timeout=LIMIT_S), elastic.shared_store()):
        assert isinstance(one, distributed.Store)


def test_without_an_agent_torch_does_what_it_does() -> None:
    """There is nothing to add, then."""
    assert {} == elastic.bootstrap({"RANK": "0", "WORLD_SIZE": "2"})


def test_a_missing_torch_is_named(run_paths: RunPaths) -> None:
    """One line says what is missing; importing the module needs no torch."""
    program = f"{BLOCK}\nfrom hpc_elastic.frameworks.torch import store\nstore()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, **environment(run_paths)},
    )
    assert 1 == done.returncode
    assert "PyTorch is not installed\n  fix: pip install torch" in done.stderr


@pytest.mark.torch
@pytest.mark.usefixtures("distributed")
class TestStore:
    """The store that rank 0 serves."""

    def test_ranks_share_keys(self, run_paths: RunPaths) -> None:
        """Those of a round; each use and each round begins with an empty one."""

        def act(rank: int) -> list[bool]:
            found = []
            for round_number in (1, 1, 2):
                environ = environment(run_paths, rank, 2, round_number)
                store = elastic.store(environ, timeout=LIMIT_S)
                found.append(store.check([f"key{rank}"]))
                store.set(f"key{rank}", str(rank))
                assert b"0" == store.get("key0")
                assert b"1" == store.get("key1")
                assert timedelta(seconds=LIMIT_S) == store.timeout
                elastic.store(environ, timeout=LIMIT_S)  # nobody is ahead
            return found

        assert [[False] * 3] * 2 == together(act)

    def test_all_that_a_process_group_needs(self, run_paths: RunPaths) -> None:
        """Store, rank and number of ranks."""
        given = elastic.bootstrap(environment(run_paths), timeout=LIMIT_S)
        assert {"store", "rank", "world_size"} == set(given)
        assert (0, 1) == (given["rank"], given["world_size"])

    def test_a_rank_that_does_not_come_is_named(self, run_paths: RunPaths) -> None:
        """By rank 0, with all that are missing."""
        with pytest.raises(
            StoreTimeoutError, match=r"rank 0 waits in store\(\) for ranks 1, 2 of 3 in"
        ) as caught:
            elastic.store(environment(run_paths, 0, 3), timeout=0.2)
        assert ("1", "2") == caught.value.missing
        assert "logs RUN --rank 1" in str(caught.value)

    def test_rank_0_that_does_not_come_is_named(self, run_paths: RunPaths) -> None:
        """By the others, who wait for its address."""
        with pytest.raises(StoreTimeoutError, match=r"rank 1 waits in store\(\) for rank 0 of 2 in round 1"):
            elastic.store(environment(run_paths, 1, 2), timeout=0.2)

    def test_a_store_that_nobody_reaches(
        self,
        run_paths: RunPaths,
        distributed: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Each address is told with what came of it: soon as a warning, and in the end with what to do."""
        monkeypatch.setattr(stores, "_WARN_AFTER_S", 0.1)
        monkeypatch.setattr(stores, "_resolves", bool)  # a name that rank 0's node alone knows
        meeting = Meeting(distributed, from_env(environment(run_paths)), 0, 2, 1, LIMIT_S)
        served = meeting.base({}, StoreWish((0,), NO_NAME))
        with pytest.raises(StoreTimeoutError) as caught:
            elastic.store(environment(run_paths, 1, 2), timeout=1.5)
        what = f"rank 1 on {os.uname().nodename} cannot reach the store of rank 0 on {os.uname().nodename}"
        came = f"port {served.port} of\n  {NO_NAME}: encoding with 'idna' codec"
        warned = "".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        assert what in warned
        assert what in str(caught.value)
        assert came in str(caught.value)
        assert 'fix: name an address or interface that the nodes share: address="ib0"' in str(caught.value)

    @pytest.mark.parametrize("wish", [None, "127.0.0.1"])
    def test_the_others_are_told_the_address_alone_at_which_rank_0_listens(
        self, run_paths: RunPaths, distributed: Any, wish: str | None
    ) -> None:
        """At any other one of its node another user may have the same port."""
        kv = from_env(environment(run_paths))
        meeting = Meeting(distributed, kv, 0, 2, 1, LIMIT_S)
        environ = {"MASTER_ADDR": os.uname().nodename, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        served = meeting.base(environ, StoreWish((0,), wish))
        told = decoded(kv.get("torch/address"))
        assert (served.port, ("127.0.0.1",)) == (told.port, told.to_try(machine()))

    def test_the_end_of_rank_0_is_told(self, run_paths: RunPaths, distributed: Any) -> None:
        """Also if it comes while others wait; they need not wait for the end of their time."""
        kv = from_env(environment(run_paths))
        served = Meeting(distributed, kv, 0, 2, 1, LIMIT_S).base({}, StoreWish((0,), None))
        other = Meeting(distributed, kv, 1, 2, 1, LIMIT_S)
        found = other.base({}, StoreWish((0,), None))
        del served
        gc.collect()
        with pytest.raises(StoreError, match=r"rank 1 has lost the store of rank 0 in round 1; has"):
            other.wait_for_all(found)

    def test_ports_are_tried_in_turn(self, run_paths: RunPaths) -> None:
        """One that is taken is passed over; without another the error names it."""
        with socket.create_server(("", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(StoreError, match=f"rank 0 cannot listen on port {port} of .*EADDRINUSE"):
                elastic.store(environment(run_paths), ports=port)
            elastic.store(environment(run_paths), ports=(port, 0), timeout=LIMIT_S)

    def test_a_second_process_of_rank_0_uses_the_first_ones(
        self, run_paths: RunPaths, distributed: Any
    ) -> None:
        """Others may have read the first address already."""
        kv = from_env(environment(run_paths))
        first, second = (
            Meeting(distributed, kv, 0, 1, 1, LIMIT_S).base({}, StoreWish((0,), None)) for _ in range(2)
        )
        assert first.port == second.port
        first.set("key", "value")
        assert b"value" == second.get("key")

    def test_a_lost_run_directory_is_named(self, tmp_path: Path) -> None:
        """Whichever store is asked for."""
        for make in (elastic.store, elastic.shared_store):
            with pytest.raises(RunDirError, match="gone: there is no such directory"):
                make(environment(RunPaths(tmp_path / "gone")))


@pytest.mark.torch
@pytest.mark.usefixtures("distributed")
class TestSharedStore(KeyValueContract):
    """The store in the run directory, as Python code sees it."""

    @pytest.fixture
    def kv(self, run_paths: RunPaths) -> Any:
        """Return an empty store."""
        return elastic.shared_store(environment(run_paths, 0, 2), timeout=LIMIT_S)

    @pytest.fixture
    def other(self, run_paths: RunPaths) -> Any:
        """Return that of another rank."""
        return elastic.shared_store(environment(run_paths, 1, 2), timeout=LIMIT_S)

    def test_it_is_one_of_torchs(self, kv: Any, distributed: Any) -> None:
        """So that torch takes it."""
        assert isinstance(kv, distributed.Store)

    def test_each_call_gives_another(self, run_paths: RunPaths, kv: Any) -> None:
        """A process group after another finds nothing of the first."""
        kv.set("a", "1")
        assert not elastic.shared_store(environment(run_paths, 0, 2)).check(["a"])


@pytest.mark.torch
def test_torch_may_keep_a_shared_store(run_paths: RunPaths, distributed: Any) -> None:
    """All that its own code calls reaches ours, also when the caller has forgotten the store."""
    below = distributed.PrefixStore("a", elastic.shared_store(environment(run_paths), timeout=LIMIT_S))
    gc.collect()
    below.set("text", "1")
    assert b"1" == below.get("text")
    assert 2 == below.add("n", 2)
    assert b"2" == below.compare_set("text", "1", "2")
    below.append("text", "3")
    below.multi_set(["x", "y"], ["4", "5"])
    assert [b"23", b"4"] == below.multi_get(["text", "x"])
    below.wait(["x", "y"], timedelta(seconds=LIMIT_S))
    assert below.check(["x"])
    assert not below.check(["z"])
    assert below.delete_key("x")
    assert 3 == below.num_keys()
    assert below.has_extended_api()
    assert b"23" == below.clone().get("text")
    with pytest.raises(RuntimeError, match=r"not within 0\.01 s: key 'torch/1/a/z'"):
        below.wait(["z"], timedelta(seconds=0.01))
