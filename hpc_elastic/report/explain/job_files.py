"""The files of a job on a page that is sent around: without values of variables and secrets. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hpc_elastic.ids import Env
from hpc_elastic.secrets_out import BLANK, LEAST, secret_values, without_secret_words, without_secrets
from hpc_elastic.slurm.job.script import quote

_TABLES = {"env": "", "worker_env": Env.OF_WORKERS}  # of variables, and the beginning of their names
_WHOLE = ("notify_command",)  # fields that may hold the password of a service


def job_without_secrets(text: str) -> str:
    """Return the content of ``job.json`` without values of variables, and without secrets.

    Args:
        text: the content; empty if there is none.
    """
    try:
        found = json.loads(text)
        spec = found.get("spec") if isinstance(found, dict) else None
        shown = {**found, "spec": _spec_without(spec)} if isinstance(spec, dict) else found
        return json.dumps(_without(shown), indent=1) + "\n"
    except (ValueError, RecursionError):
        return "(damaged)" if text else ""


def _spec_without(spec: dict[str, Any]) -> dict[str, Any]:
    blank: dict[str, Any] = {name: BLANK for name in _WHOLE if spec.get(name)}
    tables = {name: spec.get(name) for name in _TABLES}
    blank |= {name: dict.fromkeys(table, BLANK) for name, table in tables.items() if isinstance(table, dict)}
    return {**spec, **blank}


def _variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a job as its script sets them."""
    return {
        f"{begins}{name}": str(value)
        for table, begins in _TABLES.items()
        if isinstance(found := spec.get(table), dict)
        for name, value in found.items()
    }


def hidden_values(spec: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Return the texts that logs on the page must not show, the longest first.

    Args:
        spec: the stored job: the values of its variables, and the secret words of its command.
        environ: of this process: the values of variables that are secrets by their names.
    """
    command = spec.get("command")
    words = [str(word) for word in command] if isinstance(command, list | tuple) else []
    secret = [word for word, shown in zip(words, without_secret_words(words), strict=True) if shown == BLANK]
    own = {value for value in (*_variables(spec).values(), *secret) if len(value) >= LEAST}
    return sorted(own.union(secret_values(environ)), key=len, reverse=True)


def _without(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without(value) for key, value in content.items()}
    if isinstance(content, list) and all(isinstance(each, str) for each in content):
        return without_secret_words(content)
    if isinstance(content, list):
        return [_without(each) for each in content]
    return without_secrets(content) if isinstance(content, str) else content


def script_without_secrets(text: str, spec: Mapping[str, Any]) -> str:
    """Return the text of a job script without the values of the job's variables and its secrets.

    Args:
        text: the script; empty if there is none.
        spec: the stored job.
    """
    command = spec.get("command")
    for name, value in _variables(spec).items():
        text = text.replace(f"export {name}={quote(value)}\n", f"export {name}={BLANK}\n")
        by_hand = re.compile(rf"^(\s*export {re.escape(name)}=).*$", re.MULTILINE)
        text = by_hand.sub(rf"\g<1>{BLANK}", text)
    for name in _WHOLE:
        flag = f"--{name.replace('_', '-')}="
        text = text.replace(quote(f"{flag}{spec.get(name)}"), f"{flag}{BLANK}")
    words = [str(word) for word in command] if isinstance(command, (list, tuple)) else []
    for word, shown in zip(words, without_secret_words(words), strict=True):
        if shown == BLANK:
            text = re.sub(rf"(?<=\s){re.escape(quote(word))}(?=[\s)])", BLANK, text)
    return without_secrets(text)
