"""The examples in the documentation work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.rendezvous import rendezvous_handler_registry

_HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "rendezvous.md"


def _examples() -> list[str]:
    return re.findall(r"```python runnable\n(.*?)```", _HOW_TO.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_example(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the three examples runs by itself, and leaves no error."""
    monkeypatch.chdir(tmp_path)
    examples = _examples()
    assert 3 == len(examples)
    exec(compile(examples[number], f"how-to {number}", "exec"), {"__name__": "example"})  # noqa: S102 - ours
    rendezvous_handler_registry._registry.pop("alone", None)
    assert ("node 0 of 1" in capsys.readouterr().out) == (number == 0)
