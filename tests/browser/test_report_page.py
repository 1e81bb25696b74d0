"""The page of a report in a real browser: it is drawn, light and dark, wide and narrow, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from hpc_elastic.cli import app
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Entry, EpochStarted, Member, NodeSlow, RoundEnded, RoundFormed
from tests.browser.chromium import Browser, chromium
from tests.cli.recorded_runs import EPOCH, NAN, paths, write, write_facts

__all__ = ["paths"]
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return one browser for all pages."""
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


def page_of(paths: RunPaths, nodes: int) -> Path:
    """Return the page of a run of so many nodes, with ten rounds."""
    members = tuple(Member(f"node{number:03}.1", f"node{number:03}", 8) for number in range(nodes))
    names = tuple(member.node for member in members)
    entries: list[tuple[float, Entry]] = [(0.0, EpochStarted(EPOCH, "7", names))]
    for number in range(1, 11):
        crew = members if number % 2 else members[: max(1, nodes - 3)]
        entries.append((1000.0 * number, RoundFormed(number, EPOCH, crew, "node000", 1, None)))
        entries.append((1000.0 * number + 500, NodeSlow(number, crew[-1].node, 8 * len(crew) - 1, 1.5, 1.0)))
        entries.append((1000.0 * number + 900, RoundEnded(number, Cause.CRASH, (crew[-1].node,), NAN)))
    write(paths, *entries)
    facts = [
        (number, 1000.0 * number + at, 3 * number, at) for number in range(1, 11) for at in (20, 400, 880)
    ]
    write_facts(paths, *facts)
    page = Path(paths.root).with_suffix(".html")
    assert 0 == app.run(["report", paths.root, "-o", str(page)])
    return page


_FAINT = """(() => {
  const parts = colour => (colour.match(/[\\d.]+/g) || [0, 0, 0]).map(Number);
  const light = colour => {
    const [r, g, b] = parts(colour).map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = one => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  for (const one of document.querySelectorAll('body *:not(svg, svg *)')) {
    const own = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !one.getClientRects().length) continue;
    const pair = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) found.push(`${one.tagName} ${one.className} ${contrast.toFixed(2)}`);
  }
  return [...new Set(found)];
})()"""  # texts with less contrast than WCAG AA asks for


def pixels(picture: bytes, place: Path) -> Any:
    """Return the colours of a picture, row by row."""
    place.write_bytes(picture)
    return imread(place)[:, :, :3]


@pytest.mark.parametrize("nodes", [1, 512])
@pytest.mark.parametrize("size", [(1280, 900), (420, 800)], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_and_loads_nothing(
    browser: Browser, paths: RunPaths, tmp_path: Path, nodes: int, size: tuple[int, int], scheme: str
) -> None:
    """Without a request or an error; its text stands out from the ground, and its drawings are in view."""
    page = page_of(paths, nodes)
    browser.open(page, *size, scheme)
    assert [page.as_uri()] == browser.requests
    assert [] == browser.errors
    assert 5 <= browser.value("document.querySelectorAll('svg').length")
    assert browser.value(
        "[...document.querySelectorAll('svg')].every(one => one.getBoundingClientRect().height > 0)"
    )
    assert browser.value("document.querySelector('.todo li').getBoundingClientRect().bottom < 800")
    assert [] == browser.value(_FAINT)
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
    shown = pixels(browser.picture(), tmp_path / f"{nodes}-{size[0]}-{scheme}.png")
    assert size == (shown.shape[1], shown.shape[0])
    ground = float(shown[-1, 1].mean())
    assert (ground < 0.3) == (scheme == "dark")
    assert (ground > 0.7) == (scheme == "light")
    contrast = float(abs(shown.mean(axis=2) - ground).max())
    assert contrast > 0.5


def test_the_drawing_can_be_widened_with_the_keyboard(browser: Browser, paths: RunPaths) -> None:
    """Four times the width shows more times on the axis; the page itself stays as wide as it is."""
    browser.open(page_of(paths, 4), 1280, 900, "light")
    shown = "[...document.querySelectorAll('.ticks span')].filter(one => one.offsetWidth).length"
    wide = "document.querySelector('.plot').offsetWidth"
    times, width = browser.value(shown), browser.value(wide)
    browser.value("document.getElementById('z1').focus()")
    for kind in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", windowsVirtualKeyCode=39)
    assert browser.value("document.getElementById('z4').checked")
    assert browser.value(shown) > times
    assert pytest.approx(4 * width, abs=4) == browser.value(wide)
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")


def test_all_texts_of_the_head_are_whole_when_printed(browser: Browser, paths: RunPaths) -> None:
    """On paper the axis has one width, and no table is cut at its side."""
    browser.open(page_of(paths, 4), 718, 1000, "light")  # A4 without its margins
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert "none" == browser.value("getComputedStyle(document.querySelector('.zoom')).display")
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.call("Page.printToPDF", preferCSSPageSize=True)["data"]
    browser.call("Emulation.setEmulatedMedia", media="")
