"""The one place that runs Slurm's commands.

A job script outside of a container can bring an answer of Slurm to a `finish` that has no commands:
`SlurmByScript`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence

from hpc_elastic.clock import wall_of
from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.slurm.client import answers, parse
from hpc_elastic.slurm.client.answers import (
    Form,
    ListedNode,
    LostNodeState,
    SlurmTask,
    UnclearAnswerError,
    plain_environment,
)
from hpc_elastic.slurm.client.job_standing import JobFacts, job_facts
from hpc_elastic.slurm.client.parse import JobState

QUERY_TIMEOUT_S = 30.0
SBATCH_TIMEOUT_S = 90.0  # sbatch itself retries while slurmctld is busy

# Settings of sbatch that belong to the user or site, not to a job around this process.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"})
_USER_DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
}
_FOREIGN = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_", "HPC_ELASTIC_", "TORCHELASTIC_")
_FOREIGN_NAMES_TEXT = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
    "ROLE_NAME MASTER_ADDR MASTER_PORT"
)
_FOREIGN_NAMES = frozenset(_FOREIGN_NAMES_TEXT.split())

_RELEASING = (JobState.PENDING, JobState.COMPLETING, JobState.REQUEUED, JobState.ENDED)


class SlurmTimeoutError(SlurmCommandError):
    """A Slurm command did not answer in time; its request may have been carried out.

    Args:
        argv: the command as it was run.
        waited_s: how long [s].
    """

    def __init__(self, argv: tuple[str, ...], waited_s: float) -> None:
        super().__init__(argv, 124, f"no answer within {waited_s:.0f} s")
        self.waited_s = waited_s

    def __str__(self) -> str:
        return f"{self.argv[0]} did not answer within {self.waited_s:.0f} s\n  fix: {_LOOK_AGAIN}"


def submit_environment(
    environ: Mapping[str, str], header: Sequence[str] = (), *, is_own: bool = False
) -> dict[str, str]:
    """Return the environment for sbatch: nothing of a job or worker that surrounds this process.

    `SBATCH_*` variables would override the script's header, so only a user's own defaults (account,
    partition, ...) stay, and only where the header says nothing.

    Args:
        environ: the environment of this process.
        header: long names of the options that the script sets; for a script of the user's own those of the
            submission, which go before the variables as those of sbatch's command line do.
        is_own: the job runs a script of the user's own, whose environment is that of sbatch alone.
    """
    if is_own and "SLURM_JOB_ID" not in environ:
        own = {name: value for name, value in environ.items() if _option_of(name) not in header}
        own.pop("SBATCH_WAIT", None)  # the user who submits would be taken for a Slurm that does not answer
        return own
    kept = {}
    for name, value in environ.items():
        foreign = name.startswith(_FOREIGN) or name in _FOREIGN_NAMES
        default_for = _USER_DEFAULTS.get(name)
        if not foreign or name in _KEPT or (default_for is not None and default_for not in header):
            kept[name] = value
    return kept


_OTHER_NAMES = {
    "timelimit": "time", "array-inx": "array", "req-switch": "switches", "cpu-freq-req": "cpu-freq",
    "burst-buffer": "bb",
}  # fmt: skip


def options_by_variables(environ: Mapping[str, str], *, is_own: bool = False) -> dict[str, str]:
    """Return the options of sbatch that variables such as ``SBATCH_ACCOUNT`` set, each with its variable.

    Args:
        environ: the environment of this process.
        is_own: the job is a script of the user's own, for which all of them count; see `submit_environment`.
    """
    if is_own and "SLURM_JOB_ID" not in environ:
        found = {_option_of(name): name for name, value in environ.items() if value}
        return {option: name for option, name in found.items() if option}
    return {option: name for name, option in _USER_DEFAULTS.items() if environ.get(name)}


def _option_of(name: str) -> str:
    """Return the long name of the option of sbatch that a variable stands for, or a name that none has."""
    begin, prefix, rest = name.partition("SBATCH_")
    option = rest.lower().replace("_", "-")
    return _OTHER_NAMES.get(option, option) if prefix and not begin else ""


_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|configuration source|connect failure|connection refused"
    r"|no route to host|network is unreachable|host name lookup failure|slurmctld\([^)]*\) at \S+ is down",
    re.IGNORECASE,
)


_WHAT_NODES_HAVE = 'sinfo -o "%P %D %c %m %G"'
_WHERE_TO_LOOK = {  # a word of Slurm's refusal -> the command that lists the valid names
    "reservation": "scontrol show reservation",
    "feature": 'sinfo -o "%P %D %f"',
    "node name": "sinfo -N",
    "node list": "sinfo -N",
    "account": "sacctmgr show associations user=$USER format=account,partition,qos",
    "qos": "sacctmgr show associations user=$USER format=account,partition,qos",
    "invalid partition": 'sinfo -o "%P %a %l %D"',
}
_BUSY = re.compile(r"temporarily un|rate.?limit|communication connection failure", re.IGNORECASE)
_MALFORMED = re.compile(r"invalid (--[\w-]+) specification", re.IGNORECASE)
_ADVICE = {  # a part of Slurm's refusal -> the way out, with the name of the command
    "unable to process configuration file": "correct SLURM_CONF, or unset it: then Slurm's commands read the "
    "configuration of this machine",
    "unrecognized option": "correct the option; {command} --help lists all",
    "invalid option": "correct the option; {command} --help lists all",
    "is ambiguous": "write the whole name of the option; {command} --help lists all",
    "invalid job array specification": "correct --array, e.g. 0-9%4; all numbers are below MaxArraySize "
    "of scontrol show config",
    "dependency": "correct --dependency, e.g. afterok:JOB; squeue --me lists your jobs",
}
_LOOK_AGAIN = "look with sinfo whether the controller is up, then try again"


def is_unreachable(error: SlurmCommandError) -> bool:
    """Return whether a command failed for want of a controller or its time, so that it may be tried again."""
    words = error.stderr
    is_away = isinstance(error, SlurmTimeoutError) or bool(_UNREACHABLE.search(words) or _BUSY.search(words))
    return is_away or parse.may_have_been_queued(words)


def is_not_ready(error: SlurmCommandError) -> bool:
    """Return whether Slurm refuses a request for now that it has granted before.

    For some seconds after its start slurmctld (seen with 22.05.8) does not know that its nodes are there.
    """
    return "requested node configuration is not available" in error.stderr.lower()


def unreachable_hint(command: str) -> str:
    """Return the advice where a command of Slurm reaches no controller."""
    return (
        f"{command} cannot reach a Slurm controller: is this a login node? is SLURM_CONF set? "
        "hpc-elastic submit --local N runs without Slurm"
    )


def hint_for(error: SlurmCommandError) -> str:
    """Return the advice about a command of Slurm that failed."""
    words = error.stderr.lower()
    advice = next((way_out for part, way_out in _ADVICE.items() if part in words), None)
    if advice is not None:
        return advice.format(command=error.argv[0])
    if _UNREACHABLE.search(error.stderr):
        return unreachable_hint(error.argv[0])
    if is_unreachable(error):
        return _LOOK_AGAIN
    if malformed := _MALFORMED.search(error.stderr):
        return f"correct {malformed[1]}; man sbatch tells how it is written"
    look = next((command for word, command in _WHERE_TO_LOOK.items() if word in words), _WHAT_NODES_HAVE)
    fix = f"compare with the partitions of the cluster: {look}"
    if not is_not_ready(error) or "--test-only" not in error.argv:
        return fix
    anyway = "; --skip-sbatch-test queues the job all the same" if error.argv[0] == "sbatch" else ""
    return f"{fix}; nodes that are down (sinfo -R) do not count{anyway}"


class Slurm:
    """Slurm's commands, with timeouts and typed errors.

    Every method raises SlurmNotFoundError when the command is not on PATH, SlurmTimeoutError when it
    does not answer, and SlurmCommandError with Slurm's words when it fails.

    Args:
        environ: environment of the commands; that of this process by default.
        query_timeout_s: how long a command may take [s].
        sbatch_timeout_s: how long sbatch may take [s].
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        query_timeout_s: float = QUERY_TIMEOUT_S,
        sbatch_timeout_s: float = SBATCH_TIMEOUT_S,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)  # noqa: TID251 - its default
        self._plain = plain_environment(self._environ)
        self._query_timeout_s = query_timeout_s
        self._sbatch_timeout_s = sbatch_timeout_s

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of the commands."""
        return self._environ

    def has(self, command: str = "sbatch") -> bool:
        """Return whether a Slurm command is on PATH."""
        return shutil.which(command, path=self._environ.get("PATH")) is not None

    def _run(
        self,
        *argv: str,
        text: str | None = None,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        directory: str = "",
    ) -> str:
        program = shutil.which(argv[0], path=self._environ.get("PATH"))
        if program is None:
            raise SlurmNotFoundError(argv[0])
        import subprocess  # noqa: PLC0415, TID251 - heavy; only where Slurm is

        limit_s = self._query_timeout_s if timeout_s is None else timeout_s
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                input=(text or "").encode("utf-8", "surrogateescape"),
                capture_output=True,
                env=self._environ if env is None else dict(env),
                timeout=limit_s,
                check=False,
                cwd=directory or None,
            )
        except subprocess.TimeoutExpired:
            raise SlurmTimeoutError(argv, limit_s) from None
        except OSError as error:
            raise SlurmCommandError(argv, 126, str(error)) from None
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout  # scontrol ping tells there that no slurmctld answers
            raise SlurmCommandError(argv, done.returncode, said.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "replace")

    def _table(self, form: Form, *argv: str) -> list[tuple[str, ...]]:
        """Return the rows of a table that squeue or sinfo prints; raises UnclearAnswerError as well."""
        mark = f"_{os.urandom(12).hex()}_"  # random: no name and no comment contains it
        output = self._run(*argv, "--noheader", form.option(mark), env=self._plain)
        return form.rows(output, mark, argv)

    def _show(self, *words: str) -> str:
        return self._run("scontrol", "show", *words, env=self._plain)

    def option_names(self, asked: Collection[str] = ()) -> frozenset[str] | None:
        """Return the options of the installed sbatch; None if there is no sbatch that can tell.

        Args:
            asked: long names that sbatch is asked about where its help does not list them.
        """
        try:
            listed = parse.help_options(self._run("sbatch", "--help"))
            return listed | parse.options_taken(asked, listed, self._complaint) if listed else None
        except (SlurmNotFoundError, SlurmCommandError):
            return None

    def _complaint(self, word: str) -> str:
        """Return the words of sbatch about an option and an empty script."""
        try:
            self._run("sbatch", "--test-only", word, env=self._plain)
        except SlurmTimeoutError:
            raise
        except SlurmCommandError as error:
            return error.stderr
        return ""

    def version(self) -> str:
        """Return which Slurm this is, e.g. ``slurm 23.02.4``."""
        return self._run("sbatch", "--version").strip()

    def controllers(self) -> list[tuple[str, bool]]:
        """Return the hosts of the controllers, the primary one first, and whether each is up."""
        return parse.controllers(self._run("scontrol", "ping"))

    def srun(self, arguments: Sequence[str]) -> int:
        """Run a job step and wait for it, however long it is queued; it writes where this process does.

        Returns:
            srun's exit code.
        """
        program = shutil.which("srun", path=self._environ.get("PATH"))
        if program is None:
            raise SlurmNotFoundError("srun")
        import subprocess  # noqa: PLC0415, TID251 - as in `_run`

        return subprocess.run([program, *arguments], env=self._environ, check=False).returncode

    def srun_refusal(self, arguments: Sequence[str]) -> SlurmCommandError | None:
        """Return why Slurm would never start a job of srun's, which would wait for ever; None if it may."""
        try:
            self._run("srun", "--test-only", *arguments)
        except SlurmCommandError as error:
            return error if "allocation failure" in error.stderr else None
        return None

    def step_beside(self, job_ref: str, node: str, argv: Sequence[str]) -> str:
        """Run a short program beside the agent on a node of this user's job; return its output."""
        place = (f"--jobid={job_ref}", f"--nodelist={node}", "--nodes=1", "--ntasks=1")
        # without GPUs: Slurm 20.11 would wait for those that the agent's step has
        shares = ("--overlap", "--gres=none", "--cpu-bind=none", "--mpi=none", "--input=none")
        return self._run("srun", *place, *shares, "--quiet", *argv)

    def sbatch(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        text: str | None = None,
        directory: str = "",
    ) -> str:
        """Queue a job and return its id.

        Args:
            arguments: options, script and the script's arguments.
            environ: from `submit_environment`.
            text: the stdin of sbatch.
            directory: where sbatch runs; empty: the current one.
        """
        argv, limit_s = ("sbatch", "--parsable", *arguments), self._sbatch_timeout_s
        output = self._run(*argv, text=text, timeout_s=limit_s, env=environ, directory=directory)
        job_id = parse.submitted_job_id(output)
        if job_id is None:
            raise SlurmCommandError(argv, 0, f"sbatch printed no job id: {output!r}")
        return job_id

    def sbatch_test(self, script: str, environ: Mapping[str, str]) -> None:
        """Ask Slurm whether it would take a script; nothing is queued."""
        self._run("sbatch", "--test-only", text=script, timeout_s=self._sbatch_timeout_s, env=environ)

    def jobs_with_comment(self, token: str) -> list[str]:
        """Return the ids of this user's jobs whose comment starts with a token.

        A token ``TOKEN#3`` is that of task 3 of the array whose comment starts with ``TOKEN``.
        """
        own, _, index = token.partition("#")
        mine = ("squeue", "--all", f"--user={os.getuid()}", "--states=all")
        found = answers.with_comment(self._table(answers.COMMENTS, *mine), own)
        return [f"{job_id}_{index}" for job_id in found] if index else found

    def array_tasks(self, token: str, array: str) -> list[SlurmTask]:
        """Return the tasks of a run's arrays that are not over; see `answers.parse_tasks`."""
        rows = self._table(answers.TASKS, "squeue", "--all", "--array", f"--user={os.getuid()}")
        return answers.parse_tasks(rows, token=token, array=array)

    def cancel_waiting(self, job_ref: str) -> None:
        """Take the tasks of an array out of the queue; those that run are left alone."""
        self._run("scancel", "--state=PENDING", job_ref)

    def throttle(self, array: str, tasks: int) -> None:
        """Let no more than so many tasks of an array run at once; 0 for all."""
        self._run("scontrol", "update", f"JobId={array}", f"ArrayTaskThrottle={tasks}")

    def max_array_size(self) -> int | None:
        """Return how many tasks an array may have, None if Slurm does not tell."""
        return answers.max_array_size(self.show_config())

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the facts of Slurm about a job, None if it does not (or no longer) know it.

        The fields are those of `client.jobs.read_jobs`.
        """
        return answers.liveliest(self.show_tasks(job_ref))

    def show_tasks(self, array: str) -> list[dict[str, str]]:
        """Return the facts of Slurm about each task of an array; those that had no node yet are one."""
        if not array:
            return []  # squeue would show everybody's
        asked = ("squeue", "--all", "--states=all", f"--jobs={array}")
        try:
            rows = self._table(answers.JOBS, *asked)
        except SlurmCommandError as error:
            if parse.is_unknown_job(error.stderr):
                return []
            raise
        return answers.read_jobs(rows)

    def past_starts(self, job_ref: str) -> list[answers.PastStart]:
        """Return each start of a job as Slurm's accounting has it, the oldest first; empty without any."""
        asked = ("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", f"--jobs={job_ref}")
        return answers.read_past_starts(self._run(*asked, "--format=State,NodeList", env=self._plain))

    def excluded_by(self, job_ref: str) -> str:
        """Return the host list that a job leaves out, empty if there is none or Slurm knows no such job."""
        try:
            rows = self._table(answers.EXCLUDED, "squeue", "--all", "--states=all", f"--jobs={job_ref}")
        except SlurmCommandError as error:
            if parse.is_unknown_job(error.stderr):
                return ""
            raise
        return next((names for _, names in rows if names != "(null)"), "")

    def job_state(self, job_ref: str) -> JobState | None:
        """Return the state of a job, None if Slurm does not know it."""
        job = self.show_job(job_ref)
        return None if job is None else parse.job_state(job.get("JobState", ""))

    def time_left_s(self, job_ref: str) -> float | None:
        """Return the time left of a running job [s], None without a limit."""
        argv = ("squeue", "--all", "--noheader", f"--jobs={job_ref}", "--format=%L")  # it alone
        return parse.time_left_s(self._run(*argv, env=self._plain))

    def gpus_on_nodes(self, job_ref: str) -> dict[str, int]:
        """Return how many GPUs a running job has on each of its nodes, by name."""
        return answers.gpus_on_nodes(self._show("job", "--details", job_ref))

    def show_config(self) -> str:
        """Return the output of ``scontrol show config``."""
        return self._show("config")

    def may_expedite(self) -> bool:
        """Return whether jobs may be queued with ``--requeue=expedite``: by the site, and by this sbatch."""
        return parse.allows_expedited(answers.config(self.show_config())) and self.knows_expedited()

    def knows_expedited(self) -> bool:
        """Return whether sbatch here takes ``--requeue=expedite``; the site may not allow it."""
        return parse.knows_expedited(self._run("sbatch", "--help"))

    def is_expedited(self, job_ref: str) -> bool:
        """Return whether a job was queued with ``--requeue=expedite``."""
        return parse.is_expedited(self._show("job", job_ref))

    def show_partition(self, name: str) -> dict[str, str]:
        """Return the limits of a partition; of the default one for an empty name."""
        return answers.partition(self._show("partition", "-o", *([name] if name else [])), name)

    def qos_grace(self, name: str) -> str:
        """Return the grace time of a QOS as Slurm prints it."""
        arguments = ("show", "qos", name, "format=GraceTime")
        return self._run("sacctmgr", "--noheader", "--parsable2", *arguments).strip()

    def draining_nodes(self, names: Sequence[str]) -> dict[str, str]:
        """Return the reasons of those of these nodes that take no more jobs, by name."""
        return answers.draining(self._states(",".join(names)))

    def _states(self, node_list: str) -> list[tuple[str, ...]]:
        words = ("sinfo", "--all", "--Node", f"--nodes={node_list}")
        try:
            rows = self._table(answers.STATES, *words)
        except answers.UnclearAnswerError:
            rows = []
        return rows if rows and answers.has_states(rows) else self._table(answers.OLD_STATES, *words)

    def node_states(self, names: Sequence[str], job_ref: str | None) -> dict[str, LostNodeState]:
        """Return Slurm's answer about nodes that a job had at first, by name; unknown ones are left out.

        A job that ends has given all its nodes back, or is about to: then none counts as taken from it. The
        same holds for an earlier start of a job (None), whose nodes Slurm does not know any more.
        """
        job = {} if job_ref is None else self.show_job(job_ref) or {}
        ends = job_ref is None or parse.job_state(job.get("JobState", "")) in _RELEASING
        listed = job.get("NodeList", "")
        kept = parse.expand(listed) if listed not in ("", "(null)") else ()
        return {
            name: LostNodeState(words, reason, self._up_since(name), ends or name in kept)
            for name, (words, reason) in answers.states_of(self._states(",".join(names))).items()
        }

    def _up_since(self, name: str) -> float | None:
        """Return since when a node and its slurmd are up [s since the epoch], None if Slurm does not know."""
        fields = answers.node(self._show("node", "-o", name))
        times = [wall_of(fields.get(field, "")) for field in ("BootTime", "SlurmdStartTime")]
        known = [at for at in times if at is not None]
        return max(known) if len(known) == len(times) else None

    def nodes(self, partitions: str | None) -> list[ListedNode]:
        """Return the nodes of some partitions, given as ``a,b``; of the default one if none is named."""
        listed = self._table(answers.OFFERS, "sinfo", "--Node")
        return answers.in_partitions(answers.parse_nodes(listed), partitions)

    def partitions(self) -> list[answers.OfferedPartition]:
        """Return the partitions that this user may use, with their limits and nodes."""
        return answers.parse_partitions(self._table(answers.PARTITIONS, "sinfo"))

    def accounts(self, user: str) -> tuple[str, ...]:
        """Return the accounts that a user may charge, the default one first."""
        words = ("show", "user", user, "withassoc", "format=DefaultAccount,Account")
        return answers.parse_accounts(self._run("sacctmgr", "--noheader", "--parsable2", *words))

    def shares(self, user: str) -> tuple[str, ...]:
        """Return the accounts in which a user has a share, where the database does not answer."""
        words = ("--noheader", "--parsable2", f"--users={user}", "--format=Account,User")
        rows = [line.strip().split("|") for line in self._run("sshare", *words).splitlines()]
        return tuple(dict.fromkeys(row[0].strip() for row in rows if row[1:] == [user]))

    def excluded_nodes(self) -> dict[str, str]:
        """Return the host lists that this user's jobs leave out, by job id."""
        rows = self._table(answers.EXCLUDED, "squeue", "--all", "--array", f"--user={os.getuid()}")
        return {job_id: names for job_id, names in rows if names not in ("", "(null)")}

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Put a job back into the queue, where it may wait for its user; of an array only the task named."""
        self._run("scontrol", "requeuehold" if hold else "requeue", job_ref)

    def hold(self, job_ref: str) -> None:
        """Have a job that is in the queue already wait for its user."""
        self._run("scontrol", "hold", job_ref)

    def update(self, job_ref: str, *fields: str) -> None:
        """Change fields of a job, each given as ``Name=value``."""
        self._run("scontrol", "update", f"JobId={job_ref}", *fields)

    def has_down_node(self, node_list: str) -> bool:
        """Return whether Slurm has given up one of the nodes in a list as Slurm writes it."""
        return bool(self.down_nodes(node_list))

    def down_nodes(self, node_list: str) -> tuple[str, ...]:
        """Return the nodes in a list as Slurm writes it that Slurm has given up, or that do not answer."""
        return answers.down_nodes(self._states(node_list))

    def cancel(self, job_ref: str, *, signal: str | None = None) -> None:
        """End a job, or only send a signal to its agents."""
        arguments = [f"--signal={signal}"] if signal else []
        self._run("scancel", *arguments, job_ref)


def look(slurm: Slurm, job_ref: str) -> JobFacts | None:
    """Return the facts of a job, None if Slurm does not know it.

    A job that its user cancels in the second in which its preemption begins looks as one that was
    ended by preemption. Where Slurm requeues the jobs that it preempts, it would have done so.

    Raises:
        SlurmError: Slurm is not there or does not answer.
    """
    fields = slurm.show_job(job_ref)
    if fields is None:
        return None
    job = job_facts(fields)
    is_unclear = job.preempted and job.state is JobState.COMPLETING and job.may_requeue
    if is_unclear and _requeues_preempted(slurm, fields.get("Partition", "")):
        return job._replace(preempted=False)
    return job


def _requeues_preempted(slurm: Slurm, partition: str) -> bool:
    """Tell whether Slurm itself requeues jobs of a partition that it has preempted."""
    try:
        if answers.config(slurm.show_config()).get("PreemptType") != "preempt/partition_prio":
            return False
        return "REQUEUE" in slurm.show_partition(partition).get("PreemptMode", "")
    except (SlurmCommandError, SlurmNotFoundError):
        return False


class UnclearJobInfoError(SlurmNotFoundError):
    """The script's answer cannot be read for sure, and there is no other source."""

    def __init__(self, why: UnclearAnswerError) -> None:
        super().__init__("scontrol")
        self.why = why

    def __str__(self) -> str:
        return str(self.why)


