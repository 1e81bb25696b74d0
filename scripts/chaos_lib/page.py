"""Putting what was measured into a page of the docs. Pure."""

from __future__ import annotations


def put_into(page: str, name: str, text: str) -> str:
    """Return a page with what stands between its two marks replaced.

    Args:
        page: the text of the page.
        name: of the marks, ``<!-- name: begin -->`` and ``<!-- name: end -->``.
        text: what is to stand between them.

    Raises:
        ValueError: the page has no such marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no lines {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
