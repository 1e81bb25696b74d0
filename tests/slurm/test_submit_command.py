"""``hpc-elastic submit`` and ``render`` as people use them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.errors import SlurmCommandError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, complete_marks, write_mark
from hpc_elastic.slurm.client.commands import SlurmTimeoutError, hint_for
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from tests.slurm.conftest import StandIn

GOOD = [
    "--nodes",
    "2:4",
    "--gpus-per-node",
    "8",
    "--cpus-per-node",
    "64",
    "--time",
    "4h",
    "--allow-local-run-dir",
]
WORKER = ["--", "python3", "train.py", "--lr", "0.1"]

Capture = pytest.CaptureFixture[str]


def test_submit_tells_the_job_the_directory_and_what_to_do_next(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """Three commands that can be copied."""
    assert 0 == main(["submit", *GOOD, "--run-dir", "my run", *WORKER])
    said = capsys.readouterr()
    root = shlex.quote(f"{workdir}/my run")
    assert said.out.splitlines() == [
        "train is queued as job 1000",
        f"run directory: {root}",
        f"  hpc-elastic status {root}",
        f"  hpc-elastic logs -f {root}",
        f"  hpc-elastic stop {root}",
    ]
    assert "" == said.err


def test_the_arguments_of_a_job_script_are_told(workdir: Path, slurm_dir: StandIn, capsys: Capture) -> None:
    """Whoever writes an option of `submit` behind the script sees that it is none."""
    (workdir / "job.sbatch").write_text("#!/bin/bash\n")
    assert 0 == main(["submit", "--allow-local-run-dir", "job.sbatch", "--", "--dry-run", "a b"])
    told = "its arguments: --dry-run 'a b'  (options of the submission stand before it)"
    assert told in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("words", [["--dry-run"], ["5", "--dry-run"], ["--time=2h"], ["--nodes", "2"]])
def test_an_option_behind_a_job_script_queues_nothing(
    workdir: Path, slurm_dir: StandIn, capsys: Capture, words: list[str]
) -> None:
    """The script would get it; which of both is meant has to be told."""
    (workdir / "job.sbatch").write_text("#!/bin/bash\n")
    assert 2 == main(["submit", "--allow-local-run-dir", "job.sbatch", *words])
    said = capsys.readouterr().err
    assert "is an option of this command, and stands behind the job script" in said
    assert "fix: write it before the job script; if it is for the script, write --" in said
    assert not (workdir / "hpc_elastic_runs").exists()


def test_the_default_run_directory_is_named_after_the_script_and_time(
    workdir: Path, slurm_dir: StandIn
) -> None:
    """So that two runs do not meet by accident."""
    assert 0 == main(["submit", *GOOD, *WORKER])
    assert 0 == main(["submit", *GOOD, *WORKER])
    names = os.listdir(workdir / "hpc_elastic_runs")
    assert 2 == len(names)
    assert all(name.startswith("train-2") for name in names)


def test_file_options_and_command_make_one_job(workdir: Path, slurm_dir: StandIn) -> None:
    """Options win over the file; what follows -- is not parsed."""
    (workdir / "train.toml").write_text(
        'nodes = 2\ntime = "1h"\nexclusive = true\nallow_local_run_dir = true\n[sbatch]\nnice = 5\n'
    )
    assert 0 == main(
        [
            "submit",
            "train.toml",
            "-N",
            "3",
            "-o",
            "nice=7",
            "-o",
            "hold",
            "--run-dir",
            "r",
            *WORKER,
            "--",
            "--nodes",
            "9",
        ]
    )
    script = (workdir / "r" / "job.sbatch").read_text()
    for line in ("--nodes=3", "--nice=7", "--hold", "--time=01:00:00", "--exclusive"):
        assert f"#SBATCH {line}\n" in script
    assert "_he_worker=(python3 train.py --lr 0.1 -- --nodes 9)\n" in script


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: command: there is no worker command\n  fix: give it after --"),
        (["--nodes", "3:1", *WORKER], "error: --nodes: nodes = '3:1' asks for at least 3"),
        (["--nodse", "3", *WORKER], "error: unrecognized arguments: --nodse"),
        (
            ["--mem", "1G", "--mem-per-cpu", "1G", *WORKER],
            "error: --mem-per-cpu: mem and mem_per_cpu contradict",
        ),
        (["-o", "ntasks=3", *WORKER], "error: -o ntasks: the sbatch option --ntasks cannot be given"),
        (["-o", "licences=3", *WORKER], "error: -o licences: sbatch has no option --licences"),
        (["-o", "p=a", "-p", "b", *WORKER], "error: -o p: --partition is given twice"),
        (["-e", "novalue", *WORKER], "error: -e: env = 'novalue' is not NAME=VALUE"),
        (["train.py"], "error: train.py: train.py is a script and not a job file"),
        (["missing.toml"], "error: missing.toml: the job file missing.toml does not exist"),
        (["a.toml", "python3", "train.py"], "the worker command goes after --"),
        (["--", "python3", "trian.py"], "the worker file trian.py does not exist"),
        (["--local", "0", *WORKER], "error: --local: '0' is less than 1"),
        (["--local", "3", "--nodes", "4", *WORKER], "error: --local: --local 3 is outside nodes = 4"),
        (["--resume", "nowhere"], "'nowhere' is neither a directory nor a run id"),
        (["--resume", "/no/where"], "error: --resume: the directory /no/where does not exist"),
        (["--", "/tmp"], "error: command: the program /tmp is a directory"),
        (["--nodes", "2", "train.py", "--lr", "3"], "hpc-elastic submit --nodes 2 -- train.py --lr 3"),
        (["--gres=gpu:2", *WORKER], "options of sbatch go into -o: -o gres=gpu:2"),
        (["--mem-per-gpu", "3G", *WORKER], "-o mem-per-gpu=3G"),
        (["--hold", *WORKER], "-o hold\n"),
        (["--array", "1-3", *WORKER], "the sbatch option --array cannot be given: one run is one job"),
        (["--chdir", "x", *WORKER], "write --workdir"),
        (["--redirects", "9", *WORKER], "error: --redirects: redirects = '9' names no streams"),
        (["--name", "", *WORKER], "error: --name: '' cannot be a job name"),
        (["--env", "A B=1", *WORKER], "error: -e: env = 'A B' is not the name"),
        (["-o", "foo=4", "--", "nothing"], "error: -o foo: sbatch has no option --foo"),
        (["--resume", "nowhere", "--nodes", "3"], "error: --resume: --resume queues the stored job again"),
        (["--resume", "nowhere", "--allow-local-run-dir"], "; --allow-local-run-dir cannot change it\n"),
        (["--run-dir", "train.py/x", *WORKER], "train.py is a file"),
    ],
    ids=repr,
)
def test_what_is_wrong_is_one_block_on_stderr(
    workdir: Path, slurm_dir: StandIn, capsys: Capture, words: list[str], said: str
) -> None:
    """Exit code 2, a fix, no traceback, and nothing is queued or left behind."""
    assert 2 == main(["submit", *words])
    shown = capsys.readouterr()
    assert said in shown.err
    assert "\n  fix: " in shown.err
    assert "Traceback" not in shown.err
    assert "" == shown.out
    assert [] == slurm_dir.submissions()
    assert ["train.py"] == os.listdir(workdir)


def test_an_error_in_the_job_file_shows_its_line(workdir: Path, slurm_dir: StandIn, capsys: Capture) -> None:
    """File, line number, the line, and the fix."""
    (workdir / "job.toml").write_text('command = "python3 train.py"\ngpus_pre_node = 8\n')
    assert 2 == main(["submit", "job.toml"])
    assert (
        "error: job.toml:2: there is no setting 'gpus_pre_node'\n    gpus_pre_node = 8\n"
        "  fix: did you mean 'gpus_per_node' or 'cpus_per_node' or 'workers_per_node'?\n"
    ) == capsys.readouterr().err


def test_no_slurm_is_said_in_one_block(workdir: Path, no_slurm: None, capsys: Capture) -> None:
    """With the way to try it without."""
    for flags in (GOOD, ["--run-dir", "/dev/shm/not-shared"]):  # which is not the first thing to mend
        assert 2 == main(["submit", *flags, *WORKER])
        shown = capsys.readouterr().err
        assert "error: 'sbatch' is not on PATH" in shown
        assert "--local" in shown


def test_slurms_refusal_is_shown_in_its_own_words(workdir: Path, slurm_dir: StandIn, capsys: Capture) -> None:
    """And the next try works."""
    slurm_dir.behave("refuse")
    assert 2 == main(["submit", *GOOD, "--skip-sbatch-test", "--run-dir", "r", *WORKER])
    assert "sbatch: error: Batch job submission failed: Invalid account" in capsys.readouterr().err
    assert 0 == main(["submit", *GOOD, "--run-dir", "r", *WORKER])


def test_a_refusal_says_what_was_asked_for_and_where_to_look(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """Slurm names the value rarely."""
    slurm_dir.behave("refuse-test")
    assert 2 == main(["submit", *GOOD, "-p", "nosuch", *WORKER])
    shown = capsys.readouterr().err
    assert "asked for: --job-name=train --partition=nosuch --time=04:00:00 --nodes=2-4" in shown
    assert '\n  fix: compare with the partitions of the cluster: sinfo -o "%P %a %l %D"' in shown


@pytest.mark.parametrize(
    ("words", "look"),
    [
        ("Requested reservation is invalid", "scontrol show reservation"),
        ("Invalid feature specification", 'sinfo -o "%P %D %f"'),
        ("Invalid node name specified", "sinfo -N"),
        ("Invalid account or account/partition combination specified", "sacctmgr show associations"),
        ("Invalid qos specification", "sacctmgr show associations"),
        ("Requested node configuration is not available", 'sinfo -o "%P %D %c %m %G"'),
    ],
)
def test_where_to_look_follows_slurms_words(words: str, look: str) -> None:
    """A table of CPUs does not help with a reservation."""
    error = SlurmCommandError(("sbatch",), 1, f"allocation failure: {words}")
    assert hint_for(error).startswith(f"compare with the partitions of the cluster: {look}")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (
            SlurmCommandError(("sbatch",), 255, "sbatch: error: Invalid --mem-per-gpu specification"),
            "correct --mem-per-gpu; man sbatch tells how it is written",
        ),
        (
            SlurmCommandError(("sbatch",), 1, "sbatch: unrecognized option '--foo'"),
            "correct the option; sbatch --help lists all",
        ),
        (
            SlurmCommandError(("srun",), 1, "srun: invalid option -- 'y'"),
            "correct the option; srun --help lists all",
        ),
        (
            SlurmCommandError(("sbatch",), 1, "Batch job submission failed: Job dependency problem"),
            "correct --dependency, e.g. afterok:JOB; ",
        ),
        (
            SlurmCommandError(("sbatch",), 1, "Batch job submission failed: Invalid job array specification"),
            "correct --array, e.g. 0-9%4",
        ),
        (SlurmTimeoutError(("scontrol", "ping"), 30.0), "look with sinfo whether the controller is up"),
        (
            SlurmCommandError(("sbatch",), 1, "sbatch: fatal: Unable to process configuration file"),
            "correct SLURM_CONF, or unset it: ",
        ),
    ],
    ids=["malformed", "no option", "no letter", "dependency", "array", "no answer", "no configuration"],
)
def test_what_has_nothing_to_do_with_the_nodes_is_not_compared_with_them(
    error: SlurmCommandError, fix: str
) -> None:
    """A value that cannot be read, or a controller that does not answer."""
    assert hint_for(error).startswith(fix)


def test_nodes_that_are_down_for_now_can_be_waited_for() -> None:
    """A test counts them as missing, and refuses a job that sbatch would queue."""
    error = SlurmCommandError(("sbatch", "--test-only"), 1, "Requested node configuration is not available")
    told = "nodes that are down (sinfo -R) do not count; --skip-sbatch-test queues the job all the same"
    assert hint_for(error).endswith(told)


_PARTITION = "PartitionName=high Default=YES MaxNodes=2 MaxTime=01:00:00 State=UP"


def test_a_time_limit_that_the_partition_never_grants_is_refused(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """Slurm would queue it, and let it wait for ever."""
    (slurm_dir.bin / "scontrol").write_text(f"#!/bin/sh\necho '{_PARTITION}'\n")
    assert 2 == main(["submit", *GOOD, "-p", "high", *WORKER])
    shown = capsys.readouterr().err
    assert "error: --time: time = 04:00:00 is more than partition high allows (01:00:00)" in shown
    assert "\n  fix: ask for 01:00:00 or less" in shown
    assert [] == slurm_dir.submissions()
    assert 2 == main(["submit", *GOOD, *WORKER])
    assert "the default partition allows" in capsys.readouterr().err
    assert ["train.py"] == os.listdir(workdir)


@pytest.mark.parametrize(
    "words", [["--time", "60"], ["-o", "time-min=10"], ["--skip-sbatch-test"], ["--qos", "long"]], ids=repr
)
def test_a_time_limit_that_may_be_granted_is_queued(
    workdir: Path, slurm_dir: StandIn, capsys: Capture, words: list[str]
) -> None:
    """Of a QOS nobody knows here what it lifts, so that is told and left to the user."""
    (slurm_dir.bin / "scontrol").write_text(f"#!/bin/sh\necho '{_PARTITION}'\n")
    assert 0 == main(["submit", *GOOD, "-p", "high", *words, *WORKER])
    assert ("--qos" in words) == ("never start unless QOS long lifts that" in capsys.readouterr().err)
    assert 1 == len(slurm_dir.submissions())


def test_a_controller_that_is_not_there_is_explained(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """Most often this is no login node."""
    (slurm_dir.bin / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1\n"
    )
    assert 2 == main(["submit", *GOOD, *WORKER])
    shown = capsys.readouterr().err
    assert "fix: sbatch cannot reach a Slurm controller: is this a login node? is SLURM_CONF set?" in shown
    assert "--local N runs without Slurm" in shown


def test_a_run_directory_in_use_names_both_ways_on(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """Another directory, or the same run again."""
    assert 0 == main(["submit", *GOOD, "--run-dir", "r", *WORKER])
    assert 2 == main(["submit", *GOOD, "--run-dir", "r", *WORKER])
    shown = capsys.readouterr().err
    assert "already holds the run train-" in shown
    assert f"hpc-elastic submit --resume {workdir}/r" in shown


def test_a_run_is_resumed_by_its_directory(workdir: Path, slurm_dir: StandIn, capsys: Capture) -> None:
    """With the next number; logs of the first start stay."""
    capsys.readouterr()
    assert 0 == main(["submit", *GOOD, "--run-dir", "r", "--parsable", *WORKER])
    assert "1000\n" == capsys.readouterr().out
    (workdir / "r" / "slurm-1000.out").write_text("words")
    slurm_dir.set_state("1000", "TIMEOUT")
    capsys.readouterr()
    assert 0 == main(["submit", "--resume", "r", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (1, "submitted", f"{workdir}/r", "train") == tuple(
        map(told.get, ("format", "kind", "run", "name"))
    )
    assert ("1001", ["1001"], False) == tuple(map(told.get, ("job", "jobs", "was_queued_before")))
    assert ["1000", "1001"] == [each.job_id for each in read_submissions(RunPaths("r"))]
    assert "words" == (workdir / "r" / "slurm-1000.out").read_text()


@pytest.mark.parametrize(("behaviour", "steps"), [("refuse", [9, 5]), ("ok", [5])])
def test_a_run_goes_back_only_with_a_job_that_slurm_takes(
    behaviour: str, steps: list[int], workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """Else a later resume without the step would go back, too; a dry run only says so."""
    paths = RunPaths(workdir / "r")
    assert 0 == main(["submit", *GOOD, "--run-dir", "r", *WORKER])
    slurm_dir.set_state("1000", "FAILED")
    for step in (5, 9):
        (workdir / str(step)).touch()
        write_mark(paths, MarkName(step, 0, 0, 1), str(workdir / str(step)), world_size=1)
    assert 0 == main(["submit", "--resume", "r", "--from-step", "5", "--dry-run"])
    assert "it would go on from the checkpoint of step 5\n" in capsys.readouterr().err
    slurm_dir.behave(behaviour)
    assert (behaviour == "ok") == (0 == main(["submit", "--resume", "r", "--from-step", "5"]))
    assert steps == [mark.step for mark in complete_marks(os.listdir(paths.checkpoints))]


def test_a_training_script_that_is_gone_is_told_when_its_run_is_resumed(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """A warning: job.sbatch may have been changed by hand, and run another one."""
    main(["submit", *GOOD, "--run-dir", "r", *WORKER])
    slurm_dir.set_state("1000", "FAILED")
    (workdir / "train.py").rename(workdir / "trian.py")
    capsys.readouterr()
    assert 0 == main(["submit", "--resume", "r", "--dry-run"])
    told = capsys.readouterr().err
    assert 0 == main(["submit", "--resume", "r"])
    assert told == capsys.readouterr().err
    assert told == (
        f"warning: the worker file train.py does not exist in {workdir}, and the run was submitted with it\n"
        "  fix: did you mean 'trian.py'?\n"
    )


def test_a_dry_run_of_a_resumed_run_queues_nothing(
    workdir: Path, slurm_dir: StandIn, capsys: Capture
) -> None:
    """It shows the stored script and the command, with the next number."""
    main(["submit", *GOOD, "--run-dir", "r", *WORKER])
    slurm_dir.set_state("1000", "TIMEOUT")
    capsys.readouterr()
    assert 0 == main(["submit", "--resume", "r", "--dry-run"])
    shown = capsys.readouterr().out
    assert shown.startswith("#!/bin/bash\n")
    assert shown.endswith("/r/job.sbatch 1\n")
    assert ["1000"] == [each.job_id for each in read_submissions(RunPaths("r"))]
    assert 1 == len(slurm_dir.submissions())


def test_a_dry_run_of_a_local_run_starts_nothing(workdir: Path, no_slurm: None, capsys: Capture) -> None:
    """As of one in Slurm."""
    (workdir / "train.py").write_text("raise SystemExit(3)\n")
    start = ["submit", "--local", "1", "--max-restarts", "0", "--run-dir", "r"]
    assert 3 == main([*start, "--", sys.executable, "train.py"])
    assert 0 == main(["submit", "--resume", "r", "--dry-run"])
    assert "#!/bin/bash\n" in capsys.readouterr().out
    assert [0] == [each.number for each in read_submissions(RunPaths("r"))]


def test_warnings_do_not_stop_a_submission(workdir: Path, slurm_dir: StandIn, capsys: Capture) -> None:
    """One core for all workers is allowed, if hardly meant."""
    assert 0 == main(["submit", "--allow-local-run-dir", *WORKER])
    assert "warning: no CPUs are asked for" in capsys.readouterr().err


@pytest.mark.parametrize("has_slurm", [True, False])
def test_a_dry_run_shows_script_and_command_and_changes_nothing(
    workdir: Path, capsys: Capture, request: pytest.FixtureRequest, has_slurm: bool
) -> None:
    """With Slurm it is asked too, without it that is said."""
    request.getfixturevalue("slurm_dir" if has_slurm else "no_slurm")
    assert 0 == main(["submit", "--dry-run", *GOOD, *WORKER])
    shown = capsys.readouterr()
    assert shown.out.startswith("#!/bin/bash\n")
    assert shown.out.splitlines()[-1].startswith("sbatch --parsable --comment=hpc_elastic:")
    assert has_slurm != ("no sbatch here" in shown.err)
    assert ["train.py"] == os.listdir(workdir)


def test_render_prints_the_script_without_slurm(workdir: Path, no_slurm: None, capsys: Capture) -> None:
    """On a laptop too; a worker file that is elsewhere does not matter."""
    assert 0 == main(["render", *GOOD, "--", "python3", "elsewhere.py"])
    shown = capsys.readouterr()
    assert shown.out.startswith("#!/bin/bash\n#SBATCH --job-name=elsewhere\n")
    assert "" == shown.err
    assert ["train.py"] == os.listdir(workdir)


def test_a_local_run_is_resumed_here(
    workdir: Path, no_slurm: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run without Slurm goes on without Slurm, with as many agents as before."""
    (workdir / "train.py").write_text(
        "import os, sys; sys.exit(3 if os.environ['HPC_ELASTIC_ROUND'] == '1' else 0)"
    )
    start = [
        "submit",
        "--local",
        "2",
        "--max-restarts",
        "0",
        "--run-dir",
        "r",
        "--",
        sys.executable,
        "train.py",
    ]
    assert 3 == main(start)
    assert 0 == main(["submit", "--resume", "r"])
    assert [0, 1] == [each.number for each in read_submissions(RunPaths("r"))]
    assert "local1, local2" in capfd.readouterr().out
