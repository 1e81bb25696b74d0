"""The workers' Python is looked for, and asked, before anything is queued."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit import validate
from hpc_elastic.slurm.submit.find_python import importable
from hpc_elastic.slurm.submit.request import SubmitRequest, plan, read_template
from tests.slurm.python_environments import make_conda, make_python, plant_modules

UV = Path(sys.executable).with_name("uv")


@pytest.fixture(autouse=True)
def _plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONDA_EXE", "MAMBA_EXE", "CONDA_PREFIX", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)


def planned(*, starts_python: bool = True, **fields: Any) -> SubmitRequest:
    """Return the submission of a job in the current directory."""
    spec = JobSpec(
        **{"command": "train.py", "cpus_per_node": 1, "time": 5, "allow_local_run_dir": True, **fields}
    )
    return plan(spec, read_template(), now_s=0, starts_python=starts_python)


def check(**fields: Any) -> list[str]:
    """Check such a job; return the warnings."""
    return validate.check(planned(**fields), None)


def refusal(**fields: Any) -> InputError:
    """Return why it is refused."""
    with pytest.raises(InputError) as caught:
        check(**fields)
    return caught.value


def test_an_environment_that_has_the_packages_of_the_script_is_let_through(workdir: Path) -> None:
    """The script names it by its complete path, and its Python has nothing of ours installed."""
    place = make_python(workdir / "venv", "torch")
    (workdir / "train.py").write_text("import torch\nimport hpc_elastic.worker\n")
    assert [] == check(venv="venv")
    assert f"\nuse_venv {place}\n" in planned(venv="venv").script
    assert f"\ncheck_python {importable()} torch hpc_elastic\n" in planned(venv="venv").script
    assert "\n_he_worker=(python3 -u train.py)\n" in planned(venv="venv").script


def test_an_environment_that_lacks_a_package_is_refused_with_both_pythons(workdir: Path) -> None:
    """Before the job has waited in the queue."""
    place = make_python(workdir / "venv")
    (workdir / "train.py").write_text("import torch\n")
    error = refusal(venv="venv")
    version = ".".join(map(str, sys.version_info[:3]))
    assert "venv" == error.where
    assert f"{place}/bin/python3 (Python {version}) has no torch, which train.py imports" in error.message
    assert f"the agents run with {sys.executable}" in error.message
    assert f"{place}/bin/python3 -m pip install torch" in error.fix


@pytest.mark.parametrize("venv", ["venv", None])
def test_no_module_of_the_working_directory_is_imported(workdir: Path, venv: str | None) -> None:
    """Other users may write to it, and the script be in another one; the packages there are seen."""
    make_python(workdir / "venv")
    (workdir / "train.py").write_text("import tensorflow\n")
    (workdir / "tensorflow").mkdir()
    (workdir / "tensorflow" / "__init__.py").touch()
    plant_modules(workdir)
    assert [] == check(venv=venv)
    assert not (workdir / "imported").exists()


def test_a_python_that_another_user_names_is_not_started_for_a_dry_run(workdir: Path) -> None:
    """A job file in a shared place may name any program."""
    place = make_python(workdir / "venv")
    (place / "bin" / "python3").unlink()
    (place / "bin" / "python3").write_text(f"#!/bin/sh\ntouch {workdir}/started\n")
    (place / "bin" / "python3").chmod(0o755)
    validate.check(planned(venv="venv", starts_python=False), None)
    assert not (workdir / "started").exists()
    assert "does not run" in refusal(venv="venv").message
    assert (workdir / "started").exists()


@pytest.mark.parametrize(
    ("fields", "where", "words", "fix"),
    [
        ({"venv": "no"}, "venv", "the virtual environment {work}/no does not exist", "python3 -m venv"),
        ({"venv": "dangling"}, "venv", "has no Python: its link leads nowhere", "python3 -m venv"),
        ({"uv": True}, "uv", "there is no pyproject.toml in {work} or above it", "--workdir"),
        ({"conda": "{work}/no"}, "conda", "the conda environment {work}/no does not exist", "conda install"),
        ({"container": "no.sif"}, "container", "the image {work}/no.sif does not exist", "check the path"),
        (
            {"container": "an/image:tag"},
            "container",
            "an/image:tag is no program on PATH, and for an image of that name there is no podman or enroot",
            "--container-runtime podman",
        ),
    ],
    ids=repr,
)
def test_each_kind_has_one_clear_error(
    workdir: Path, no_slurm: None, fields: dict[str, Any], where: str, words: str, fix: str
) -> None:
    """It names the place and the way out."""
    make_python(workdir / "dangling").joinpath("bin/python3").unlink()
    (workdir / "dangling" / "bin" / "python3").symlink_to("/nowhere")
    filled = {
        name: value.format(work=workdir) if isinstance(value, str) else value
        for name, value in fields.items()
    }
    error = refusal(**filled)
    assert where == error.where
    assert words.format(work=workdir) in error.message
    assert fix in error.fix


def test_conda_is_asked_for_its_environments(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that it does not know is refused with those that are near; without conda the node tells."""
    (workdir / "train.py").write_text("import torch\n")
    assert [] == check(conda="train")
    monkeypatch.setenv("CONDA_EXE", str(make_conda(workdir / "conda", "torch")))
    assert [] == check(conda="train")
    assert "bare has no Python: " in refusal(conda="bare").message
    error = refusal(conda="trian")
    assert ("there is no conda environment trian", True) == (error.message, "'train'" in error.fix)


