"""Job scripts of a user's own: their text, their options, and the end of a job that runs one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.job_options import wanted_job
from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Budget,
    Cause,
    Decision,
    DrainRequested,
    Epoch,
    Requeued,
    RunEnded,
)
from hpc_elastic.record.state import RunState, apply
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.end import lifecycle, own_script
from hpc_elastic.slurm.end.choices import Exit, Facts, Hold, Leave, Requeue, RequeueBudgets, ScriptEnd
from hpc_elastic.slurm.job.own_script import asks_for, parse_call, parse_own_script, value_of
from hpc_elastic.slurm.job.own_script_file import read_own_script
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.job_start import Start
from hpc_elastic.slurm.run_jobs.script_tasks import is_array_of_script
from hpc_elastic.slurm.submit.request import plan, read_template
from hpc_elastic.slurm.submit.run_dir import create, discard

SCRIPT = b"""#!/bin/bash -l -e
# a comment
#SBATCH --time=10 -p gpu  # behind

  # another one
##SBATCH --mem=1
#SBATCH -x node[1-2]
#SBATCH --job-name="my job"
echo begin
#SBATCH --qos=late
"""


def test_the_options_are_those_above_the_first_command() -> None:
    """Sbatch reads no line behind it, nor one that is commented out."""
    own = parse_own_script("dir/job.sbatch", SCRIPT)
    assert own.name == "job.sbatch"
    assert own.interpreter == ("/bin/bash", "-l -e")  # one argument, as the kernel has it
    assert own.option_lines == (
        "#SBATCH --time=10 -p gpu  # behind",
        "#SBATCH -x node[1-2]",
        '#SBATCH --job-name="my job"',
    )
    told = {name: value_of(name, own.option_lines) for name in ("partition", "exclude", "job-name", "qos")}
    assert told == {"partition": "gpu", "exclude": "node[1-2]", "job-name": "my job", "qos": ""}
    assert asks_for("time", own.option_lines)
    assert not asks_for("no-requeue", own.option_lines)


def test_lines_of_pbs_and_lsf_are_those_that_sbatch_takes(tmp_path: Path) -> None:
    """It reads them behind a command, too, and goes no further than 100 lines that are no comments."""
    path = tmp_path / "job.sbatch"
    late = "echo\n" * 100 + "#PBS -q late\n"
    path.write_text(f"#!/bin/bash\n#PBS -N mine\necho\n#BSUB -W 10\n # #PBS -q no\n{late}")
    text = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path)).script
    head = [line for line in text.splitlines() if line.startswith(("#PBS", "#BSUB"))]
    assert head == ["#PBS -N mine", "#BSUB -W 10"]


@pytest.mark.parametrize(
    ("data", "place", "fix"),
    [
        (b"echo\n", "job:1", "#!/bin/bash"),
        (b"", "job", "name one that has commands"),
        (b"#!\necho\n", "job:1", "#!/bin/bash"),
        (b"#!/bin/bash\necho\r\n", "job:2", "sed -i"),
        (b"#!/bin/bash\r\n", "job:1", "sed -i"),
        (b"#!/bin/bash\necho \0\n", "job", "text file"),
    ],
)
def test_what_sbatch_refuses_is_refused_with_the_way_out(data: bytes, place: str, fix: str) -> None:
    """Before anything is queued."""
    with pytest.raises(InputError) as caught:
        parse_own_script("job", data)
    assert caught.value.where == place
    assert fix in caught.value.fix


@pytest.mark.parametrize("name", ["job\ntouch pwned #.sbatch", "job\x1b[2J.sbatch"])
def test_a_file_name_is_no_line_of_the_job_script(tmp_path: Path, name: str) -> None:
    """One with a line break would be a command of it, also where the job has another name."""
    path = tmp_path / name
    path.write_bytes(SCRIPT)
    with pytest.raises(InputError, match="line break or control character"):
        plan(spec_of(path, name="train"), read_template("script"), now_s=0.0, directory=str(tmp_path))


def test_a_script_of_five_megabytes_is_taken(tmp_path: Path) -> None:
    """Sbatch refuses more than 4 MB by default; Slurm gets our script, which is small."""
    path = tmp_path / "job.sbatch"
    path.write_bytes(b"#!/bin/bash\n" + b"# filler\n" * 600_000)
    assert len(read_own_script(str(path)).data) > 5_000_000
    wanted = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path))
    assert len(wanted.script) < 10_000


def spec_of(path: Path, *words: str, **fields: Any) -> JobSpec:
    """Return the spec of a job script."""
    return JobSpec(mode="script", command=(str(path), *words), **fields)


def test_the_options_come_in_the_order_of_their_rank(tmp_path: Path) -> None:
    """Our defaults, the script's own lines, and those of the submission: the last one wins in sbatch."""
    path = tmp_path / "job.sbatch"
    path.write_bytes(SCRIPT)
    spec = spec_of(path, "a b", time="5m", sbatch_options=("--account", "my lab"))
    lines = plan(spec, read_template("script"), now_s=0.0, directory=str(tmp_path)).script.splitlines()
    assert lines[:10] == [
        "#!/bin/bash",
        "#SBATCH --requeue --open-mode=append --job-name=job.sbatch",
        "#SBATCH --time=10 -p gpu  # behind",
        "#SBATCH -x node[1-2]",
        '#SBATCH --job-name="my job"',
        '#SBATCH --job-name="my job"',
        "#SBATCH --partition=gpu",
        "#SBATCH --time=00:05:00",
        "#SBATCH --exclude=node[1-2]",
        '#SBATCH --account "my lab"',
    ]
    assert not any("--signal" in line or "--no-kill" in line for line in lines)


