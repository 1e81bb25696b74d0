"""Settings files in the commands and functions that make jobs, and in the one that shows them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import submitit

import hpc_elastic
from hpc_elastic.cli.main import main
from hpc_elastic.errors import InputError
from hpc_elastic.submitit import HpcElasticExecutor
from tests.slurm.conftest import StandIn

SETTINGS = """\
account = "ml"
allow_local_run_dir = true
exclusive = true
time = "4h"
setup = ["source env.sh"]
max_restarts = 7

[env]
NCCL_DEBUG = "WARN"

[profiles.big]
nodes = "2:4"
partition = "gpu"
"""
SCRIPT = "#!/bin/bash\n#SBATCH --time=10\ntrue\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def project(workdir: Path, slurm_dir: StandIn) -> Path:
    """Return the directory of a project with settings, in which commands run."""
    (workdir / "hpc-elastic.toml").write_text(SETTINGS)
    return workdir


def _script(root: Path) -> str:
    return (root / "job.sbatch").read_text()


def test_a_job_has_the_settings_of_the_files_and_of_its_profile(project: Path) -> None:
    """In its script, and in the record of the run; options go first."""
    assert 0 == main(
        ["submit", "--profile", "big", "-t", "2h", "-e", "A=1", "--run-dir", "r", "--", "python3", "train.py"]
    )
    script = _script(project / "r")
    for line in ("--account=ml", "--partition=gpu", "--nodes=2-4", "--exclusive", "--time=02:00:00"):
        assert f"#SBATCH {line}\n" in script
    stored = json.loads((project / "r" / "job.json").read_text())["spec"]
    assert (7, {"NCCL_DEBUG": "WARN", "A": "1"}, ["source env.sh"]) == (
        stored["max_restarts"],
        stored["env"],
        stored["setup"],
    )


def test_a_resume_takes_the_settings_of_the_first_submission(project: Path, slurm_dir: StandIn) -> None:
    """Whatever has become of the file since, and it asks for no profile."""
    assert 0 == main(["submit", "--profile", "big", "--run-dir", "r", "--", "python3", "train.py"])
    before = _script(project / "r")
    slurm_dir.set_state("1000", "FAILED")
    (project / "hpc-elastic.toml").write_text("not valid")
    assert 0 == main(["submit", "--resume", "r"])
    assert before == _script(project / "r")
    assert 2 == len(slurm_dir.submissions())


def test_a_profile_cannot_change_a_resume(project: Path, capsys: Capture) -> None:
    """As no other option can."""
    assert 2 == main(["submit", "--resume", "r", "--profile", "big"])
    assert "--profile cannot change it" in capsys.readouterr().err


def test_a_job_file_goes_before_the_files(project: Path, capsys: Capture) -> None:
    """Its mistakes and theirs are told with their lines."""
    (project / "train.toml").write_text('command = "python3 train.py"\naccount = "other"\n')
    assert 0 == main(["render", "train.toml"])
    assert "#SBATCH --account=other\n" in capsys.readouterr().out
    (project / "hpc-elastic.toml").write_text('\nlease = "1s"\n')
    assert 2 == main(["render", "train.toml"])
    assert f"error: {project}/hpc-elastic.toml:2: lease = 1" in capsys.readouterr().err


def test_a_script_of_the_users_own_keeps_its_lines(project: Path) -> None:
    """Of the files it takes what it does not say, and nothing that is for workers."""
    (project / "job.sbatch").write_text(SCRIPT)
    assert 0 == main(["sbatch", "--profile=big", "--run-dir=r", "job.sbatch"])
    script = _script(project / "r")
    assert "#SBATCH --account=ml\n" in script
    assert "#SBATCH --partition=gpu\n" in script
    assert "#SBATCH --time=10\n" in script
    assert "04:00:00" not in script
    assert "--nodes" not in script
    assert "NCCL_DEBUG" not in script


def test_slurms_own_profiling_stays_an_option_of_sbatch(project: Path) -> None:
    """Its words are not the names of profiles."""
    (project / "job.sbatch").write_text(SCRIPT)
    assert 0 == main(["sbatch", "--profile", "Task,energy", "--run-dir=r", "job.sbatch"])
    assert "--profile Task,energy" in _script(project / "r")


def test_a_script_on_standard_input_is_read_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gives its words to one reader."""
    reader, writer = os.pipe()
    os.write(writer, SCRIPT.encode())
    os.close(writer)
    kept = os.dup(0)
    os.dup2(reader, 0)
    try:
        assert 0 == main(["sbatch", "--run-dir=r"])
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reader)
    script = _script(project / "r")
    assert "#SBATCH --account=ml\n" in script
    assert "#SBATCH --time=10\n" in script


