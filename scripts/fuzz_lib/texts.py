"""Targets: everything that people, other programs and Slurm write."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from fuzz_lib.strategies import SURROGATES, changed, changed_bytes, odd_texts
from fuzz_lib.target import Target, allowed, expect
from hpc_elastic.cli.run import flags
from hpc_elastic.errors import HpcElasticError, InputError, SlurmCommandError
from hpc_elastic.record.journal import SetupFailure
from hpc_elastic.report import queue_text
from hpc_elastic.report.causes_text import job_code_text
from hpc_elastic.report.log_files import srun_said
from hpc_elastic.settings import values
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.adopt import script
from hpc_elastic.slurm.client import answers, deadlines, job_standing, parse
from hpc_elastic.slurm.end import history
from hpc_elastic.slurm.job import own_script, shell_text
from hpc_elastic.slurm.job.job_file import read_job_file
from hpc_elastic.slurm.job.spec import JobSpec

_TORCHRUN = """#!/bin/bash -l
#SBATCH --nodes=4
#SBATCH --time=04:00:00
set -euo pipefail
module load cuda
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 --rdzv-id=$SLURM_JOB_ID \\
    --rdzv-backend=c10d --rdzv-endpoint=$head:29500 train.py --lr 1e-3 2>&1 | tee log
echo done
"""
_HEREDOC = "cat <<EOF > conf\nx=$(date)\nEOF\nsrun torchrun --nnodes 2 --nproc_per_node 4 -m pkg.mod\n"
_SHELL_WORDS = (
    "$(", "${", "`", '"', "'", "(", ")", "<<EOF\n", "EOF\n", "\\\n", "|", "&&", ";;", "if ", "fi\n",
    "case ", "#SBATCH --", "srun ", "torchrun ", "python -m torch.distributed.run ", "{", "}", "&", ">",
    "trap ",
)  # fmt: skip
_OWN = """#!/bin/bash -l
# of mine
#SBATCH -N 2 --job-name="my job"  # behind
#SBATCH --array=1-9%3
#SBATCH hetjob
#SBATCH -N 1 -p big
#PBS -q late
srun ./a.out "$SLURM_ARRAY_TASK_ID"
"""
_SBATCH = "-p gpu --time 10 -N2 --gres=gpu:1 --wrap=hostname --max-requeues 3 job.sh -x 'a b'"
_OWN_WORDS = (
    "#!", "#!/usr/bin/env -S python", "#SBATCH --", "#SBATCH -", "#SBATCH hetjob\n", "#SBATCH packjob",
    "#PBS ", "#BSUB ", "\r\n", "\n", "\0", '"', "'", "\\", "=", " ", "\t", "--wrap ", "--parsable ",
    " : ", " -- ", "--no-requeue ", "-o", "job.sh",
)  # fmt: skip
_TOML = """command = ["train.py", "--lr", "0.1"]
nodes = "2:4"
time = "4h"
gpus_per_node = 8
max_restarts = 3
[env]
A = "b"
[sbatch]
mem = "480G"
"""
_TOML_WORDS = (
    "[", "]", "=", '"', "'", "{", "}", "\n", "nan", "inf", "1e999", "9" * 400, "9" * 5000, "nodes", "time",
    "[sbatch]\n", "[[a]]\n", "a.b.c", '"""', "\\u0000", "\\ud800", "1979-05-27", "0x", "true",
)  # fmt: skip
_NUMBERS = (
    "9" * 400, "9" * 5000, "-1", "1e400", "nan", "inf", "0x10", "1_0", "²", "٣", ":", "-", "d", "h", "m",
    "s", "M", "T", "UNLIMITED", " ", "+", ".",
)  # fmt: skip
_JOB_LINE = (
    "JobId=7 JobName=toy UserId=alice(1001) JobState=RUNNING Reason=None Restarts=1 NumNodes=2 Requeue=1 "
    "TimeLimit=04:00:00 StartTime=2026-01-01T00:00:00 EndTime=2026-01-01T04:00:00 PreemptTime=None "
    "ExitCode=0:0 NodeList=n[1-2] BatchHost=n1 Comment=hpc_elastic:ab ExcNodeList=(null) WorkDir=/home\n"
)
_JOB_WORDS = (
    " JobState=CANCELLED", "JobId=", " Reason=", "\n", "=", " ", "Restarts=" + "9" * 400, "PreemptTime=",
    "²", "EndTime=9999-99-99T99:99:99", "ExitCode=", "NumNodes=", "(null)", "Unknown", "n[1-", "]",
)  # fmt: skip
_LISTS = ("7|hpc_elastic:ab x\n", "7_1|R|2|n1|hpc_elastic:ab\n", "n1|low*|idle|gpu,a100|gpu:2\n")
_LIST_WORDS = ("|", "\n", "²", "9" * 400, "[", "]", "_", ",", "*", ":", "(null)", "hpc_elastic:ab")
_HOST_WORDS = ("[", "]", "-", ",", "1", "9", "999999", "01", "[1-999999]", "9" * 400, "n", "²", " ")
_FAILURES = (SetupFailure("pyenv local 3.11", "setup", 127), SetupFailure("module load cuda", "setup", 1))
_LOG = b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
_LOG_WORDS = (
    "slurmstepd: ", "error: ", "*** JOB 7 ON ", "DUE TO ", "PREEMPTION", "NODE FAILURE", "\r", "\n",
    "n[1-", "srun: ", "Nodes n[1-999999] are still not ready", "9" * 400,
)  # fmt: skip


