"""The messages that a run sends: the events they tell, their bodies, and the file that says where they go.

A message is made of the values of `Message`. The body for a webhook is JSON, in which the texts of a template
name values: ``"run $run is $event"``. The URL of a webhook is a secret, so it is in a file of its own.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from string import Template

from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import RunEvent
from hpc_elastic.store.plain_file import open_plain, read_given
from hpc_elastic.text import for_shell

EVENTS = tuple(event.value for event in RunEvent)
_LONGEST = 2000  # characters of a value
_LARGEST_FILE = 1 << 16
_LAST_PORT = 65535
_CARD = "application/vnd.microsoft.card.adaptive"
_TEAMS = {
    "type": "message",
    "attachments": [
        {
            "contentType": _CARD,
            "content": {
                "type": "AdaptiveCard",
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "version": "1.4",
                "body": [
                    {"type": "TextBlock", "text": "$title", "weight": "Bolder", "wrap": True},
                    {"type": "TextBlock", "text": "$text", "wrap": True},
                ],
            },
        }
    ],
}
_BUILT_IN: dict[str, object] = {"slack": {"text": "*$title*\n$text"}, "teams": _TEAMS}
_FIXED = "$schema"  # a key of a card, which is no value of a message
_MARKS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # by which Slack knows links and mentions
_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?([/?#][\x21-\x7e]*)?")
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x20-\x7e]*)")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")


class Message(NamedTuple):
    """The values of a message; the names are those that a template may use."""

    event: str
    title: str  # the run and the event
    text: str  # the whole in a few lines
    run: str
    run_dir: str
    job_id: str
    reason: str
    failure: str  # the root cause in one line; empty if there is none
    step: int | None  # of the newest checkpoint that is marked
    requeues: int
    command: str  # that tells more

    def as_json(self) -> str:
        """Return the values as a JSON object of one line."""
        return json.dumps({"format": 1, **self._asdict()})


class Webhook(NamedTuple):
    """Where a message goes."""

    url: str
    headers: tuple[tuple[str, str], ...]
    is_loopback: bool


def template_at(name: str | None, place: Callable[[str], str]) -> str | None:
    """Return a template with the whole path of its file; the name of one that is built in as it is."""
    return name if name is None or name in ("json", *_BUILT_IN) else place(name)


def read_template(name: str) -> object:
    """Return the JSON of a template; None for the plain values of a message.

    Args:
        name: ``json``, ``slack``, ``teams``, or the path of a file.

    Raises:
        InputError: there is no such file, it is no JSON, or it names a value that no message has.
    """
    if name == "json" or name in _BUILT_IN:
        return _BUILT_IN.get(name)
    where, built_in = "notify_template", ", ".join(("json", *_BUILT_IN))
    try:
        found: object = json.loads(read_given(name, limit=_LARGEST_FILE))
    except OSError as error:
        what = f"the template {name} cannot be read: {error.strerror}"
        raise InputError(what, where=where, fix=f"check the path, or use one of {built_in}") from None
    except (ValueError, RecursionError) as error:
        what = f"the template {name} is no JSON: {error}"
        raise InputError(what, where=where, fix="write JSON whose texts name values, e.g. $text") from None
    _filled(found, _EXAMPLE, name)
    return found


def body(name: str, message: Message) -> str:
    """Return the body of a message for a webhook; raises as `read_template` does."""
    template = read_template(name)
    if template is None:
        return message.as_json()
    values = {key: "" if value is None else str(value) for key, value in message._asdict().items()}
    if name == "slack":
        values = {key: _unmarked(value) for key, value in values.items()}
    return json.dumps(_filled(template, values, name))


def _unmarked(text: str) -> str:
    return re.sub("[&<>]", lambda found: _MARKS[found[0]], text)


def _filled(part: object, values: dict[str, str], name: str) -> object:
    """Return a part of a template with the values in its texts."""
    if isinstance(part, dict):
        return {key: text if key == _FIXED else _filled(text, values, name) for key, text in part.items()}
    if isinstance(part, list):
        return [_filled(one, values, name) for one in part]
    if not isinstance(part, str):
        return part
    try:
        return Template(part).substitute(values)
    except (KeyError, ValueError):
        known = ", ".join(f"${key}" for key in Message._fields)
        raise InputError(
            f"the template {name} has {part!r}, which names a value that no message has",
            where="notify_template",
            fix=f"use {known}; write $$ for a dollar sign",
        ) from None


def check_events(names: tuple[str, ...], where: str = "notify_on") -> tuple[RunEvent, ...]:
    """Return events by their names; all if there are none.

    Raises:
        InputError: one is unknown.
    """
    for name in names:
        if name not in EVENTS:
            known = ", ".join(EVENTS)
            raise InputError(f"there is no event {name!r}", where=where, fix=f"use some of {known}")
    return tuple(RunEvent(name) for name in names or EVENTS)


def read_webhook(path: str) -> Webhook:
    """Return the webhook in a file: its URL in the first line, headers such as ``Authorization: ...`` below.

    Raises:
        InputError: the file is not there, another user may read it, or the URL cannot be used. No error
            has a part of the content.
    """
    lines = [line.strip() for line in _secret(path).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    url = _URL.fullmatch(lines[0]) if lines else None
    if url is None or int((url[3] or ":0")[1:]) > _LAST_PORT:
        raise _unfit(path, "has no URL in its first line", "write https://... there, and headers below it")
    is_loopback = _LOOPBACK.fullmatch(url[2]) is not None
    if url[1] == "http" and not is_loopback:
        raise _unfit(path, "has a URL with http, which anybody on the way can read", "use https")
    headers = [_HEADER.fullmatch(line) for line in lines[1:]]
    for number, header in enumerate(headers, start=2):
        if header is None:
            raise _unfit(path, f"has no header in its line {number}", "write NAME: VALUE")
    return Webhook(lines[0], tuple((found[1], found[2]) for found in headers if found), is_loopback)


def _secret(path: str) -> str:
    """Return the text of a file that no other user may read."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LARGEST_FILE)
    except UnfitFileError as error:
        raise InputError(
            f"the file of the webhook {path}: {error.strerror}", where="notify_webhook", fix=error.fix
        ) from None
    except OSError as error:
        fix = "check the path"
        if re.search(r"(?:^|/)https?:/", path):
            fix = "write the URL into a file that only you may read (mode 0600), and name that file"
        raise _unfit(path, f"cannot be read: {error.strerror}", fix) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        how = f"has mode {stat.S_IMODE(mode):04o}, so other users may read the URL"
        raise _unfit(path, how, f"chmod 600 {for_shell(path)}")
    return data.decode(errors="replace")


def _unfit(path: str, what: str, fix: str) -> InputError:
    return InputError(f"the file of the webhook {path} {what}", where="notify_webhook", fix=fix)


def cut(text: str) -> str:
    """Return a value of a message, which a chat shows whole."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


_EXAMPLE = dict.fromkeys(Message._fields, "")
