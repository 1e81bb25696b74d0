"""Our own processes: what others put beside them takes no part in what they import."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.isolated import lookup
from hpc_elastic.isolated.argv import CALL, INSTALLED, OwnPath, call_argv, own_argv
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit.request import own_path_of
from tests.isolated.planted import TEXT, plant

SAYS_PATH = "import json, sys; print(json.dumps(sys.path))"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory full of modules that must not be imported."""
    place = plant(tmp_path / "shared")
    monkeypatch.chdir(place)
    return place


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    return subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PYTHONPATH": "."},
        {"PYTHONPATH": ":/nowhere"},
        {"PYTHONPATH": "{place}"},
        {"PYTHONHOME": "{place}"},
        {"PYTHONSTARTUP": "{place}/json.py", "PYTHONINSPECT": ""},
        {"PYTHONUSERBASE": "{place}", "PYTHONPLATLIBDIR": "."},
    ],
    ids=lambda environ: ",".join(f"{name}={value}" for name, value in environ.items()) or "nothing",
)
def test_nothing_planted_is_imported(planted: Path, environ: dict[str, str]) -> None:
    """Neither from the working directory nor from where variables of the submit shell lead."""
    filled = {name: value.format(place=planted) for name, value in environ.items()}
    done = run(*own_argv(sys.executable), "version", **filled)
    assert (0, f"{hpc_elastic.__version__}\n", "") == (done.returncode, done.stdout, done.stderr)


def test_a_path_that_is_not_known_leads_past_the_working_directory(planted: Path) -> None:
    """What PYTHONPATH names is searched after all that is installed, and the working directory never."""
    argv = own_argv(sys.executable, where=OwnPath(is_known=False))
    done = run(*argv, "version", PYTHONPATH=f"{planted}:.:/nowhere")
    assert (0, f"{hpc_elastic.__version__}\n", "") == (done.returncode, done.stdout, done.stderr)


def test_an_ordinary_installation_needs_no_further_directory() -> None:
    """So that the line in the job script can be read."""
    assert INSTALLED == lookup.own_path()
    assert ("/opt/python", "-I", "-m", "hpc_elastic") == own_argv("/opt/python")


def bare_python(tmp_path: Path) -> str:
    """Return an interpreter that has no packages at all."""
    done = run(sys.executable, "-I", "-m", "venv", "--without-pip", str(tmp_path / "bare"))
    assert done.returncode == 0, done.stderr
    return str(tmp_path / "bare" / "bin" / "python")


