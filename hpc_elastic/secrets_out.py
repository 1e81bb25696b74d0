"""Secrets are left out of texts: tokens by their forms, values by the names of variables. Pure.

No rule finds each secret. On a page that is sent around no value of a variable of the job is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

BLANK = "***"
LEAST = 6  # characters of a value that is looked for in texts: a shorter one stands in many words
# a text without any of these has no secret that the patterns find
_MARKS = (
    "_",
    "-",
    "=",
    "://",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
    "ya29.",
    "SG.",
    "earer ",
    "asic ",
    "key",
    ": ",
    "slack.com",
    "discord",
    "office.com",
    "telegram.org",
)
_FORMS = (
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|dckr_pat_[\w-]{16,}|"
    r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|"
    r"gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|sk_(?:live|test)_[A-Za-z0-9]{16,}|ya29\.[\w-]{20,}|"
    r"SG\.[\w-]{16,}\.[\w-]{16,}|"
    r"sk-(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[A-Za-z0-9]{16})[\w-]{16,}|"
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_BLOCK = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_IN_URL = r"(?<=://)[^\s/:@'\"<>]*:[^\s/@'\"<>]+(?=@)"
_HOOK = (
    r"(?:(?<=hooks\.slack\.com/)|(?<=discord\.com/api/webhooks/)|(?<=discordapp\.com/api/webhooks/)|"
    r"(?<=webhook\.office\.com/)|(?<=api\.telegram\.org/bot))[^\s'\"<>]+"
)
_HEADER = (
    r"(?i)\b(bearer|authorization['\"]?\s{0,2}[:=]\s{0,2}['\"]?(?:basic|token|apikey)) +"
    r"(?=[\w.~+/-]*[\d._~+/=-])[\w.~+/-]{8,}=*"
)
_KEY = r"(?<![\w-])(key['\"]?\s?[=:]\s?['\"]?)(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}"  # key=3 is none
_SURE_NAME = (
    r"(?i)(?:.*[_-])?(?:[a-z0-9]*(?:apikey|secrets?|passw(?:or)?ds?|passphrase|credentials?)|"
    r"(?:api|access|auth|secret|private)[_-]?(?:keys?|tokens?))(?:[_-].*)?"
)
_USUAL_NAME = r"(?i)(?:(?:.*[_-])?(?P<of>[a-z0-9]+)[_-](?:key|token)|token)(?:[_-]?\d{1,3})?"
_ORDINARY_TEXT = (  # before _key or _token: the words of data, models and programs
    "batch bos cache checkpoint cls column data dict eos field file first foreign group hash image index "
    "input join label last loss map mask max metric min model monitor next num output pad param partition "
    "primary prng query random rng sep shuffle sort special start state stop target unique unk"
)
_ORDINARY = frozenset(_ORDINARY_TEXT.split())
_OF_FILES = ("FILE", "PATH", "DIR")  # end the names of variables for files
_NAME = r"[\w-]{2,80}"
_VALUE = r"(?!['\"]?\$|\d{1,9}(?!\w)|-)(?:'[^']+'|\"[^\"]+\"|[^\s'\"&;,<>]+)"
_SET = rf"(?<![\w-])()({_NAME})(=){_VALUE}"
_FLAG = rf"(?<![\w-])(--)({_NAME})(\s+){_VALUE}"
# a word of an error stands behind a colon, too, but has no digit
_HEADING = rf"(?<![\w-])()({_NAME})(:\s{{1,2}})(?=\S{{0,200}}\d)(?=\S{{8}}){_VALUE}"
_FIELD = rf"(['\"])({_NAME})(\1: (['\"]))[^'\"]+(?=\4)"


def is_secret_name(name: str) -> bool:
    """Tell whether a variable or an option of this name usually holds a secret.

    ``sort_key`` does not, nor does one that names a file, as ``--password-file``.
    """
    if name.upper().endswith(_OF_FILES):
        return False
    if re.fullmatch(_SURE_NAME, name):
        return True
    found = re.fullmatch(_USUAL_NAME, name)
    return found is not None and (found["of"] or "").lower() not in _ORDINARY


def without_secrets(text: str) -> str:
    """Return a text without tokens of known forms, passwords in URLs, and values of variables so named."""
    if not any(mark in text for mark in _MARKS):
        return text
    for pattern in (_BLOCK, _FORMS, _IN_URL, _HOOK):
        text = re.sub(pattern, BLANK, text)
    text = re.sub(_KEY, rf"\1{BLANK}", re.sub(_HEADER, rf"\1 {BLANK}", text))
    for pattern in (_FIELD, _HEADING, _SET, _FLAG):
        text = re.sub(pattern, _without_value, text)
    return text


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{found[3]}{BLANK}" if is_secret_name(found[2]) else found[0]


def secret_values(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables that are secrets by their names, the longest first."""
    named = {value for name, value in environ.items() if is_secret_name(name) and not _is_path(name, value)}
    found = {value for value in named if len(value) >= LEAST and not value.isdecimal()}
    return tuple(sorted(found, key=len, reverse=True))


def _is_path(name: str, value: str) -> bool:
    """Tell whether a variable with the name of credentials names the file that holds them."""
    return value[:1] in ("/", "~", ".") and name.upper().endswith("CREDENTIALS")


def without_values(text: str, values: Iterable[str]) -> str:
    """Return a text without these values, and without the secrets that patterns find."""
    for value in values:
        text = text.replace(value, BLANK)
    return without_secrets(text)


def without_secret_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command without its secrets; that of ``--token VALUE`` is a word of its own."""
    shown: list[str] = []
    for word in words:
        is_value = bool(shown) and shown[-1].startswith("--") and is_secret_name(shown[-1])
        shown.append(BLANK if is_value and not word.startswith("-") else without_secrets(word))
    return shown