def test_an_option_of_the_submission_wins_over_the_variable(tmp_path: Path) -> None:
    """As with sbatch: a variable goes before the script's lines, and the command line before the variable."""
    path = tmp_path / "job.sbatch"
    path.write_bytes(SCRIPT)
    spec = spec_of(path, time="5m", sbatch_options=("-A", "lab", "--requeue"))
    wanted = plan(spec, read_template("script"), now_s=0.0, directory=str(tmp_path))
    kept = {"SBATCH_PARTITION": "cpu", "SBATCH_JOB_NAME": "x", "SBATCH_EXPORT": "A,B", "TIME": "1", "A": "2"}
    lost = {"SBATCH_TIMELIMIT": "1", "SBATCH_ACCOUNT": "mine", "SBATCH_NO_REQUEUE": "1"}
    assert wanted.environment({**kept, **lost}) == kept
    again = wanted._replace(own_script=None, own_names=None)  # as it is stored
    assert not {"SBATCH_PARTITION", *lost} & set(again.environment({**kept, **lost}))
    assert wanted.environment({"SBATCH_WAIT": "1"}) == {}
    is_requeued = [
        "SBATCH_NO_REQUEUE"
        not in plan(spec_of(path, **more), read_template("script"), now_s=0.0).environment(lost)
        for more in ({}, {"max_requeues": 0}, {"sbatch_options": ("--no-requeue",), "max_requeues": None})
    ]
    assert is_requeued == [True, False, True]  # the last one has the option itself
    assert wanted.environment({"SBATCH_ARRAY_INX": "1-3"}) == {"SBATCH_ARRAY_INX": "1-3"}


def test_the_needs_of_the_script_are_known_where_suspect_nodes_are_left_out(tmp_path: Path) -> None:
    """Else a job of all nodes of a partition would be refused; a form that is not known here is sbatch's."""
    path = tmp_path / "job.sbatch"
    path.write_bytes(b"#!/bin/bash\n#SBATCH -N 2-4 -w node[1-2] --constraint=a100\n")
    spec = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path)).spec
    assert (spec.node_range.high, spec.nodelist, spec.constraint) == (4, "node[1-2]", "a100")
    path.write_bytes(b"#!/bin/bash\n#SBATCH --nodes=2,4\n")
    wanted = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path))
    assert wanted.script.count("--nodes=") == 1


