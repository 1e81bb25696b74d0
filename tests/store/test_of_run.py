"""Workers find the key-value store of their round."""

from __future__ import annotations

import math
import os
import re
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic.store
from hpc_elastic.errors import InputError, RunDirError, StoreTimeoutError
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.kv.store import from_env, open_scope, open_store

REPOSITORY = Path(__file__).parents[2]


def environment(run_paths: RunPaths, round_number: int = 3) -> dict[str, str]:
    """Return what a worker finds in its environment."""
    return {"HPC_ELASTIC_RUN_DIR": run_paths.root, "HPC_ELASTIC_ROUND": str(round_number)}


def test_workers_of_a_round_share_keys(run_paths: RunPaths) -> None:
    """All workers of a round have the same store, those of the next round an empty one."""
    from_env(environment(run_paths)).set("a", "1")
    assert b"1" == from_env(environment(run_paths)).get("a")
    assert [] == from_env(environment(run_paths, 4)).list_keys()
    assert ["round-3", "round-4"] == sorted(os.listdir(run_paths.kv))


def test_a_worker_reads_its_own_environment(run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the process's own environment counts."""
    for name, value in environment(run_paths).items():
        monkeypatch.setenv(name, value)
    from_env().set("a", "1")
    assert b"1" == open_scope(run_paths.root, "round-3").get("a")


def test_other_processes_have_no_round(run_paths: RunPaths) -> None:
    """Outside of a run the error names the variable and what to do."""
    with pytest.raises(
        InputError, match=r"no worker of a run: HPC_ELASTIC_RUN_DIR is not set\n  fix: start it"
    ):
        from_env({})
    with pytest.raises(InputError, match="HPC_ELASTIC_ROUND is 'x'"):
        from_env({**environment(run_paths), "HPC_ELASTIC_ROUND": "x"})


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    """Nothing is made in it."""
    with pytest.raises(RunDirError, match=f"HPC_ELASTIC_RUN_DIR is {tmp_path}, which is no run directory"):
        from_env(environment(RunPaths(tmp_path)))
    assert [] == os.listdir(tmp_path)


def test_a_lost_run_directory_is_named(tmp_path: Path) -> None:
    """A run directory that is not there is an error that names it."""
    paths = RunPaths(tmp_path / "gone")
    with pytest.raises(RunDirError, match="gone: there is no such directory"):
        from_env(environment(paths))
    with pytest.raises(RunDirError, match="gone: there is no such directory"):
        open_store(paths.root, "a")


def test_a_scope_of_a_round_is_its_workers(run_paths: RunPaths) -> None:
    """It goes with the round, so that nobody else may keep anything there; a name like it may."""
    with pytest.raises(InputError, match="scope 'round-3' is that of a round's workers"):
        open_store(run_paths.root, "round-3")
    open_store(run_paths.root, "round-three").set("a", "1")


def test_a_directory_that_others_can_write_to_is_refused(run_paths: RunPaths) -> None:
    """What stands there could be anybody's; so could a link in place of the store."""
    os.chmod(run_paths.root, 0o770)
    with pytest.raises(RunDirError, match=r"run directory .*: others can write to it \(mode 770\)"):
        open_store(run_paths.root, "a")
    os.chmod(run_paths.root, 0o700)
    os.symlink("/tmp", run_paths.kv)
    with pytest.raises(RunDirError, match="kv: it is a link"):
        open_store(run_paths.root, "a")


def test_a_foreign_run_directory_is_refused(run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to a directory of another user."""
    owner = os.stat(run_paths.root).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RunDirError, match=f"it belongs to user {owner}, not to you"):
        from_env(environment(run_paths))
    assert not os.path.exists(run_paths.kv)


@pytest.mark.parametrize("scope", ["a", "a/b", "..", ".", "/", "é", "s" * 300])
def test_any_scope(run_paths: RunPaths, scope: str) -> None:
    """Any text names a scope, which is one directory for its owner alone."""
    open_store(run_paths.root, scope).set("a", scope)
    assert scope.encode() == open_store(run_paths.root, scope).get("a")
    (name,) = os.listdir(run_paths.kv)
    for place in (run_paths.kv, os.path.join(run_paths.kv, name)):
        assert stat.S_IRWXU == stat.S_IMODE(os.stat(place).st_mode)


def test_a_scope_has_a_name(run_paths: RunPaths) -> None:
    """An empty scope is refused."""
    with pytest.raises(InputError, match="needs a scope"):
        open_store(run_paths.root, "")


def test_messages_name_the_directory(run_paths: RunPaths) -> None:
    """A timeout names the missing keys and where they were looked for."""
    kv = open_store(run_paths.root, "a", timeout=0)
    with pytest.raises(
        StoreTimeoutError, match=r"run/kv/a: not within 0 s: key 'x', 'y'\n  fix: no process has set"
    ) as caught:
        kv.wait(["x", "y"])
    assert ("x", "y") == caught.value.missing
    with pytest.raises(StoreTimeoutError, match="'k15' and 84 more"):
        kv.wait([f"k{number}" for number in range(100)])
    assert f"KeyValueStore('{run_paths.kv}/a')" == repr(kv)


def test_who_waits_long_is_told_once(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The timeout may be minutes away; a key that comes soon says nothing."""
    kv = open_store(run_paths.root, "a", timeout=0.2)
    kv.set("there", "1")
    monkeypatch.setattr("hpc_elastic.store.kv.store._WARN_AFTER_S", 0.01)
    assert b"1" == kv.get("there")
    assert [] == caplog.messages
    with pytest.raises(StoreTimeoutError):
        kv.get("x")
    (said,) = caplog.messages
    assert said.startswith(
        f"{run_paths.kv}/a: waiting for key 'x' since 0 s, at most 0.2 s; no process has set"
    )


@pytest.mark.parametrize("timeout", ["x", "5", None, -1, -0.5, math.nan, timedelta(seconds=-1)], ids=repr)
def test_a_timeout_is_a_number_that_is_not_negative(run_paths: RunPaths, timeout: Any) -> None:
    """Anything else is refused by name and value, wherever it is given."""
    kv = open_store(run_paths.root, "a", timeout=0)
    said = re.escape(f"timeout must be a timedelta or seconds, at least 0, not {timeout!r}")
    with pytest.raises(ValueError, match=said):
        open_store(run_paths.root, "a", timeout=timeout)
    with pytest.raises(ValueError, match=said):
        kv.set_timeout(timeout)
    if timeout is not None:  # that is the store's own
        with pytest.raises(ValueError, match=said):
            kv.wait(["x"], timeout)


def test_everything_is_offered_lazily() -> None:
    """The package offers its names, and loads none of them before it is used."""
    assert all(getattr(hpc_elastic.store, name) is not None for name in hpc_elastic.store.__all__)
    assert set(hpc_elastic.store.__all__) <= set(dir(hpc_elastic.store))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hpc_elastic.store.nothing
    code = "import sys, hpc_elastic.store; print(*(name for name in sys.modules if 'hpc_elastic.' in name))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert {"hpc_elastic.lazy_names", "hpc_elastic.store"} == {*loaded.split()}
