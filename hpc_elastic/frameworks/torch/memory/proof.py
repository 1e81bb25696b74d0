"""The proof that tensors are those that they were at the end of a step.

PyTorch counts the changes of each tensor, but not those through ``.data``, of which optimizers, averaged
weights and manual updates make use. So a sample of the content is noted beside the counters, in one call for
all tensors, and the place in memory. A change through ``.data`` in place is not seen if it touches no element
of the sample; of tensors that change in places (memory banks, queues) checksums of all of it are noted, too.
They are multilinear: the sum of all words of 32 bits, each times a number of 64 bits that its place has,
modulo 2^64. Two contents have the same one with a probability of 2^-32 (D. Lemire and O. Kaser, 2014).

A program hands work to a GPU and goes on. When a rank is asked for its state, the GPU may still wait in a
collective that never ends, while the program has already called the next step of the optimizer. So the GPU
itself passes a mark at the end of each step, and another one before the state changes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter, methodcaller, ne
from typing import Any, Generic, Protocol, TypeVar

from hpc_elastic.named_tuple import NamedTuple

SAMPLED = 256  # tensors, spread evenly over all of them
RUNS = 4  # in each of those, spread evenly over its elements
RUN = 16  # elements of a run
_LOOSE = 16  # single elements of a tensor that does not lie in one piece
_SUM_BYTES = 8  # of a checksum
_SUMMED_AT_ONCE = 1 << 18  # words of one checksum: so many are in the cache of a CPU;
_SUMMED_AT_ONCE_GPU = 1 << 22  # a GPU is given few pieces of work
_SEED = 20260301  # of the numbers of places, in a generator of their own
_data_ptr, _dtype, _version = methodcaller("data_ptr"), attrgetter("dtype"), attrgetter("_version")

Value = TypeVar("Value")


class Fingerprint(NamedTuple):
    """The tensors at one moment."""

    versions: list[int]  # their numbers of changes
    places: list[int]  # of their memory; read anew where a tensor of the sample has moved
    sample: Any  # a part of their content, on their device


class Proof:
    """Tells whether tensors have changed; of some, by their numbers, a checksum is noted."""

    def __init__(
        self, torch: Any, names: Sequence[str], tensors: Sequence[Any], summed: Sequence[int] = ()
    ) -> None:
        self._torch = torch
        self._names, self._tensors = names, tensors
        self._summed = [_Checksums(torch, tensors[one]) for one in summed]
        self._places = addresses(tensors)
        self._forms = [*map(_form, tensors)]
        chosen = spread(range(len(tensors)), SAMPLED, SAMPLED)
        self._chosen = [tensors[one] for one in chosen]
        self._chosen_places = [self._places[one] for one in chosen]
        self._pieces: list[Any] = []
        self._owners: list[int] = []  # the tensor of each piece
        for one in chosen:
            found = list(_pieces(torch, tensors[one]))
            self._pieces += found
            self._owners += [one] * len(found)
        self._sizes = [*map(len, self._pieces), *(one.size for one in self._summed)]
        self._owners += summed

    @property
    def is_stale(self) -> bool:
        """Whether tensors of the sample have got other memory, so that another proof is needed."""
        return addresses(self._chosen) != self._chosen_places

    def note(self) -> Fingerprint:
        """Note how the tensors are now; work on a GPU is not waited for."""
        return Fingerprint(self._versions(), self._places, self._sample())

    def _versions(self) -> list[int]:
        return [*map(_version, self._tensors)]

    def _sample(self) -> Any:
        pieces = [*self._pieces, *(one.now() for one in self._summed)]
        with self._torch.no_grad():
            return self._torch.cat(pieces) if pieces else None

    def counted(self, noted: Fingerprint) -> str:
        """Return which tensor has counted a change or got other memory since; empty: none has."""
        counted = self._first(map(ne, self._versions(), noted.versions))
        if counted:
            return f"{counted} was changed, and no optimizer has told of a step"
        moved = self._first(map(ne, addresses(self._tensors), noted.places))
        return f"{moved} has got other memory, and no optimizer has told of a step" if moved else ""

    def differing(self, noted: Fingerprint) -> str:
        """Return which tensor has another form or sample; empty: none has. Waits for a GPU."""
        formed = self._first(map(ne, map(_form, self._tensors), self._forms))
        if formed:
            return f"{formed} was given another form through .data, and no optimizer has told of a step"
        now = self._sample()
        if now is None or self._torch.equal(now, noted.sample):
            return ""
        place = int((now != noted.sample).nonzero()[0])
        ends = accumulate(self._sizes)
        number = next(one for one, end in zip(self._owners, ends, strict=True) if place < end)
        return f"{self._names[number]} was changed through .data, and no optimizer has told of a step"

    def _first(self, found: Iterable[bool]) -> str:
        return next((name for name, is_other in zip(self._names, found, strict=True) if is_other), "")


class TensorCopies:
    """Copies tensors as they are at one moment, those of one form in one call."""

    def __init__(self, torch: Any, tensors: Sequence[Any]) -> None:
        self._torch, self._tensors = torch, tensors
        self._dtypes = [*map(_dtype, tensors)]
        self._forms: dict[Any, list[int]] = {}  # numbers of tensors by form
        for number, one in enumerate(tensors):
            self._forms.setdefault((one.device, one.dtype, one.shape), []).append(number)
        self._alike = [[tensors[one] for one in numbers] for numbers in self._forms.values()]

    def take(self) -> list[Any]:
        """Return the content of all tensors; no GPU is waited for.

        Raises:
            RuntimeError: one was given another form.
        """
        torch = self._torch
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - PyTorch's way
            found = [torch.stack(alike) for alike in self._alike]
        forms = [(one.device, one.dtype, one.shape[1:]) for one in found]
        if forms != [*self._forms] or [*map(_dtype, self._tensors)] != self._dtypes:
            raise RuntimeError("a tensor was given another form")
        return found

    def tensors(self, taken: Sequence[Any]) -> list[Any]:
        """Return the tensors that were copied."""
        found = [*self._tensors]
        for numbers, alike in zip(self._forms.values(), taken, strict=True):
            for number, one in zip(numbers, alike, strict=True):
                found[number] = one
        return found


def addresses(tensors: Iterable[Any]) -> list[int]:
    """Return the places of tensors in memory."""
    return [*map(_data_ptr, tensors)]


def _form(tensor: Any) -> Any:
    """Return how the elements of a tensor lie in its memory: by ``.data`` it may get a view of the same."""
    return tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _plain(torch: Any, tensor: Any) -> Any:
    """Return a tensor whose elements are those in its memory, outside of the program's gradients."""
    tensor = tensor.detach()
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(tensor) if tensor.is_neg() else tensor  # noqa: SLF001 - the only name