class SlurmByScript(Slurm):
    """Knows of one job the output of ``scontrol show job -o``; acts are left to the script.

    Args:
        job_info: that output; empty if scontrol failed.
    """

    def __init__(self, job_info: str) -> None:
        super().__init__()
        self._job_info = job_info
        self.asks: ExitCode | None = None  # the task of the script

    def show_job(self, job_ref: str) -> dict[str, str]:
        """Return the fields of the job in that output.

        Raises:
            SlurmNotFoundError: there is no output.
            UnclearJobInfoError: the output cannot be read for sure.
        """
        try:
            fields = answers.job(self._job_info, job_ref)
        except UnclearAnswerError as error:
            raise UnclearJobInfoError(error) from None
        if not fields:
            raise SlurmNotFoundError("scontrol")
        return fields

    def excluded_by(self, job_ref: str) -> str:
        """Return the host list that the job leaves out, as far as the output has it."""
        return self.show_job(job_ref).get("ExcNodeList", "")

    def hold(self, job_ref: str) -> None:
        """Have the script hold the job, which is in the queue already."""
        self.requeue(job_ref, hold=True)

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Have the script put the job back into the queue."""
        del job_ref
        self.asks = ExitCode.HOLD_JOB if hold else ExitCode.REQUEUE_JOB