def _own_script(text: str) -> None:
    with allowed(InputError):
        own = own_script.parse_own_script("job.sh", text.encode("utf-8", "surrogatepass"))
        first, others = own.components
        expect((*first, *others) == own.option_lines, "a line with options is lost")
        copied = (*own.option_lines, *own.lines_of_others)
        expect(all(line.startswith("#") and "\n" not in line for line in copied), "a line is no comment")
        for name in own_script.names_in(own.option_lines):
            own_script.value_of(name, own.option_lines)
        _ = (own.name, own.is_of_shell, own.is_heterogeneous)
    with allowed(InputError):
        call = own_script.parse_call(text.split(), lambda word: word.endswith(".sh"))
        own_script.sbatch_line(call.options)


def _adopt(text: str) -> None:
    code = shell_text.code_of(text)
    expect(len(code) == len(text), "the code is not as long as the script")
    shell_text.open_blocks(code, shell_text.parts(code))
    with allowed(InputError):
        script.adopt(text, "job.sh")


def _job_file(text: str) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()
        with allowed(InputError):
            _spec(dict(read_job_file(file.name).values))


def _spec(fields: dict[str, Any]) -> None:
    with allowed(InputError):
        spec = JobSpec(**fields)
        for name, value in spec.header_options():
            f"{name} {value}".encode("utf-8", "surrogateescape")
        _ = (spec.node_range, spec.tasks, spec.time_limit_s, spec.cpus, spec.gpus)
        json.dumps(spec.stored)


_VALUES: tuple[Callable[[object], object], ...] = (
    values.parse_nodes, values.parse_duration_s, values.parse_time_limit_s, values.parse_size,
    values.parse_memory,
)  # fmt: skip


def _value(value: Any) -> None:
    for read in _VALUES:
        with allowed(values.BadValueError):
            read(value)


def _flags(words: Sequence[str]) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), allowed(HpcElasticError):
        try:
            flags.parser().parse_args([*words, "train.py"])
        except SystemExit as stop:
            expect(stop.code in (0, 2), f"exit code {stop.code}")
            expect("Traceback" not in said.getvalue(), "a traceback was printed")


_MARK = "_0123456789abcdef_"


def _slurm(text: str) -> None:
    with allowed(SlurmCommandError):
        _job(answers.job(text, "7"))
    _table(text)
    parse.submitted_job_id(text)
    parse.help_options(text)
    parse.controllers(text)


def _job(fields: dict[str, str]) -> None:
    facts = job_standing.job_facts(fields)
    job_standing.standing(facts, 0)
    deadlines.why(fields, 0, deadlines.Site())
    queue_text.queue_text(fields)
    queue_text.what_helps(fields, "run")
    job_code_text(fields.get("ExitCode", ""))