def _flat(torch: Any, tensor: Any) -> Any:
    """Return the bytes of a tensor; of one that does not lie in one piece, or is conjugated, a copy."""
    return tensor.detach().resolve_conj().resolve_neg().flatten().view(torch.uint8)


class _Checksums:
    """The checksums of a tensor, each of a part of it; together they are of all its bytes."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch, self._tensor = torch, tensor
        words = max(1, -(-tensor.nbytes // 4))
        self._at_once = min(words, _SUMMED_AT_ONCE if tensor.device.type == "cpu" else _SUMMED_AT_ONCE_GPU)
        self.size = -(-words // self._at_once) * _SUM_BYTES
        drawn = torch.Generator().manual_seed(_SEED)  # those of the program go on as they would
        numbers = torch.randint(-(1 << 63), (1 << 63) - 1, (self._at_once,), generator=drawn)
        self._numbers = numbers.to(tensor.device)

    def now(self) -> Any:
        """Return the bytes of the checksums."""
        torch = self._torch
        with torch.no_grad():
            data = _flat(torch, self._tensor)
            if data.storage_offset() % 4 or len(data) % 4:  # no whole words
                data = torch.cat([data, data.new_zeros(-len(data) % 4)])
            parts = data.view(torch.int32).split(self._at_once)
            sums = [torch.mul(one, self._numbers[: len(one)]).sum() for one in parts]
            return torch.stack(sums).view(torch.uint8)


def spread(items: Sequence[Any], most: int, chosen: int) -> Sequence[Any]:
    """Return all items; of more than `most`, so many chosen evenly, with the first and the last one."""
    if len(items) <= most:
        return items
    return [items[number * (len(items) - 1) // (chosen - 1)] for number in range(chosen)]


def _pieces(torch: Any, tensor: Any) -> Iterator[Any]:
    """Yield bytes of a tensor that are read anew each time, since they are its memory."""
    tensor, count = _plain(torch, tensor), tensor.numel()
    if not count:
        return
    if not tensor.is_contiguous():
        for number in spread(range(count), _LOOSE, _LOOSE):
            at = tensor.storage_offset()
            for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
                number, place = divmod(number, size)  # noqa: PLW2901 - of the inner dimensions first
                at += place * stride
            yield tensor.as_strided((1,), (1,), at).view(torch.uint8)
        return
    flat = tensor.view(-1)
    if count <= RUNS * RUN:
        yield flat.view(torch.uint8)
        return
    for begin in spread(range(count - RUN + 1), RUNS, RUNS):
        yield flat[begin : begin + RUN].view(torch.uint8)


class DeviceMark(Protocol):
    """A place in the work of a device, for example an event of CUDA."""

    def query(self) -> bool:
        """Tell whether the device has passed it."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class HostMark:
    """A place in the work of this process, which is passed as soon as it is there."""

    def query(self) -> bool:
        """Tell that it is passed."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class Noted(Generic[Value]):
    """The notes of the end of a step, and where they hold on the device."""

    def __init__(self, value: Value, done: DeviceMark) -> None:
        self.value = value
        self.done = done
        self.left: DeviceMark | None = None
        """Passed before the state changes; None: the program has not come to that."""

    def is_whole(self) -> bool:
        """Tell whether the state on the device is the one that was noted."""
        return self.done.query() and (self.left is None or not self.left.query())


class Marks(Generic[Value]):
    """The ends of the last two steps.

    Two are enough: the program is never more than one step ahead of the device.
    """

    def __init__(self) -> None:
        self._noted: tuple[Noted[Value], ...] = ()

    def forget(self) -> None:
        """Forget all steps."""
        self._noted = ()

    def leave(self, new: Callable[[], DeviceMark]) -> None:
        """Take note that the state changes from here on."""
        noted = self.unchanged
        if noted is not None:
            noted.left = new()

    @property
    def unchanged(self) -> Noted[Value] | None:
        """The newest step that was noted, if the program has not come to change the state since."""
        return self._noted[-1] if self._noted and self._noted[-1].left is None else None

    def wait(self) -> None:
        """Wait until the device has ended the newest step that was noted."""
        if self._noted:
            self._noted[-1].done.synchronize()

    def note(self, value: Value, done: DeviceMark) -> None:
        """Take note of the end of a step."""
        self._noted = (*self._noted[-1:], Noted(value, done))

    def newest(self) -> Noted[Value] | None:
        """Return the newest step that the device has ended; the one before it, if there is none yet.

        None if nothing was noted.
        """
        noted = self._noted
        return next((one for one in reversed(noted) if one.done.query()), noted[0] if noted else None)
