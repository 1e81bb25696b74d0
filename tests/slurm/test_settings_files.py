"""Settings files: which are read, which one wins, and how a mistake in one is told."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, spec_over
from hpc_elastic.slurm.job.settings_files import (
    SettingsPlace,
    layers_of,
    places_of_files,
    profile_names,
    profiles_here,
    read_files,
    settings_for,
)
from hpc_elastic.slurm.job.spec import JobSpec

JOB = {"command": ("true",)}


class Files:
    """The three settings files, in directories of their own.

    Args:
        home: holds them.
    """

    def __init__(self, home: Path) -> None:
        self.site = home / "site.toml"
        self.user = home / "config" / "hpc-elastic" / "config.toml"
        self.project = home / "project" / "hpc-elastic.toml"
        self.here = home / "project" / "below"
        for path in (self.user.parent, self.here):
            path.mkdir(parents=True)
        self.site.write_text("")
        self.environ = {"HPC_ELASTIC_SITE_CONFIG": str(self.site), "XDG_CONFIG_HOME": str(home / "config")}

    def spec(self, profile: str | None = None, **job: Any) -> JobSpec:
        """Return the job with these fields."""
        fields = {**JOB, **job}
        return spec_over(settings_for(fields, profile, environ=self.environ), fields)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Return the files; the working directory is below that of the project."""
    made = Files(tmp_path)
    monkeypatch.chdir(made.here)
    return made


def test_each_file_goes_before_the_more_general_ones(files: Files) -> None:
    """Site, user, project, profile, the job itself; tables are merged."""
    files.site.write_text(
        'partition = "site"\naccount = "site"\nqos = "site"\n[env]\nA = "site"\nB = "site"\n'
    )
    files.user.write_text('account = "user"\nqos = "user"\nreservation = "user"\n[env]\nB = "user"\n')
    files.project.write_text(
        'qos = "project"\n[profiles.big]\nreservation = "profile"\nconstraint = "profile"\n'
    )
    plain, big = files.spec(), files.spec("big", constraint="job", env={"C": "job"})
    assert ("site", "user", "project", "user") == (
        plain.partition,
        plain.account,
        plain.qos,
        plain.reservation,
    )
    assert {"A": "site", "B": "user"} == plain.env
    assert ("profile", "job", {"A": "site", "B": "user", "C": "job"}) == (
        big.reservation,
        big.constraint,
        big.env,
    )


def test_a_profile_is_laid_over_the_one_that_it_extends(files: Files) -> None:
    """Whichever file has its parts; the part of the later file goes first."""
    files.site.write_text('[profiles.gpu]\npartition = "gpu"\nqos = "low"\ntime = "1h"\n')
    files.project.write_text('[profiles.big]\nextends = "gpu"\nnodes = 4\n[profiles.gpu]\ntime = "2h"\n')
    spec = files.spec("big")
    assert ("gpu", "low", "02:00:00", "4") == (spec.partition, spec.qos, spec.time, spec.nodes)
    assert ["big", "gpu"] == profile_names(read_files(places_of_files(files.environ, os.getcwd())))


def test_the_environment_goes_before_the_files_and_after_the_job(files: Files) -> None:
    """Its variables are handed on to sbatch, as the script then has no such line."""
    files.user.write_text('account = "user"\npartition = "user"\n')
    files.environ["SBATCH_ACCOUNT"] = "environment"
    assert (None, "user") == (files.spec().account, files.spec().partition)
    assert "job" == files.spec(account="job").account


