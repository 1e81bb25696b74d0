"""Putting what was measured into a page of the docs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

PLACES = ("--json", "--evidence")  # options whose value is a place on this machine


def shown(words: Sequence[str]) -> str:
    """Return a command's options as a page shows them: without places of this machine."""
    kept = []
    rest = iter(words)
    for word in rest:
        if word in PLACES:
            next(rest, None)
        elif word != "--write" and not word.startswith(tuple(f"{place}=" for place in PLACES)):
            kept.append(word)
    return "".join(f" {word}" for word in kept)


def between(page: str, name: str) -> str:
    """Return what stands between the two marks of a page, as `put_into` has put it there."""
    return page.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0].strip()


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
