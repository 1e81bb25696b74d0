"""How the answers of Slurm's commands are read, one fact at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.answers import ListedNode, SlurmTask, UnclearAnswerError
from hpc_elastic.slurm.client.parse import JobState

SQUEUE = ("squeue", "--all", "show", "job")
_ROW = {
    "JobId": "7",
    "ArrayJobId": "N/A",
    "ArrayTaskId": "N/A",
    "JobState": "RUNNING",
    "Reason": "None",
    "Restarts": "0",
    "ExitCode": "0",
    "SubmitTime": "2026-11-21T08:00:00",
    "EligibleTime": "2026-11-21T08:00:01",
    "StartTime": "2026-11-21T08:00:02",
    "EndTime": "2026-11-21T08:00:03",
    "PreemptTime": "N/A",
    "NodeList": "n1",
    "Comment": "(null)",
}


def read(**fields: str) -> dict[str, str]:
    """Return the fields of a job in squeue's table."""
    columns = answers._COLUMNS
    (found,) = answers.read_jobs([[{**_ROW, **fields}.get(name, "") for name in columns]])
    return found


@pytest.mark.parametrize(
    ("told", "name", "value"),
    [
        ({}, "JobId", "7"),
        ({}, "NodeList", "n1"),
        ({"Reason": "bad\tnode of\nmine"}, "Reason", "bad_node_of_mine"),
        ({"ExitCode": "256"}, "ExitCode", "1:0"),
        ({}, "ReqNodeList", "(null)"),
        ({"ReqNodeList": "n3"}, "ReqNodeList", "n3"),
        ({}, "SubmitTime", "2026-11-21T08:00:00"),
        ({"SubmitTime": "N/A"}, "SubmitTime", "Unknown"),
        ({"EligibleTime": "NONE"}, "EligibleTime", "Unknown"),
        ({"StartTime": "NOT_SET"}, "StartTime", "Unknown"),
        ({"EndTime": "N/A"}, "EndTime", "Unknown"),
        ({}, "PreemptTime", "None"),
        ({"PreemptTime": "2026-11-21T08:00:03"}, "PreemptTime", "2026-11-21T08:00:03"),
        ({"ArrayJobId": "7"}, "ArrayJobId", None),
        ({"ArrayJobId": "7", "ArrayTaskId": ""}, "ArrayTaskId", None),
        ({"ArrayJobId": "7", "ArrayTaskId": "3"}, "ArrayJobId", "7"),
        ({"ArrayJobId": "7", "ArrayTaskId": "3"}, "ArrayTaskId", "3"),
        ({}, "Comment", None),
        ({"Comment": "mine"}, "Comment", "mine"),
    ],
)
def test_a_job_of_squeue_has_the_fields_of_scontrol(
    told: dict[str, str], name: str, value: str | None
) -> None:
    """With its values, as scontrol prints them."""
    assert value == read(**told).get(name)


@pytest.mark.parametrize(
    "told", [{"JobId": "x"}, {"JobId": "7 8"}, {"JobState": "running"}, {"JobState": ""}]
)
def test_a_row_that_is_no_job_is_refused(told: dict[str, str]) -> None:
    """By its number or its state."""
    with pytest.raises(UnclearAnswerError, match="a job "):
        read(**told)


def test_an_unclear_answer_names_the_command_and_the_fix() -> None:
    """Its own one, or the usual one."""
    usual = UnclearAnswerError(SQUEUE, "why")
    assert (SQUEUE, 0, "why") == (usual.argv, usual.exit_code, usual.stderr)
    assert (
        "what squeue show tells cannot be read for sure: why\n  fix: compare with the output of squeue"
        in (str(usual))
    )
    assert str(UnclearAnswerError(SQUEUE, "why", "mend it")).endswith("why\n  fix: mend it")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0:0"),
        ("256", "1:0"),
        ("9", "0:9"),
        ("265", "0:9"),
        ("65535", "0:127"),
        ("65280", "255:0"),
        ("130:15", "130:15"),
        ("x", "0:0"),
        ("", "0:0"),
        ("1:2:3", "0:0"),
        ("4294967296", "0:0"),
    ],
)
def test_an_exit_code_is_code_and_signal(text: str, shown: str) -> None:
    """Also where it is one number; what is none is no failure."""
    assert shown == answers.exit_text(text)


