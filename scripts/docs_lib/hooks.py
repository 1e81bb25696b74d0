"""Hooks of MkDocs: pages look as on GitHub, and the site gets those of the repository's root, too."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
FROM_THE_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository's root, and their names in the site."""
_DOCS = "docs/"
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"^```(\w+) [\w -]+$", re.MULTILINE)  # of a block, which only the tests read
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def anchor(heading: str, _separator: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_text(text: str, source: str) -> str:
    """Return the text of a page for the site.

    Args:
        text: of the page.
        source: the path of the page in the repository.
    """
    parts = _FENCED.split(text)
    for place, part in enumerate(parts):
        if part.startswith("```"):
            parts[place] = _MARKS.sub(r"```\1", part)
        else:
            parts[place] = _LINK.sub(lambda link: _site_link(link, source), part)
    return "".join(parts)


def _site_link(link: re.Match[str], source: str) -> str:
    """Return a link for the site; one to a file that the site does not have becomes its name."""
    mark, words, target = link[1], link[2], link[3]
    path, sharp, heading = target.partition("#")
    if "://" in target or not path:
        return link[0]
    aim = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = FROM_THE_ROOT.get(aim, aim.removeprefix(_DOCS) if aim.startswith(_DOCS) else None)
    if page is None:
        return f"{words} (`{aim}`)" if words.strip("`") != aim else words
    here = posixpath.dirname(FROM_THE_ROOT.get(source, source.removeprefix(_DOCS)))
    return f"{mark}[{words}]({posixpath.relpath(page, here or '.')}{sharp}{heading})"


def on_config(config: Any) -> Any:
    """Have headings get the anchors that links between the pages use."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests need the texts alone

    for source, page in FROM_THE_ROOT.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Mapping[str, Any]) -> str:
    """Make links and blocks those of the site."""
    names = {name: source for source, name in FROM_THE_ROOT.items()}
    return site_text(markdown, names.get(page.file.src_uri, f"{_DOCS}{page.file.src_uri}"))
