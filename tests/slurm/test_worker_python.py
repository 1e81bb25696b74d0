"""The workers' Python by the name of its environment: in the job's settings, and on the batch host."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.isolated import lookup
from hpc_elastic.slurm.job import environment
from hpc_elastic.slurm.job.environment import Image, imports_of, places_to_mount, prefix_for, runtimes_for
from hpc_elastic.slurm.job.job_file import FileSettings, JobFile, build_spec
from hpc_elastic.slurm.job.script import worker_command
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit.find_python import importable
from tests.slurm.python_environments import make_conda, make_python, plant_modules
from tests.slurm.test_script import Node, make_node, told_of

SEEN = 'import os, sys; print(sys.prefix, os.environ.get("FROM_ACTIVATE"))'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a batch host without conda, whose HOME is empty."""
    for name in ("CONDA_EXE", "MAMBA_EXE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return make_node(tmp_path)


@pytest.mark.parametrize(
    ("fields", "words", "fix"),
    [
        (
            {"conda": "a", "venv": "b"},
            "conda = 'a' and venv = 'b' each name the Python",
            "keep one of conda,",
        ),
        ({"uv": True, "container": ["a.sif"]}, "uv and container = 'a.sif' each name", "keep one of uv, con"),
        ({"mounts": ["/data"]}, "mounts are for a container", "name the image"),
        ({"container_runtime": "podman"}, "is for an image, and container is not given", "container = IMAGE"),
        (
            {"container_runtime": "podman", "container": "apptainer exec a.sif"},
            "container is the command 'apptainer exec a.sif'",
            "container = IMAGE",
        ),
        (
            {"venv": "a", "module": "hpc_elastic.api.call", "command": []},
            "a function runs in the Python that",
            "leave it out",
        ),
    ],
    ids=repr,
)
def test_one_setting_names_the_python(fields: dict[str, Any], words: str, fix: str) -> None:
    """Several are refused with all of them named."""
    with pytest.raises(InputError, match=words) as caught:
        JobSpec(**{"command": "train.py", **fields})
    assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "python"),
    [
        ({}, "/ours"),
        ({"modules": ["cuda"]}, "/ours"),
        ({"conda": "a"}, "python3"),
        ({"venv": "a"}, "python3"),
        ({"uv": True}, "python3"),
        ({"container": ["a.sif"], "modules": ["apptainer"]}, "python3"),
        ({"container": "apptainer exec a.sif"}, "python3"),
    ],
    ids=repr,
)
def test_the_workers_run_with_it(fields: dict[str, Any], python: str) -> None:
    """Its name is the first on PATH there, or that of the image; never the agents' Python in an image."""
    spec = JobSpec(command="train.py -x", **fields)
    assert (python, "-u", "train.py", "-x") == worker_command(spec, "/ours")
    assert (python, "-u", "-m", "pkg") == worker_command(JobSpec(module="pkg", **fields), "/ours")


