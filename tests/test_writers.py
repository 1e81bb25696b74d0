"""Which modules open files to write, and whose files these are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_architecture import PACKAGE_SOURCES, _functions, _trees

_COPIES = {"copy", "copy2", "copyfile", "copyfileobj", "copystat", "copymode", "copytree", "move"}
_WRITES = {"write_text", "write_bytes"}
_MOVES = {"rename", "replace", "link", "symlink", "truncate"}
_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}
_RUN = "the run directory, which is this user's alone"
_MEMORY = "a private directory in a node's memory"
_WORKERS = "a directory of its own for the processes of a group"
_PROGRAM = "files of the caller's program, at a path that it gives, as torch does"
_DESCRIPTOR = "a descriptor that it was given, not a path"

# A file that a user has named on a command line belongs to store/users_file.py alone.
WRITERS = {
    "hpc_elastic/store/users_file.py": "files that users have named",
    "hpc_elastic/store/files.py": _RUN,
    "hpc_elastic/store/check/probe.py": "a directory that it has made for the check",
    "hpc_elastic/node/hangs/activity.py": _RUN,
    "hpc_elastic/node/hangs/paces.py": _RUN,
    "hpc_elastic/node/setup/agent_log.py": _RUN,
    "hpc_elastic/slurm/local/nodes.py": _RUN,
    "hpc_elastic/slurm/local/srun.py": "the directory of the players of a local run",
    "hpc_elastic/multiprocessing/logs.py": _RUN,
    "hpc_elastic/api/start.py": _DESCRIPTOR,
    "hpc_elastic/node/hangs/look.py": _MEMORY,
    "hpc_elastic/store/leftovers.py": _RUN,
    "hpc_elastic/node/listeners/watchdog.py": "a pipe that the agent's environment names",
    "hpc_elastic/timer/file_based_local_timer.py": "a pipe of the agent, in a directory of its own",
    "hpc_elastic/worker/channel.py": _MEMORY,
    "hpc_elastic/worker/request_pipe.py": _MEMORY,
    "hpc_elastic/frameworks/torch/checkpoint_files.py": "a directory that was made or judged private before",
    "hpc_elastic/submitit/job.py": "links in submitit's folder; their target is not opened",
    "hpc_elastic/processes/preload/preloader.py": _WORKERS,
    "hpc_elastic/multiprocessing/redirects.py": _PROGRAM,
    "hpc_elastic/multiprocessing/errors/failure.py": _PROGRAM,
    "hpc_elastic/worker/progress.py": _PROGRAM,
    "hpc_elastic/start/kept_state.py": _MEMORY,
    "hpc_elastic/start/scratch.py": _MEMORY,
    "hpc_elastic/frameworks/torch/memory/rescue.py": _MEMORY,
    "hpc_elastic/frameworks/transformers_resume.py": "a temporary directory of its own",
    "hpc_elastic/cli/commands/submitting/sbatch.py": "a temporary directory of its own",
    "hpc_elastic/processes/preload/warm_worker.py": _DESCRIPTOR,
    "hpc_elastic/multiprocessing/function_start.py": _DESCRIPTOR,
    "hpc_elastic/multiprocessing/function_worker.py": _DESCRIPTOR,
}


def _is_writing(call: ast.Call) -> bool:
    """Tell whether a call writes to a file, gives a file a name, or opens one to write."""
    called = ast.unparse(call.func)
    module, _, name = called.rpartition(".")
    if called in {"open", "os.fdopen"}:
        modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
        return any(set(ast.unparse(mode)) & set("wax+") for mode in modes)
    if ast.unparse(call.args[0] if call.args else call) == "os.devnull":
        return False
    if module == "os" and name == "open":
        flags = {
            node.attr for each in call.args[1:] for node in ast.walk(each) if isinstance(node, ast.Attribute)
        }
        return bool(flags & _FLAGS)
    return (
        (module == "shutil" and name in _COPIES)
        or (module == "os" and name in _MOVES)
        or (name in _WRITES and module != "formatter")
    )


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_files_that_users_have_named_are_written_in_one_place() -> None:
    """A module that writes at a path is named above, with the owner of the path."""
    sources = [path for path in PACKAGE_SOURCES if "testing" not in path.parts]
    found = {name for name, tree in _trees(sources) if any(map(_is_writing, _calls(tree)))}
    assert set(WRITERS) == found


def test_no_resolved_path_is_opened() -> None:
    """Between `realpath` and opening another user can put a link there; what is opened is asked instead."""
    opened = {
        "open",
        "os.open",
        "os.rename",
        "os.replace",
        "open_plain",
        "read_plain",
        "read_given",
        "AtomicWrite",
    }
    allowed = {"hpc_elastic/store/mount.py:mount_at"}  # opens the kernel's list of mounts
    found = {
        f"{name}:{function.name}"
        for name, tree in _trees(PACKAGE_SOURCES)
        for function in _functions(tree)
        if {"os.path.realpath", "realpath"} & {ast.unparse(call.func) for call in _calls(function)}
        and opened & {ast.unparse(call.func) for call in _calls(function)}
    }
    assert allowed == found


# A path of a checkpoint that is given to code that unpickles comes from `own_path`.
READERS_OF_CHECKPOINTS = {
    "hpc_elastic/frameworks/saving.py:_newest": "by own_path",
    "hpc_elastic/frameworks/loop.py:resume": "by own_path",
    "hpc_elastic/frameworks/bases.py:check_begin": "only its step",
    "hpc_elastic/frameworks/torch/trainer_memory.py:find": "only its step",
    "hpc_elastic/frameworks/torch/checkpoint_files.py:_path": "opened file by file",
}


def test_paths_of_checkpoints_are_judged_before_a_framework_reads_them() -> None:
    """A function that asks for the newest one is named above, with what it does with the path."""
    sources = [path for path in PACKAGE_SOURCES if "frameworks" in path.parts]
    asked = {
        f"{name}:{function.name}": {ast.unparse(call.func) for call in _calls(function)}
        for name, tree in _trees(sources)
        for function in _functions(tree)
        if "worker.latest_checkpoint" in {ast.unparse(call.func) for call in _calls(function)}
    }
    assert set(READERS_OF_CHECKPOINTS) == set(asked)
    judged = {name for name, how in READERS_OF_CHECKPOINTS.items() if how == "by own_path"}
    assert judged == {name for name, calls in asked.items() if "own_path" in calls}