@pytest.mark.parametrize(
    ("of_file", "job", "found"),
    [
        ('mem = "100G"', {"mem_per_cpu": "4G"}, {"mem": None, "mem_per_cpu": "4G"}),
        ('mem_per_cpu = "4G"', {"sbatch": {"mem-per-gpu": "9G"}}, {"mem_per_cpu": None}),
        ("gpus_per_node = 8", {"sbatch": {"gres": "gpu:4"}}, {"gpus_per_node": None}),
        ('sbatch = { gres = "gpu:4", L = "x" }', {"gpus_per_node": 8}, {"sbatch": {"licenses": "x"}}),
        ("cpus_per_node = 8", {"cpus_per_task": 4}, {"cpus_per_node": None, "cpus_per_task": 4}),
        ('sbatch = { partition = "a" }', {"partition": "b"}, {"partition": "b", "sbatch": {}}),
        ('partition = "a"', {"sbatch": {"p": "b"}}, {"partition": "b"}),
        ("exclusive = true", {"exclusive": False}, {"exclusive": False}),
        ("exclusive = true", {"sbatch": {"oversubscribe": True}}, {"exclusive": False}),
        ('mode = "array"\nspares = 2', {"mode": "step"}, {"mode": "step", "spares": None}),
        ('chain = 3\nchain_by = "singleton"', {"mode": "array"}, {"chain": None, "chain_by": None}),
        ('account = "a"', {"account": None}, {"account": None}),
    ],
)
def test_a_setting_gives_way_to_one_that_asks_for_the_same_otherwise(
    files: Files, of_file: str, job: dict[str, Any], found: dict[str, Any]
) -> None:
    """So a file can be overruled, though TOML has no word for nothing."""
    files.user.write_text(of_file)
    spec = files.spec(**job)
    assert found == {name: getattr(spec, name) for name in found}


def test_a_later_file_may_ask_for_the_same_otherwise(files: Files) -> None:
    """As a job may."""
    files.site.write_text('mem = "100G"\n')
    files.project.write_text('[profiles.many]\nmem_per_cpu = "4G"\n')
    spec = files.spec("many")
    assert (None, "4G") == (spec.mem, spec.mem_per_cpu)


def test_paths_begin_at_their_file(files: Files) -> None:
    """So a job is the same from each directory of the project."""
    files.project.write_text('python = ".venv/bin/python"\nworkdir = "."\nledger = "~/nodes"\n')
    spec, above = files.spec(), files.project.parent
    assert (f"{above}/.venv/bin/python", f"{above}/.", os.path.expanduser("~/nodes")) == (
        spec.python,
        spec.workdir,
        spec.ledger,
    )
    files.project.write_text('python = "python3.12"\n')
    assert "python3.12" == files.spec().python


SCRIPT = "#!/bin/bash\n#SBATCH --partition=script --mem-per-cpu=2G\n#SBATCH --no-requeue\ntrue\n"


def test_a_job_script_takes_what_it_does_not_say_itself(files: Files) -> None:
    """Its place and its budgets, and neither resources nor settings of workers; its own lines go first."""
    script = files.here / "job.sbatch"
    script.write_text(SCRIPT)
    files.user.write_text(
        'account = "user"\npartition = "user"\nmem = "1G"\nnodes = 4\ngpus_per_node = 8\n'
        'max_node_losses = 5\nmax_requeues = 9\nhang_timeout = "1h"\n[env]\nA = "1"\n'
    )
    spec = files.spec(mode="script", command=(str(script),))
    given = {"account": "user", "max_node_losses": 5, "mode": "script", "command": (str(script),)}
    assert given == spec.given
    of_line = files.spec(mode="script", command=(str(script),), sbatch_options=("--account=line",))
    assert "account" not in of_line.given
    files.environ["SBATCH_ACCOUNT"] = "environment"
    assert "account" not in files.spec(mode="script", command=(str(script),)).given


@pytest.mark.parametrize("lines", ["#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 2\n", "#PBS -A other\n"])
def test_no_option_is_put_before_lines_that_are_not_read_here(files: Files, lines: str) -> None:
    """Of one component of several it would be, or stand before the same option of PBS."""
    script = files.here / "job.sbatch"
    script.write_text(f"#!/bin/bash\n{lines}true\n")
    files.user.write_text('account = "user"\nmax_node_losses = 5\n')
    spec = files.spec(mode="script", command=(str(script),))
    assert (None, 5) == (spec.account, spec.max_node_losses)


def test_a_run_on_this_machine_takes_no_number_of_nodes(files: Files) -> None:
    """Which its own option tells."""
    files.user.write_text('nodes = 4\nmode = "array"\nmax_restarts = 7\n')
    settings = settings_for(JOB, is_local=True, environ=files.environ)
    assert {"max_restarts": 7, **JOB} == spec_over(settings, JOB).given


