"""Each setting stands once, in the table: every consumer has every row of it, and no default of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.commands import COMMANDS
from hpc_elastic.cli.commands.ending import finish
from hpc_elastic.cli.parser import parser_of
from hpc_elastic.cli.run.flags import parser
from hpc_elastic.cli.run.options import drain_times_of
from hpc_elastic.errors import InputError
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.node.decision import RestartBudgets as AgentBudgets
from hpc_elastic.node.probe_rules import ProbeOptions
from hpc_elastic.node.setup.agent_setup import AgentTimes
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.stop_rules import DrainTimes
from hpc_elastic.paths import RunPaths
from hpc_elastic.settings import setting as kinds
from hpc_elastic.settings.of_commands import FINISH, RUN, AgentSettings
from hpc_elastic.settings.setting import Sbatch, Setting, ValueKind
from hpc_elastic.settings.table import JOB, OF_AGENT, OF_FINISH
from hpc_elastic.slurm.end.choices import RequeueBudgets as FinishBudgets
from hpc_elastic.slurm.job.options import FIELDS
from hpc_elastic.slurm.job.script import agent_flags, finish_flags
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.run_files import spec_trouble, stored_spec
from hpc_elastic.submitit import HpcElasticExecutor

WRITTEN: dict[ValueKind[Any], Any] = {  # a value of each kind, as in a job file
    kinds.TEXT: "some",
    kinds.PATH: "/some/where",
    kinds.SWITCH: True,
    kinds.BUDGET: 7,
    kinds.COUNT: 7,
    kinds.REPEATS: 7,
    kinds.SECONDS: "2m",
    kinds.INTERVAL: "30s",
    kinds.SILENCE: "5m",
    kinds.TIME_LIMIT: "4h",
    kinds.NODES: "2:4",
    kinds.GPUS: "a100:8",
    kinds.MEMORY: "480G",
    kinds.SIZE: "500M",
    kinds.UNASKED: "run-on",
    kinds.WORDS: ["some", "words"],
    kinds.CONTAINER: ["some", "words"],
    kinds.LINES: ["a line"],
    kinds.NAMES: ["a", "b"],
    kinds.MODULES: ["a", "b"],
    kinds.SIGNALS: ["TERM"],
    kinds.OPTIONS: {"nice": 5},
    kinds.VARIABLES: {"A": "1"},
}
NEEDED: dict[str, dict[str, Any]] = {  # beside a setting, so that it contradicts nothing
    "spares": {"mode": "array"},
    "sbatch_options": {"mode": "script"},
    "chain_by": {"chain": 2},
    "container_runtime": {"container": ["image.sif"]},
    "mounts": {"container": ["image.sif"]},
    "warning_signals": {"warn_signal": "USR2"},
}
OWN: dict[str, Any] = {  # values of settings that have rules of their own
    "module": "some.module",
    "redirects": "1",
    "tee": "1",
    "local_ranks_filter": "0,1",
    "warning_signals": ["USR2"],
    "mail_type": "END",
    "lease": "30s",
    "heartbeat_interval": 1.25,
}
ROWS = pytest.mark.parametrize("row", JOB.values(), ids=list(JOB))


def value_of(row: Setting) -> Any:
    """Return a value of a setting that is not its default, as in a job file."""
    if row.is_switch:
        return not row.holds
    others = [word for word in row.kind.choices if word != row.holds]
    return OWN.get(row.name, others[0] if others else WRITTEN.get(row.kind))


def spec_with(row: Setting) -> JobSpec:
    """Return a job in which a setting is given."""
    return JobSpec(**{"command": "train", **NEEDED.get(row.name, {}), row.name: value_of(row)})


@ROWS
def test_a_job_file_takes_every_row(row: Setting) -> None:
    """What is not given has the default of the table, what is given arrives, and a wrong type is refused."""
    spec = spec_with(row)
    assert row.name in spec.given
    assert row.default != getattr(spec, row.name)
    fresh = JobSpec(command="train.py")
    assert row.name == "command" or row.default == getattr(fresh, row.name)
    with pytest.raises(InputError) as caught:
        JobSpec(**{"command": "train", row.name: object()})
    assert row.name == caught.value.where


def test_a_job_has_no_other_fields() -> None:
    """The fields of the job spec are the rows."""
    assert set(JOB) == set(JobSpec(command="train.py").values)


@pytest.mark.parametrize("command", ["submit", "render"])
def test_submit_has_an_option_for_every_row(command: str) -> None:
    """In the same order, with the help and the heading of the table; the command stands behind ``--``."""
    rows = {name: row for name, row in JOB.items() if name != "command"}
    options = {
        action.dest: (title, action)
        for title, actions in parser_of(command, COMMANDS[command]).groups()
        for action in actions
        if action.dest in rows
    }
    assert list(rows) == list(options)
    for name, (title, action) in options.items():
        row = rows[name]
        assert row.panel == title
        assert (action.help or "").startswith(row.help_text())
        assert {word for word in (row.flag, row.written.short) if word} <= set(action.option_strings)


@ROWS
def test_who_reads_a_row_gets_what_is_given(row: Setting) -> None:
    """The job script tells sbatch, the agents or ``finish``, and their parsers read what was meant."""
    spec, words = spec_with(row), ["train.py"]
    if isinstance(row.to, Sbatch):
        assert row.name == FIELDS[row.to.option]
        options = dict(spec.header_options())
        assert row.name in {"workdir", "comment"} or row.to.option in options
    elif row in OF_AGENT:
        assert getattr(parser().parse_args(words), row.name) != getattr(
            parser().parse_args([*agent_flags(spec), *words]), row.name
        )
    elif row in OF_FINISH:
        read = finish.parser().parse_args(["--run-dir=/r", *finish_flags(spec)])
        assert getattr(spec, row.name) == getattr(read, row.name)


def test_what_a_reader_assumes_anyway_is_not_passed_on() -> None:
    """Only what the job has otherwise than its reader is in the script, and switches are not turned off."""
    spec = JobSpec(command="train.py")
    given = {word.partition("=")[0] for word in (*agent_flags(spec), *finish_flags(spec))}
    differing = {row.flag for row in (*OF_AGENT, *OF_FINISH) if row.holds and row.holds != row.reader_default}
    computed = {"--nnodes", "--nproc-per-node", "--warn-timeout", "--no-python", "--max-relaunch"}
    assert differing | computed == given


def test_run_and_finish_have_every_flag_of_their_tables() -> None:
    """With the default of the table, unless something else decides where nothing is given."""
    run, end = parser().parse_args(["train.py"]), finish.parser().parse_args(["--run-dir=/r"])
    for row in RUN:
        assert row.flag_default == getattr(run, row.name), row.name
    others = {"use_env", "training_script", "training_script_args"}
    assert {row.name for row in RUN} == set(vars(run)) - others
    assert {row.name: row.reader_default for row in FINISH if row.name != "run_dir"} == {
        name: value for name, value in vars(end).items() if name != "run_dir"
    }


def test_the_agents_parts_have_the_defaults_of_the_table() -> None:
    """What no flag tells is the same for an agent that is made in Python."""
    settings = AgentSettings.of(parser().parse_args(["train.py"]))
    assert vars(AgentSettings(**{name: getattr(settings, name) for name in settings.given})) == vars(settings)
    assert DrainTimes() == drain_times_of(settings)
    assert ProbeOptions() == ProbeOptions.of_settings(settings)
    assert HangOptions() == HangOptions.of_settings(settings)
    assert AgentTimes().exit_barrier == settings.exit_barrier_timeout
    assert AgentBudgets() == AgentBudgets.of_settings(settings)._replace(crash=JOB["max_restarts"].holds)
    meeting = MeetingSettings()
    for name in ("join_timeout", "last_call_timeout", "heartbeat_interval", "lease"):
        assert JOB[name].holds == getattr(meeting, name)
    limits = FinishBudgets()
    assert {row.name: row.reader_default for row in FINISH if row.name in FinishBudgets._fields} == {
        name: value for name, value in limits._asdict().items() if name in {row.name for row in FINISH}
    }


def test_the_submitit_executor_takes_every_row() -> None:
    """But for the program, which is the function."""
    known = HpcElasticExecutor._valid_parameters()
    assert {"command", "module"} == {name for name in JOB if name not in known}


@ROWS
def test_what_was_stored_is_read_again(row: Setting, tmp_path: Path) -> None:
    """Commands on a login node take the value of every setting, and leave out one of another type."""
    paths = RunPaths(str(tmp_path))
    stored = json.loads(json.dumps(spec_with(row).stored))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": stored}))
    assert spec_with(row).stored == stored_spec(paths)
    assert [] == spec_trouble(paths)
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {row.name: [[]]}}))
    assert {} == stored_spec(paths)


NEW_ROWS = """
import sys
from hpc_elastic.settings import setting

