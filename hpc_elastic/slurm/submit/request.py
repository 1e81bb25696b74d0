"""A submission as data, with its template: a dry run prints the same object that a submission queues."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache

from hpc_elastic.clock import date_text
from hpc_elastic.errors import InputError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.isolated import lookup
from hpc_elastic.isolated.argv import INSTALLED, OwnPath, own_argv, start_argv
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths, readable_name
from hpc_elastic.settings.values import BadValueError, number_text, parse_nodes
from hpc_elastic.slurm.client.commands import options_by_variables, submit_environment
from hpc_elastic.slurm.job import notice
from hpc_elastic.slurm.job import script as script_text
from hpc_elastic.slurm.job.environment import has_own_python
from hpc_elastic.slurm.job.own_script import OwnScript, asks_for, names_in, sbatch_line, value_of
from hpc_elastic.slurm.job.own_script_file import read_own_script
from hpc_elastic.slurm.job.script import RunNames, Template
from hpc_elastic.slurm.job.spec import JobSpec, warning_time_s
from hpc_elastic.slurm.submit import find_python

_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", ".."))
FOLDERS = tuple(os.path.join(place, "sbatch_templates") for place in (_PACKAGE, os.path.dirname(_PACKAGE)))
FUNCTIONS = "batch.sh"  # the script calls it; Slurm runs the same file on each node after its agent
NAMES = {"step": "elastic.sbatch", "array": "array.sbatch", "script": "script.sbatch"}

MOST_TIME_LIMITS = 10  # of a user's own job script: whether one goes on where it was is not known
_NO_REQUEUE = "SBATCH_NO_REQUEUE"
EXPEDITE = "--requeue=expedite"  # before the requeue of the script's header, which it takes the place of
_EXPEDITED = "expedited"  # tells the script of it
TOKEN_PREFIX = "hpc_elastic:"  # noqa: S105 - no secret
_NO_NAME = "run"
_OF_HEADERS = {
    "job-name": "name",
    "partition": "partition",
    "qos": "qos",
    "exclude": "exclude",
    "comment": "comment",  # sbatch gets the token of the submission before it
    "nodes": "nodes",  # these three: so that as many nodes are left as the job needs, without suspect ones
    "nodelist": "nodelist",
    "constraint": "constraint",
}


class SubmitRequest(NamedTuple):
    """One submission of one run.

    Args:
        spec: the job; name, python, workdir and run_dir are filled in.
        paths: the files of the run.
        run_id: name of the run.
        token: names this submission, so that it is found again when sbatch did not answer.
        submission: how often the run was submitted before.
        script: text of the job script.
        excluded: nodes that the job does without, those of the spec included; empty for those of the spec.
        lead_s: how long stopping and saving may take before the time limit [s]; None: as in the script.
        functions: text of ``batch.sh``, which the script reads; empty for a script that has all in itself.
        expedited: Slurm is to start the job again at once after a requeue.
        starts_python: the interpreter of the spec may be started before the job is queued, to ask it for
            this package.
        starts_workers_python: the workers' Python may be started in their directory before that, to ask it
            for the packages of their script.
        file: where the script is; empty: in the run directory.
        own_script: the job script of the user's own that `script` runs; None: there is none, or it is stored.
        own_names: the long names of the sbatch options that the submission of such a script gives, and not
            the script; None: all of them are taken for such.
        directory: where sbatch is to run, absolute; empty: in the current one.
        is_array: whether a job script of the user's own, as it is given, is an array.
    """

    spec: JobSpec
    paths: RunPaths
    run_id: str
    token: str
    submission: int
    script: str
    excluded: tuple[str, ...] = ()
    lead_s: float | None = None
    functions: str = ""
    expedited: bool = False
    starts_python: bool = True
    starts_workers_python: bool = True
    file: str = ""
    own_script: OwnScript | None = None
    own_names: tuple[str, ...] | None = None
    directory: str = ""
    is_array: bool = False

    @property
    def script_file(self) -> str:
        """Where the script is."""
        return self.file or self.paths.script

    @property
    def sbatch_arguments(self) -> tuple[str, ...]:
        """The arguments of sbatch, after ``--parsable``."""
        return self.sbatch_call(self.sbatch_options, 0)

    @property
    def sbatch_options(self) -> tuple[str, ...]:
        """The options of sbatch for the first job of the submission."""
        comment = f"{self.token} {self.spec.comment}" if self.spec.comment else self.token
        exclude = (f"--exclude={','.join(self.excluded)}",) if self.excluded else ()
        return (f"--comment={comment}", *exclude, *self.warning_option)

    def sbatch_call(self, options: Sequence[str], link: int) -> tuple[str, ...]:
        """Return the arguments of sbatch.

        Args:
            options: of this job.
            link: how many jobs of this submission come before.
        """
        requeue = (EXPEDITE,) if self.expedited else ()
        return (*options, *requeue, *self.script_call(link))

    @property
    def warning_option(self) -> tuple[str, ...]:
        """The option of sbatch that warns the job earlier than its script says, if it is to be."""
        if self.lead_s is None:
            return ()
        return (f"--signal={self.spec.warn_signal}@{warning_time_s(self.spec, self.lead_s)}",)

    def script_call(self, link: int) -> tuple[str, ...]:
        """Return the script and its arguments.

        Args:
            link: how many jobs of this submission come before.
        """
        lead = "0" if self.lead_s is None else number_text(self.lead_s)
        words = [str(self.submission), str(link), lead, _EXPEDITED if self.expedited else "0"]
        while len(words) > 1 and words[-1] == "0":
            words.pop()
        return (self.script_file, *words)

    @property
    def header_names(self) -> tuple[str, ...]:
        """The long names of the sbatch options in the script."""
        return tuple(name for name, _ in self.spec.header_options())

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for sbatch.

        Args:
            environ: of this process.
        """
        if self.spec.mode != "script":
            return submit_environment(environ, self.header_names)
        names = _given_names(self.spec) if self.own_names is None else self.own_names
        own = submit_environment(environ, names, is_own=True)
        if self.overrides_no_requeue(environ):
            own.pop(_NO_REQUEUE, None)
        return own

    def overrides_no_requeue(self, environ: Mapping[str, str]) -> bool:
        """Tell whether a job script of the user's own is requeued though the environment says it is not.

        Slurm would prefer the variable, which sites set for all jobs, to the requeue that is asked for.

        Args:
            environ: of this process.
        """
        return self.spec.mode == "script" and self.spec.requeues and _NO_REQUEUE in environ

    def again(self, submission: int) -> SubmitRequest:
        """Return the next submission of the same run."""
        return self._replace(submission=submission, token=new_token())

    def job_json(self) -> bytes:
        """Return the content of ``job.json``."""
        return (json.dumps({"format": 1, "spec": self.spec.stored}, indent=1) + "\n").encode()


