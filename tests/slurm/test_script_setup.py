"""What a job script says of setup lines that fail on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.test_script import (
    failed,
    make_node,
    told_of,
)


def test_a_machine_without_modules_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is `module`, not one of the files in which sites define it."""
    node = make_node(tmp_path)
    monkeypatch.delenv("BASH_FUNC_module%%", raising=False)
    node.run([("", 76)], command=str(node.home / "program"), modules=["cuda/12", "gcc"])
    assert "has no `module` command" in node.done.stderr
    assert "lmod" not in node.done.stderr
    (finish,) = [call for call in node.lines("calls") if call["words"][2] == "finish"]
    assert failed("setup", 127, "module load cuda/12 gcc") == told_of(finish)
