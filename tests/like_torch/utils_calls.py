"""Calls to a package `utils`; each function returns what came of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from importlib import import_module
from multiprocessing.pool import ThreadPool
from typing import Any

from tests.like_torch.outcomes import error_type, outcome, signatures


def _part(utils: Any, name: str) -> Any:
    return import_module(f"{utils.__name__}.{name}")


def call_signatures(utils: Any) -> Any:
    """Names and defaults of all parameters."""
    names = {
        "api": ["get_env_variable_or_raise", "get_socket_with_port", "macros.substitute"],
        "distributed": ["get_free_port", "get_socket_with_port", "create_c10d_store"],
        "store": ["store_timeout", "get_all", "synchronize", "barrier"],
        "logging": ["get_logger"],
        "log_level": ["get_log_level"],
        "process_state": ["read_proc_state", "is_uninterruptible_state"],
        "data": ["CyclingIterator", "ElasticDistributedSampler"],
    }
    return {name: signatures(_part(utils, name), of_part) for name, of_part in names.items()}


def call_environment(utils: Any) -> Any:
    """A variable that is set, and one that is not."""
    os.environ["LIKE_TORCH"] = "x"
    os.environ.pop("LIKE_TORCH_NOT", None)
    names = ("LIKE_TORCH", "LIKE_TORCH_NOT")
    return [outcome(lambda name=name: utils.get_env_variable_or_raise(name)) for name in names]


def call_macros(utils: Any) -> Any:
    """What is put into arguments."""
    args = [
        "${local_rank}",
        "$local_rank",
        "x${local_rank}y",
        "$$",
        "$5",
        "${other}",
        "${",
        5,
        None,
        b"$local_rank",
    ]
    return [repr(one) for one in utils.macros.substitute(args, "3")] + [utils.macros.local_rank]


def call_sockets(utils: Any) -> Any:
    """A port that is kept, and one that was."""
    with closing(utils.get_socket_with_port()) as listener:
        return [listener.getsockname()[1] > 0, _part(utils, "distributed").get_free_port() > 0, listener.type]


def call_loggers(utils: Any) -> Any:
    """Names and levels."""
    found = _part(utils, "logging")
    os.environ["LOGLEVEL"] = "DEBUG"
    loud = found.get_logger("one").level
    del os.environ["LOGLEVEL"]
    names = [found.get_logger(name).name for name in ("two", None, "")]
    module = found._derive_module_name(depth=1)
    return [loud, found.get_logger("one").level, names, module, _part(utils, "log_level").get_log_level()]


def call_states(utils: Any) -> Any:
    """States of processes, those that are not there included."""
    found = _part(utils, "process_state")
    states = [found.read_proc_state(os.getpid()), found.read_proc_state(2**30), found.read_proc_state(-1)]
    return states + [found.is_uninterruptible_state(one) for one in ("D", "D+", "R", "", None)]


def call_epochs(utils: Any) -> Any:
    """Several epochs in one, from one of them on."""
    cycling = _part(utils, "data").CyclingIterator
    return [list(cycling(n, lambda epoch: iter([epoch] * 2), start)) for n, start in ((3, 0), (3, 1), (0, 0))]


def call_sampler(utils: Any) -> Any:
    """Which samples the ranks get, and what is refused."""
    sampler = _part(utils, "data").ElasticDistributedSampler
    dealt = []
    for rank in range(3):
        one = sampler(list(range(20)), 3, rank, start_index=4)
        one.set_epoch(5)
        dealt.append([list(one), len(one), one.total_size, one.num_replicas, one.rank, one.start_index])
    wrong = [(list(range(3)), 2, 0, 3), (list(range(3)), 2, 0, 4), (list(range(3)), 2, 2, 0)]
    endless = error_type(lambda: sampler(iter([1]), 1, 0))
    return [dealt, [outcome(lambda args=args: sampler(*args)) for args in wrong], endless]


def _at_once(count: int, work: Callable[[int], Any]) -> Any:
    with ThreadPool(count) as pool:
        return pool.map(lambda rank: outcome(lambda: work(rank)), range(count))


def _hash_store() -> Any:
    store = import_module("torch.distributed").HashStore()
    store.set_timeout(timedelta(seconds=20))
    return store


def call_stores(utils: Any) -> Any:
    """What several ranks do together through the same store."""
    util, store = _part(utils, "store"), _hash_store()

    def share(rank: int) -> Any:
        found = util.synchronize(store, b"of %d" % rank, rank, 4, "shared", timeout=20)
        return [value.decode() for value in found]

    def get_all(rank: int) -> Any:
        store.set(f"mine{rank}", str(rank))
        return [value.decode() for value in util.get_all(store, rank, "mine", 4)]

    def meet(rank: int) -> Any:
        return util.barrier(store, 4, "meet", 20, rank)

    together = [_at_once(4, share), _at_once(4, get_all), _at_once(4, meet)]
    return [together, _at_once(4, lambda _: util.barrier(store, 4, "nobody", 20)), str(store.timeout)]


def call_timeouts(utils: Any) -> Any:
    """The timeout of a store for a while, and rank 0 naming who has not come."""
    util, store = _part(utils, "store"), _hash_store()
    with util.store_timeout(store, 7):
        inside = str(store.timeout)
    late: list[Any] = [str(store.timeout)]  # torch does not set it back after an error
    try:
        util.barrier(store, 3, "late", 0.1, 0, lambda rank: f"host{rank}", 0.05)
    except util.DistStoreError as error:
        names = ", ".join(sorted(name for name in ("host1", "host2") if name in str(error)))
        late += [str(error).partition(" (")[0], names, isinstance(error, RuntimeError)]
    return [inside, late]
