"""The pictures of the README, which ``python -m tests.docs.pictures`` makes."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tests.docs.pictures import COLUMNS, COMMANDS, IMAGES, SCREEN, journey, terminal

SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 150_000  # of a picture, so that the page loads at once


def test_the_recording_has_all_commands_and_fits() -> None:
    """It is sound XML; no line is longer than the terminal, and each appears at its time."""
    file = IMAGES / "terminal.svg"
    assert file.stat().st_size < MOST_BYTES
    lines = list(ET.fromstring(file.read_text()).iter(f"{SVG}text"))  # noqa: S314 - our own file
    assert max(len(line.text or "") for line in lines) <= COLUMNS
    assert len(COMMANDS) == sum((line.text or "").startswith("$ hpc-elastic ") for line in lines)
    assert all("animation-duration:" in line.attrib["style"] for line in lines)


def test_the_screen_of_watch_is_that_of_a_run_with_a_slow_node() -> None:
    """It fits its terminal."""
    file = IMAGES / "watch.svg"
    lines = [line.text or "" for line in ET.fromstring(file.read_text()).iter(f"{SVG}text")]  # noqa: S314 - as above
    assert len(lines) <= SCREEN[1]
    assert max(map(len, lines)) <= SCREEN[0]
    assert any("running, slow" in line for line in lines)


def test_the_journey_of_a_run_is_that_of_the_rules() -> None:
    """The picture of the buckets is the one that the account makes today."""
    assert journey() == (IMAGES / "journey.svg").read_text()


def test_the_report_is_a_small_picture() -> None:
    """It is a PNG."""
    data = (IMAGES / "report.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < MOST_BYTES


def test_markup_in_a_line_is_shown() -> None:
    """A line with markup is text of the recording."""
    (line,) = ET.fromstring(terminal([(1.0, "t", "<b>&")])).iter(f"{SVG}text")  # noqa: S314 - as above
    assert "<b>&" == line.text