def copy_of(names: Sequence[str], place: Path) -> Path:
    """Copy modules of this interpreter into a directory, as an installation there has them."""
    place.mkdir(parents=True)
    for name in names:
        found = Path(str(importlib.import_module(name).__file__))
        if found.name == "__init__.py":
            shutil.copytree(found.parent, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(found, place)
    return place


def of(python: str, **environ: str) -> lookup.InterpreterAnswer:
    """Return what comes of asking an interpreter, in a submit shell with other variables."""
    ask = "from hpc_elastic.isolated import lookup; print(json.dumps(lookup.ask(sys.argv[1])))"
    code = f"import json, sys; {ask}"
    done = run(*own_argv(sys.executable)[:2], "-c", code, python, **environ)
    assert done.returncode == 0, done.stderr
    where, is_installed, trouble = json.loads(done.stdout)
    return lookup.InterpreterAnswer(OwnPath(tuple(where[0]), where[1]), is_installed, trouble)


@pytest.mark.slow
def test_an_installation_that_pythonpath_leads_to(tmp_path: Path, planted: Path) -> None:
    """Its directories are named, absolute and in order, but none in which nothing of ours is."""
    python = bare_python(tmp_path)
    assert not of(python).is_installed
    ours, needed = copy_of(["hpc_elastic"], tmp_path / "ours"), copy_of(["filelock"], tmp_path / "needed")
    (tmp_path / "theirs").mkdir()
    path = f".:{planted}:{tmp_path / 'theirs'}:{needed}:{ours}:relative"
    found = of(python, PYTHONPATH=path)
    assert (OwnPath((str(needed), str(ours))), True) == found[:2]
    argv = own_argv(python, "hpc_elastic.isolated.told", found.where)
    (ours / "hpc_elastic" / "isolated" / "told.py").write_text(
        "import filelock, json, signal, sys; print(filelock.__file__, sys.argv[1:])"
    )
    done = run(*argv, "a b", PYTHONPATH=path)
    assert f"{needed}/filelock/__init__.py ['a b']\n" == done.stdout, done.stderr


@pytest.mark.slow
def test_an_installation_of_the_users_own(tmp_path: Path, planted: Path) -> None:
    """Packages of pip install --user are found, also through a .pth file there."""
    base = tmp_path / "base"
    python = os.path.realpath(sys.executable)
    user_site = base / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    user_site.mkdir(parents=True)
    clone = copy_of(["hpc_elastic"], tmp_path / "clone")
    (user_site / "clone.pth").write_text(f"{clone}\n")
    found = of(python, PYTHONUSERBASE=str(base))
    assert (OwnPath((str(clone),)), True) == found[:2]
    (clone / "hpc_elastic" / "isolated" / "told.py").write_text("print('told')")
    done = run(*own_argv(python, "hpc_elastic.isolated.told", found.where))
    assert "told\n" == done.stdout, done.stderr


def test_an_interpreter_that_setup_lines_may_change_is_not_asked() -> None:
    """A name may mean another one by then; a path means that one."""
    own = JobSpec(command=["train.py"], python=sys.executable, modules=("python",))
    named = own.replaced(python="python3")
    absent = own.replaced(python="python-of-a-module", modules=())
    known = [own_path_of(spec).is_known for spec in (own, named, absent)]
    assert [True, False, False] == known


def test_a_handler_of_the_users_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PYTHONPATH and, behind all others, in the working directory, which is searched for it only."""
    (tmp_path / "json.py").write_text("raise SystemExit('planted code has run')")
    (tmp_path / "handler.py").write_text("import json; made = 'handler'")
    monkeypatch.chdir(tmp_path)
    code = (
        "import sys; from hpc_elastic.isolated.search_path import users_modules\n"
        "with users_modules({'PYTHONPATH': 'other'}): import handler\n"
        f"print(handler.made, sys.path[-1]); assert {str(tmp_path)!r} not in sys.path"
    )
    done = run(sys.executable, "-I", "-c", code)
    assert f"handler {tmp_path}/other\n" == done.stdout, done.stderr


@pytest.mark.parametrize(
    "pythonpath",
    [":/nowhere", "../shared", "{place}/../shared", "archive/lib", "~/lib", "archive/../archive/lib"],
)
def test_a_command_typed_by_hand_imports_nothing_planted(planted: Path, pythonpath: str) -> None:
    """Whatever PYTHONPATH says, once this package is found; before, site has looked for its two."""
    shutil.rmtree(planted / "hpc_elastic")
    for name in ("hpc_elastic", "sitecustomize", "usercustomize"):
        (planted / f"{name}.py").unlink()
    names = ["__future__", "collections", "prometheus_client"]
    if sys.version_info >= (3, 11):  # before, the interpreter itself looks for these two, as it starts
        names += ["abc", "os"]
    for name in names:
        (planted / f"{name}.py").write_text(TEXT)
    for name in ("archive", "~"):
        with zipfile.ZipFile(planted / name, "w") as archive:
            archive.writestr("lib/argparse.py", TEXT)
    code = "from hpc_elastic.cli.main import main; main()"
    (planted.parent / "hpc-elastic").write_text(code)
    environ = {"PYTHONPATH": pythonpath.format(place=planted)}
    done = run(sys.executable, "../hpc-elastic", "version", **environ)
    assert (0, f"{hpc_elastic.__version__}\n", "") == (done.returncode, done.stdout, done.stderr)


def test_pythonpath_comes_behind_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute directories stay before the installed packages, and this package stays wherever it is."""
    elsewhere, here, absent = tmp_path / "elsewhere", tmp_path / "here", tmp_path / "absent"
    for place in (elsewhere, here / "lib"):
        place.mkdir(parents=True)
    monkeypatch.chdir(here)
    home = os.path.dirname(os.path.dirname(hpc_elastic.__file__))
    code = f"from hpc_elastic.isolated.callers_path import *; drop_callers_places(); {SAYS_PATH}"
    path = f"lib:absent:~/lib:./a/../b:{absent}:{elsewhere}:{here}::{home}"
    found = json.loads(run(sys.executable, "-c", code, PYTHONPATH=path).stdout)
    plain = json.loads(run(sys.executable, "-I", "-c", SAYS_PATH).stdout)
    rest = [place for place in plain[3:] if place != home]
    assert [*plain[:3], str(absent), str(elsewhere), home, *rest] == found
    monkeypatch.chdir(home)
    found = json.loads(run(sys.executable, "-c", code, PYTHONPATH=".").stdout)
    assert [*plain[:3], home, *rest] == found


def test_an_isolated_process_keeps_its_path() -> None:
    """Its caller has put nothing there."""
    code = f"from hpc_elastic.isolated.callers_path import *; drop_callers_places(); {SAYS_PATH}"
    plain, found = (run(sys.executable, "-I", "-c", text).stdout for text in (SAYS_PATH, code))
    assert plain == found


def test_an_interpreter_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    """One that is no Python has simply not got the package."""
    assert not lookup.ask("/bin/false").is_installed
    assert "No such file" in lookup.ask(str(tmp_path / "python")).trouble


def test_directories_come_behind_the_standard_library(tmp_path: Path) -> None:
    """And before other packages, so that the same versions are found as where the run was submitted."""
    code = own_argv(sys.executable, where=OwnPath(("/one", "/two")))[-1].rpartition("; import runpy")[0]
    done = run(sys.executable, "-I", "-c", f"{code}; {SAYS_PATH}")
    path = json.loads(done.stdout)
    plain = json.loads(run(sys.executable, "-I", "-c", SAYS_PATH).stdout)
    at = path.index("/one")
    assert [*plain[:at], "/one", "/two", *plain[at:]] == path
    assert ["lib-dynload"] == [os.path.basename(place) for place in path[at - 1 : at]]


def test_names_with_quotes_and_other_signs_stay_what_they_are() -> None:
    """They are part of a program's text."""
    where = OwnPath(("/a 'b\"", "/ä\n{}", "/\udcff"))
    code = own_argv(sys.executable, where=where)[-1].rpartition("; import runpy")[0]
    done = run(sys.executable, "-I", "-c", f"{code}; {SAYS_PATH}")
    assert list(where.directories) == [
        place for place in json.loads(done.stdout) if place in where.directories
    ]


def _has_needed(installed: importlib.metadata.Distribution) -> bool:
    """Tell whether a package has a module of `NEEDED`; Python 3.10 itself cannot tell that of many."""
    tops = {path.parts[0].removesuffix(".py") for path in installed.files or ()}
    return not tops.isdisjoint(lookup.NEEDED)


def test_all_that_the_package_needs_is_looked_for() -> None:
    """With what these packages need in turn."""
    found = importlib.metadata.distributions()
    known = {"hpc-elastic"} | {one.name.lower().replace("_", "-") for one in found if _has_needed(one)}
    needed, waiting = set(), ["hpc-elastic"]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in needed:
            continue
        needed.add(name)
        for line in importlib.metadata.requires(name) or ():
            text, _, marker = line.partition(";")
            if "extra" not in marker and "platform" not in marker and "python_version" not in marker:
                waiting.append(re.split(r"[^\w.-]", text.strip())[0])
    assert set() == needed - known


@pytest.mark.parametrize("where", [INSTALLED, OwnPath(("/own",)), OwnPath(is_known=False)], ids=str)
def test_a_call_searches_what_a_module_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: OwnPath
) -> None:
    """Its interpreter is a plain one: the function's own processes inherit no isolation."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told.py").write_text(f"{SAYS_PATH}; assert not sys.flags.isolated")
    environ = {"PYTHONPATH": "/one:relative"}
    module = json.loads(run(sys.executable, "-m", "told", **environ).stdout)
    *head, code, name = call_argv(sys.executable, where)
    assert ("-u", CALL) == (head[1], name)
    code = code.replace(
        f"from {CALL} import main; main(plain)", "import json; print(json.dumps([sys.path, plain]))"
    )
    ours, plain = json.loads(run(*head, code, name, **environ).stdout)
    assert module == plain
    at = plain.index(os.path.dirname(os.__file__))
    base, more = plain[at:], [] if where.is_known else plain[1:at]
    assert [*base[:2], *where.directories, *base[2:], *more] == ours
