"""The Python of the workers on this machine: where it is, and whether it can run their script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess  # noqa: TID251 - asks interpreters and conda
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder

from hpc_elastic.errors import InputError
from hpc_elastic.isolated import lookup
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import absence_of
from hpc_elastic.slurm.job import environment
from hpc_elastic.slurm.job.environment import OLDEST, Image, has_own_python, runs_python
from hpc_elastic.slurm.job.options import near, option_name
from hpc_elastic.slurm.job.script import worker_command
from hpc_elastic.slurm.job.spec import AGENT_VARIABLES, JobSpec
from hpc_elastic.slurm.job.worker_launcher import script_of
from hpc_elastic.store.plain_file import absence_fix, owner_name, read_plain
from hpc_elastic.store.trust import trusted_uids
from hpc_elastic.text import for_shell

_TIMEOUT_S = 60.0  # Python and conda from a busy file system
_LONGEST_SCRIPT = 1 << 20
_PROJECT = "pyproject.toml"
_ASK = """
import sys
here = sys.path.pop(0)
import json
from importlib.util import find_spec
sys.path.insert(0, here)
names = sys.argv[1:]
print(json.dumps([list(sys.version_info[:3]), [name for name in names if find_spec(name) is None]]))
"""
"""Imports nothing from the working directory, which `-c` searches first: another user may write to it."""
_FIX = "name an environment that has it: --conda NAME, --venv DIR, --uv or --container IMAGE"


def importable() -> str:
    """Return the directory that has this package alone: the workers' Python finds it there."""
    return f"{lookup.home()}/isolated/importable"


def venv_of(spec: JobSpec, workdir: str) -> str:
    """Return the virtual environment of the workers, empty without one.

    Args:
        spec: the job.
        workdir: that the workers start in, absolute.

    Raises:
        InputError: the working directory is in no project of uv, or in one of another user.
    """
    if not spec.uv:
        return os.path.normpath(os.path.join(workdir, os.path.expanduser(spec.venv))) if spec.venv else ""
    place = workdir
    while not os.path.isfile(os.path.join(place, _PROJECT)):
        if place == os.path.dirname(place):
            raise InputError(
                f"there is no {_PROJECT} in {workdir} or above it",
                where="uv",
                fix="name the project with --workdir, or the environment with --venv DIR",
            )
        place = os.path.dirname(place)
    given = os.environ.get("UV_PROJECT_ENVIRONMENT") or ".venv"  # noqa: TID251 - where uv looks, too
    venv = os.path.normpath(os.path.join(place, given))
    if place != workdir:
        _refuse_foreign_project(place, venv)
    return venv


def _refuse_foreign_project(place: str, venv: str) -> None:
    """Refuse a project that was found above the working directory, where another user may have put it."""
    for path in (os.path.join(place, _PROJECT), venv):
        try:
            owner = os.lstat(path).st_uid
        except OSError:  # it is not there, as is said later
            continue
        if owner not in trusted_uids():
            raise InputError(
                f"{path}, above the working directory, belongs to user {owner_name(owner)}, and the workers "
                "would run with the Python of that project",
                where="uv",
                fix=f"if you trust it, name it: --venv {for_shell(venv)}",
            )


def imports_of(spec: JobSpec, workdir: str) -> tuple[str, ...]:
    """Return the well-known packages that the workers' script imports; none where it cannot be read.

    One that is beside the script needs no installation.
    """
    path = _script(spec, workdir)
    try:
        data = read_plain(path, own=False, alone=False, limit=_LONGEST_SCRIPT) if path else b""
    except OSError:
        return ()
    beside = os.path.join(os.path.dirname(path), "")
    found = environment.imports_of(data.decode(errors="replace"))
    return tuple(name for name in found if not _is_module(f"{beside}{name}"))


def _is_module(place: str) -> bool:
    return os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py"))


def _script(spec: JobSpec, workdir: str) -> str:
    script = None if spec.module or not spec.command else script_of(worker_command(spec, sys.executable))
    return os.path.join(workdir, script) if script and script.endswith(".py") else ""


