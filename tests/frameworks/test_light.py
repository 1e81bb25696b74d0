"""hpc_elastic.frameworks loads no framework, and says which one is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"lightning", "pytorch_lightning", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=150
    )


def test_no_framework_is_loaded() -> None:
    """Neither by the package and its modules nor by the loop that all may use."""
    names = "{'torch', 'lightning', 'transformers', 'accelerate'}"
    modules = "hpc_elastic.frameworks.lightning, hpc_elastic.frameworks.transformers"
    use = f"import sys, hpc_elastic.frameworks as f, {modules}; f.ElasticLoop(print, print)"
    done = python(f"{use}; print({names} & set(sys.modules))")
    assert "set()\n" == done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("lightning", "ElasticCallback", "Lightning"),
        ("transformers", "ElasticTrainerCallback", "Transformers"),
    ],
)
def test_a_missing_framework_is_named(module: str, name: str, package: str) -> None:
    """One line says what is missing and how to get it."""
    done = python(f"{BLOCK}\nfrom hpc_elastic.frameworks.{module} import {name}, latest\n{name}()")
    last = done.stderr.splitlines()
    assert 1 == done.returncode
    assert any(f"{package} is not installed" in line for line in last[-2:])
    assert f"pip install {module}" in done.stderr
