"""The Python of the workers, which a job names by an environment or an image. Pure.

The agents keep the Python that hpc_elastic is installed in. Job scripts name the workers' Python as
``python3``, so that it is the first on PATH there, or that of the image.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.errors import InputError
from hpc_elastic.isolated.argv import CALL
from hpc_elastic.named_tuple import NamedTuple

if TYPE_CHECKING:
    import ast

    from hpc_elastic.settings.table import JobSettings

PYTHON: Final = "python3"  # every environment has it by this name
OLDEST: Final = (3, 10)  # that can import `hpc_elastic.worker`
OF_ENVIRONMENTS: Final = ("conda", "venv", "uv")
_NAMED: Final = (
    "torch",
    "jax",
    "tensorflow",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "hpc_elastic",
)
"""The packages that a Python is asked for, if the script imports them."""

APPTAINER, ENROOT, PODMAN, CHARLIECLOUD = "apptainer", "enroot", "podman", "charliecloud"
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    APPTAINER: ("apptainer", "singularity"),
    ENROOT: ("enroot",),
    PODMAN: ("podman",),
    CHARLIECLOUD: ("ch-run",),
}
"""The programs of each runtime, the first one wherever it is installed."""
_BY_NAME: Final = (  # a pattern of images, and the runtimes that take them
    (r".*\.(sif|simg)|(docker|library|oras|shub|docker-archive|oci)://.*", (APPTAINER,)),
    (r".*\.sqsh", (ENROOT,)),
    (r".*\.(sqfs|squashfs)", (CHARLIECLOUD, APPTAINER, ENROOT)),
)
_OF_DIRECTORIES: Final = (APPTAINER, CHARLIECLOUD)
_OF_OTHERS: Final = (PODMAN, ENROOT)  # names of images that the runtime has stored itself
_SHARED_MEMORY: Final = ("/dev/shm", "/tmp")  # noqa: S108 - where agents make the files that workers see
_PASSED_TEXT = (
    "CUDA_VISIBLE_DEVICES OMP_NUM_THREADS PYTHONUNBUFFERED PYTHONPATH TORCH_NCCL_ASYNC_ERROR_HANDLING "
    "JAX_COORDINATOR_ADDRESS WANDB_RUN_ID WANDB_RESUME COMET_EXPERIMENT_KEY NEPTUNE_CUSTOM_RUN_ID "
    "TENSORBOARD_LOGGING_DIR SLURM_JOB_ID SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS"
)
PASSED: Final = tuple(_PASSED_TEXT.split())
"""Variables beside those of the agent, for a runtime that passes no environment on."""


def check_environment(spec: JobSettings) -> None:
    """Refuse settings that name several Pythons of the workers, and those without an image.

    Raises:
        InputError: naming both, and the one to remove.
    """
    for name in OF_ENVIRONMENTS:
        if getattr(spec, name) == "":
            raise InputError(f"{name} is empty, and names no Python", where=name, fix=f"leave {name} out")
    given = [name for name in (*OF_ENVIRONMENTS, "container") if getattr(spec, name)]
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(_shown(spec, name) for name in given)} each name the Python of the workers",
            where=given[1],
            fix=f"keep one of {', '.join(given)}",
        )
    named = next((name for name in given if name in OF_ENVIRONMENTS), "")
    if named and spec.module == CALL:
        raise InputError(
            f"{_shown(spec, named)}, and a function runs in the Python that has made it",
            where=named,
            fix=f"leave it out, or submit a script with {named}",
        )
    if spec.mounts and not spec.container:
        raise InputError(
            "mounts are for a container, and there is none", where="mounts", fix="name the image"
        )
    if spec.container_runtime and len(spec.container) != 1:
        raise InputError(
            f"container_runtime = {spec.container_runtime!r} is for an image, and container is "
            + (f"the command {shlex.join(spec.container)!r}" if spec.container else "not given"),  # noqa: TID251 - for people
            where="container_runtime",
            fix="container = IMAGE",
        )


def without_other_python(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields without those that name a Python of the workers, if fields above them name one."""
    named = [name for name in (*OF_ENVIRONMENTS, "container") if above.get(name)]
    gone = {*OF_ENVIRONMENTS, "container"} if named else set()
    if named and named != ["container"]:
        gone |= {"mounts", "container_runtime"}
    return {name: value for name, value in below.items() if name not in gone}


def is_image_alone(container: object) -> bool:
    """Tell whether a container, as it was written, is one word, and so may be an image."""
    words = container.split() if isinstance(container, str) else container
    return isinstance(words, list | tuple) and len(words) == 1


def _shown(spec: JobSettings, name: str) -> str:
    value = getattr(spec, name)
    text = shlex.join(value) if isinstance(value, tuple) else value  # noqa: TID251 - for people
    return name if value is True else f"{name} = {text!r}"


def has_own_python(spec: JobSettings) -> bool:
    """Tell whether the workers run with another Python than the agents, whose name is `PYTHON`."""
    return any(getattr(spec, name) for name in (*OF_ENVIRONMENTS, "container")) and spec.module != CALL


def python_of(spec: JobSettings, own: str) -> str:
    """Return the word that starts the workers' Python.

    Args:
        spec: the job.
        own: the Python of the agents.
    """
    return PYTHON if has_own_python(spec) else own


