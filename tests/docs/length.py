"""How long the documentation is: ``python -m tests.docs.length`` prints the words of each page, as `wc`.

A word is what stands between blanks, so the marks of a table count, too. Pages that a command makes of the
code are printed apart: their length is that of the code's tables.
"""

from __future__ import annotations

from tests.docs.lint_page import PAGE as LINT
from tests.docs.pages import DOCS, REPOSITORY, name_of, pages, text_of
from tests.docs.settings_page import PAGE as SETTINGS
from tests.docs.states_page import PAGE as STATES

GENERATED = (SETTINGS, LINT, STATES, DOCS / "how-to" / "checkpoints-zoo.md")


def lengths() -> dict[str, int]:
    """Return the number of words of each page, the longest page first; CHANGELOG.md is not one of them."""
    found = {name_of(page): len(text_of(page).split()) for page in [*pages(), REPOSITORY / "SECURITY.md"]}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def total() -> int:
    """Return the number of words of all pages that are written by hand."""
    made = {name_of(page) for page in GENERATED}
    return sum(words for name, words in lengths().items() if name not in made)


def main() -> None:
    """Print the pages and their sum."""
    made = {name_of(page) for page in GENERATED}
    for name, words in lengths().items():
        print(f"{words:6,}  {name}{' (made from the code)' if name in made else ''}")
    print(f"{total():6,}  all that are written by hand")


if __name__ == "__main__":
    main()
