"""A working directory full of modules that must not be imported."""

from __future__ import annotations

from pathlib import Path

PLANTED = (
    *("hpc_elastic", "runpy", "typing", "signal", "json", "contextlib", "argparse", "select", "selectors"),
    *("subprocess", "tempfile", "zlib", "psutil", "filelock", "argcomplete"),
    *("cloudpickle", "submitit", "sitecustomize", "usercustomize"),
)
TEXT = "raise SystemExit('planted code has run')\n"


def plant(place: Path) -> Path:
    """Fill a directory, which is made."""
    place.mkdir(parents=True)
    for name in PLANTED:
        (place / f"{name}.py").write_text(TEXT)
    (place / "hpc_elastic").mkdir()
    (place / "hpc_elastic" / "__init__.py").write_text(TEXT)
    (place / "more.pth").write_text("import os; os._exit(9)\n")
    return place
