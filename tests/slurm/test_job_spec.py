"""The job spec: what it reads and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.spec import JobSpec, checkpoint_lead_s, spec_warnings, warning_time_s

COMMAND = {"command": ["python", "train.py"]}


def refusal(**fields: Any) -> InputError:
    """Return the error that a spec with these fields gives."""
    with pytest.raises(InputError) as caught:
        JobSpec(**{**COMMAND, **fields})
    return caught.value


def test_a_spec_reads_what_people_write() -> None:
    """Times, node ranges, commands and names in lists or text."""
    spec = JobSpec(
        command="python train.py --lr '0.1 x'",
        nodes="2:4",
        time="1h30m",
        gpus_per_node="a100:8",
        modules="cuda, gcc/12",
    )
    assert ("python", "train.py", "--lr", "0.1 x") == spec.command
    assert (2, 4) == spec.node_range
    assert (5400, 8, ("cuda", "gcc/12")) == (spec.time_limit_s, spec.gpus, spec.modules)


def test_sbatch_options_with_a_field_of_their_own_end_up_there() -> None:
    """-o p=debug is the partition, so that one rule sees both spellings."""
    spec = JobSpec(**COMMAND, sbatch={"p": "debug", "t": "2h", "c": 8, "hold": True, "exclusive": "user"})
    assert ("debug", 7200, 8) == (spec.partition, spec.time_limit_s, spec.cpus)
    assert {"hold": True, "exclusive": "user"} == spec.sbatch


def test_a_spec_survives_being_stored() -> None:
    """What is dumped without defaults builds the same spec again."""
    spec = JobSpec(**COMMAND, nodes="2:4", time=90, sbatch={"hold": True}, env={"A": "x"}, join_timeout="2m")
    assert spec == JobSpec(**spec.stored)


@pytest.mark.parametrize(
    ("fields", "where", "words", "fix"),
    [
        ({"nodse": 2}, "nodse", "no setting 'nodse'", "'nodes'"),
        ({"gpus-per-node": 2}, "gpus-per-node", "no setting", "'gpus_per_node'"),
        ({"gres": "gpu:2"}, "gres", "no setting 'gres'", "-o gres="),
        ({"ntasks": 8}, "ntasks", "no setting 'ntasks'", "workers_per_node"),
        ({"nodes": "3:1"}, "nodes", "at least 3 and at most 1", "1:3"),
        ({"time": "4 parsecs"}, "time", "'4 parsecs' is not a time limit", "HH:MM:SS"),
        ({"max_restarts": -1}, "max_restarts", "max_restarts = -1 is less than 0", "0 or more"),
        ({"workers_per_node": 0}, "workers_per_node", "workers_per_node = 0 is less than 1", "1 or more"),
        ({"workers_per_node": True}, "workers_per_node", "= True is not a whole number", "= 4"),
        ({"max_restarts": True}, "max_restarts", "max_restarts = True is not a whole number", "= 4"),
        ({"gpus_per_node": "many"}, "gpus_per_node", "'many' is not a number of GPUs", "a100:8"),
        ({"nodes": 2, "workers_per_node": "many"}, "workers_per_node", "'many' is not a whole number", "= 4"),
        ({"modules": 3}, "modules", "modules = 3 is neither text nor a list", 'modules = ["one"'),
        ({"comment": True}, "comment", "comment = True is not text", 'comment = "text"'),
        ({"exclusive": "maybe"}, "exclusive", "'maybe' is neither true nor false", "true"),
        ({"warn_signal": "KILL"}, "warn_signal", "'KILL' cannot be used", "'USR1' or 'USR2'"),
        ({"job": {"nodes": 2}}, "job", "no table [job]", "top level, without [job]"),
        ({"redirects": "9"}, "redirects", "redirects = '9' names no streams", "0:3,1:2"),
        ({"tee": "foo"}, "tee", "tee = 'foo' names no streams", "0:3,1:2"),
        ({"local_ranks_filter": "a"}, "local_ranks_filter", "not a list of local ranks", "0,1"),
        ({"name": ""}, "name", "'' cannot be a job name", "letters"),
        ({"name": "é" * 513}, "name", "(515 characters) has 1,026 bytes, and Slurm takes 1,024", "shorten"),
        ({"sbatch": {"network": "q" * 1025}}, "sbatch.network", "has 1,025 bytes", "shorten it"),
        ({"name": "a\nb"}, "name", "holds a line break or control character", "remove it"),
        ({"name": "two\nlines"}, "name", "line break", "remove"),
        ({"command": []}, "command", "no worker command", "-- train.py"),
        ({"command": "python 'x"}, "command", "is not a command", "close the quotes"),
        ({"command": ["python", "a\0b"]}, "command", "NUL", "remove"),
        ({"module": "pkg.train"}, "module", "both name the program to run", "keep one"),
        ({"mem": "10X"}, "mem", "mem = '10X' is not an amount of memory", "e.g. 480G"),
        ({"mem_per_cpu": 1.5}, "mem_per_cpu", "mem_per_cpu = 1.5 is not an amount", "a whole number"),
        ({"sbatch": {"mem": "-1"}}, "mem", "'-1' is not an amount of memory", "480G"),
        (
            {"mem": "8G", "mem_per_cpu": "2G"},
            "mem_per_cpu",
            "mem and mem_per_cpu contradict",
            "remove mem or",
        ),
        (
            {"mem": "8G", "sbatch": {"mem-per-gpu": "2G"}},
            "sbatch.mem-per-gpu",
            "mem and sbatch.mem-per-gpu",
            "remove",
        ),
        ({"cpus_per_node": 8, "cpus_per_task": 8}, "cpus_per_task", "mean the same", "cpus_per_node"),
        (
            {"gpus_per_node": 2, "sbatch": {"gres": "gpu:2"}},
            "sbatch.gres",
            "both ask for GPUs",
            "gpus_per_node",
        ),
        (
            {"partition": "a", "sbatch": {"p": "b"}},
            "sbatch.p",
            "partition = 'a' and sbatch p = 'b'",
            "partition",
        ),
        ({"sbatch": {"hold": True, "H": True}}, "sbatch.H", "given twice", "keep one"),
        (
            {"sbatch": {"ntasks-per-node": 8}},
            "sbatch.ntasks-per-node",
            "one agent per node",
            "workers_per_node",
        ),
        ({"sbatch": {"gpus-per-task": 1}}, "sbatch.gpus-per-task", "one agent per node", "gpus_per_node"),
        ({"sbatch": {"requeue": True}}, "sbatch.requeue", "cannot be given", "max_requeues"),
        ({"sbatch": {"signal": "USR1@60"}}, "sbatch.signal", "cannot be given", "checkpoint_lead"),
        ({"sbatch": {"o": "log.txt"}}, "sbatch.output", "logs live in the run directory", "hpc-elastic logs"),
        ({"sbatch": {"export": "A=1"}}, "sbatch.export", "splits its value at commas", "env"),
        ({"sbatch": {"hold": [1]}}, "sbatch.hold", "sbatch.hold = [1] is not text", "quotes"),
        ({"env": {"A B": "x"}}, "env", "'A B' is not the name", "letters"),
        ({"conda": ""}, "conda", "conda is empty", "leave conda out"),
        ({"venv": ""}, "venv", "venv is empty", "leave venv out"),
        ({"container": ""}, "container", "'' names no image", "leave it out"),
        ({"container": [""]}, "container", "names no image", "leave it out"),
        ({"env": {"A": True}}, "env.A", "True is not text", "A = "),
        ({"env": {"RANK": "0"}}, "env.RANK", "RANK is set by the agent", "remove"),
        ({"env": {"A": "\ud800"}}, "env", "not valid Unicode", "remove"),
        ({"warning_signals": "USR1"}, "warning_signals", "'USR2' is not among", "add USR2"),
        ({"drain_signals": "KILL"}, "drain_signals", "'KILL' in drain_signals cannot be used", "TERM"),
        ({"drain_signals": "TERM,USR2"}, "drain_signals", "means a warning too", "remove USR2"),
        (
            {"checkpoint_lead": "1h", "time": "1h"},
            "checkpoint_lead",
            "leaves nothing of time = 01:00:00",
            "raise time",
        ),
        ({"checkpoint_lead": "20h"}, "checkpoint_lead", "72000 s is more than", "65505"),
        ({"join_timeout": 0}, "join_timeout", "join_timeout = 0 leaves no time", "more than 0"),
        ({"health_timeout": "0s"}, "health_timeout", "leaves no time", "more than 0"),
        ({"lease": 2}, "lease", "less than three heartbeats", "3 or more"),
        ({"heartbeat_interval": 2}, "heartbeat_interval", "less than three heartbeats", "6 or more"),
        ({"run_dir": "a\\b"}, "run_dir", "backslash", "another path"),
        ({"run_dir": ""}, "run_dir", "empty", "another path"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], where: str, words: str, fix: str) -> None:
    """The error names the thing, the value, the place and what to do."""
    error = refusal(**fields)
    assert where == error.where
    assert words in error.message
    assert fix in error.fix


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"time": "1m"}, "time = 00:01:00 leaves 0 to 15 s of each start for training"),
        ({"time": "2m"}, "leaves 15 to 45 s of each start for training: agents are warned 75 s before"),
        ({"time": "10m", "checkpoint_lead": "8m"}, "leaves 60 to 90 s"),
        ({"time": "5m"}, ""),
        ({"time": "2m", "checkpoint_lead": 10}, ""),
        ({}, ""),
    ],
    ids=repr,
)
def test_a_time_limit_that_leaves_little_for_training_is_warned_of(
    fields: dict[str, object], said: str
) -> None:
    """Slurm's warning comes up to half a minute early: a job of a minute may save after three seconds."""
    found = [each for each in spec_warnings(JobSpec(**COMMAND, **fields)) if "for training" in each]
    assert bool(said) == bool(found)
    assert said in "".join(found)


def test_workers_that_would_share_one_core_are_warned_of() -> None:
    """Slurm's default is one core per node."""
    assert any("one core" in warning for warning in spec_warnings(JobSpec(**COMMAND)))
    for enough in ({"cpus_per_node": 8}, {"exclusive": True}, {"sbatch": {"cpus-per-gpu": 8}}):
        assert not any("one core" in warning for warning in spec_warnings(JobSpec(**COMMAND, **enough)))


@pytest.mark.parametrize(
    ("fields", "lead_s", "warned_s"),
    [
        ({}, 120, 150),
        ({"time": "4h"}, 120, 150),
        ({"time": 2}, 45, 75),
        ({"time": 1}, 15, 45),
        ({"checkpoint_lead": "5m"}, 300, 330),
        ({"checkpoint_lead": 0}, 0, 30),
        ({"time": "30s"}, 0, 30),
    ],
    ids=repr,
)
def test_the_warning_comes_ahead_of_the_lead(fields: dict[str, Any], lead_s: float, warned_s: int) -> None:
    """Slurm's timer is 30 s coarse; short jobs get a shorter lead."""
    spec = JobSpec(**COMMAND, **fields)
    assert (lead_s, warned_s) == (checkpoint_lead_s(spec), warning_time_s(spec))