def test_the_environment_of_a_uv_project_is_found_above_the_working_directory(workdir: Path) -> None:
    """`uv sync` has made it, here for a project without packages."""
    (workdir / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\n'
    )
    folder = workdir / "src"
    folder.mkdir()
    (workdir / "train.py").rename(folder / "train.py")
    assert "uv sync" == refusal(uv=True, workdir="src").fix
    subprocess.run([UV, "sync", "--offline", "--python", sys.executable, "-q"], cwd=workdir, check=True)
    assert [] == check(uv=True, workdir="src")
    assert f"\nuse_venv {workdir}/.venv\n" in planned(uv=True, workdir="src").script


def test_the_python_of_hpc_elastic_is_refused_for_a_script_that_needs_another(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is active here and has the package is named, with its option; setup lines may help."""
    name = "deepspeed"  # no Python of the tests has it
    (workdir / "train.py").write_text(f"import {name}\n")
    error = refusal()
    assert f"train.py imports {name}, which {sys.executable} (Python " in error.message
    assert (
        f"train.py imports {name}, which "
        in refusal(python=os.path.join(os.path.dirname(sys.executable), "python3")).message
    )
    assert "--conda NAME, --venv DIR" in error.fix
    place = make_python(workdir / "venv", name)
    monkeypatch.setenv("VIRTUAL_ENV", str(place))
    error = refusal()
    assert f"{place}/bin/python3 (Python " in error.message
    assert f"--venv {place}" == error.fix
    assert [] == check(setup=["true"])


def test_a_package_beside_the_script_needs_no_installation(workdir: Path) -> None:
    """Python looks there first; the working directory may be another one."""
    (workdir / "src" / "deepspeed").mkdir(parents=True)
    (workdir / "src" / "train.py").write_text("import deepspeed\n")
    assert "train.py imports deepspeed" in refusal(command="src/train.py").message
    (workdir / "src" / "deepspeed" / "__init__.py").touch()
    assert [] == check(command="src/train.py")


@pytest.mark.parametrize("table", ["env", "worker_env"])
def test_the_variables_of_the_job_may_tell_where_a_package_is(workdir: Path, table: str) -> None:
    """PYTHONPATH of the workers is that of the job, not of this shell."""
    (workdir / "train.py").write_text("import deepspeed\n")
    (workdir / "shared" / "deepspeed").mkdir(parents=True)
    (workdir / "shared" / "deepspeed" / "__init__.py").touch()
    make_python(workdir / "venv")
    variables = {table: {"PYTHONPATH": str(workdir / "shared")}}
    assert [] == check(**variables)
    assert [] == check(venv="venv", **variables)
    assert "has no deepspeed" in refusal(venv="venv").message


@pytest.mark.parametrize(("mark", "option"), [("pyvenv.cfg", "--venv"), ("conda-meta/history", "--conda")])
def test_a_python_of_an_environment_without_this_package_may_be_the_workers(
    workdir: Path, mark: str, option: str
) -> None:
    """The error about `--python` names the option that needs no installation there."""
    place = make_python(workdir / "env")
    (place / mark).parent.mkdir(exist_ok=True)
    (place / mark).touch()
    if option == "--conda":
        (place / "pyvenv.cfg").unlink()
    error = refusal(python=str(place / "bin" / "python3"))
    assert f"{place}/bin/python3 cannot import hpc_elastic" == error.message
    assert error.fix.endswith(f"or have the workers alone run with it: {option} {place}")


def test_an_image_is_run_with_the_run_and_the_working_directory(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program on PATH is none, and neither are several words."""
    (workdir / "bin").mkdir()
    for name in ("singularity", "ch-run"):
        (workdir / "bin" / name).write_text("#!/bin/sh\n")
        (workdir / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{workdir}/bin:{os.environ['PATH']}")
    (workdir / "a.sif").touch(0o755)
    request = planned(container="./a.sif", run_dir="run", mounts="/data", gpus_per_node=2)
    words = request.spec.container
    assert ("singularity", "exec", "--nv") == words[:3]
    assert ("--pwd", str(workdir), f"{workdir}/a.sif") == words[-3:]
    assert {"--bind", "/data", str(workdir)} <= set(words)
    assert [] == validate.check(request, None)
    assert JobSpec(**request.spec.stored) == request.spec
    (workdir / "tree").mkdir()
    assert "ch-run" == planned(container="tree", container_runtime="charliecloud").spec.container[0]
    assert ("sh",) == planned(container="sh").spec.container
    assert ("sh", "a.sif") == planned(container="sh a.sif").spec.container


@pytest.mark.parametrize(
    ("options", "has_gpus"),
    [
        ({"gres": "gpu:2"}, True),
        ({"gpus": "1"}, True),
        ({"gres": "nvme:1"}, False),
        ({}, False),
    ],
)
def test_an_image_gets_gpus_where_the_job_asks_for_some(
    workdir: Path, options: dict[str, str], *, has_gpus: bool
) -> None:
    """Podman fails where it is to give GPUs that the node does not have."""
    image: dict[str, Any] = {"container": "docker.io/a/b", "container_runtime": "podman"}
    words = planned(**image, sbatch=options).spec.container
    assert has_gpus is ("nvidia.com/gpu=all" in words)


def test_mounts_are_complete_paths(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands them in a file, and the container starts elsewhere."""
    monkeypatch.setenv("HOME", "/home/me")
    image: dict[str, Any] = {
        "container": "a/b",
        "container_runtime": "podman",
        "mounts": ["~/data", "data:/data", "/x"],
    }
    words = planned(**image).spec.container
    wanted = {"/home/me/data:/home/me/data", f"{workdir}/data:/data", "/x:/x"}
    assert wanted <= set(words)