def test_a_table_has_a_mark_behind_each_cell() -> None:
    """Its columns are letters, or names; lines between its rows are left out."""
    short, long = answers.Form(("i", "x")), answers.Form(("name", "state"), is_long=True)
    assert ("--format=%i+%x+", "--Format=name:0+,state:0+") == (short.option("+"), long.option("+"))
    text = "7+a+\nCLUSTER: one\n8+b\nc+\n"
    assert [("7", "a"), ("8", "b\nc")] == short.rows(text, "+", SQUEUE)
    assert [] == short.rows("", "+", SQUEUE)
    with pytest.raises(UnclearAnswerError, match="3 cells in rows of 2"):
        short.rows("7+a+8+", "+", SQUEUE)
    for form, option in (
        (answers.STATES, "--Format=nodelist:0+,statecomplete:0+,reason:0+"),
        (answers.OLD_STATES, "--Format=nodelist:0+,statelong:0+,reason:0+"),
        (answers.COMMENTS, "--format=%F+%k+"),
    ):
        assert option == form.option("+")
    assert answers.JOBS.option("+").startswith("--Format=jobid:0+,arrayjobid:0+,")


def test_questions_leave_out_the_settings_of_their_user() -> None:
    """Other variables stay; times and lists are in one form."""
    given = {
        "SQUEUE_PARTITION": "x",
        "SINFO_FORMAT": "x",
        "SCONTROL_ALL": "1",
        "PATH": "/bin",
        "SLURM_CONF": "c",
    }
    assert {"PATH": "/bin", "SLURM_CONF": "c", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"} == (
        answers.plain_environment(given)
    )


ROWS = [("n1", "idle", "none"), ("n2", "idle+drain", "bad disk"), ("n3", "mixed+drain", "none")]


def test_what_sinfo_tells_of_nodes() -> None:
    """Their states and reasons; `none` is no reason."""
    assert {"n2": "bad disk", "n3": ""} == answers.draining(ROWS)
    assert {"n1": ("idle", ""), "n2": ("idle+drain", "bad disk"), "n3": ("mixed+drain", "")} == (
        answers.states_of(ROWS)
    )
    assert answers.has_states(ROWS)
    assert not answers.has_states([*ROWS, ("n4", "none\nn5", "x")])


@pytest.mark.parametrize(
    ("state", "down"),
    [("idle", False), ("down", True), ("idle+not_responding", True), ("idle*", True), ("mixed+drain", False)],
)
def test_a_node_that_slurm_has_given_up_is_down(state: str, *, down: bool) -> None:
    """One of them is enough."""
    assert down is bool(answers.down_nodes([("n1", "idle", "none"), ("n2", state, "none")]))


@pytest.mark.parametrize(
    ("words", "reason", "up_since", "in_job", "told"),
    [
        ("idle", "", 5.0, False, "Slurm took it from the job though it was up"),
        ("idle", "", 5.0, True, None),
        ("idle", "", 10.0, False, None),
        ("idle", "", 11.0, False, None),
        ("idle", "", None, False, None),
        ("DOWN", "", 5.0, True, "it was set down in Slurm"),
        ("powering_down", "", 5.0, True, "it was set down in Slurm"),
        ("powered", "", 5.0, True, "it was set down in Slurm"),
        ("down", "bad disk", 5.0, True, "it was set down in Slurm (bad disk)"),
        ("down+not_responding", "bad disk", 5.0, False, None),
        ("unknown", "", 5.0, False, None),
        ("down*", "", 5.0, False, None),
    ],
)
def test_a_node_that_was_up_was_taken_away(
    words: str, reason: str, up_since: float | None, *, in_job: bool, told: str | None
) -> None:
    """One that does not answer, or has started anew, was lost."""
    assert told == answers.taken_away(answers.LostNodeState(words, reason, up_since, in_job), 10.0)


@pytest.mark.parametrize(
    ("state", "is_up"),
    [
        ("idle", True),
        ("IDLE~", True),
        ("mixed-", True),
        ("allocated+", True),
        ("idle*", False),
        ("down", False),
        ("DRAINED", False),
        ("draining@", False),
        ("fail", False),
        ("unknown", False),
        ("maint", False),
    ],
)
def test_jobs_can_run_on_a_node_that_is_up(state: str, *, is_up: bool) -> None:
    """Now, or when others have ended."""
    assert is_up is ListedNode("n1", state).is_up


