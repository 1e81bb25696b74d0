"""Words for people."""

from __future__ import annotations

import os
import subprocess

import pytest

from hpc_elastic.text import WIDTH, line_for_shell, visible, visible_lines, visible_log, wrapped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 节点", "plain ünï 节点"),
        ("\x1b]0;OWNED\x07\x1b[2J", r"\x1b]0;OWNED\x07\x1b[2J"),
        ("\x9b31m \x7f \x00", r"\x9b31m \x7f \x00"),
        ("exe.\u202egpj \u2066a\u2069 \u200f \u061c", r"exe.\u202egpj \u2066a\u2069 \u200f \u061c"),
        ("two\nlines\tand\r", r"two\nlines\tand\r"),
        ("\u2028 \u2029 \x85", r"\u2028 \u2029 \x85"),
        ("\udc80 \udcff \ud800", r"\x80 \xff \ud800"),
    ],
)
def test_foreign_text_is_one_line_in_which_nothing_acts(text: str, shown: str) -> None:
    """It can be printed in any encoding of a terminal that has its letters."""
    assert shown == visible(text)
    shown.encode()


def test_a_command_can_be_pasted_whatever_its_words_are() -> None:
    """Also as it is shown on a terminal."""
    words = ["a", "", "it's; x", "\x1b[31mb\\'0\n", "\u202egpj\u2028", "é\x07ab", "\udcff'\\"]
    line = visible(line_for_shell(["printf", r"%s\0", *words]))
    assert line == visible(line)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert words == [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def test_lines_stay_lines() -> None:
    """Of a message that this package has put together."""
    assert "a\n  b\tc\\r\\x1b" == visible_lines("a\n  b\tc\r\x1b")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m 38%\r\tok\n", b"\x1b[1;31mred\x1b[0m 38%\r\tok\n"),
        (b"\x1b]0;OWNED\x07", rb"\x1b]0;OWNED\x07"),
        (b"\x1b[2J\x1b[H\x1bc", rb"\x1b[2J\x1b[H\x1bc"),
        (b"\x1b[6n\x1b[?1049h", rb"\x1b[6n\x1b[?1049h"),
        (b"\xc2\x9b2J \x9b2J \xff", rb"\x9b2J \x9b2J \xff"),
        ("ünï \u05d0".encode(), "ünï \u05d0".encode()),
    ],
)
def test_a_log_on_a_terminal_keeps_its_colours_and_no_other_power(line: bytes, shown: bytes) -> None:
    """Titles, the cursor, the screen and answers of the terminal are none of a log's business."""
    assert shown == visible_log(line)


def test_a_number_stays_with_its_percent_sign() -> None:
    """A line may end before a share, but not inside one."""
    text = "x" * (WIDTH - 2) + " 38 %"
    assert ["x" * (WIDTH - 2), "  38 %"] == wrapped(text, "", "  ")