def test_the_comment_of_the_script_is_kept(tmp_path: Path) -> None:
    """Some sites charge by it; the token of the submission stands before it."""
    path = tmp_path / "job.sbatch"
    path.write_bytes(b"#!/bin/bash\n#SBATCH --comment='project 7'\n")
    wanted = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path))
    assert f"--comment={wanted.token} project 7" in wanted.sbatch_arguments


@pytest.mark.parametrize("option", ["--no-requeue", "--no-req"])
def test_a_script_that_must_not_be_requeued_never_is(tmp_path: Path, option: str) -> None:
    """Its own --no-requeue is a budget of no requeue, so that no other job takes its place, either."""
    path = tmp_path / "job.sbatch"
    path.write_text(f"#!/bin/bash\n#SBATCH {option}\n")
    wanted = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path))
    assert wanted.spec.max_requeues == 0
    assert "--max-requeues=0" in wanted.script


@pytest.mark.parametrize(
    "fields",
    [
        {"hang_timeout": "3m"},
        {"max_restarts": 2},
        {"container": ("apptainer", "exec", "x.sif")},
        {"setup": ("module load x",)},
        {"env": {"A": "1"}},
        {"checkpoint_lead": 60},
        {"workers_per_node": 2},
    ],
)
def test_settings_of_workers_are_refused(fields: dict[str, Any]) -> None:
    """One message names the setting; the script has to do it itself."""
    with pytest.raises(InputError, match="runs as it is") as caught:
        spec_of(Path("job.sbatch"), **fields)
    assert caught.value.where == next(iter(fields))


def test_the_mode_of_an_array_of_agents_is_refused(tmp_path: Path) -> None:
    """The job would be one without tasks; an array of the script is an option of sbatch."""
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n")
    wanted = wanted_job(str(path), {"mode": "array"}, ())
    with pytest.raises(InputError, match="the job script runs as it is") as caught, wanted:
        pass
    assert ("--mode", True) == (caught.value.where, "hpc-elastic sbatch --array" in caught.value.fix)


@pytest.mark.parametrize(
    ("line", "options", "behind"),
    [
        ("-p gpu -N2 job -p x", "-p gpu -N2", "job -p x"),
        ("--time=10 --exclusive -H job", "--time=10 --exclusive -H", "job"),
        ("--part gpu job", "--part gpu", "job"),
        ("--of-a-plugin value job", "--of-a-plugin value", "job"),
        ("--of-a-plugin job a", "--of-a-plugin", "job a"),
        ("-- job --help", "", "job --help"),
        ("job", "", "job"),
        ("-p gpu", "-p gpu", ""),
    ],
)
def test_a_line_of_sbatch_is_read_as_sbatch_reads_it(line: str, options: str, behind: str) -> None:
    """Options up to the script are sbatch's; all words behind it are the script's."""
    call = parse_call(line.split(), lambda word: word == "job")
    assert call.options == tuple(options.split())
    assert " ".join((call.script, *call.arguments)).strip() == behind


def test_settings_of_ours_and_the_output_may_stand_in_the_line() -> None:
    """They are no options of sbatch, so they go to the run."""
    call = parse_call(
        ["--parsable", "--max-time-limits", "5", "--no-resubmit", "--wrap=hostname"], lambda _: False
    )
    assert (call.is_parsable, call.wrap, call.options) == (True, "hostname", ())
    assert call.given == {"max_time_limits": "5", "resubmit": False}


def test_components_of_a_heterogeneous_job_are_refused() -> None:
    """No script has the name that stands between them."""
    with pytest.raises(InputError, match="heterogeneous"):
        parse_call(["-N1", ":", "-N2", "job"], lambda _: True)


@pytest.mark.parametrize("word", ["--wait", "-W", "--test-only", "--help"])
def test_an_option_that_queues_no_job_is_refused(word: str) -> None:
    """hpc-elastic would wait for it, or get no job."""
    with pytest.raises(InputError, match="of sbatch"):
        parse_call([word, "job"], lambda _: True)


