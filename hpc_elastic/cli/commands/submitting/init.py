"""``hpc-elastic init``: a first job file, from facts of Slurm and of the directory."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

from hpc_elastic.cli.say import hand_out, say, say_aside
from hpc_elastic.errors import HpcElasticError, InputError, UnfitFileError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job.environment import UNREAD, tree_of
from hpc_elastic.slurm.job.first_job import FirstJobFacts, FirstProgram, program_in_script, text_of
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, places_of, read_toml
from hpc_elastic.slurm.job.settings_files import settings_for
from hpc_elastic.store import mount
from hpc_elastic.store.plain_file import owner_name, read_given
from hpc_elastic.store.users_file import write_new_users_file, write_users_file
from hpc_elastic.text import for_shell

_JOB_SCRIPTS = (".sbatch", ".slurm", ".sl", ".batch", ".sh")
_USUAL = ("train.py", "main.py", "run.py")
_LONGEST = 1 << 20
_GIVEN = ("partition", "account", "time", "qos")
_QUICK_S = 10.0  # for an answer of Slurm that the file can do without


def init(script: str | None = None, output: str = "job.toml", *, force: bool = False) -> int:
    """Write a first job file from the facts that Slurm and this directory give."""
    environ = os.environ  # noqa: TID251 - tells the environment that the user has activated
    if script is not None and script.endswith(".toml"):
        fix = f"a job file is named so: hpc-elastic init -o {for_shell(script)}"
        raise InputError(f"{script} is no training script", where="SCRIPT", fix=fix)
    if output != "-" and os.path.lexists(output) and not force:
        raise _is_there(output)
    facts = facts_here(script, environ)
    text = text_of(facts, "job.toml" if output == "-" else for_shell(output))
    job = JobFile(output, read_toml(output, text), text)
    build_spec(job, {}, settings_for(job.values))
    if output == "-":
        hand_out(text)
        return 0
    _write(output, text, force=force)
    say(f"{output} is written; look at it, then")
    say(f"  hpc-elastic submit --dry-run {for_shell(output)}")
    say(f"  hpc-elastic submit {for_shell(output)}")
    for note in _notes(facts):
        say_aside(note)
    return 0


def _notes(facts: FirstJobFacts) -> Iterator[str]:
    if facts.trouble:
        yield f"{facts.trouble}: partition and account are left to you"
    if facts.is_local:
        yield "this directory looks local to this machine: a job on several nodes needs a shared one"


def _write(output: str, text: str, *, force: bool) -> None:
    try:
        (write_users_file if force else write_new_users_file)(output, text.encode())
    except FileExistsError:
        raise _is_there(output) from None
    except OSError as error:
        fix = error.fix if isinstance(error, UnfitFileError) else "name another file with --output"
        what = f"{output} cannot be written: {error.strerror or error}"
        raise InputError(what, where="--output", fix=fix) from None


def _is_there(output: str) -> InputError:
    fix = "give --force to replace it, or another --output"
    return InputError(f"{output} is there already", where="--output", fix=fix)


def facts_here(script: str | None, environ: Mapping[str, str]) -> FirstJobFacts:
    """Return the facts about a job in the working directory.

    Args:
        script: a training script or a job script; None: it is looked for.
        environ: of this process.

    Raises:
        InputError: no program is found, or the one that is named cannot be used.
    """
    program = _program_of(script) if script is not None else _program_here()
    environment, origin = _environment_here(environ)
    settings = settings_for({})
    places = {name: places_of(name, settings.files) for name in _GIVEN}
    facts = FirstJobFacts(
        program,
        environment,
        origin,
        given={name: found[0] for name, found in places.items() if found},
        is_local=_is_local(),
    )
    return _with_slurm(facts)


def _with_slurm(facts: FirstJobFacts) -> FirstJobFacts:
    slurm = Slurm(query_timeout_s=_QUICK_S)
    if not slurm.has("sinfo"):
        return facts._replace(trouble="there is no Slurm on this machine")
    try:
        facts = facts._replace(partitions=tuple(slurm.partitions()))
    except HpcElasticError:
        return facts._replace(trouble="Slurm does not answer (sinfo)")
    user = owner_name(os.geteuid())
    for ask in (slurm.accounts, slurm.shares):
        with suppress(HpcElasticError):
            if found := ask(user):
                return facts._replace(accounts=found)
    return facts


def _is_local() -> bool:
    """Tell whether runs below this directory would be seen by this machine alone."""
    here = os.path.realpath(RUNS_FOLDER)
    return mount.sharing(here, mount.mount_at(here)) is mount.Sharing.LOCAL


def _program_of(script: str) -> FirstProgram:
    """Return the program of a script that the user has named."""
    try:
        text = read_given(script, limit=_LONGEST).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(
            f"{script} cannot be read: {error.strerror}", where="SCRIPT", fix="check the path"
        ) from None
    if script.endswith(".py"):
        return FirstProgram((script,), "the command line")
    found = program_in_script(os.path.basename(script), text)
    if found is None:
        raise InputError(
            f"no line of {script} starts torchrun or a Python script",
            where="SCRIPT",
            fix=f"it runs as it is: hpc-elastic submit {for_shell(script)}; or name the training script",
        )
    return found


def _program_here() -> FirstProgram:
    """Return the program that the files of this directory tell: a line of a job script, or a training script.

    Raises:
        InputError: there is none, or several could be meant.
    """
    names = sorted(name for name in os.listdir(".") if os.path.isfile(name))
    for name in (each for each in names if each.endswith(_JOB_SCRIPTS)):
        with suppress(OSError):
            script = read_given(name, limit=_LONGEST).decode("utf-8", "replace")
            found = program_in_script(name, script) if "#SBATCH" in script else None
            if found is not None and _is_here(found):
                return found
    usual = [name for name in _USUAL if name in names]
    programs = usual or [name for name in names if name.endswith(".py") and _is_program(name)]
    if usual or len(programs) == 1:
        return FirstProgram((programs[0],), "this directory")
    what = f"{', '.join(programs[:3])} could be meant" if programs else "no training script is here"
    raise InputError(
        what, where="SCRIPT", fix=f"name it: hpc-elastic init {programs[0] if programs else 'train.py'}"
    )


def _is_here(program: FirstProgram) -> bool:
    return "module" in program.settings or os.path.isfile(program.words[0])


def _is_program(name: str) -> bool:
    """Tell whether a file of Python does something when it is run."""
    try:
        tree = tree_of(read_given(name, limit=_LONGEST))
    except (OSError, *UNREAD):
        return False
    return any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in tree.body)


def _environment_here(environ: Mapping[str, str]) -> tuple[tuple[str, str | bool] | None, str]:
    """Return the setting that names the user's environment, and words for it; None where it is this one."""
    virtual, conda = environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", "")
    of_uv, own = os.path.exists("uv.lock"), os.path.abspath(".venv")
    places: list[tuple[str, tuple[str, str | bool], str]] = [
        (virtual, ("venv", virtual), "the active environment"),
        (conda, ("conda", conda), "the active environment"),
        (own, ("uv", True) if of_uv else ("venv", own), "that of this directory"),
        (os.path.abspath("venv"), ("venv", os.path.abspath("venv")), "that of this directory"),
    ]
    for folder, setting, origin in places:
        if folder and os.access(os.path.join(folder, "bin", "python"), os.X_OK):
            is_this = os.path.realpath(folder) == os.path.realpath(sys.prefix)
            return (None, "") if is_this else (setting, origin)
    return None, ""
