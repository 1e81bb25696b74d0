"""What a linter cannot say about the code: sizes, state, clocks, and how light a start is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "hpc_elastic"
FILE_LINES = 1000
FUNCTION_LINES = 50
SOURCES = sorted(
    path
    for place in ("hpc_elastic", "tests", "scripts", "examples")
    for path in (REPOSITORY / place).rglob("*.py")
)
PACKAGE_SOURCES = [path for path in SOURCES if path.is_relative_to(PACKAGE)]
BAD_NAMES = {"utils.py", "helpers.py", "common.py", "api.py", "misc.py"}
BAD_NAMES_ALLOWED = {  # modules that users of torch import by this name
    "hpc_elastic/agent/server/api.py",
    "hpc_elastic/events/api.py",
    "hpc_elastic/launcher/api.py",
    "hpc_elastic/metrics/api.py",
    "hpc_elastic/multiprocessing/api.py",
    "hpc_elastic/rendezvous/api.py",
    "hpc_elastic/rendezvous/utils.py",
    "hpc_elastic/timer/api.py",
    "hpc_elastic/utils/api.py",
}

# Modules that would make a thousand nodes read thousands of files more at the same moment.
HEAVY = {
    "argcomplete",
    "asyncio",
    "concurrent",
    "email",
    "filelock",
    "http",
    "logging",
    "multiprocessing",
    "numpy",
    "psutil",
    "rich",
    "submitit",
    "torch",
    "urllib",
}
LIGHT_STARTS = [
    "hpc_elastic.cli.main",
    "hpc_elastic.cli.run.command",
    "hpc_elastic.cli.commands.ending.finish",
]
AGENT_SIDE = {"hpc_elastic.agent", "hpc_elastic.multiprocessing", "hpc_elastic.rendezvous"}
WORKER_LIGHT = HEAVY | AGENT_SIDE | {"subprocess"}


@cache
def _tree(path: Path) -> ast.Module:
    """Return the code of a module of the package, which many tests look at; keep it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def _trees(paths: list[Path]) -> Iterator[tuple[str, ast.Module]]:
    for path in paths:
        parse = _tree if path.is_relative_to(PACKAGE) else _tree.__wrapped__
        yield str(path.relative_to(REPOSITORY)), parse(path)