# The end of a job


EPOCH = Epoch(0, 0, 0, 0)
BUDGETS = RequeueBudgets()


def started() -> RunState:
    """Return the state of a run whose script runs on two nodes."""
    start = Start(RunPaths("/run"), EPOCH, "7", 2, local=False, srun_exit_code=0, node_list="node[1-2]")
    state = RunState()
    for entry in own_script.start_records(start, 1):
        state = apply(state, entry)
    return state


def facts_of(code: int, *, run: RunState | None = None, script: ScriptEnd | None = None, **job: Any) -> Facts:
    """Return the facts at the end of a script; the job runs unless `job` tells otherwise."""
    usual = JobFacts(JobState.RUNNING, "RUNNING", "None", 0, may_requeue=True, nodes=2, preempted=False)
    found = started() if run is None else run
    return Facts(found, EPOCH, usual._replace(**job), "7", code, script=script or ScriptEnd())


COMPLETING: dict[str, Any] = {"state": JobState.COMPLETING, "word": "COMPLETING"}
FAILURE = {"stderr_tail": "boom"}


def test_a_start_is_on_record_with_all_nodes() -> None:
    """The state says that a script runs, and no worker of ours."""
    running = started().running
    assert running is not None
    assert running.is_script
    assert [member.node for member in running.members] == ["node1", "node2"]


def test_a_script_that_ends_well_is_done() -> None:
    """With exit code 0, where Slurm lets the job run."""
    choice = lifecycle.decide(facts_of(0), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (choice.code, choice.record.decision) == (0, Decision.DONE)


@pytest.mark.parametrize("code", [1, 80, 127, 143])
def test_a_script_that_fails_ends_the_run_with_its_code(code: int) -> None:
    """With the end of its output as the cause, and no requeue."""
    choice = lifecycle.decide(facts_of(code, script=ScriptEnd(failure=FAILURE)), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (choice.code, choice.record.decision, choice.record.failure) == (code, Decision.FAILED, FAILURE)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (facts_of(0, warned=True), Cause.PREEMPTION),
        (facts_of(143, warned=True), Cause.PREEMPTION),
        (facts_of(1, script=ScriptEnd(lost=("node2",))), Cause.NODE_LOSS),
        (facts_of(0, reason="TimeLimit", **COMPLETING), Cause.TIME_LIMIT),
        (facts_of(143, reason="NodeDown", **COMPLETING), Cause.NODE_LOSS),
        (facts_of(0, preempted=True, **COMPLETING), Cause.PREEMPTION),
        (facts_of(0, script=ScriptEnd(runs=True), reason="TimeLimit", **COMPLETING), Cause.TIME_LIMIT),
    ],
)
def test_an_end_that_slurm_has_caused_is_a_requeue(facts: Facts, cause: Cause) -> None:
    """With any exit code: a script goes on behind a program that SIGTERM has ended."""
    choice = lifecycle.decide(facts, BUDGETS)
    assert isinstance(choice, Requeue)
    assert choice.cause is cause