@pytest.mark.parametrize(
    ("text", "profile", "line", "said", "fix"),
    [
        ("nodse = 2\n", None, 1, "nodse = 2", "'nodes'"),
        ('\nnodes = "3:1"\n', None, 2, 'nodes = "3:1"', "1:3"),
        ('[env]\nA = ["x"]\n', None, 2, 'A = ["x"]', "write A"),
        ("nodes = 2:4\n", None, 1, "not valid TOML", "correct the line"),
        ('command = "a.py"\n', None, 1, "command is a setting of one job", "in a job file"),
        ('run_dir = "a"\n', None, 1, "run_dir is a setting of one job", "in a job file"),
        ('mode = "script"\n', None, 1, "one job", "leave it out"),
        ('extends = "a"\n', None, 1, "no setting 'extends' of a job", "[profiles.NAME]"),
        ("profile = { a = { nodes = 2 } }\n", None, 1, "no table [profile]", "[profiles.NAME]"),
        ("profiles = 3\n", None, 1, "no table", "[profiles.NAME]"),
        ("profiles.a = 3\n", None, 1, "profiles.a is no table", "[profiles.a]"),
        ("[profiles.task]\nnodes = 2\n", None, 1, "one of Slurm's own", "another name"),
        ("[profiles.a]\nnodes = 2\nnodse = 1\n", "a", 3, "nodse = 1", "'nodes'"),
        ('nodes = 2\n[profiles.a]\nnodes = "3:1"\n', "a", 3, 'nodes = "3:1"', "1:3"),
        ("[profiles.a]\n[profiles.a.sbatch]\nntasks = 3\n", "a", 3, "ntasks = 3", "workers_per_node"),
        ("profiles.a = { nodes = 0 }\n", "a", 1, "profiles.a = { nodes = 0 }", "at least one"),
        ('[profiles.a]\nextends = "b"\n', "a", 2, "no profile 'b'", "the profiles are: a"),
        ("[profiles.a]\nextends = 3\n", "a", 2, "is not the name of a profile", 'extends = "NAME"'),
        ('lease = 2\nheartbeat_interval = "1s"\n', None, 1, "three heartbeats", "set lease"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    files: Files, text: str, profile: str | None, line: int, said: str, fix: str
) -> None:
    """As in a job file."""
    files.project.write_text(text)
    with pytest.raises(InputError) as caught:
        build_spec(JobFile(values=JOB), {}, settings_for(JOB, profile, environ=files.environ))
    assert f"{files.project}:{line}" == caught.value.where
    assert said in caught.value.message
    assert fix in caught.value.fix


def test_profiles_in_a_circle_are_one_error(files: Files) -> None:
    """It names all of them, and the line that closes the circle."""
    files.user.write_text('[profiles.a]\nextends = "b"\n[profiles.b]\nextends = "c"\n')
    files.project.write_text('[profiles.c]\nextends = "b"\n')
    with pytest.raises(InputError, match="b extends c extends b") as caught:
        files.spec("a")
    assert f"{files.project}:2" == caught.value.where
    files.project.write_text('[profiles.c]\nextends = "c"\n')
    with pytest.raises(InputError, match="circle: c extends c"):
        files.spec("c")


def test_an_unknown_profile_is_named_with_those_that_are_like_it(files: Files) -> None:
    """Or with all, or with the way to write one."""
    for text, fix in (
        ("", "write [profiles.bgi]"),
        ("[profiles.big]", "'big'"),
        ("[profiles.x]", "the profiles are: x"),
    ):
        files.user.write_text(text)
        with pytest.raises(InputError, match="no profile 'bgi'") as caught:
            files.spec("bgi")
        assert ("--profile", True) == (caught.value.where, fix in caught.value.fix)


def test_without_files_nothing_is_given(files: Files) -> None:
    """A file that is not there is none; one that the user has named has to be there."""
    files.site.unlink()
    with pytest.raises(InputError, match="does not exist") as caught:
        files.spec()
    assert "HPC_ELASTIC_SITE_CONFIG" == caught.value.where
    files.environ["HPC_ELASTIC_SITE_CONFIG"] = ""
    assert JOB == files.spec().given


def test_the_places_are_those_of_the_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_CONFIG_HOME is none."""
    monkeypatch.setenv("HOME", "/home/me")
    user = "/home/me/.config/hpc-elastic/config.toml"
    for environ in ({}, {"XDG_CONFIG_HOME": "relative"}):
        found = places_of_files(environ, str(tmp_path))
        assert [
            SettingsPlace("site", "/etc/hpc-elastic/config.toml"),
            SettingsPlace("user", user),
            SettingsPlace("project", ""),
        ] == found


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _latin(path: Path) -> None:
    path.write_bytes(b'name = "\xe9"\n')


def _writable(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        path.chmod(mode)

    return make


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


UNFIT = {
    "a FIFO": (_fifo, "cannot be read: it is a FIFO"),
    "a directory": (_directory, "cannot be read: it is a directory"),
    "not UTF-8": (_latin, "not UTF-8"),
    "writable for all": (_writable(0o646), r"everybody can write to the settings file \(mode 646\)"),
    "a link to nothing": (_dangling, "does not exist"),
}


@pytest.mark.parametrize("whose", ["site", "user", "project"])
@pytest.mark.parametrize("unfit", UNFIT)
def test_a_file_that_cannot_be_used_is_one_error(files: Files, whose: str, unfit: str) -> None:
    """Nothing of it is read, and nothing waits."""
    make, said = UNFIT[unfit]
    path: Path = getattr(files, whose)
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(InputError, match=said) as caught:
        files.spec()
    assert caught.value.where in (str(path), "HPC_ELASTIC_SITE_CONFIG")
    assert caught.value.fix
    if whose == "project":
        (files.here / "hpc-elastic.toml").touch(0o600)
        assert JOB == files.spec().given


_SHARED_GID = 54321  # of a group that no user has to themselves


def _own_group_is_private() -> bool:
    user = pwd.getpwuid(os.geteuid())
    with suppress(KeyError):
        group = grp.getgrgid(user.pw_gid)
        return group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}
    return False


@pytest.mark.skipif(not _own_group_is_private(), reason="the user of the tests has no group of its own")
def test_a_group_of_the_user_alone_may_write(files: Files) -> None:
    """As a umask of 002 leaves it where each user has such a group."""
    files.user.write_text('account = "ml"\n')
    os.chown(files.user, -1, pwd.getpwuid(os.geteuid()).pw_gid)
    files.user.chmod(0o664)
    assert "ml" == files.spec().account


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives a file to any group")
def test_a_group_of_several_users_may_not_write(files: Files) -> None:
    """It is named."""
    files.user.write_text('account = "ml"\n')
    os.chown(files.user, -1, _SHARED_GID)
    files.user.chmod(0o664)
    with pytest.raises(InputError, match=r"members of group gid 54321 can write to the settings file"):
        files.spec()


def test_a_link_of_the_users_own_is_followed(files: Files) -> None:
    """As those of programs that keep the settings of a home in one place."""
    kept = files.here / "kept.toml"
    kept.write_text('account = "ml"\n')
    files.user.symlink_to(kept)
    assert "ml" == files.spec().account
    kept.chmod(0o666)
    with pytest.raises(InputError, match="everybody can write") as caught:
        files.spec()
    assert f"chmod go-w {kept}" in caught.value.fix


def test_a_shell_completes_the_profiles(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all files."""
    for name, value in files.environ.items():
        monkeypatch.setenv(name, value)
    files.user.write_text("[profiles.big]\n")
    files.project.write_text("[profiles.small]\n")
    assert ["big", "small"] == profiles_here()


def test_the_layers_keep_their_order(files: Files) -> None:
    """The files, then the profile that is extended, then the one that is asked for."""
    files.user.write_text('[profiles.a]\nextends = "b"\n[profiles.b]\n')
    files.project.write_text("[profiles.a]\n")
    layers = layers_of(read_files(places_of_files(files.environ, os.getcwd())), "a")
    site, user, project = map(str, (files.site, files.user, files.project))
    places = [
        (site, ""),
        (user, ""),
        (project, ""),
        (user, "profiles.b"),
        (user, "profiles.a"),
        (project, "profiles.a"),
    ]
    assert places == [(layer.path, layer.table) for layer in layers]