@pytest.mark.parametrize(
    ("constraint", "features"),
    [
        (None, set()),
        ("", set()),
        ("(null)", set()),
        ("a", {"a"}),
        ("a&b", {"a", "b"}),
        ("a, b", {"a", "b"}),
        ("a|b", None),
        ("[a&b]", None),
        ("a&b*2", None),
    ],
)
def test_features_that_a_constraint_asks_for(constraint: str | None, features: set[str] | None) -> None:
    """None where it says more than that all of them are wanted."""
    assert features == answers.features_of(constraint)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("", 0),
        ("gpu", 1),
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1),nvme:1", 4),
        ("nvme:2,gpu:a100:4(S:0,1)", 4),
        ("gpu:a100:4(S:0,gpu:9),gpu:v100:2", 6),
        ("gpu:a100", 1),
        ("gpu:0", 0),
        ("gpus:3", 0),
    ],
)
def test_gpus_are_counted_in_the_features_of_a_node(gres: str, gpus: int) -> None:
    """A comma in parentheses separates nothing."""
    assert gpus == answers.gpus_in(gres)


def test_nodes_of_partitions() -> None:
    """Each once; of the default one if none is named."""
    rows = [
        ("n1", "a*", "idle", "x,y", "gpu:2"),
        ("n1", "b", "idle", "x,y", "gpu:2"),
        ("n2", "b", "down*", "(null)", "(null)"),
        ("n3", "c", "idle", "x", ""),
    ]
    n1 = ListedNode("n1", "idle", frozenset({"x", "y"}), 2)
    n2, n3 = ListedNode("n2", "down*"), ListedNode("n3", "idle", frozenset({"x"}))
    listed = answers.parse_nodes(rows)
    assert [(n1, "a", True), (n1, "b", False), (n2, "b", False), (n3, "c", False)] == listed
    for partitions, nodes in ((None, [n1]), ("", [n1]), ("b", [n1, n2]), ("a,b", [n1, n2]), ("c", [n3])):
        assert nodes == answers.in_partitions(listed, partitions)


def task_row(
    array: str = "7", number: str = "1", comment: str = "(null)", state: str = "RUNNING"
) -> Sequence[str]:
    """Return a row of the table of tasks."""
    return (array, number, state, "n1", "None of\nthese", comment)


@pytest.mark.parametrize(
    ("row", "token", "is_ours"),
    [
        (task_row(), "", True),
        (task_row(array="8"), "", False),
        (task_row(array="8", comment="t"), "t", True),
        (task_row(array="8", comment="t more"), "t", True),
        (task_row(array="8", comment="tt"), "t", False),
        (task_row(array="8", comment=""), "", False),
        (task_row(array="8", comment="t"), "", False),
        (task_row(number="N/A"), "", False),
        (task_row(array="x"), "", False),
        (task_row(array="x", comment="t"), "t", False),
    ],
)
def test_a_task_is_of_the_run_by_its_array_or_its_comment(
    row: Sequence[str], token: str, *, is_ours: bool
) -> None:
    """Without a number it is no task."""
    found = answers.parse_tasks([row], token=token, array="7")
    expected = [SlurmTask(row[0], int(row[1]), JobState.RUNNING, "n1", "None_of_these")] if is_ours else []
    assert expected == found


def test_a_task_runs_or_waits() -> None:
    """Or neither; its name has both numbers, and arrays are in the order of theirs."""
    for state, runs, waits in (
        (JobState.RUNNING, True, False),
        (JobState.SUSPENDED, True, False),
        (JobState.PENDING, False, True),
        (JobState.REQUEUED, False, True),
        (JobState.COMPLETING, False, False),
    ):
        task = SlurmTask("12", 3, state)
        assert ("12_3", runs, waits) == (task.name, task.is_running, task.is_waiting)
    tasks = [SlurmTask(array, 0, JobState.PENDING) for array in ("12", "9", "12")]
    assert ("9", "12") == answers.arrays_of(tasks)


def test_the_liveliest_task_stands_for_its_array() -> None:
    """Of none there is none."""
    jobs = [{"JobState": word} for word in ("PENDING", "COMPLETING", "RUNNING", "COMPLETED")]
    assert jobs[2] == answers.liveliest(jobs)
    assert jobs[0] == answers.liveliest([jobs[3], jobs[0]])
    assert answers.liveliest([]) is None


def test_jobs_are_found_by_the_beginning_of_their_comment() -> None:
    """Each once, by whole words."""
    rows = [("7", "t"), ("8", "t more"), ("7", "t"), ("9", "tt"), ("10", "a t")]
    assert ["7", "8"] == answers.with_comment(rows, "t")