def test_a_requeue_by_the_script_or_slurm_is_counted_and_not_done_again() -> None:
    """The job is in the queue already."""
    choice = lifecycle.decide(facts_of(0, restarts=1), BUDGETS)
    assert isinstance(choice, Leave)
    assert choice.requeued is Cause.REQUEUE


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_cancelled_script_stays_so(code: int) -> None:
    """Whatever its exit code is."""
    choice = lifecycle.decide(facts_of(code, **COMPLETING), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert choice.record.decision is Decision.CANCELLED


def test_a_signal_alone_changes_nothing() -> None:
    """While the script runs and Slurm lets the job run, nothing is decided."""
    choice = lifecycle.decide(facts_of(143, script=ScriptEnd(runs=True)), BUDGETS)
    assert isinstance(choice, Leave)
    assert (choice.code, choice.requeued, choice.is_open) == (0, None, False)


def test_what_was_decided_while_the_script_saved_stays() -> None:
    """Its end, and the requeue, are on record once."""
    state = apply(started(), Requeued(EPOCH, Cause.TIME_LIMIT))
    choice = lifecycle.decide(facts_of(0, run=state, reason="TimeLimit", **COMPLETING), BUDGETS)
    assert isinstance(choice, Leave)
    assert choice.requeued is None


def test_a_spent_budget_holds_it() -> None:
    """Each cause has its own."""
    choice = lifecycle.decide(facts_of(1, warned=True), RequeueBudgets(max_preemptions=0))
    assert isinstance(choice, Hold)
    assert choice.record is not None
    assert choice.record.budget is Budget.PREEMPTIONS


def test_a_start_of_a_run_that_has_ended_does_not_begin() -> None:
    """As after `stop` while the job waited; one that may begin is told by nothing."""
    ended = apply(started(), RunEnded(Decision.STOPPED, 0, "hpc-elastic stop", None))
    assert isinstance(lifecycle.refuse_start(facts_of(0, run=ended)), Exit)
    assert lifecycle.refuse_start(facts_of(0)) is None
    done = apply(started(), RunEnded(Decision.DONE, 0, "", None))
    again = facts_of(0, run=done)._replace(epoch=Epoch(1, 0, 0, 0))
    assert isinstance(lifecycle.refuse_start(again), Exit)
    asked = apply(started(), DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "stop"))
    assert lifecycle.refuse_start(facts_of(0, run=asked)) is None


def test_the_options_of_a_submission_are_those_of_the_first_component(tmp_path: Path) -> None:
    """Those of the further components of a heterogeneous job stand below lines of their own, behind them."""
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 4 -p big\n")
    wanted = plan(spec_of(path, time="5m"), read_template("script"), now_s=0.0, directory=str(tmp_path))
    lines = [line for line in wanted.script.splitlines() if line.startswith("#SBATCH")]
    assert lines[1] == "#SBATCH -N 1"
    assert "#SBATCH --time=00:05:00" in lines
    assert lines[-2:] == ["#SBATCH hetjob", "#SBATCH -N 4 -p big"]
    assert (wanted.spec.nodes, wanted.spec.partition) == ("1", None)


@pytest.mark.parametrize(("given", "most"), [(None, 10), (0, 0), (50, 50)])
def test_a_script_that_never_ends_does_not_come_back_for_ever(
    tmp_path: Path, given: int | None, most: int
) -> None:
    """Nothing is known of its progress, so the default is a bound."""
    path = tmp_path / "job.sbatch"
    path.write_bytes(SCRIPT)
    wanted = plan(
        spec_of(path, max_time_limits=given), read_template("script"), now_s=0.0, directory=str(tmp_path)
    )
    assert wanted.spec.max_time_limits == most
    assert f"--max-time-limits={most}" in wanted.script


def test_a_variable_of_sbatch_may_ask_for_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run directory has room for its tasks, as sbatch reads the variable."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n")
    for value, is_array in (("0-3", True), ("", False)):
        monkeypatch.setenv("SBATCH_ARRAY_INX", value)
        wanted = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path))
        assert wanted.is_array == is_array


@pytest.mark.parametrize("line", ["--array=0-9%2", "-a 1,2", "--arr 1-3"])
def test_an_array_is_known_by_the_lines_of_the_script(tmp_path: Path, line: str) -> None:
    """So that its user is told what becomes of the tasks."""
    path = tmp_path / "job.sbatch"
    path.write_text(f"#!/bin/bash\n#SBATCH {line}\n")
    wanted = plan(spec_of(path), read_template("script"), now_s=0.0, directory=str(tmp_path))
    assert wanted.is_array
    create(wanted, now_s=0.0)
    assert is_array_of_script(wanted.paths)
    discard(wanted.paths, with_root=True)
    assert not os.path.exists(wanted.paths.root)
    with pytest.raises(InputError, match="chain = 3"):
        plan(spec_of(path, chain=3), read_template("script"), now_s=0.0, directory=str(tmp_path))
    assert f"#SBATCH {line}" in wanted.script
