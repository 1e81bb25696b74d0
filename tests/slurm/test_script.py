"""The job script: recorded texts, and what bash and a stand-in srun make of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.run.flags import parser
from hpc_elastic.slurm.job.own_script_file import read_own_script
from hpc_elastic.slurm.job.script import (
    RunNames,
    agent_flags,
    batch_log_pattern,
    quote,
    render,
    worker_command,
)
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit.request import FOLDERS, epilog, read_template

GOLDEN = Path(__file__).parent / "golden"
PER_TASK = {"SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"}  # would limit an agent
NAMES = RunNames(
    "train-1",
    "/shared/runs/train-1",
    "/shared/code",
    "/opt/env/bin/python",
    "/shared/runs/train-1/slurm-%j.out",
    "/opt/env/hpc_elastic/sbatch_templates/batch.sh",
)
SPECS: dict[str, dict[str, Any]] = {
    "minimal": {"command": ["python", "train.py"], "name": "train"},
    "elastic": {
        "command": "python train.py --lr 0.1",
        "name": "train",
        "nodes": "2:4",
        "gpus_per_node": 8,
        "cpus_per_node": 96,
        "time": "4h",
        "partition": "gpu",
    },
    "usual": {
        "command": "python train.py --lr 0.1",
        "name": "train",
        "nodes": "2:4",
        "gpus_per_node": 8,
        "cpus_per_node": 96,
        "time": "4h",
        "partition": "gpu",
        "env": {"NCCL_DEBUG": "WARN"},
        "modules": ["cuda/12.4"],
        "setup": ["source venv/bin/activate", "ulimit -n 4096"],
    },
    "everything": {
        "module": "pkg.train",
        "command": ["--note", "it's $HOME", "line\nbreak"],
        "name": 'a "name" # with \\ things',
        "nodes": 3,
        "gpus_per_node": "a100:4",
        "exclusive": True,
        "mem": "0",
        "time": "1-12:00:00",
        "sbatch": {"hold": True, "nice": 5, "licenses": "a:1,b:2", "contiguous": False},
        "env": {"PLAIN": "1", "NASTY": "a,b 'c' \"d\" $e\r\n"},
        "inherit_env": False,
        "modules": ["cuda/12.4", "gcc"],
        "setup": ["source venv/bin/activate", "if true; then", "  ulimit -n 4096", "fi"],
        "container": "apptainer exec --nv 'my image.sif'",
        "max_restarts": 7,
        "max_requeues": 9,
        "checkpoint_lead": "5m",
        "join_timeout": "10m",
        "lease": 6.5,
        "drain_signals": "SIGTERM",
        "tee": "0:3",
    },
}
NASTY = [
    "$HOME `id` $(id) ${PATH}",
    'it\'s "quoted"',
    "a,b;c&d|e>f<g",
    "two\nlines\n",
    "\r\n\t\x1b[0m\x07",
    "ünïcödé 漢字 🚀",
    "back\\slash\\n",
    "* ? [a-z] {1,2} ~ !x #y %j",
    "",
    " leading and trailing ",
    "--option=-x",
    "not utf-8: \udcff",
]


@pytest.mark.parametrize("name", SPECS)
def test_the_script_is_as_recorded(name: str, request: pytest.FixtureRequest) -> None:
    """A change of the script is seen in a diff; record it with ``pytest tests/slurm --record``."""
    text = render(JobSpec(**SPECS[name]), NAMES, read_template())
    golden = GOLDEN / f"{name}.sbatch"
    if request.config.getoption("--record", default=False):
        golden.write_text(text)
    assert golden.read_text() == text


@pytest.mark.parametrize("name", SPECS)
def test_bash_can_read_the_script(name: str) -> None:
    """The syntax is right, and no carriage return is in it, for which sbatch would refuse it."""
    text = render(JobSpec(**SPECS[name]), NAMES, read_template())
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    assert "\r" not in text


@pytest.mark.parametrize("mode", ["step", "array"])
@pytest.mark.parametrize("name", ["minimal", "elastic", "usual"])
def test_a_script_can_be_read_at_a_glance(name: str, mode: str) -> None:
    """With the usual options it has 60 lines at most."""
    text = render(JobSpec(**{**SPECS[name], "mode": mode}), NAMES, read_template(mode))
    assert text.count("\n") <= 60
    assert 1 == text.count("\n  srun ")


def test_the_template_is_found_in_the_source_tree() -> None:
    """An editable install does not see what the wheel carries inside the package."""
    assert read_template().own.startswith("#!/bin/bash\n")
    assert ["sbatch_templates", "sbatch_templates"] == [os.path.basename(folder) for folder in FOLDERS]
    assert os.path.basename(os.path.dirname(FOLDERS[0])) == "hpc_elastic"


def test_the_agent_reads_its_flags_as_they_are_written() -> None:
    """The flags and the worker command arrive in the parser of `hpc-elastic run`."""
    spec = JobSpec(**SPECS["everything"])
    words = ["--run-dir=/r", *agent_flags(spec), "--", *worker_command(spec, "/opt/python")]
    read = parser().parse_args(words)
    assert ("3", "4", 7, True) == (read.nnodes, read.nproc_per_node, read.max_restarts, read.no_python)
    assert (300, 600, 6.5, ("TERM",)) == (
        read.warn_timeout,
        read.join_timeout,
        read.lease,
        read.drain_signals,
    )
    assert worker_command(spec, "/opt/python") == (read.training_script, *read.training_script_args)


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"gpus_per_node": 8}, "--nproc-per-node=8"),
        ({"gpus_per_node": 8, "workers_per_node": 2}, "--nproc-per-node=2"),
        ({}, "--nproc-per-node=1"),
        ({"sbatch": {"gres": "gpu:2"}}, None),
        ({"exclusive": True}, None),
    ],
    ids=repr,
)
def test_there_is_one_worker_per_gpu(fields: dict[str, Any], flag: str | None) -> None:
    """Where the spec does not tell the GPUs of a node, the agents count them."""
    flags = agent_flags(JobSpec(command="a", **fields))
    assert flag == next((each for each in flags if each.startswith("--nproc")), None)


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({"command": "prog -x"}, ("prog", "-x")),
        ({"command": "train.py -x"}, ("/py", "-u", "train.py", "-x")),
        ({"module": "a.b", "command": "-x"}, ("/py", "-u", "-m", "a.b", "-x")),
    ],
    ids=repr,
)
def test_scripts_and_modules_run_in_the_jobs_python(fields: dict[str, Any], command: tuple[str, ...]) -> None:
    """A program runs as it is."""
    assert command == worker_command(JobSpec(**fields), "/py")


@pytest.mark.parametrize("text", NASTY, ids=repr)
def test_bash_reads_a_quoted_word_as_it_was(text: str) -> None:
    """Whatever the characters, one word on one line."""
    quoted = quote(text)
    assert "\n" not in quoted
    script = f"printf %s {quoted}".encode("utf-8", "surrogateescape")
    said = subprocess.run(["bash", "-s"], input=script, capture_output=True, check=True).stdout
    assert text.encode("utf-8", "surrogateescape") == said


def test_percent_signs_in_a_path_are_not_slurms() -> None:
    """Only the %j of our own is a pattern."""
    assert "/a%%j/b/slurm-%j.out" == batch_log_pattern("/a%j/b/slurm-%j.out")


PYTHON = """#!{python}
import json, os, signal, sys
home = {home!r}
words = sys.argv[2:]  # behind -I
env = {{k: v for k, v in os.environ.items()}}
ignored = int(open(f"/proc/{{os.getppid()}}/status").read().split("SigIgn:")[1].split()[0], 16)
with open(home + "/calls", "a") as file:
    json.dump({{"words": words, "env": env, "ignored": ignored}}, file)
    file.write("\\n")
