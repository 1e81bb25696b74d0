"""Words for people: numbers in sentences, and foreign text that no terminal acts on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from hpc_elastic.secrets_out import without_secrets

_UNSEEN = (  # controls, marks of the direction of text, line ends of Unicode, halves of characters
    "\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
)
# patterns are texts: the module re compiles each one when it is first used, and keeps it
_ACTS = f"[{_UNSEEN}]"
_ACTS_IN_LINES = f"(?![\n\t])[{_UNSEEN}]"
_COLOUR = r"\x1b\[[0-9;:]*m"
_ACTS_IN_LOGS = rf"({_COLOUR})|(?![\n\r\t])[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_NO_REASON = (  # advice below an error of CUDA, and this package's words at the end of a program
    r"(Search for `cuda|CUDA kernel errors might |For debugging consider passing CUDA|"
    r"Compile with `TORCH_USE_CUDA_DSA`|Device-side assertion tracking was not |hpc_elastic[\w.]*: |$)"
)
_RANK = r"\[rank\d+\]: ?"  # before each line of a traceback by PyTorch
_NAMES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_UNBROKEN = "\N{NO-BREAK SPACE}%"
_THIN = "\N{NARROW NO-BREAK SPACE}"
_BEFORE_UNIT = r"(?<=\d) (?=(?:s|min|h|d|%|steps/(?:s|min|h))(?![^\s,;.)]))"
WIDTH = 80  # columns of a terminal
MOST_NAMES = 8  # of nodes in a line
_ESCAPED_BYTE = 0xDC00  # stands for a byte that is no text: 0xDC80 to 0xDCFF
_SHORT = 0x100
_UNITS, _UNIT = ("B", "K", "M", "G", "T"), 1024  # of a size in bytes


def count_text(number: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are_text(number: int, noun: str) -> str:
    """Return ``1 node is``, ``2 nodes are``."""
    return f"{count_text(number, noun)} {'is' if number == 1 else 'are'}"


def bytes_text(size: int) -> str:
    """Return a size as Slurm writes it, e.g. ``8G`` or ``1.5G``."""
    number, unit = float(size), 0
    while number >= _UNIT and unit < len(_UNITS) - 1:
        number, unit = number / _UNIT, unit + 1
    return f"{number:.1f}".removesuffix(".0") + _UNITS[unit]


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


def with_units(text: str) -> str:
    """Return a text in which a thin space that breaks no line parts numbers from their units."""
    return re.sub(_BEFORE_UNIT, _THIN, text)


def few_text(names: Sequence[str]) -> str:
    """Return names with commas between them; of many the first ones, and how many follow."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def last_words(output: str) -> str:
    """Return the last line of a program's output that may say why it has ended; empty if there is none."""
    lines = (re.sub(_RANK, "", line.strip(), count=1) for line in reversed(output.splitlines()))
    return next((line for line in lines if not re.match(_NO_REASON, line)), "")


def wrapped(text: str, first: str, others: str, width: int = WIDTH) -> list[str]:
    """Return a text as lines for a terminal of 80 columns; no path, long word or ``38 %`` is broken.

    Args:
        text: one line.
        first: the begin of the first line.
        others: the begin of each further line.
        width: columns.
    """
    import textwrap  # noqa: PLC0415 - only for people

    lines = textwrap.wrap(
        text.replace(" %", _UNBROKEN),
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_UNBROKEN, " %") for line in lines] or [first]


def visible(text: str) -> str:
    r"""Return foreign text as one line in which nothing acts on a terminal: ``\x1b`` for an escape.

    Secrets that are known by their form or name are left out.
    """
    text = without_secrets(text)
    return text if text.isprintable() else re.sub(_ACTS, _escaped, text)


def visible_lines(text: str) -> str:
    """Return text of several lines as `visible` does; line ends and tabs stay."""
    return re.sub(_ACTS_IN_LINES, _escaped, without_secrets(text))


def visible_log(data: bytes, *, colours: bool = True) -> bytes:
    """Return lines of a log that are safe on a terminal: moves within a line stay.

    Args:
        data: the lines.
        colours: whether colours stay; else they are left out.
    """
    text = data.decode(errors="surrogateescape")
    shown = re.sub(
        _ACTS_IN_LOGS, lambda found: (found[1] if colours else "") if found[1] else _escaped(found), text
    )
    return shown.encode(errors="surrogateescape")


def for_shell(word: str) -> str:
    """Return a word for a command that people paste into a shell such as bash.

    A character that would act on a terminal is an escape in ``$'...'``, which `visible` leaves as it is.
    """
    if not re.search(_ACTS, word):
        return shlex.quote(word)  # noqa: TID251 - the one place
    plain = word.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{re.sub(_ACTS, _as_bytes, plain)}'"


def line_for_shell(words: Iterable[str]) -> str:
    """Return a command for people, as `for_shell` does."""
    return " ".join(map(for_shell, words))


def _as_bytes(found: re.Match[str]) -> str:
    data = found[0].encode(errors="surrogateescape" if "\udc80" <= found[0] <= "\udcff" else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    code = ord(char) - _ESCAPED_BYTE if 0xDC80 <= ord(char) <= 0xDCFF else ord(char)  # noqa: PLR2004
    return _NAMES.get(char) or (f"\\x{code:02x}" if code < _SHORT else f"\\u{code:04x}")