@pytest.mark.parametrize(
    ("below", "above", "kept"),
    [
        ({"conda": "a"}, {"venv": "/b"}, {"venv": "/b"}),
        ({"conda": "a"}, {"modules": ["c"]}, {"conda": "a", "modules": ("c",)}),
        ({"container": "a.sif", "mounts": "/d"}, {"uv": True}, {"uv": True}),
        (
            {"container": "a.sif", "mounts": "/d"},
            {"container": "b.sif"},
            {"container": ("b.sif",), "mounts": ("/d",)},
        ),
    ],
    ids=repr,
)
def test_an_option_replaces_the_python_of_a_file(
    below: dict[str, Any], above: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Whichever kind of environment each of them names."""
    given = build_spec(JobFile("job.toml", below), {"command": "train.py", **above}).given
    assert {"command": ("train.py",), **kept} == given


@pytest.mark.parametrize("container", [None, "apptainer exec a.sif"])
def test_mounts_and_runtime_of_all_jobs_are_for_images(container: str | None) -> None:
    """A job without an image of its own does not use them."""
    settings = FileSettings((JobFile("config.toml", {"container_runtime": "podman", "mounts": ["/data"]}),))
    job = {"command": "train.py", **({"container": container} if container else {})}
    given = build_spec(JobFile(), job, settings).given
    assert (None, bool(container)) == (given.get("container_runtime"), "mounts" in given)
    given = build_spec(JobFile(), {"command": "train.py", "container": "a.sif"}, settings).given
    assert ("podman", ("/data",)) == (given["container_runtime"], given["mounts"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os, torch.nn as nn\nfrom hpc_elastic import worker\n", ("torch", "hpc_elastic")),
        ("try:\n    import torch\nexcept ImportError:\n    pass\n", ()),
        ("def main():\n    import jax\n", ()),
        ('"""\nimport torch\n"""\n', ()),
        ("from .torch import x\nfrom torchvision import y\n", ()),
        ("import torch\nprint 'Python 2'\n", ()),
        ("\0", ()),
    ],
    ids=repr,
)
def test_only_packages_that_a_script_needs_in_any_case_are_asked_for(
    text: str, found: tuple[str, ...]
) -> None:
    """An import in a function, in `try`, or in a text may never happen."""
    assert found == imports_of(text)


def test_warnings_about_a_script_are_left_to_its_author() -> None:
    """They would stand among the words of submit, without the name of the file."""
    text = "import torch\nword = '\\d'\n"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ast.parse(text)
        assert ["invalid escape sequence" in str(one.message) for one in caught] == [True]
        assert ("torch",) == imports_of(text)
    assert 1 == len(caught)


IMAGE = Image("img", False, ("/run", "/data:/d"), "/work", has_gpus=True, variables=("RANK", "A"))
WORDS = {
    "apptainer": "p exec --nv --bind /run --bind /data:/d --pwd /work img",
    "charliecloud": "p --bind /run --bind /data:/d --cd=/work img --",
    "podman": (
        "p run --rm --network=host --ipc=host --pid=host --cgroups=no-conmon --device nvidia.com/gpu=all "
        "--volume /run:/run --volume /data:/d --volume /tmp:/tmp --workdir /work --env HPC_ELASTIC_* "
        "--env TORCHELASTIC_* --env SLURM_* --env NCCL_* --env RANK --env A img"
    ),
    "enroot": (
        "p start --rw --mount /run:/run:none:x-create=auto,rbind --mount /data:/d:none:x-create=auto,rbind "
        "--mount /dev/shm:/dev/shm:none:x-create=auto,rbind --mount /tmp:/tmp:none:x-create=auto,rbind "
        "--env NVIDIA_VISIBLE_DEVICES=all --env RANK --env A img "
        'sh -c cd -- "$1" && shift && exec "$@" sh /work'
    ),
}


@pytest.mark.parametrize("runtime", environment.PROGRAMS)
def test_each_runtime_gets_its_documented_words(runtime: str) -> None:
    """With the mounts, the working directory, the GPUs and, where none is passed on, the environment."""
    assert WORDS[runtime] == " ".join(prefix_for(runtime, "p", IMAGE))


def test_a_directory_is_an_image_that_charliecloud_may_make_places_in() -> None:
    """Else a mount at a place that the image lacks fails."""
    assert "--write" in prefix_for("charliecloud", "ch-run", IMAGE._replace(is_directory=True))


@pytest.mark.parametrize(
    ("image", "first"),
    [
        ("a.sif", "apptainer"),
        ("docker://pytorch/pytorch:2.5", "apptainer"),
        ("/images/torch.sqsh", "enroot"),
        ("torch.sqfs", "charliecloud"),
        ("localhost/torch:2.5", "podman"),
    ],
)
def test_the_name_of_an_image_tells_its_runtime(image: str, first: str) -> None:
    """Where several take it, the usual one is first."""
    assert first == runtimes_for(image, is_directory=False)[0]


def test_no_directory_is_mounted_twice() -> None:
    """One that is below another is seen with it."""
    assert ("/a", "/c", "/d:/e") == places_to_mount("/a/run", "/a", "/c", ["/d:/e", "/c"])
    assert ("/a", "/ab", "/c") == places_to_mount("/a", "/ab", "/c", [])


def test_another_python_finds_this_package_and_nothing_else_of_ours() -> None:
    """One that has no package at all imports `worker` and `frameworks`, from where the agents have them."""
    code = "import hpc_elastic.worker as w, hpc_elastic.frameworks; print(w.__file__); import psutil"
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-S", "-c", code],
        env={"PYTHONPATH": importable()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{lookup.home()}/worker/__init__.py\n" == done.stdout
    assert "No module named 'psutil'" in done.stderr


def run(node: Node, **fields: Any) -> tuple[int, str]:
    """Run the job script with a worker that prints its prefix; return its code and that line."""
    (node.home / "train.py").write_text(SEEN)
    names = {"importable": importable(), "venv": fields.get("venv", "")}
    names |= {"imports": fields.pop("imports", ()), "is_python_given": "python" in fields}
    code = node.run([("", 76)], command="train.py", names=names, **fields)
    return code, node.done.stdout.strip()


def told(node: Node) -> str:
    """Return the failed line that finish is told of: it is the whole reason."""
    (finish,) = [call for call in node.lines("calls") if call["words"][2] == "finish"]
    assert ["--launch-failure-in=setup", "--launch-failure-code=127"] == told_of(finish)[1:]
    assert [] == node.lines("sruns")
    reason: str = told_of(finish)[0]
    assert f"hpc_elastic: setup failed (exit code 127): {reason}" in node.done.stderr
    assert f" on {os.uname().nodename}" in reason
    return reason


def test_a_conda_environment_is_activated_by_its_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its activation scripts; conda is found by CONDA_EXE, which `conda init` sets, or on PATH."""
    program = make_conda(tmp_path / "conda", "torch")
    place = tmp_path / "conda" / "envs" / "train"
    monkeypatch.setenv("CONDA_EXE", str(program))
    assert (76, f"{place} yes") == run(node, conda="train", imports=("torch",))
    monkeypatch.delenv("CONDA_EXE")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert (76, f"{place} yes") == run(node, conda=str(place), setup=["set -eu"])


@pytest.mark.parametrize(
    ("conda", "imports", "words"),
    [
        ("login-only", (), "there is no conda environment login-only"),
        ("bare", (), "the conda environment bare has no Python"),
        ("train", ("torch", "jax"), "has no torch, jax, which the script imports"),
    ],
)
def test_an_environment_that_does_not_do_ends_the_job(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    conda: str,
    imports: tuple[str, ...],
    words: str,
) -> None:
    """The one line has the reason and the node, and both Pythons where one lacks something."""
    monkeypatch.setenv("CONDA_EXE", str(make_conda(tmp_path / "conda")))
    assert 76 == run(node, conda=conda, imports=imports)[0]
    reason = told(node)
    assert words in reason
    assert (f"(the agents run with {node.home}/python)" in reason) is bool(imports)


def test_a_node_without_conda_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no environment that is missing."""
    monkeypatch.setenv("PATH", os.pathsep.join(["/usr/bin", "/bin"]))
    assert 76 == run(node, conda="train")[0]
    assert "conda environment train: there is no conda, mamba or micromamba" in told(node)


def test_a_virtual_environment_is_used(node: Node, tmp_path: Path) -> None:
    """A shell of a setup line finds its programs, and workers this package."""
    place = make_python(tmp_path / "venv")
    setup = [f'[ "$(command -v python)" = {place}/bin/python ]']
    assert (76, f"{place} None") == run(node, venv=str(place), setup=setup, imports=("hpc_elastic",))
    (words,) = [call["words"] for call in node.lines("calls") if call["words"][2] == "run"]
    assert [f"{place}/bin/python3", "-u", "train.py"] == words[-3:]  # another node may lack it


def test_the_look_at_a_python_imports_nothing_from_the_working_directory(node: Node, tmp_path: Path) -> None:
    """Other users may write to it, and the script be in another one."""
    place = make_python(tmp_path / "venv", "torch")
    here = tmp_path / "here"
    here.mkdir()
    plant_modules(here)
    (here / "train.py").write_text(SEEN)
    assert (76, f"{place} None") == run(node, venv=str(place), imports=("torch",), setup=[f"cd {here}"])
    assert not (here / "imported").exists()


def test_workers_with_a_path_of_their_own_find_this_package(node: Node, tmp_path: Path) -> None:
    """They get that path in the place of the script's; what is below it counts as theirs."""
    place, shared = make_python(tmp_path / "venv"), tmp_path / "shared"
    (shared / "deepspeed").mkdir(parents=True)
    (shared / "deepspeed" / "__init__.py").touch()
    fields = {"venv": str(place), "worker_env": {"PYTHONPATH": str(shared)}}
    assert 76 == run(node, **fields, imports=("deepspeed", "hpc_elastic"))[0]
    (call,) = [call for call in node.lines("calls") if call["words"][2] == "run"]
    assert f"{shared}:{importable()}" == call["env"]["HPC_ELASTIC_WORKER_ENV_PYTHONPATH"]


def test_a_virtual_environment_whose_python_is_not_on_the_node_ends_the_job(
    node: Node, tmp_path: Path
) -> None:
    """Its link leads to a Python of another node."""
    place = make_python(tmp_path / "venv")
    (place / "bin" / "python3").unlink()
    (place / "bin" / "python3").symlink_to("/nowhere/python3")
    assert 76 == run(node, venv=str(place))[0]
    assert f"the virtual environment {place} has no Python" in told(node)


MODULE = "() {{ PATH={place}/bin:$PATH; }}"


def test_a_python_of_modules_is_the_workers(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both Pythons are named; one that `--python` has named stays."""
    place = make_python(tmp_path / "apps")
    (place / "bin" / "python3").unlink()
    (place / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (place / "bin" / "python3").chmod(0o755)
    monkeypatch.setenv("BASH_FUNC_module%%", MODULE.format(place=place))
    run(node, modules=["pytorch"])
    line = f"the workers run with {place}/bin/python3 of the modules, the agents with {node.home}/python"
    assert line in node.done.stdout
    run(node, modules=["pytorch"], python="given")
    assert line not in node.done.stdout
    monkeypatch.setenv("BASH_FUNC_module%%", "() { :; }")
    run(node, modules=["cuda"], env={"PATH": f"{place}/bin:{node.home}:{os.environ['PATH']}"})
    assert line not in node.done.stdout


def test_a_python_that_setup_has_activated_is_told(node: Node, tmp_path: Path) -> None:
    """The workers keep theirs, which may be of the same base; how they get the other one is said."""
    place = make_python(tmp_path / "venv")
    run(node, setup=[f"PATH={place}/bin:$PATH"])
    assert f"setup has put {place}/bin/python3 first" in node.done.stderr
    assert "--venv DIR" in node.done.stderr
    (place / "pyvenv.cfg").unlink()  # so that it is the base itself
    (node.home / "python").unlink()
    (node.home / "python").symlink_to(os.path.realpath(sys.executable))
    run(node, setup=[f"PATH={place}/bin:$PATH"])
    assert "setup has put" not in node.done.stderr
