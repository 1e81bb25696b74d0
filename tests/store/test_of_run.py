"""Workers find the key-value store of their round."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import hpc_elastic.store
from hpc_elastic.errors import InputError, RunDirError, StoreTimeoutError
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.of_run import from_env, open_scope, open_store

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
    with pytest.raises(InputError, match=r"no worker of a run: HPC_ELASTIC_RUN_DIR is None\n  fix: start it"):
        from_env({})
    with pytest.raises(InputError, match="HPC_ELASTIC_ROUND is 'x'"):
        from_env({**environment(run_paths), "HPC_ELASTIC_ROUND": "x"})


def test_a_lost_run_directory_is_named(tmp_path: Path) -> None:
    """A run directory that is not there is an error that names it."""
    paths = RunPaths(tmp_path / "gone")
    with pytest.raises(RunDirError, match="gone cannot be used: No such file or directory"):
        from_env(environment(paths))
    with pytest.raises(RunDirError, match="gone cannot be used: No such file or directory"):
        open_store(paths.root, "a")


def test_a_scope_of_a_round_is_its_workers(run_paths: RunPaths) -> None:
    """It goes with the round, so that nobody else may keep anything there; a name like it may."""
    with pytest.raises(InputError, match="scope 'round-3' is that of a round's workers"):
        open_store(run_paths.root, "round-3")
    open_store(run_paths.root, "round-three").set("a", "1")


def test_a_directory_that_others_can_write_to_is_refused(run_paths: RunPaths) -> None:
    """What stands there could be anybody's; so could a link in place of the store."""
    os.chmod(run_paths.root, 0o770)
    with pytest.raises(RunDirError, match=r"others can write to the run directory .* \(mode 770\)"):
        open_store(run_paths.root, "a")
    os.chmod(run_paths.root, 0o700)
    os.symlink("/tmp", run_paths.kv)
    with pytest.raises(RunDirError, match="kv: it is a link"):
        open_store(run_paths.root, "a")


def test_a_foreign_run_directory_is_refused(run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to a directory of another user."""
    owner = os.stat(run_paths.root).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RunDirError, match=f"belongs to uid {owner}, not to uid {owner + 1}"):
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
    with pytest.raises(StoreTimeoutError, match=r"run/kv/a: not within 0 s: key 'x', 'y'$") as caught:
        kv.wait(["x", "y"])
    assert ("x", "y") == caught.value.missing
    with pytest.raises(StoreTimeoutError, match="'k15' and 84 more"):
        kv.wait([f"k{number}" for number in range(100)])
    assert f"KeyValueStore('{run_paths.kv}/a')" == repr(kv)


def test_everything_is_offered_lazily() -> None:
    """The package offers its names, and loads none of them before it is used."""
    assert all(getattr(hpc_elastic.store, name) is not None for name in hpc_elastic.store.__all__)
    assert set(hpc_elastic.store.__all__) <= set(dir(hpc_elastic.store))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hpc_elastic.store.nothing
    code = "import sys, hpc_elastic.store; print(*(name for name in sys.modules if 'hpc_elastic.' in name))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert ["hpc_elastic.store"] == loaded.split()
