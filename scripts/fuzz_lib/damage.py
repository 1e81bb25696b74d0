"""Run directories, and what may have happened to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz_lib.samples import directories
from fuzz_lib.strategies import fields, json_of, odd_json, odd_texts, with_fields

_OTHERS = ("fifo", "directory", "gone", "empty", "link-zero", "link-self", "link-out", "sparse", "no-read")
_SPARSE = 200 << 30
_MOST_READ = 1 << 20  # bytes: what is larger has been made so
_MOST_NAME = 120  # bytes
_edits = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 9), st.binary(max_size=5)), min_size=1, max_size=3
)
_WORDS = (
    "²", "000000².json", "\x1b[31mred", "a\nb", "news+" + "9" * 40, "n9.9+9-0-9-9+running+9+9+9",
    "00000002", "99999999", "n1.7+0-0-1-0+running+2+" + "9" * 30 + "+5", "000000000013.9.0.1.json",
    "a+deleted", "attempt_²", "slurm-9.out", "-rf", "000001.json", "000000-0002.intent", "$(touch x)",
    "a b", "\udcff", ".tmp.x", ".nfs000",
)  # fmt: skip
_NAMES = st.sampled_from(_WORDS) | odd_texts
damages = st.lists(
    st.one_of(
        st.tuples(st.just("fields"), st.integers(0, 99), fields),
        st.tuples(st.just("fields"), st.integers(0, 99), fields),
        st.tuples(st.just("bytes"), st.integers(0, 99), _edits),
        st.tuples(st.just("whole"), st.integers(0, 99), odd_json),
        st.tuples(st.just("as"), st.integers(0, 99), st.sampled_from(_OTHERS)),
        st.tuples(st.just("name"), st.integers(0, 99), _NAMES),
        st.tuples(st.just("rename"), st.integers(0, 99), _NAMES),
    ),
    max_size=4,
)
Damage = tuple[str, int, Any]


def lay_out(root: Path, contents: Mapping[str, bytes], done: Sequence[Damage] = ()) -> None:
    """Make a run directory.

    Args:
        root: where; what is there is removed.
        contents: its files.
        done: what has happened to it since.
    """
    shutil.rmtree(root, ignore_errors=True)
    for path in ("", *directories()):
        os.makedirs(root / path, mode=0o700, exist_ok=True)
    for path, data in contents.items():
        place = root / path
        os.makedirs(place.parent, mode=0o700, exist_ok=True)
        place.write_bytes(data)
    places = sorted(contents)
    for kind, number, what in done:
        _happen(root / places[number % len(places)], kind, what)


def _happen(path: Path, kind: str, what: Any) -> None:
    if kind in ("name", "rename"):
        new = path.parent / _file_name(what)
        if not os.path.lexists(new):
            _rename(path, new) if kind == "rename" else new.write_bytes(b"{}")
    elif kind == "as":
        _other(path, what)
    elif path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_READ:
        data = path.read_bytes()
        path.write_bytes(_changed(data, kind, what))


def _changed(data: bytes, kind: str, what: Any) -> bytes:
    if kind == "fields":
        return with_fields(data, what)
    if kind == "whole":
        return json_of(what).encode("utf-8", "surrogatepass")
    for at, length, piece in what:
        place = at % (len(data) + 1)
        data = data[:place] + piece + data[place + length :]
    return data


def _file_name(text: str) -> str:
    name = text.replace("/", "_").replace("\0", "").encode("utf-8", "replace")[:_MOST_NAME]
    return os.fsdecode(name) if name not in (b"", b".", b"..") else "x"


def _rename(path: Path, new: Path) -> None:
    if os.path.lexists(path):
        os.rename(path, new)


def _other(path: Path, what: str) -> None:
    if path.is_dir() and not path.is_symlink():
        return
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "empty":
        path.touch()
    elif what == "sparse":
        path.touch()
        os.truncate(path, _SPARSE)
    elif what == "no-read":
        path.touch(mode=0)
    elif what != "gone":
        os.symlink({"link-zero": "/dev/zero", "link-self": path.name, "link-out": "/etc/passwd"}[what], path)