def runs_python(spec: JobSettings) -> bool:
    """Tell whether the command of the workers leaves it to us with which Python they run."""
    return spec.module != CALL and bool(spec.module or spec.command[0].endswith(".py"))


UNREAD: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The exceptions for a script that Python cannot read; the last two are for nested brackets."""


def tree_of(text: str | bytes) -> ast.Module:
    """Return the syntax tree of a Python script, without the warnings of Python about it.

    Raises:
        UNREAD: Python cannot read it.
    """
    import ast  # noqa: PLC0415 - for few scripts
    import warnings  # noqa: PLC0415 - the same

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they name no file, and are for the author of the script
        return ast.parse(text)


def imports_of(text: str) -> tuple[str, ...]:
    """Return the well-known packages that a Python script imports in any case.

    Args:
        text: the script; of one that no Python can read, nothing is known.
    """
    if not re.search(rf"^(import|from)\s+({'|'.join(_NAMED)})\b", text, re.MULTILINE):
        return ()
    import ast  # noqa: PLC0415 - for few scripts

    try:
        body = tree_of(text).body
    except UNREAD:
        return ()
    plain = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    plain += [node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    found = {name.partition(".")[0] for name in plain}
    return tuple(name for name in _NAMED if name in found)


class Image(NamedTuple):
    """An image and the surroundings of its workers.

    Attributes:
        name: its path or name.
        is_directory: whether it is a directory.
        mounts: directories that workers see at the same place, or as ``DIR:DIR-INSIDE``.
        workdir: the directory that they start in.
        has_gpus: whether they use GPUs.
        variables: the names of variables that they see, for a runtime that passes no environment on.
    """

    name: str
    is_directory: bool
    mounts: tuple[str, ...]
    workdir: str
    has_gpus: bool
    variables: tuple[str, ...] = ()


def runtimes_for(image: str, *, is_directory: bool) -> tuple[str, ...]:
    """Return the runtimes that take an image, by its name; the usual one first."""
    if is_directory:
        return _OF_DIRECTORIES
    found = (runtimes for pattern, runtimes in _BY_NAME if re.fullmatch(pattern, image))
    return next(found, _OF_OTHERS)


def is_path(image: str) -> bool:
    """Tell whether the name of an image is that of a file or directory."""
    by_name = (runtimes for pattern, runtimes in _BY_NAME if re.fullmatch(pattern, image))
    return "://" not in image and (image[:1] in (".", "/", "~") or next(by_name, None) is not None)


def prefix_for(runtime: str, program: str, image: Image) -> tuple[str, ...]:
    """Return the words before the command of a worker that runs it in an image.

    Args:
        runtime: one of `PROGRAMS`.
        program: of the runtime.
        image: the image.
    """
    return _PREFIXES[runtime](program, image)


def _apptainer(program: str, image: Image) -> tuple[str, ...]:
    gpus = ("--nv",) if image.has_gpus else ()
    return (program, "exec", *gpus, *_each("--bind", image.mounts), "--pwd", image.workdir, image.name)


def _charliecloud(program: str, image: Image) -> tuple[str, ...]:
    """Return the words of ch-run, which makes places for mounts in a directory that may be written to."""
    writable = ("--write",) if image.is_directory else ()
    return (program, *writable, *_each("--bind", image.mounts), f"--cd={image.workdir}", image.name, "--")


def _podman(program: str, image: Image) -> tuple[str, ...]:
    """Return the words of podman; a worker stays in the cgroup of the job, and its signals reach it."""
    gpus = ("--device", "nvidia.com/gpu=all") if image.has_gpus else ()
    own = ("--rm", "--network=host", "--ipc=host", "--pid=host", "--cgroups=no-conmon")
    names = ("HPC_ELASTIC_*", "TORCHELASTIC_*", "SLURM_*", "NCCL_*", *image.variables)
    mounts = map(_twice, (*image.mounts, _SHARED_MEMORY[1]))
    at = ("--workdir", image.workdir)
    return (program, "run", *own, *gpus, *_each("--volume", mounts), *at, *_each("--env", names), image.name)


def _enroot(program: str, image: Image) -> tuple[str, ...]:
    places = dict.fromkeys((*image.mounts, *_SHARED_MEMORY))
    mounts = (f"{_twice(place)}:none:x-create=auto,rbind" for place in places)
    gpus = ("--env", "NVIDIA_VISIBLE_DEVICES=all") if image.has_gpus else ()
    return (
        *(program, "start", "--rw", *_each("--mount", mounts), *gpus),
        *(*_each("--env", image.variables), image.name),
        *("sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", image.workdir),
    )


_PREFIXES = {APPTAINER: _apptainer, ENROOT: _enroot, PODMAN: _podman, CHARLIECLOUD: _charliecloud}


def _twice(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"


def _each(option: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


def places_to_mount(run_dir: str, workdir: str, package: str, own: Iterable[str]) -> tuple[str, ...]:
    """Return the directories that a container has to see, each once and none below another.

    Args:
        run_dir: of the run.
        workdir: that the workers start in.
        package: the directory of this package, which workers import.
        own: those of the user's, which may be ``DIR:DIR-INSIDE``.
    """
    wanted = sorted({run_dir, workdir, package})
    kept = [place for place in wanted if not any(_is_below(place, other) for other in wanted)]
    return tuple(dict.fromkeys((*kept, *own)))


def _is_below(place: str, other: str) -> bool:
    return place != other and posixpath.commonpath((place, other)) == other
