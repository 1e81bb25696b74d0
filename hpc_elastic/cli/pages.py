"""The pages of the documentation that an installation has, for ``hpc-elastic help TOPIC``."""

from __future__ import annotations

import os

from hpc_elastic.isolated.lookup import home

_PARTS = ("how-to", "", "reference")  # a page of an earlier one has its plain name
_ALL = "topics"


def topics() -> dict[str, str]:
    """Return the paths of the pages by their names; a page has the name of its folder before its own, too."""
    found: dict[str, str] = {}
    places = (os.path.join(place, "docs") for place in (home(), os.path.dirname(home())))
    root = next(filter(os.path.isdir, places), "")
    for part in _PARTS if root else ():
        folder = os.path.join(root, part)
        for file in sorted(os.listdir(folder)):
            name, suffix = os.path.splitext(file)
            if suffix == ".md":
                found.setdefault(name, os.path.join(folder, file))
                found[os.path.join(part, name)] = os.path.join(folder, file)
    return found


def text_of(topic: str) -> str | None:
    """Return the text of a page, or the names of all for ``topics``; None: there is no such page."""
    known = topics()
    if topic == _ALL:
        shortest = {path: name for name, path in sorted(known.items(), key=lambda item: -len(item[0]))}
        return "".join(f"{name}\n" for name in sorted(shortest.values()))
    path = known.get(topic.removesuffix(".md"))
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()
