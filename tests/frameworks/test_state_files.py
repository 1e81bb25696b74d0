"""The files of states in a node's memory: what they bring back, and that no damaged one is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.errors import DamagedError  # noqa: E402
from hpc_elastic.frameworks.torch.memory.copies import (  # noqa: E402  # noqa: E402
    TENSORS_AT,
    Copied,
    MemorySource,
    Rescued,
    Slot,
    copied_as,
    found_copies,
    head_at,
)
from hpc_elastic.frameworks.torch.rank_groups import RankGroups  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import Torch, load_torch, pickled, unpickled  # noqa: E402
from hpc_elastic.record.memory_files import COPY_HEAD, own_file, own_in, state_head  # noqa: E402

pytestmark = pytest.mark.torch
TOKEN = "0123456789abcdef"  # noqa: S105 - no secret
STATE = Rescued(3, 20, 0, 2)
SEED = 5
FLIPS = 300
DTYPES = [
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32),
    *(torch.uint64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.fixture
def lib() -> Torch:
    """PyTorch."""
    return load_torch()


def sealed(lib: Torch, path: Path, saved: dict[str, Any] | None = None) -> bytes:
    """Write a state to a file; return its content."""
    saved = {"w": torch.arange(512.0), "m": torch.ones(512), "count": 7} if saved is None else saved
    slot = Slot(lib, str(path))
    _, values_at, end = slot.write(saved, pickled(lib, {"seen": 20}))
    slot.seal(Copied("", TOKEN, *STATE[:4], end), values_at)
    return path.read_bytes()


def read_copy(lib: Torch, path: Path) -> None:
    """Read a copy as the start of a round does.

    Raises:
        DamagedError: it is none.
    """
    if head_at(str(path)) is None:
        raise DamagedError("no head")
    slot = Slot(lib, str(path))
    slot.open()
    slot.content()


def read_rescued(lib: Torch, path: Path) -> None:
    """Read a state that was kept at a fault as the start of a round does.

    Raises:
        DamagedError: it is none.
    """
    MemorySource(lib, RankGroups(0, 1, None), STATE, 0, str(path.parent))


READS = pytest.mark.parametrize("read", [read_copy, read_rescued])


@READS
def test_no_flipped_bit_is_read(lib: Torch, tmp_path: Path, read: Callable[[Torch, Path], None]) -> None:
    """In the head, in tensors or in values; what lies between them belongs to no one."""
    path = tmp_path / STATE.file_name
    whole = sealed(lib, path)
    read(lib, path)
    chance = random.Random(SEED)
    for turn in range(FLIPS):
        at = chance.randrange(COPY_HEAD.size) if turn % 3 == 0 else chance.randrange(TENSORS_AT, len(whole))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedError):
            read(lib, path)


def exchanged(data: bytes, size: int) -> bytes:
    """Return data with two blocks of their tensors exchanged."""
    one, other = TENSORS_AT + size, TENSORS_AT + 3 * size
    return b"".join(
        [
            data[:one],
            data[other : other + size],
            data[one + size : other],
            data[one : one + size],
            data[other + size :],
        ]
    )


@READS
@pytest.mark.parametrize("size", [4, 8, 64, 512])
def test_no_exchanged_blocks_are_read(
    lib: Torch, tmp_path: Path, read: Callable[[Torch, Path], None], size: int
) -> None:
    """The checksum depends on the order of the bytes."""
    path = tmp_path / STATE.file_name
    damaged = exchanged(sealed(lib, path), size)
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(DamagedError, match="its checksum does not fit"):
        read(lib, path)


@READS
@pytest.mark.parametrize("size", [0, 10, COPY_HEAD.size, TENSORS_AT, TENSORS_AT + 100])
def test_no_file_that_is_cut_off_is_read(
    lib: Torch, tmp_path: Path, read: Callable[[Torch, Path], None], size: int
) -> None:
    """Not one byte may be missing, and no head makes the rest whole."""
    path = tmp_path / STATE.file_name
    whole = sealed(lib, path)
    path.write_bytes(whole[:size])
    with pytest.raises(DamagedError):
        read(lib, path)
    path.write_bytes(whole[:-1])
    with pytest.raises(DamagedError):
        read(lib, path)


def test_a_state_under_the_name_of_another_one_is_not_read(lib: Torch, tmp_path: Path) -> None:
    """The head says of which round, step and rank it is."""
    sealed(lib, tmp_path / STATE.file_name)
    for other in (STATE._replace(step=21), STATE._replace(round=4), STATE._replace(rank=1)):
        (tmp_path / other.file_name).write_bytes((tmp_path / STATE.file_name).read_bytes())
        with pytest.raises(DamagedError, match="its head is damaged"):
            MemorySource(lib, RankGroups(0, 1, None), other, 0, str(tmp_path))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_all_dtypes_come_back(lib: Torch, tmp_path: Path, dtype: Any) -> None:
    """Of any shape, also where they do not lie in one piece."""
    flat = (torch.arange(24) % 2).to(torch.float32).to(dtype)
    saved = {"flat": flat, "turned": flat.view(4, 6).t(), "one": flat[1], "none": flat[:0].view(0, 3)}
    path = tmp_path / STATE.file_name
    sealed(lib, path, saved)
    source = MemorySource(lib, RankGroups(0, 1, None), STATE, 0, str(tmp_path))
    loaded = {name: torch.zeros_like(one) for name, one in saved.items()}
    source.fill(loaded)
    for name, one in saved.items():
        assert dtype == loaded[name].dtype
        assert one.shape == source.stored()[name].shape
        assert one.contiguous().flatten().view(torch.uint8).tolist() == (
            loaded[name].contiguous().flatten().view(torch.uint8).tolist()
        )
    own = source.owns()
    assert isinstance(own, bytes)
    assert {"seen": 20} == unpickled(lib, own)


def test_names_may_have_any_characters(lib: Torch, tmp_path: Path) -> None:
    """Of tensors and of values."""
    names = ("téléphone/ü:x 日本", "a\nb", "😀 space", "\x00", "")
    path = tmp_path / STATE.file_name
    sealed(lib, path, {**{name: torch.full((2,), 3.0) for name in names}, "Größe µ": 7})
    source = MemorySource(lib, RankGroups(0, 1, None), STATE, 0, str(tmp_path))
    loaded: dict[str, Any] = {name: torch.zeros(2) for name in names}
    loaded["Größe µ"] = 0
    source.fill(loaded)
    assert 7 == loaded.pop("Größe µ")
    assert [[3.0, 3.0]] * len(names) == [one.tolist() for one in loaded.values()]


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
def test_a_tensor_may_be_larger_than_four_gib(lib: Torch, tmp_path: Path) -> None:
    """No place or size in the file is a number of 32 bits."""
    count = (1 << 32) + 4096
    large = torch.zeros(count, dtype=torch.uint8)
    at = torch.tensor([0, 1 << 31, (1 << 32) - 1, 1 << 32, count - 1])
    large[at] = torch.arange(5, dtype=torch.uint8) + 1
    path = tmp_path / STATE.file_name
    slot = Slot(lib, str(path))
    _, values_at, end = slot.write({"large": large, "after": torch.full((3,), 9.0)}, pickled(lib, {}))
    slot.seal(Copied("", TOKEN, *STATE[:4], end), values_at)
    large.zero_()
    source = MemorySource(lib, RankGroups(0, 1, None), STATE, 0, str(tmp_path))
    loaded = {"large": large, "after": torch.zeros(3)}
    source.fill(loaded)
    assert [1, 2, 3, 4, 5] == loaded["large"][at].tolist()
    assert [9.0] * 3 == loaded["after"].tolist()
    path.unlink()


def test_a_copy_that_is_written_again_does_not_count_until_it_is_sealed(lib: Torch, tmp_path: Path) -> None:
    """Values that take more room take more of the file; a wiped file is made anew."""
    path = tmp_path / "copy-0-0"
    sealed(lib, path)
    slot = Slot(lib, str(path))
    slot.open()
    _, values_at, end = slot.write({"w": torch.zeros(4096)}, b"own")
    assert [] == found_copies(str(tmp_path), "copy-")
    slot.seal(Copied("", TOKEN, 4, 21, 0, 2, end), values_at)
    assert [(4, 21, end)] == [(one.round, one.step, one.size) for one in found_copies(str(tmp_path), "copy-")]
    assert b"own" == slot.content().own
    path.unlink()
    slot.reserve(TENSORS_AT)
    assert path.exists()
    assert slot.copied() is None
    slot.remove()
    assert not path.exists()


def test_a_second_copy_counts_if_it_is_the_one_that_was_sent(lib: Torch, tmp_path: Path) -> None:
    """Its head comes last."""
    sealed(lib, tmp_path / "copy-0-0")
    sent, second = Slot(lib, str(tmp_path / "copy-0-0")), Slot(lib, str(tmp_path / "copy-0-0-replica"))
    sent.open()
    copied = sent.copied()
    assert copied is not None
    second.reserve(copied.size)
    second.part(TENSORS_AT, copied.size).copy_(sent.part(TENSORS_AT, copied.size))
    second.part(TENSORS_AT, TENSORS_AT + 8).bitwise_xor_(1)
    with pytest.raises(DamagedError, match="its checksum does not fit"):
        second.accept(sent.head())
    assert head_at(second.path) is None
    second.part(TENSORS_AT, TENSORS_AT + 8).bitwise_xor_(1)
    with pytest.raises(DamagedError, match="its checksum does not fit"):
        second.accept(bytes(COPY_HEAD.size))
    second.accept(sent.head())
    (found,) = [one for one in found_copies(str(tmp_path), "copy-") if one.is_replica]
    assert copied._replace(name=found.name) == found


def test_a_head_tells_all_that_was_sealed() -> None:
    """A shorter one is none."""
    head = state_head(bytes(COPY_HEAD.size))
    assert head is None
    assert copied_as("", b"") is None


def test_values_of_a_rank_have_a_checksum_with_their_step() -> None:
    """A flipped bit anywhere, or a missing byte."""
    whole = own_file(30, b"values")
    assert (30, b"values") == own_in(whole)
    for at in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        assert own_in(bytes(damaged)) is None
    assert own_in(whole[:-1]) is None
    assert own_in(b"") is None