def new_token() -> str:
    """Return a name for one submission."""
    return TOKEN_PREFIX + os.urandom(8).hex()


def plan(
    spec: JobSpec,
    template: Template,
    *,
    now_s: float,
    directory: str | None = None,
    starts_python: bool = True,
    own: OwnScript | None = None,
) -> SubmitRequest:
    """Fill in the fields that the user left open and write the script. Changes nothing on disk.

    Args:
        spec: the job.
        template: that of the spec's mode.
        now_s: wall time for the name of the run [s since the epoch].
        directory: directory of the submission; the current one by default.
        starts_python: the interpreter of the spec may be started, to ask where it finds this package; one
            that is not looks itself when the job starts.
        own: the job script of the user's own that is the job; None: where it is one, it is read.
    """
    here = os.path.abspath(directory or os.getcwd())
    workdir = _path(here, spec.workdir or ".")
    python = spec.python or sys.executable
    python = _path(here, python) if "/" in python else python
    if own is None and spec.mode == "script":
        own = read_own_script(_path(here, spec.command[0]))
    own_names, is_array = (None, False) if own is None else (_given_names(spec), _is_array(spec, own))
    spec = spec if own is None else _with_own(spec, own, is_array=is_array)
    name = spec.name or _name_of(spec)
    stamp = date_text(now_s).replace("-", "").replace(":", "").replace(" ", "-")
    run_id = f"{readable_name(name) or _NO_NAME}-{stamp}-{os.urandom(2).hex()}"
    paths = RunPaths(os.path.join(here, os.path.expanduser(spec.run_dir or f"{RUNS_FOLDER}/{run_id}")))
    filled = spec.replaced(
        name=name,
        python=python,
        workdir=workdir if own is None else spec.workdir and workdir,
        run_dir=paths.root,
        notify_webhook=spec.notify_webhook and _path(here, spec.notify_webhook),
        notify_template=notice.template_at(spec.notify_template, lambda file: _path(here, file)),
        **_places_of_python(spec, {"here": here, "workdir": workdir, "run": paths.root}),
    )
    batch_log = script_text.batch_log_pattern(paths.batch_log, spec.mode)
    where = own_path_of(filled) if starts_python or python == sys.executable else OwnPath(is_known=False)
    is_installed_here = where == INSTALLED and shutil.which(python) == sys.executable
    if is_installed_here:
        elastic = start_argv(python, lookup.home(), paths.start)
    else:
        elastic = own_argv(python, where=where)
    names = RunNames(
        *(run_id, paths.root, workdir, python, batch_log, epilog(), where, elastic, paths.own_script),
        importable=find_python.importable(),
        imports=find_python.imports_of(filled, workdir) if has_own_python(filled) else (),
        venv=find_python.venv_of(filled, workdir),
        is_python_given=bool(spec.python),
    )
    text = script_text.render(filled, names, template, own)
    return SubmitRequest(
        filled,
        paths,
        run_id,
        new_token(),
        0,
        text,
        functions=template.functions,
        starts_python=starts_python,
        own_script=own,
        own_names=own_names,
        directory=here if own is not None else "",
        is_array=is_array,
    )


