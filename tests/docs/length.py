"""How long the documentation is: ``python -m tests.docs.length`` prints the words of each page, as `wc`.

A word is what stands between blanks, so the marks of a table count, too. Each page is of one kind: read by
users, looked up by users (the reference), for developers, or made of the code by a command. A table that a
command puts between two marks of a page is made of the code, too.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.docs.lint_page import PAGE as LINT
from tests.docs.pages import DOCS, REPOSITORY, name_of, pages, text_of
from tests.docs.settings_page import PAGE as SETTINGS
from tests.docs.states_page import PAGE as STATES

READ, LOOKED_UP, DEVELOPERS, MADE = (
    "read by users",
    "looked up by users",
    "for developers",
    "made of the code",
)
GENERATED = (SETTINGS, LINT, STATES, DOCS / "how-to" / "checkpoints-zoo.md")
OF_DEVELOPERS = (
    REPOSITORY / "CONTRIBUTING.md",
    *(DOCS / f"{name}.md" for name in ("architecture", "fuzzing", "mutation", "simulation")),
    *sorted((DOCS / "decisions").glob("*.md")),
)


_TABLES = re.compile(r"(?s)<!-- \w+: begin -->(.*?)<!-- \w+: end -->")


def lengths() -> dict[Path, int]:
    """Return the number of words of each page, the longest page first; CHANGELOG.md is not one of them."""
    found = {page: len(text_of(page).split()) for page in [*pages(), REPOSITORY / "SECURITY.md"]}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def kind_of(page: Path) -> str:
    """Return the kind of a page."""
    if page in GENERATED:
        return MADE
    if page in OF_DEVELOPERS:
        return DEVELOPERS
    return LOOKED_UP if (DOCS / "reference") in page.parents else READ


def totals() -> Counter[str]:
    """Return the number of words of all pages of each kind."""
    found: Counter[str] = Counter()
    for page, words in lengths().items():
        made = 0 if page in GENERATED else sum(len(table.split()) for table in _TABLES.findall(text_of(page)))
        found[kind_of(page)] += words - made
        found[MADE] += made
    return found


def main() -> None:
    """Print the pages, and the sum of each kind."""
    for page, words in lengths().items():
        print(f"{words:6,}  {name_of(page)} ({kind_of(page)})")
    print()
    for kind, words in totals().most_common():
        print(f"{words:6,}  {kind}")
    print(f"{totals().total():6,}  all")


if __name__ == "__main__":
    main()