def container_words(spec: JobSpec, places: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words before the command of a worker: those that are given, or those that run an image.

    Args:
        spec: the job.
        places: the directories `here`, that of this process; `workdir` of the workers; `run` of the run.

    Raises:
        InputError: the image does not exist, or nothing here runs it.
    """
    image = spec.container[0] if len(spec.container) == 1 else ""
    path = os.path.normpath(os.path.join(places["here"], os.path.expanduser(image)))
    is_directory = bool(image) and os.path.isdir(path) and "://" not in image
    is_image = spec.container_runtime or environment.is_path(image) or is_directory or not shutil.which(image)
    if not image or not is_image:
        return spec.container
    is_file = is_directory or (environment.is_path(image) and spec.container_runtime != environment.PODMAN)
    if is_file and not os.path.exists(path):
        fix = absence_fix(path, "check the path")
        raise InputError(f"the image {path} {absence_of(path)}", where="container", fix=fix)
    runtime = spec.container_runtime or _runtime_here(spec, image, is_directory=is_directory)
    own = [_whole_mount(mount, places["here"]) for mount in spec.mounts]
    mounts = environment.places_to_mount(places["run"], places["workdir"], lookup.home(), own)
    known = (*sorted(AGENT_VARIABLES), *environment.PASSED, *spec.env, *spec.worker_env)
    found = Image(
        name=path if is_file else image,
        is_directory=is_directory,
        mounts=mounts,
        workdir=places["workdir"],
        has_gpus=_asks_for_gpus(spec) or (spec.exclusive and runtime == environment.APPTAINER),
        variables=tuple(dict.fromkeys(known)),
    )
    return environment.prefix_for(runtime, _program(runtime) or environment.PROGRAMS[runtime][0], found)


def _whole_mount(mount: str, here: str) -> str:
    """Return a mount with the complete path of its directory; the place inside stays as it is."""
    directory, colon, inside = mount.partition(":")
    return f"{os.path.normpath(os.path.join(here, os.path.expanduser(directory)))}{colon}{inside}"


def _asks_for_gpus(spec: JobSpec) -> bool:
    """Tell whether a job asks for GPUs; a runtime may fail that is to give an image some without that."""
    asked = {option_name(name): str(value) for name, value in spec.sbatch.items()}
    is_by_option = "gpu" in asked.get("gres", "") or any(name.startswith("gpus") for name in asked)
    return bool(spec.gpus_per_node) or is_by_option


def _program(runtime: str) -> str:
    return next(filter(shutil.which, environment.PROGRAMS[runtime]), "")


def _runtime_here(spec: JobSpec, image: str, *, is_directory: bool) -> str:
    fit = environment.runtimes_for(image, is_directory=is_directory)
    here = [runtime for runtime in fit if _program(runtime)]
    if here or spec.setup or spec.modules:  # which may bring one
        return (here or fit)[0]
    programs = " or ".join(program for runtime in fit for program in environment.PROGRAMS[runtime])
    raise InputError(
        f"{image} is no program on PATH, and for an image of that name there is no {programs}",
        where="container",
        fix=f"name the runtime that the nodes have: --container-runtime {fit[0]}",
    )


class PythonAnswer(NamedTuple):
    """The answer of a Python about itself.

    Attributes:
        path: of the interpreter.
        version: e.g. (3, 12, 1).
        lacks: the packages that it does not have, of those it was asked for.
    """

    path: str
    version: tuple[int, ...]
    lacks: tuple[str, ...]

    @property
    def text(self) -> str:
        """The interpreter for people."""
        return f"{self.path} (Python {'.'.join(map(str, self.version))})"


def ask_python(path: str, names: Sequence[str], spec: JobSpec) -> PythonAnswer | None:
    """Ask a Python, started as the workers of a job start it, whether it has packages; None: no answer."""
    environ = {**os.environ, **spec.env, **spec.worker_env}  # noqa: TID251 - of the submit shell
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (environ.get("PYTHONPATH"), importable())))
    try:
        done = subprocess.run(
            [path, "-c", _ASK, *names],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            cwd=spec.workdir or ".",
            env=environ,
        )
        version, lacks = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return PythonAnswer(path, tuple(version), tuple(lacks))


def check_python(spec: JobSpec, *, starts_python: bool) -> None:
    """Refuse a Python of the workers that is not here, or cannot run their script.

    Args:
        spec: the job, with its places filled in.
        starts_python: a Python may be started in the working directory, also one that the job names.

    Raises:
        InputError: naming that Python and the one of the agents.
    """
    workdir = spec.workdir or "."
    names = imports_of(spec, workdir)
    may_change = bool(spec.setup or spec.modules)  # so that the node checks it
    if not has_own_python(spec):
        if runs_python(spec) and not may_change and starts_python:
            _check_default(spec, names)
        return
    if spec.container:
        return
    field = "conda" if spec.conda else "uv" if spec.uv else "venv"
    place = _conda_place(spec) if spec.conda else venv_of(spec, workdir)
    if not place:
        return
    python = os.path.join(place, "bin", environment.PYTHON)
    if not os.path.isfile(python):
        raise InputError(_absent(field, place), where=field, fix=_absent_fix(field, place))
    if not starts_python:
        return
    found = ask_python(python, names, spec)
    if found is None:
        raise InputError(f"the Python interpreter {python} does not run", where=field, fix="make it anew")
    _refuse_unfit(found, names, field, spec)


def _absent(field: str, place: str) -> str:
    kind = "conda environment" if field == "conda" else "virtual environment"
    if not os.path.isdir(place):
        return f"the {kind} {place} {absence_of(place)}"
    link = os.path.join(place, "bin", environment.PYTHON)
    why = "its link leads nowhere" if os.path.islink(link) else f"{link} does not exist"
    return f"the {kind} {place} has no Python: {why}"


def _absent_fix(field: str, place: str) -> str:
    if field == "uv":
        return "uv sync"
    if field == "conda":
        return f"conda install -p {for_shell(place)} python"
    return f"check the path, or make it: python3 -m venv {for_shell(place)}"


def _refuse_unfit(found: PythonAnswer, names: Sequence[str], field: str, spec: JobSpec) -> None:
    agents = f"the agents run with {spec.python or sys.executable}"
    if "hpc_elastic" in names and found.version < OLDEST:
        raise InputError(
            f"{found.text} is too old for hpc_elastic.worker, which needs {'.'.join(map(str, OLDEST))} or "
            f"newer; {agents}",
            where=field,
            fix="name an environment with a newer Python",
        )
    if found.lacks:
        lacks = " ".join(found.lacks)
        raise InputError(
            f"{found.text} has no {lacks}, which {spec.command[0]} imports; {agents}",
            where=field,
            fix=f"install it there: {for_shell(found.path)} -m pip install {lacks}",
        )


def _check_default(spec: JobSpec, names: Sequence[str]) -> None:
    """Refuse the Python of the agents for a script that imports packages which it lacks."""
    python = spec.python or sys.executable
    if python == sys.executable and all(PathFinder.find_spec(name) is not None for name in names):
        return
    found = ask_python(python, names, spec) if names else None
    if found is None or not found.lacks:
        return
    other, fix = _active(found, spec)
    raise InputError(
        f"{spec.command[0]} imports {', '.join(found.lacks)}, which {found.text}, the Python of hpc_elastic, "
        f"does not have{other}",
        where="python",
        fix=fix,
    )


def _active(ours: PythonAnswer, spec: JobSpec) -> tuple[str, str]:
    """Return that another Python which is active here has the packages, and the option that names it."""
    environ = os.environ  # noqa: TID251 - of the submit shell
    venv, conda = environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", "")
    for place, option in ((venv, "--venv"), (conda, "--conda")):
        python = os.path.join(place, "bin", environment.PYTHON) if place else ""
        found = ask_python(python, ours.lacks, spec) if python and os.path.isfile(python) else None
        if found is not None and not found.lacks:
            return f"; {found.text}, which is active here, has it", f"{option} {for_shell(place)}"
    python = shutil.which(environment.PYTHON) or ""
    is_other = bool(python) and os.path.realpath(python) != os.path.realpath(ours.path)
    found = ask_python(python, ours.lacks, spec) if is_other else None
    if found is not None and not found.lacks:
        return f"; {found.text}, the first on PATH, has it", f"write -- {environment.PYTHON} in front of it"
    return "", _FIX


def or_for_workers(python: str) -> str:
    """Return the other way to use the Python of an environment: for workers alone; empty if it is in none."""
    place = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    options = {"--conda": os.path.join(place, "conda-meta"), "--venv": os.path.join(place, "pyvenv.cfg")}
    option = next((option for option, mark in options.items() if os.path.exists(mark)), "")
    return f", or have the workers alone run with it: {option} {for_shell(place)}" if option else ""


def _conda_place(spec: JobSpec) -> str:
    """Return the directory of a conda environment; empty where there is no conda on this machine to ask.

    Raises:
        InputError: conda does not know it.
    """
    name = spec.conda or ""
    if "/" in name:
        return os.path.abspath(os.path.expanduser(name))
    environ = os.environ  # noqa: TID251 - of the submit shell, as the job gets it
    programs = (environ.get("CONDA_EXE"), environ.get("MAMBA_EXE"), "conda", "mamba", "micromamba")
    program = next((found for word in programs if word and (found := shutil.which(word))), None)
    if program is None or spec.modules or spec.setup:  # which may bring another one
        return ""
    try:
        done = subprocess.run(
            [program, "env", "list", "--json"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        places = [str(place) for place in json.loads(done.stdout)["envs"]]
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return ""  # the node tells
    by_name = {**{os.path.basename(place): place for place in reversed(places)}, **_base_of(places)}
    if name in by_name:
        return by_name[name]
    raise InputError(
        f"there is no conda environment {name}",
        where="conda",
        fix=near(name, sorted(by_name)) or f"{os.path.basename(program)} env list shows those there are",
    )


def _base_of(places: Sequence[str]) -> dict[str, str]:
    """Return the environment ``base``: the one that the others are below."""
    return {"base": places[0]} if places else {}