def test_the_size_of_an_array_is_bounded() -> None:
    """Where it is told."""
    assert 1001 == answers.max_array_size("MaxArraySize            = 1001\n")
    assert answers.max_array_size("MaxJobCount = 1001\n") is None
    assert answers.max_array_size("MaxArraySize = many\n") is None


def job_text(job_id: str, task: str = "", more: str = "") -> str:
    """Return a job as scontrol prints it."""
    array = f"ArrayJobId=7 ArrayTaskId={task} " if task else ""
    return f"JobId={job_id} {array}JobName=x JobState=RUNNING Reason=None Requeue=1 Restarts=0{more}"


@pytest.mark.parametrize(
    ("texts", "name", "job_id"),
    [
        ([], "7", None),
        ([job_text("7")], "7", "7"),
        ([job_text("7")], "another", "7"),
        ([job_text("8", "0"), job_text("9", "1")], "7_1", "9"),
        ([job_text("8", "0"), job_text("9", "1")], "8", "8"),
        ([job_text("8", "0"), job_text("9", "1"), job_text("7", "2")], "7_0", "8"),
    ],
)
def test_a_job_is_found_by_its_name(texts: list[str], name: str, job_id: str | None) -> None:
    """Among several; a single one needs no name."""
    assert job_id == answers.job("\n".join(texts), name).get("JobId")


def test_a_job_that_cannot_be_told_from_others_is_refused() -> None:
    """Also where a field is missing."""
    several = "\n".join([job_text("8", "0"), job_text("9", "1")])
    with pytest.raises(UnclearAnswerError, match="0 of 2 jobs are 7_5"):
        answers.job(several, "7_5")
    with pytest.raises(UnclearAnswerError, match="2 of 2 jobs are 7_0"):
        answers.job("\n".join([job_text("8", "0"), job_text("9", "0")]), "7_0")
    for text, missing in (
        ("JobId=7 JobState=RUNNING Reason=None Requeue=1", "Restarts= is missing"),
        (" x JobId=7 JobState=RUNNING Reason=None Requeue=1 Restarts=0", "JobId= is missing"),
    ):
        with pytest.raises(UnclearAnswerError, match=missing):
            answers.job(text, "7")
    fields = answers.job(job_text("8", "3"), "8")
    assert ("7", "3", "RUNNING") == (fields["ArrayJobId"], fields["ArrayTaskId"], fields["JobState"])


def test_fields_that_stand_twice_or_in_another_order_are_refused() -> None:
    """A text of the job's owner may look like one; the advice is to change it."""
    for text, why in (
        (job_text("7", more=" JobState=FAILED"), "JobState= stands there more than once"),
        ("JobId=7 Restarts=0 JobState=RUNNING Reason=None Requeue=1", "not in Slurm's order"),
    ):
        with pytest.raises(UnclearAnswerError, match=why) as error:
            answers.job(text, "7")
        assert error.value.fix.startswith("give the job a name")


def test_gpus_on_the_nodes_of_a_job() -> None:
    """Each node has those of its line."""
    text = (
        "JobId=7\n   Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1)\n"
        "   Nodes=n3 CPU_IDs=0-3 Mem=0 GRES=gpu:1(IDX:0),gpu:v100:3(IDX:1-3)\n"
        "   Nodes=n4 CPU_IDs=0-3 Mem=0 GRES=\n"
    )
    assert {"n1": 2, "n2": 2, "n3": 4, "n4": 0} == answers.gpus_on_nodes(text)
    with pytest.raises(UnclearAnswerError, match="node n4 occurs twice"):
        answers.gpus_on_nodes(f"{text}   Nodes=n4 CPU_IDs=0-3 Mem=0 GRES=gpu:1\n")


def test_a_node_a_partition_and_the_settings() -> None:
    """By their names; of partitions the one that is asked for, or the default one."""
    assert {"NodeName": "n1", "State": "IDLE"} == answers.node("NodeName=n1 Arch=x State=IDLE Extra=1\n")
    text = "x\nPartitionName=a Default=NO MaxNodes=4\nPartitionName=b Default=YES MaxNodes=8\nDefault=YES\n"
    assert {"PartitionName": "b", "Default": "YES", "MaxNodes": "8"} == answers.partition(text, "")
    assert "4" == answers.partition(text, "a")["MaxNodes"]
    assert {} == answers.partition("", "a") == answers.partition("", "")
    assert {"A": "1 2", "B": "", "C": "5"} == answers.config("A = 1 2 \nB=\nC\t= 5\nA = 3\n no = 4\n")