def _places_of_python(spec: JobSpec, places: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of the workers' Python with complete paths, and the words that run an image."""
    found: dict[str, object] = {}
    if spec.venv:
        found["venv"] = _path(places["here"], spec.venv)
    if spec.conda and "/" in spec.conda:
        found["conda"] = _path(places["here"], spec.conda)
    if spec.container:
        words = find_python.container_words(spec, places)
        found |= {"container": words, **({"container_runtime": None} if words != spec.container else {})}
    return found


def _given_names(spec: JobSpec) -> tuple[str, ...]:
    """Return the long names of the sbatch options that the submission of a job script gives.

    One of `requeue` and `no-requeue` stands for both, as each undoes the other.
    """
    names = {name for name, _ in spec.header_options()} | names_in([sbatch_line(spec.sbatch_options)])
    names |= {"chdir"} if spec.workdir else set()
    return tuple(sorted(names | ({"requeue", "no-requeue"} if names & {"requeue", "no-requeue"} else set())))


def _is_array(spec: JobSpec, own: OwnScript) -> bool:
    """Tell whether the script's lines, the submission or a variable of the environment ask for an array."""
    by_variables = options_by_variables(os.environ, is_own=True)  # noqa: TID251 - sbatch gets the same
    return "array" in by_variables or asks_for("array", [*own.option_lines, sbatch_line(spec.sbatch_options)])


def _with_own(spec: JobSpec, own: OwnScript, *, is_array: bool) -> JobSpec:
    """Return the spec of a job script of the user's own with the settings of its ``#SBATCH`` lines.

    An option of the submission goes before them, as for sbatch.
    """
    lines = [*own.components[0], sbatch_line(spec.sbatch_options)]
    if spec.chain is not None and is_array:
        raise InputError(
            f"chain = {spec.chain}, and {own.name} is an array, each of whose tasks would need a chain",
            where="chain",
            fix="leave one of both out: a task is requeued as a job is",
        )
    told = {field: value_of(option, lines) for option, field in _OF_HEADERS.items()}
    found: dict[str, object] = {
        field: value for field, value in told.items() if value and not spec.given.get(field)
    }
    if not _is_count(found.get("nodes", "1")):
        del found["nodes"]
    if spec.max_requeues is None and asks_for("no-requeue", lines):
        found["max_requeues"] = 0
    if spec.max_time_limits is None:
        found["max_time_limits"] = MOST_TIME_LIMITS
    return spec.replaced(**found) if spec.name else spec.replaced(**{"name": own.name, **found})


def _is_count(nodes: object) -> bool:
    """Tell whether a number of nodes is one that is known here; sbatch takes more forms, such as `2,4`."""
    try:
        return bool(parse_nodes(nodes))
    except BadValueError:
        return False


def own_path_of(spec: JobSpec) -> OwnPath:
    """Return the places that the interpreter of a spec has to search for this package.

    Where modules or setup lines may still change that interpreter, or its packages, it looks itself.
    """
    python = spec.python or sys.executable
    program = shutil.which(python)
    may_change = bool(spec.setup or spec.modules)
    if program is None or (may_change and "/" not in python):
        return OwnPath(is_known=False)
    found = lookup.ask(program)
    return found.where if found.is_installed else OwnPath(is_known=False)


def _path(here: str, text: str) -> str:
    return os.path.normpath(os.path.join(here, os.path.expanduser(text)))


def _name_of(spec: JobSpec) -> str:
    """Name a job after its module or training script."""
    if spec.module:
        return readable_name(spec.module.rpartition(".")[2]) or _NO_NAME
    scripts = [word for word in spec.command if word.endswith((".py", ".sh"))]
    stem = os.path.splitext(os.path.basename(scripts[0] if scripts else spec.command[0]))[0]
    return readable_name(stem) or _NO_NAME


def read_template(mode: str = "step") -> Template:
    """Return the job script template of a mode.

    Raises:
        InputError: this installation has no such template.
    """
    names = (NAMES[mode], "base.sbatch", "agents.sbatch", "setup.sbatch", FUNCTIONS)
    return Template(*map(_text_of, names))


def _text_of(name: str) -> str:
    with open(_find(name), encoding="utf-8") as file:
        return file.read()


def epilog() -> str:
    """Return the path of the installed ``batch.sh``: a user that can change it can change this code, too.

    Raises:
        InputError: this installation has none.
    """
    return _find(FUNCTIONS)


@cache
def _find(name: str) -> str:
    for folder in FOLDERS:
        if os.path.isfile(path := os.path.join(folder, name)):
            return path
    raise InputError(f"{name} is not in {' or '.join(FOLDERS)}", fix="install hpc_elastic again")
