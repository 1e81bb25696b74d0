"""Host lists as Slurm writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable


def compress(names: Iterable[str]) -> str:
    """Return names as ``node[1-3,7]``; names of different kinds are separated by commas."""
    groups: dict[tuple[str, int], list[int]] = {}
    parts: list[str | tuple[str, int]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            parts.append(name)
            continue
        padded = len(match[2]) if match[2].startswith("0") else 0
        key = (match[1], padded)
        if key not in groups:
            groups[key] = []
            parts.append(key)
        groups[key].append(int(match[2]))
    return ",".join(part if isinstance(part, str) else _group(*part, groups[part]) for part in parts)


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    return f"{prefix}[{ranges(numbers, width)}]"


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Return numbers as ``1-3,7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(
        f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
        for first, last in spans
    )


def repeated(counts: Iterable[int]) -> str:
    """Return counts per node as ``2(x3),1``."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)
