"""The project under test: its modules, its tests, and which tests are about which module."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


class UnknownModuleError(Exception):
    """There is no such module."""


@dataclass(frozen=True)
class Project:
    """A repository with one package and the directory ``tests``.

    Attributes:
        root: the repository, or a copy of it.
        package: name of the package in it.
        files: those that git knows or would not ignore, relative to the root.
    """

    root: Path
    package: str
    files: tuple[str, ...]

    @classmethod
    def find(cls, root: Path, package: str) -> Project:
        """Return the project in a repository of git."""
        argv = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\0")
        return cls(
            root, package, tuple(sorted({name for name in listed if name and (root / name).is_file()}))
        )

    @cached_property
    def sources(self) -> list[str]:
        """Return the files of the package."""
        return [name for name in self.files if name.startswith(f"{self.package}/") and name.endswith(".py")]

    @cached_property
    def test_files(self) -> list[str]:
        """Return the files with tests."""
        return [name for name in self.files if name.startswith("tests/") and _is_test(name)]

    @cached_property
    def support_files(self) -> list[str]:
        """Return what tests share; what is said of mutants changes no test."""
        found = [name for name in self.files if name.startswith("tests/") and not _is_test(name)]
        return [name for name in found if not name.startswith("tests/mutation/")]

    def read(self, file: str) -> str:
        """Return the text of a file."""
        return (self.root / file).read_text(encoding="utf-8")

    def file_of(self, module: str) -> str:
        """Return the file of a module.

        Args:
            module: ``store.files``, ``store/files`` or with the package before it.

        Raises:
            UnknownModuleError: there is no such module.
        """
        path = module.removesuffix(".py").replace(".", "/").removeprefix(f"{self.package}/")
        for name in (f"{self.package}/{path}.py", f"{self.package}/{path}/__init__.py"):
            if name in self.sources:
                return name
        raise UnknownModuleError(f"there is no module {module!r} in {self.root / self.package}")

    def direct_tests(self, file: str) -> list[str]:
        """Return the files with tests that are named after a module or import it."""
        directory, stem = _home(file), _stem(file)
        named = f"{directory}test_{stem}"
        return [
            name
            for name in self.test_files
            if name == f"{named}.py" or name.startswith(f"{named}_") or file in self._imported[name]
        ]

    def wider_tests(self, file: str) -> list[str]:
        """Return the files with tests of the module's package, and those about the modules that import it."""
        found = {name for name in self.test_files if _home(name) == _home(file)}
        for importer in self.sources:
            if file in self._imported[importer]:
                found.update(self.direct_tests(importer))
        return sorted(found - set(self.direct_tests(file)))

    @cached_property
    def _imported(self) -> Mapping[str, frozenset[str]]:
        """Return for each file which files of the package it imports itself."""
        modules = {_module(name): name for name in self.sources}
        return {
            name: frozenset(modules[one] for one in _imports(ast.parse(self.read(name))) if one in modules)
            for name in [*self.sources, *self.test_files]
        }


def _is_test(name: str) -> bool:
    file = name.rpartition("/")[2]
    return file.startswith("test_") and file.endswith(".py")


def _home(file: str) -> str:
    """Return the directory of the tests of a module's package, and of a file of tests."""
    _, *packages, _ = file.split("/")
    return "/".join(["tests", *packages[:1], ""])


def _stem(file: str) -> str:
    parts = file.removesuffix("/__init__.py").removesuffix(".py").split("/")
    return parts[-1].strip("_")


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_name(project: Project, file: str) -> str:
    """Return the short name of a module, without the package."""
    return _module(file).removeprefix(f"{project.package}.")


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def all_files(names: Iterable[Iterable[str]]) -> list[str]:
    """Return several lists of files as one, each once."""
    return sorted({name for group in names for name in group})