def _table(text: str) -> None:
    """Have a job's comment and constraint say anything: what else is told of it stays as it is."""
    cells = dict.fromkeys(answers.JOBS.columns, "") | _RUNNING | {"feature": text, "comment": text}
    printed = "".join(f"{cells[column]}{_MARK}" for column in answers.JOBS.columns) + "\n"
    if _MARK in text:
        return
    [found] = answers.read_jobs(answers.JOBS.rows(printed, _MARK, ("squeue",)))
    expect((found["JobId"], found["JobState"]) == ("7", "RUNNING"), "a text was taken for a field")
    _job(found)
    with allowed(SlurmCommandError):
        for job in answers.read_jobs(answers.JOBS.rows(text, "|", ("squeue",))):
            _job(job)


_RUNNING = {"jobid": "7", "state": "RUNNING", "reason": "None", "restartcnt": "0", "numnodes": "2"}


def _lists(text: str) -> None:
    lines = text.splitlines()
    answers.with_comment([(text, text), *((line, text) for line in lines)], "hpc_elastic:ab")
    parse.time_left_s(text)
    with allowed(InputError):
        rows = [(line, line, text, text, text, text) for line in lines]
        rows += [("7", line, "RUNNING", "n1", "None", text) for line in lines]
        answers.arrays_of(answers.parse_tasks(rows, token="hpc_elastic:ab", array="7"))  # noqa: S106
    answers.max_array_size(text)
    with allowed(SlurmCommandError):
        answers.partition(text, "low")
        deadlines.site_of(answers.config(text), answers.partition(text, ""), None)
    answers.gpus_in(text)
    answers.features_of(text)
    deadlines.seconds(text)


def _hosts(text: str) -> None:
    with allowed(InputError):
        expect(len(parse.expand(text)) <= parse.MAX_HOSTS, "too many hosts")


def _log(data: bytes) -> None:
    text = data.decode(errors="replace")
    job_standing.due_to(text)
    srun_said(text, ("n1", "n2"))
    for failure in _FAILURES:
        history.with_words(failure, text)
    history.with_words(SetupFailure(text, "setup", 127), text)


_FLAG_NAMES = tuple(
    name
    for name in flags.parser().known_flags()
    if name.startswith("--") and "_" not in name and name != "--help"
)
_OF_SPEC = st.dictionaries(
    st.sampled_from((*JOB, "no_such_thing")),
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), odd_texts,
        st.sampled_from((*SURROGATES, *_NUMBERS, 10**400)), st.lists(odd_texts | st.integers(), max_size=3),
        st.dictionaries(odd_texts, odd_texts | st.integers(), max_size=2),
    ),
    max_size=3,
).map(lambda fields: {"command": ["train.py"], **fields})  # fmt: skip
TARGETS: tuple[Target, ...] = (
    Target("own-script", changed((_OWN, _TORCHRUN, _SBATCH), _OWN_WORDS), _own_script),
    Target("adopt", changed((_TORCHRUN, _HEREDOC), _SHELL_WORDS), _adopt, 100),
    Target("job-file", changed((_TOML,), _TOML_WORDS), _job_file, 100),
    Target("job-spec", _OF_SPEC, _spec),
    Target(
        "values",
        st.one_of(
            changed(("2:4", "1h30m", "04:00:00", "1-02:03:04", "480G", "64M"), _NUMBERS),
            st.integers(),
            st.floats(),
            st.just(10**5000),
            st.booleans(),
            st.none(),
        ),
        _value,
    ),
    Target(
        "run-flags",
        st.lists(
            st.sampled_from(_FLAG_NAMES) | changed(("3", "1:2", "host:29500", "a=1,b=2"), _NUMBERS),
            max_size=4,
        ),
        _flags,
        60,
    ),
    Target("slurm-job", changed((_JOB_LINE,), _JOB_WORDS), _slurm),
    Target(
        "slurm-lists",
        changed((*_LISTS, "KillWait = 30 sec\nPreemptType = preempt/qos\n"), _LIST_WORDS),
        _lists,
    ),
    Target("hostlist", changed(("node[1-3,7],gpu[01-04]", "a[1-2]b[3-4]"), _HOST_WORDS), _hosts),
    Target("logs", changed_bytes([_LOG, *(word.encode() for word in _LOG_WORDS)]), _log),
)