as_written = setting.rows_of
def rows_of(*families):
    for family in families:
        if family.__name__ == "FailuresAndHangs":
            family.max_pauses = setting.setting(
                setting.BUDGET, None, "How often it may pause", 5, setting.Agent()
            )
            family.labels = setting.setting(setting.VARIABLES, {}, "Labels of the run", to=setting.Agent())
    return as_written(*families)
setting.rows_of = rows_of

from hpc_elastic.cli import app
from hpc_elastic.cli.run.flags import parser
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.slurm.job.job_file import build_spec, read_job_file
from hpc_elastic.slurm.job.script import agent_flags
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.submitit import HpcElasticExecutor

def read(spec):
    return AgentSettings.of(parser().parse_args([*agent_flags(spec), "train.py"]))

with open("job.toml", "w") as file:
    file.write("command = 'train.py'\\nmax_pauses = 7\\n[labels]\\nteam = 'a b'\\nsize = 3\\n")
spec = build_spec(read_job_file("job.toml"), {"labels": ["team=c, d", "more=x=y"]})
labels = {"team": "c, d", "size": "3", "more": "x=y"}
assert (7, labels) == (spec.max_pauses, spec.labels)
assert (7, labels) == (read(spec).max_pauses, read(spec).labels)
assert JobSpec(**spec.stored) == spec
fresh = read(JobSpec(command="train.py"))
assert (5, {}) == (fresh.max_pauses, fresh.labels)
assert "how often it may pause (default: 5)" in " ".join(parser().format_help().split())
assert {"max_pauses", "labels"} <= HpcElasticExecutor._valid_parameters()
for words in (["--labels", "team"], ["--max-pauses", "-1"]):
    app.run(["render", *words, "--", "train.py"])
sys.exit(app.run(["submit", "--help-all"]))
"""


def test_a_new_setting_is_one_row(tmp_path: Path) -> None:
    """With it the option, the key, the flag of agents, their value, the script and the parameter are there.

    So it is for a number, and for a table whose entries are given one by one.
    """
    done = subprocess.run(
        [sys.executable, "-c", NEW_ROWS],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    words = " ".join(done.stdout.split())
    assert "--max-pauses" in words
    assert "How often it may pause. Default: 5." in words
    assert "Labels of the run. Repeat for more." in words
    assert "error: --labels: labels = 'team' is not NAME=VALUE\n" in done.stderr
    assert "error: --max-pauses: max_pauses = '-1' is less than 0\n  fix: write 0 or more\n" in done.stderr
