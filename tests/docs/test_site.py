"""The site of the documentation: each page is in its navigation, and links lead where they do on GitHub."""

from __future__ import annotations

import re

import pytest
import yaml
from docs_lib.hooks import FROM_THE_ROOT, anchor, site_text

from tests.docs.pages import DOCS, REPOSITORY, anchors, pages

CONFIGURATION = REPOSITORY / "mkdocs.yml"


def pages_of(navigation: object) -> list[str]:
    """Return the pages in a navigation, in their order."""
    if isinstance(navigation, str):
        return [navigation]
    items = navigation.values() if isinstance(navigation, dict) else navigation
    assert isinstance(items, list | type({}.values()))
    return [page for item in items for page in pages_of(item)]


def test_each_page_is_once_in_the_navigation() -> None:
    """Pages of the repository's root have names of their own; no font and no script is another server's."""
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    here = [str(page.relative_to(DOCS)) for page in pages() if page.is_relative_to(DOCS)]
    assert sorted([*here, *FROM_THE_ROOT.values()]) == sorted(pages_of(configuration["nav"]))
    assert all((REPOSITORY / source).is_file() for source in FROM_THE_ROOT)
    assert configuration["theme"]["font"] is False
    assert not re.search(r"https?://", CONFIGURATION.read_text())


@pytest.mark.parametrize(
    ("source", "text", "shown"),
    [
        ("README.md", "[a](docs/how-to/b.md#x)", "[a](how-to/b.md#x)"),
        ("README.md", "![c](docs/images/c.svg)", "![c](images/c.svg)"),
        ("docs/how-to/logs.md", "[a](../../SECURITY.md) [b](#c)", "[a](../security.md) [b](#c)"),
        ("docs/how-to/logs.md", "[a](arrays.md) [b](../account.md)", "[a](arrays.md) [b](../account.md)"),
        ("docs/how-to/logs.md", "[the script](../../examples/plain)", "the script (`examples/plain`)"),
        ("docs/mutation.md", "[`scripts/docs`](../scripts/docs)", "`scripts/docs`"),
        ("docs/mutation.md", "[a](http://b.c)", "[a](http://b.c)"),
        ("docs/mutation.md", "```python runnable\n[a](b.md)\n```", "```python\n[a](b.md)\n```"),
    ],
)  # fmt: skip
def test_links_are_those_of_the_site(source: str, text: str, shown: str) -> None:
    """A file that the site does not have is named; blocks of code stay, without the marks for the tests."""
    assert shown == site_text(text, source)


def test_anchors_are_those_of_github() -> None:
    """So the links between the pages lead to the same headings in both."""
    headings = re.findall(r"^#+ (.+)$", (DOCS / "how-to" / "telemetry.md").read_text(), re.MULTILINE)
    assert {anchor(heading, "-") for heading in headings} >= anchors(DOCS / "how-to" / "telemetry.md")