def _name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_files_are_short() -> None:
    """No file has more than 1,000 lines: one whole idea rarely needs more."""
    sizes = {_name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {} == {name: size for name, size in sizes.items() if size > FILE_LINES}


MODULES_IN_A_FOLDER = 15


def test_folders_can_be_read_at_a_glance() -> None:
    """No folder of the package has more than fifteen modules beside its own."""
    modules = [path for path in PACKAGE_SOURCES if path.name != "__init__.py"]
    sizes = Counter(str(path.parent.relative_to(REPOSITORY)) for path in modules)
    assert {} == {folder: size for folder, size in sizes.items() if size > MODULES_IN_A_FOLDER}


def test_a_name_is_that_of_one_class() -> None:
    """Readers who meet a class's name need not ask which of several is meant."""
    names = Counter(
        node.name
        for _, tree in _trees(PACKAGE_SOURCES)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    assert [] == [name for name, count in names.items() if count > 1]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions among the statements of a module, at any depth; expressions have none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _functions(node)


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    body = function.body
    documented = ast.get_docstring(function) is not None
    first = body[1] if documented and len(body) > 1 else body[0]
    return (function.end_lineno or 0) - first.lineno + 1


def test_functions_are_short() -> None:
    """No function has more than 50 lines, its docstring aside."""
    long = {
        f"{name}:{function.name}": length
        for name, tree in _trees(SOURCES)
        for function in _functions(tree)
        if (length := _length(function)) > FUNCTION_LINES
    }
    assert {} == long


def test_files_are_named_for_what_they_hold() -> None:
    """Names that say nothing are not used."""
    bad = {_name_of(path) for path in SOURCES if path.name in BAD_NAMES}
    assert set() == bad - BAD_NAMES_ALLOWED


PRINTS = {"print"}


def _called(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield ast.unparse(node)


def test_one_file_prints_for_people() -> None:
    """What the commands print goes through one place, where no name acts on the terminal."""
    sources = [path for path in PACKAGE_SOURCES if path.is_relative_to(PACKAGE / "cli")]
    light = {"hpc_elastic/cli/run/command.py"}  # starts on every node, and prints one error by itself
    found = {name for name, tree in _trees(sources) if PRINTS & set(_called(tree))}
    assert {"hpc_elastic/cli/say.py"} == found - light


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_file_reads_clocks() -> None:
    """Only clock.py of the package imports `time` or `datetime`; `timedelta`, a duration, is no clock."""
    readers = {name for name, tree in _trees(PACKAGE_SOURCES) if any(map(_imports_a_clock, ast.walk(tree)))}
    assert {"hpc_elastic/clock.py"} == readers


def _imports_a_clock(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name in {"time", "datetime"} for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"}:
        return any(alias.name != "timedelta" for alias in node.names)
    return False


def test_one_file_locks() -> None:
    """Only store/lock.py uses filelock, and with its soft locks switched off: they outlive their holder."""
    users = {
        name
        for name, tree in _trees(PACKAGE_SOURCES)
        if "filelock" in {imported.split(".")[0] for imported in _imports(tree)}
    }
    assert {"hpc_elastic/store/lock.py"} == users
    calls = [
        node
        for _, tree in _trees([PACKAGE / "store" / "lock.py"])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Lock") and node.keywords
    ]
    soft = [word.value for call in calls for word in call.keywords if word.arg == "fallback_to_soft"]
    assert [False] == [ast.literal_eval(value) for value in soft]
    assert 1 == len([call for call in calls if ast.unparse(call.func).startswith("filelock.")])


def test_nothing_is_mocked() -> None:
    """Tests use fakes that pass the tests of the real thing."""
    named = [path for path in SOURCES if "mock" in path.read_text(encoding="utf-8")]
    users = {name for name, tree in _trees(named) if "unittest.mock" in _imports(tree)}
    assert set() == users


def _is_mutable(value: ast.expr) -> bool:
    """Tell whether an expression makes an empty container, which is there to be filled."""
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    return value.func.id in {"dict", "list", "set", "deque", "defaultdict", "bytearray"} and not value.args


# Where module-level state is a switch that users of torch know, or has no consequence.
STATE_ALLOWED = {
    "hpc_elastic/frameworks/bases.py:_trainings",  # a process trains once under each name
    "hpc_elastic/frameworks/loop.py:_completed",  # as of Checkpoints
    "hpc_elastic/frameworks/torch/checkpoints.py:_completed",  # a training of a process ends once
    "hpc_elastic/frameworks/torch/checkpoints.py:_owners",  # a process has one memory of its node
    "hpc_elastic/isolated/callers_path.py:_as_python_made_it",  # a process has one search path
    "hpc_elastic/worker/__init__.py:_attached",  # a worker process has one agent
}
GLOBALS_ALLOWED = {
    "hpc_elastic/store/files.py:_counter",  # makes names unique within this process
    "hpc_elastic/timer/api.py:_timer_client",  # the switch `configure` sets for `expires`
}


def test_modules_hold_no_state() -> None:
    """Nothing at module level is there to be filled later."""
    filled = {
        f"{name}:{target.id}"
        for name, tree in _trees(PACKAGE_SOURCES)
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Name) and _is_mutable(statement.value)
    }
    assert STATE_ALLOWED == filled


def test_functions_change_no_globals() -> None:
    """`global` stands only where the list above says why."""
    changed = {
        f"{name}:{global_name}"
        for name, tree in _trees(PACKAGE_SOURCES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
        for global_name in node.names
    }
    assert GLOBALS_ALLOWED == changed


def _loaded_by(module: str) -> set[str]:
    """Return the names of all modules that importing one loads, in a fresh interpreter."""
    code = f"import {module}, sys; print(*sys.modules)"
    argv = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {code}"]
    return set(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())


def _of(names: set[str], loaded: set[str]) -> set[str]:
    return {name for name in loaded if any(name == one or name.startswith(one + ".") for one in names)}


@pytest.mark.parametrize("module", LIGHT_STARTS)
def test_an_agent_starts_light(module: str) -> None:
    """What runs on every node loads nothing heavy before it needs it."""
    before = _loaded_by("sys")
    assert set() == _of(HEAVY, _loaded_by(module) - before)


def test_worker_code_is_light() -> None:
    """What training code imports brings none of the agent along."""
    before = _loaded_by("sys")
    assert set() == _of(WORKER_LIGHT, _loaded_by("hpc_elastic.worker") - before)


def test_importing_the_package_loads_nothing() -> None:
    """The package itself is empty until something of it is used."""
    loaded = _loaded_by("hpc_elastic") - _loaded_by("sys")
    assert {"hpc_elastic"} == {name for name in loaded if name.startswith("hpc_elastic")}


# Who names this interpreter for something else than to start a process of ours with it.
NAMES_PYTHON = {
    "hpc_elastic/cli/commands/submitting/adopt.py": "writes it into a script, isolated where it is installed",
    "hpc_elastic/cli/commands/site/doctor.py": "tells it to people, and starts it as a worker",
    "hpc_elastic/isolated/lookup.py": "asks it, and starts it isolated",
    "hpc_elastic/start/agent.py": "runs the user's script",
    "hpc_elastic/processes/preload/warm_worker.py": "tells it to people",
    "hpc_elastic/launcher/api.py": "compares it",
    "hpc_elastic/api/function.py": "tells it to people",
    "hpc_elastic/slurm/submit/request.py": "runs the user's script; own_argv makes the agents' command",
    "hpc_elastic/slurm/submit/validate.py": "compares it",
    "hpc_elastic/slurm/submit/find_python.py": "asks it as a worker, and tells it to people",
    "hpc_elastic/node/workers/local_group.py": "tells it to people",
}
STARTS_MODULES = {
    "hpc_elastic/cli/commands/submitting/adopt.py": "isolated where it is installed",
    "hpc_elastic/settings/of_commands.py": "a flag of our own",
    "hpc_elastic/settings/table.py": "a flag of our own",
    "hpc_elastic/cli/run/options.py": "the user's module",
    "hpc_elastic/isolated/argv.py": "isolated",
    "hpc_elastic/processes/preload/rules.py": "reads commands",
    "hpc_elastic/processes/preload/warm_worker.py": "reads commands",
    "hpc_elastic/processes/guard.py": "a message to the guard",
    "hpc_elastic/slurm/job/script.py": "the user's module",
    "hpc_elastic/slurm/job/worker_launcher.py": "names a flag of our own, and reads commands",
}


def _is_this_python(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.executable", "sys._base_executable"}


def _is_isolated(node: ast.AST) -> bool:
    """Tell whether an expression is a command line whose interpreter is isolated."""
    if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) < 2 or not _is_this_python(node.elts[0]):
        return False
    flag = node.elts[1]
    return isinstance(flag, ast.Constant) and str(flag.value).startswith("-I")


def test_every_process_of_ours_starts_isolated() -> None:
    """No other file names an interpreter or `-m` in a command, so that none searches a foreign directory."""
    python, modules = set(), set()
    for name, tree in _trees(PACKAGE_SOURCES):
        nodes = list(ast.walk(tree))
        isolated = {id(node.elts[0]) for node in nodes if _is_isolated(node)}  # type: ignore[attr-defined]
        if any(_is_this_python(node) and id(node) not in isolated for node in nodes):
            python.add(name)
        if any(isinstance(node, ast.Constant) and node.value == "-m" for node in nodes):
            modules.add(name)
    assert (set(NAMES_PYTHON), set(STARTS_MODULES)) == (python, modules)


READS_SHARED_FILES = {
    "hpc_elastic/record/checkpoint_files.py",  # a copy of a checkpoint may be a group's
    "hpc_elastic/slurm/end/batch_host.py",  # a shell writes by the user's umask; only a change counts
    "hpc_elastic/slurm/submit/find_python.py",  # the user has chosen the file
    "hpc_elastic/slurm/submit/validate.py",  # the same
}


def test_few_files_that_others_can_write_to_are_read() -> None:
    """All other readers refuse them: that is their default."""
    found = {
        name
        for name, tree in _trees(PACKAGE_SOURCES)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg == "alone"
        and isinstance(node.value, ast.Constant)
        and node.value.value is False
    }
    assert found == READS_SHARED_FILES


def test_job_scripts_start_what_is_given_to_them() -> None:
    """They name no interpreter and no module themselves."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "sbatch_templates").iterdir())]
    assert [] == [
        line for text in texts for line in text.splitlines() if " -m " in line or "names.python" in line
    ]


def test_nothing_needs_the_programs_of_procps() -> None:
    """Small systems lack that package; a devcluster, whose tests use it, installs it."""
    names = re.compile(r"(?:^|[\s\"'(|;&$])(?:pkill|pgrep|ps|killall|pidof)[\"']?(?:,| -)")
    places = [*(REPOSITORY / "scripts").rglob("*"), *(REPOSITORY / "tests").rglob("*.py")]
    texts = {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
        for path in places
        if path.is_file() and path.suffix in ("", ".py", ".sh") and "real_slurm" not in path.parts
    }
    assert [] == [
        f"{name}: {line.strip()}"
        for name, text in texts.items()
        for line in text.splitlines()
        if names.search(line) and '"procps": ' not in line
    ]
