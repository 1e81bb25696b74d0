"""Names that programs out there take from torch's modules, whether or not those meant to offer them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.lazy_names import submodule

TAKEN = [
    (
        "run",
        "elastic_launch LaunchConfig Std DefaultLogsSpecs LogsSpecs macros get_logger record env check_env",
    ),
    ("launcher.api", "LaunchConfig Std DefaultLogsSpecs LogsSpecs get_logger _get_addr_and_port"),
    ("launcher.api", "_get_entrypoint_name rdzv_registry LocalElasticAgent WorkerSpec ChildFailedError"),
    ("multiprocessing", "_validate_full_rank"),
    (
        "multiprocessing.api",
        "SubprocessHandler TailLog ProcessFailure MultiprocessContext _validate_full_rank",
    ),
    ("multiprocessing.api", "redirect_stdout redirect_stderr record"),
    ("multiprocessing.errors", "_NOT_AVAILABLE get_error_handler ErrorHandler record ChildFailedError"),
    ("rendezvous", "_register_out_of_tree_handlers rendezvous_handler_registry"),
    ("rendezvous.registry", "handler_registry rendezvous_handler_registry get_rendezvous_handler"),
    ("rendezvous.c10d_rendezvous_backend", "_matches_machine_hostname parse_rendezvous_endpoint"),
    ("rendezvous.dynamic_rendezvous", "RendezvousClosedError RendezvousError RendezvousGracefulExitError"),
    ("rendezvous.dynamic_rendezvous", "RendezvousStateError RendezvousTimeoutError RendezvousHandler"),
    ("rendezvous.dynamic_rendezvous", "RendezvousInfo RendezvousStoreInfo _PeriodicTimer _delay"),
    ("agent.server", "health_check_server api local_elastic_agent"),
    ("agent.server.api", "_RoleInstanceInfo _get_fq_hostname DEFAULT_ROLE logger prof put_metric"),
    ("agent.server.api", "log _get_socket_with_port _TERMINAL_STATE_SYNC_ID"),
]
NAMED = [  # what is imported, and what is then named
    ("hpc_elastic", "multiprocessing.errors.record"),
    ("hpc_elastic.multiprocessing", "multiprocessing.errors.record"),
    ("hpc_elastic.multiprocessing", "multiprocessing.api.Std"),
    ("hpc_elastic.multiprocessing.errors", "multiprocessing.errors.error_handler.ErrorHandler"),
    ("hpc_elastic", "agent.server.local_elastic_agent.LocalElasticAgent"),
    ("hpc_elastic", "launcher.api.launch_agent"),
    ("hpc_elastic", "run.main"),
    ("hpc_elastic.rendezvous", "rendezvous.registry.get_rendezvous_handler"),
    ("hpc_elastic.utils", "utils.distributed.get_free_port"),
    ("hpc_elastic", "timer.expires"),
]


@pytest.mark.parametrize(("module", "names"), TAKEN)
def test_names_are_where_programs_look_for_them(module: str, names: str) -> None:
    """Whatever module they are at home in."""
    home = importlib.import_module(f"hpc_elastic.{module}")
    assert [] == [name for name in names.split() if not hasattr(home, name)]


@pytest.mark.parametrize(("imported", "named"), NAMED)
def test_modules_need_no_import_of_their_own(imported: str, named: str) -> None:
    """A decorator is written out in full below an import of the package alone."""
    program = f"import {imported}\nprint(callable(hpc_elastic.{named}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ("True", "") == (done.stdout.strip(), done.stderr)


def test_what_is_not_there_is_an_attribute_error() -> None:
    """Programs ask with hasattr what a version offers."""
    for package in (hpc_elastic, hpc_elastic.multiprocessing, hpc_elastic.rendezvous, hpc_elastic.utils):
        assert not hasattr(package, "no_such_module")
        assert not hasattr(package, "__wrapped__")
    with pytest.raises(AttributeError, match=r"module 'hpc_elastic\.utils' has no attribute 'nothing'"):
        submodule("hpc_elastic.utils", "nothing")


def test_an_error_within_a_module_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is there but lacks what it needs itself is no missing attribute."""
    package = tmp_path / "broken_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        submodule("broken_package", "part")
