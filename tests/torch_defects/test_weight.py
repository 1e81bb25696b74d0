"""What a launcher loads: some dozens of modules, and no torch.

Elsewhere it is more than a thousand, which all nodes read from the same file system at once.
"""

from __future__ import annotations

from tests.torch_defects.launches import MakeLaunches

MOST_MODULES = 240


def test_a_whole_run_loads_few_modules(make: MakeLaunches) -> None:
    """Counted over a run from its start to a restart after a failure and the end."""
    launches = make("sys.exit(os.environ['HPC_ELASTIC_ROUND'] == '1')")
    launches.start(0, "--max-restarts", "1", "--tee", "3", env={"PYTHONPROFILEIMPORTTIME": "1"})
    output = launches.output(0)
    assert 0 == launches.code(0)
    lines = [line for line in output.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}
    assert "hpc_elastic.node.agent" in modules
    assert {"torch", "numpy", "psutil", "logging"} & modules == set()
    assert MOST_MODULES > len(modules), sorted(modules)


def test_the_same_interpreter_runs_the_workers(make: MakeLaunches) -> None:
    """A worker starts with what its own interpreter loads, and nothing of ours."""
    launches = make("print('loaded', *(name for name in sys.modules if name.startswith('hpc_elastic')))")
    launches.start(0)
    assert "loaded" in [line.strip() for line in launches.output(0).splitlines()]