if words[2] == "run":
    if os.path.exists(home + "/term-while-running"):
        os.kill(int(env["BATCH_PID"]), signal.SIGTERM)
    command = words[words.index("--") + 1:]
    os.execvp(command[0], command)
if os.path.exists(home + "/term-while-finishing"):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getppid(), signal.SIGTERM)
with open(home + "/answers") as file:
    answers = json.load(file)
answer, code = answers.pop(0)
with open(home + "/answers", "w") as file:
    json.dump(answers, file)
print(answer)
sys.exit(code)
"""
SRUN = """#!{python}
import json, os, sys
home = {home!r}
options = [word for word in sys.argv[1:] if word.startswith("--")]
first = next(i for i, word in enumerate(sys.argv) if i and not word.startswith("--"))
with open(home + "/sruns", "a") as file:
    file.write(json.dumps(sys.argv[1:first]) + "\\n")
os.environ["BATCH_PID"] = str(os.getppid())
os.execv(sys.argv[first], sys.argv[first:])
"""
WORKER = """#!{python}
import json, os, sys
with open({home!r} + "/worker", "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}, file)
sys.exit(int(os.environ.get("WORKER_CODE", "0")))
"""


@dataclass
class Node:
    """A batch host on which srun starts one task at once, in the place of srun."""

    home: Path
    more: str = ""  # what batch.sh has at its end, beside what the package gives it

    def run(self, answers: list[tuple[str, int]], *arguments: str, names: Any = None, **fields: Any) -> int:
        """Run the job script of a spec; `answers` are what finish says in turn."""
        (self.home / "answers").write_text(json.dumps(answers))
        here = {"workdir": str(self.home), "python": str(self.home / "python"), "batch_log": "/dev/null"}
        here |= {"run_dir": str(self.home / "run dir"), "epilog": epilog()}
        here |= {"own_script": str(self.home / "run dir" / "slurm_script")}
        names = NAMES._replace(**{**here, **(names or {})})
        spec = JobSpec(**{"command": [str(self.home / "program")], "time": 60, **fields})
        own = None if spec.mode != "script" else read_own_script(spec.command[0])
        script = self.home / "job.sbatch"
        template = read_template(spec.mode)
        template = template._replace(functions=template.functions + self.more)
        script.write_bytes(render(spec, names, template, own).encode("utf-8", "surrogateescape"))
        if self.more:
            (self.home / "run dir" / "batch.sh").write_text(template.functions)
        environ = {**os.environ, "PATH": f"{self.home}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "4"}
        environ |= dict.fromkeys(PER_TASK, "3")
        self.done = subprocess.run(
            ["bash", script, *arguments], env=environ, capture_output=True, text=True, check=False
        )
        return self.done.returncode

    def lines(self, name: str) -> list[Any]:
        """Return what a program wrote down, one entry per call."""
        path = self.home / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def worker(self) -> dict[str, Any]:
        """What the worker saw."""
        seen: dict[str, Any] = json.loads((self.home / "worker").read_text())
        return seen


def make_node(tmp_path: Path) -> Node:
    """Return a batch host with stand-ins for srun, the agent and a worker."""
    home = tmp_path / "node"
    run = home / "run dir"
    run.mkdir(parents=True)
    (run / "batch.sh").write_text(read_template().functions)
    for name, text in (("python", PYTHON), ("srun", SRUN), ("program", WORKER)):
        path = home / name
        path.write_text(text.format(python=sys.executable, home=str(home)))
        path.chmod(0o755)
    return Node(home)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a batch host."""
    return make_node(tmp_path)


def test_every_value_arrives_in_the_worker_unchanged(node: Node) -> None:
    """Arguments and variables pass script, bash and srun bit for bit."""
    variables = {f"V{i}": text for i, text in enumerate(NASTY)}
    command = [str(node.home / "program"), *NASTY]
    assert 0 == node.run([("", 0)], command=command, env=variables, name="a 'b' \"c\" #d")
    assert NASTY == node.worker["argv"]
    assert variables == {name: node.worker["env"][name] for name in variables}


def test_the_agents_are_told_which_start_this_is(node: Node) -> None:
    """Run directory, run id and number of the submission reach agents and workers."""
    node.run([("", 0)], "2", command=str(node.home / "program"))
    env = node.worker["env"]
    assert [str(node.home / "run dir"), "train-1", "2", "0"] == [
        env[f"HPC_ELASTIC_{name}"] for name in ("RUN_DIR", "RUN_ID", "SUBMISSION", "RELAUNCH")
    ]
    assert str(node.home) == node.worker["cwd"]
    assert not PER_TASK & env.keys()


def test_a_longer_time_to_save_reaches_the_agents(node: Node) -> None:
    """The third argument wins over the flag that the script was made with."""
    node.run([("", 0)], "1", "0", "260", command=str(node.home / "program"))
    (words,) = [call["words"] for call in node.lines("calls") if call["words"][2] == "run"]
    assert ["--warn-timeout=120", "--warn-timeout=260"] == [
        word for word in words if word.startswith("--warn-timeout")
    ]
    assert 260 == float(parser().parse_args(words[3:]).warn_timeout)
    node.run([("", 0)], "1", command=str(node.home / "program"))
    assert "--warn-timeout=260" not in node.lines("calls")[-2]["words"]


def test_srun_is_started_again_on_what_is_left(node: Node) -> None:
    """The exit code 80 of finish asks for it, with the number of nodes."""
    assert 0 == node.run([("3", 80), ("2", 80), ("", 0)], env={"WORKER_CODE": "9"})
    assert [["4", "4"], ["3", "3"], ["2", "2"]] == [
        [option.partition("=")[2] for option in options[:2]] for options in node.lines("sruns")
    ]
    finishes = [call["words"] for call in node.lines("calls") if call["words"][2] == "finish"]
    assert ["--relaunch=0", "--relaunch=1", "--relaunch=2"] == [words[-1] for words in finishes]
    assert all("--srun-exit-code=9" in words for words in finishes)


@pytest.mark.parametrize("code", [0, 1, 75, 76, 137])
def test_the_job_ends_with_the_code_of_finish(node: Node, code: int) -> None:
    """Not with srun's, which is only a hint."""
    assert code == node.run([("", code)], command=str(node.home / "program"), env={"WORKER_CODE": "5"})
    assert 1 == len(node.lines("sruns"))


def test_srun_is_started_again_a_bounded_number_of_times(node: Node) -> None:
    """Whatever finish says, the script ends."""
    assert 80 == node.run([("4", 80)] * 9, command=str(node.home / "program"))
    assert 4 == len(node.lines("sruns"))


@pytest.mark.parametrize("when", ["term-while-running", "term-while-finishing"])
def test_the_script_outlives_slurms_signals(node: Node, when: str) -> None:
    """Slurm sends SIGTERM to the batch shell too; it must still decide."""
    (node.home / when).touch()
    assert 75 == node.run([("", 75)], command=str(node.home / "program"))
    assert -signal.SIGTERM != node.done.returncode


def test_setup_runs_before_the_agents_and_is_exported(node: Node) -> None:
    """Several lines are one script; `set -u` does not hurt them."""
    setup = ["if [ -z $NOT_SET ]; then", "  export FROM_SETUP=$A-b", "fi"]
    assert 0 == node.run([("", 0)], command=str(node.home / "program"), env={"A": "a"}, setup=setup)
    assert "a-b" == node.worker["env"]["FROM_SETUP"]


def failed(step: str, code: int, line: str) -> list[str]:
    """Return how `finish` is told of a line that failed: of its text by a variable, for this user alone."""
    return [line, f"--launch-failure-in={step}", f"--launch-failure-code={code}"]


def told_of(call: dict[str, Any]) -> list[str]:
    """Return what a call of `finish` was told of a line that failed."""
    return [call["env"]["HPC_ELASTIC_LAUNCH_FAILURE"], *call["words"][-2:]]


def test_a_failing_setup_ends_the_job_and_says_where(node: Node) -> None:
    """Agents do not start in half an environment; what becomes of the job is for finish to say."""
    assert 75 == node.run([("", 75)], command=str(node.home / "program"), setup=["true", "false maybe"])
    assert "setup failed (exit code 1): false maybe" in node.done.stderr
    assert [] == node.lines("sruns")
    (call,) = node.lines("calls")
    assert failed("setup", 1, "false maybe") == told_of(call)
    assert "false maybe" not in " ".join(call["words"])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("load() { false; true; }; load", 1),  # as `module load` of what is not there
        ("test -e /nowhere/env || exit 4", 4),
        (": ${NOT_SET_ANYWHERE:?is missing}", 1),
        ("exit 0", 0),
    ],
)
def test_a_setup_that_leaves_the_script_is_recorded(node: Node, line: str, code: int) -> None:
    """Else the job would end without a word in the records, and nobody would start it again."""
    assert 75 == node.run([("", 75)], command=str(node.home / "program"), setup=[line])
    (call,) = node.lines("calls")
    assert failed("setup", code, "")[1:] == call["words"][-2:]
    assert [] == node.lines("sruns")