def test_python_takes_them_too(project: Path) -> None:
    """Arguments go first; an error names the argument, or the line of the file."""
    hpc_elastic.submit(["python3", "train.py"], profile="big", time="1h", run_dir="r")
    script = _script(project / "r")
    assert "#SBATCH --partition=gpu\n" in script
    assert "#SBATCH --time=01:00:00\n" in script
    with pytest.raises(InputError, match="there is no profile") as caught:
        hpc_elastic.submit(["python3", "train.py"], profile="bgi")
    assert "profile" == caught.value.where
    (project / "hpc-elastic.toml").write_text("nodse = 2\n")
    with pytest.raises(InputError, match="there is no setting") as caught:
        hpc_elastic.submit(["python3", "train.py"])
    assert f"{project}/hpc-elastic.toml:1" == caught.value.where


def test_a_function_runs_in_its_own_python(project: Path) -> None:
    """An environment of the files is for programs."""
    with (project / "hpc-elastic.toml").open("a") as file:
        file.write('[profiles.env]\nvenv = "/some/venv"\n')
    hpc_elastic.submit(len, "abc", profile="env", run_dir="r")
    assert "venv" not in json.loads((project / "r" / "job.json").read_text())["spec"]


def test_submitit_takes_them_too(project: Path) -> None:
    """Its parameters go first."""
    executor = submitit.AutoExecutor(project / "jobs", cluster="hpcelastic")
    executor.update_parameters(hpcelastic_profile="big", timeout_min=60)
    inner = executor._executor
    assert isinstance(inner, HpcElasticExecutor)
    spec = inner._spec(inner.parameters, "f")
    assert ("ml", "gpu", "2:4", "01:00:00", 7) == (
        spec.account,
        spec.partition,
        spec.nodes,
        spec.time,
        spec.max_restarts,
    )
    with pytest.raises(InputError, match="there is no profile 'bgi'"):
        executor.update_parameters(hpcelastic_profile="bgi")


def _config(capsys: Capture, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert 0 == main(["config", "--json", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_config_shows_each_setting_with_its_origin(
    project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that do not hold since another goes before them."""
    file = f"{project}/hpc-elastic.toml"
    (project / "train.toml").write_text('command = "a.py"\ntime = "1h"\n')
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    found = _config(capsys, "--profile", "big", "train.toml")
    settings = {one.pop("name"): one for one in found["settings"]}
    assert {"value": "mine", "origin": "SBATCH_ACCOUNT", "instead_of": [f"{file}:1"]} == settings["account"]
    assert {"value": "01:00:00", "origin": "train.toml:2", "instead_of": [f"{file}:4"]} == settings["time"]
    assert {"value": "WARN", "origin": f"{file}:9", "instead_of": []} == settings["env.NCCL_DEBUG"]
    assert {"value": "gpu", "origin": f"{file}:13", "instead_of": []} == settings["partition"]
    assert ["config", ["big"]] == [found["kind"], found["profiles"]]
    assert {"whose": "project", "path": file, "is_there": True} == found["files"][2]


def test_config_shows_the_settings_that_a_job_script_takes(project: Path, capsys: Capture) -> None:
    """Those that its lines do not say."""
    (project / "job.sbatch").write_text(SCRIPT)
    found = _config(capsys, "job.sbatch")
    assert ["account", "allow_local_run_dir"] == [one["name"] for one in found["settings"]]


def test_config_for_people_has_one_line_for_each_setting(project: Path, capsys: Capture) -> None:
    """The files first."""
    assert 0 == main(["config"])
    said = capsys.readouterr().out
    assert f"  project  {project}/hpc-elastic.toml\n" in said
    assert "  user     /nonexistent/hpc-elastic/config.toml (not there)\n" in said
    assert "profiles: big\n" in said
    assert re.search(f'^account +=  *"ml" +# {project}/hpc-elastic.toml:1$', said, re.MULTILINE)


def test_config_leaves_values_out_that_are_secret_by_their_names(project: Path, capsys: Capture) -> None:
    """For people and for programs: such an output is sent around."""
    with (project / "hpc-elastic.toml").open("a") as file:
        file.write('worker_env = { WANDB_API_KEY = "0a1b2c3d", NAME = "x1" }\n')
    (found,) = [
        each
        for each in _config(capsys, "--profile", "big")["settings"]
        if each["name"] == "worker_env.WANDB_API_KEY"
    ]
    assert "***" == found["value"]
    assert 0 == main(["config", "--profile", "big"])
    said = capsys.readouterr().out
    assert ("0a1b2c3d" in said, '"x1"' in said) == (False, True)


def test_config_finds_a_mistake_in_a_profile_that_no_job_asks_for(project: Path, capsys: Capture) -> None:
    """Before one does."""
    with (project / "hpc-elastic.toml").open("a") as file:
        file.write('[profiles.odd]\nnodes = "4:1"\n')
    assert 2 == main(["config"])
    assert 'nodes = "4:1"\n' in capsys.readouterr().err


def test_a_run_on_this_machine_has_the_nodes_of_its_option(
    project: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """And not those of a file."""
    words = ["submit", "--profile", "big", "--local", "1", "--dry-run", "--", "python3", "train.py"]
    assert 0 == main(words)
    assert "--nnodes=1 " in capsys.readouterr().out
