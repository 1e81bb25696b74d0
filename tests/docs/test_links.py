"""Links between pages lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, REPOSITORY, anchors, links, name_of, pages


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A link names a file that is there and, with an anchor, a heading of it."""
    broken = [target for target in links(page) if not target.startswith("http") and not _leads(page, target)]
    assert [] == broken


def _leads(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    aim = (page.parent / path) if path else page
    return aim.exists() and (not anchor or anchor in anchors(aim))


def test_every_page_can_be_found() -> None:
    """From the README every page of the documentation is reached by links."""
    reached: set[Path] = set()
    ahead = [REPOSITORY / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / target.partition("#")[0]).resolve() for target in links(page)]
        ahead += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert set() == set(DOCS.rglob("*.md")) - reached