def test_a_working_directory_that_is_gone_ends_the_start_and_says_so(node: Node) -> None:
    """Nothing runs in another directory."""
    gone = node.home / "gone"
    assert 75 == node.run([("", 75)], workdir=str(gone), names={"workdir": str(gone)})
    (call,) = node.lines("calls")
    assert failed("the working directory", 1, f"cd {gone}") == told_of(call)
    assert [] == node.lines("sruns")


def test_a_further_job_of_a_submission_says_how_many_came_before(node: Node) -> None:
    """Its agents count their starts on from there."""
    node.run([("", 0)] * 2, "2", "3", command=str(node.home / "program"), chain=4)
    assert ("2", "3") == tuple(node.worker["env"][f"HPC_ELASTIC_{name}"] for name in ("SUBMISSION", "LINK"))
    begins, finish = [call["words"] for call in node.lines("calls") if call["words"][2] == "finish"]
    assert "--begins" in begins
    assert "--chain=4" in begins
    assert "--chain=4" in finish
    assert "#SBATCH --no-requeue --open-mode=append" in (node.home / "job.sbatch").read_text()


def test_a_sourced_file_is_not_given_the_scripts_own_words(node: Node) -> None:
    """Bash hands them on, and a file that reads or changes them would do so with ours."""
    file = node.home / "vars.sh"
    file.write_text('export SEEN="$*"\nset -- x y z\n')
    command = str(node.home / "program")
    assert 0 == node.run([("", 0)] * 2, "1", "2", "260", command=command, setup=[f"source {file}"])
    assert ("", "1", "2") == tuple(
        node.worker["env"][name] for name in ("SEEN", "HPC_ELASTIC_SUBMISSION", "HPC_ELASTIC_LINK")
    )
    assert "--warn-timeout=260" in str([call["words"] for call in node.lines("calls")])


def test_modules_are_loaded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's function `module`, which the login shell exports, is used."""
    monkeypatch.setenv("BASH_FUNC_module%%", '() { export LOADED="$*"; }')
    assert 0 == node.run([("", 0)], command=str(node.home / "program"), modules=["cuda/12", "gcc"])
    assert "load cuda/12 gcc" == node.worker["env"]["LOADED"]
