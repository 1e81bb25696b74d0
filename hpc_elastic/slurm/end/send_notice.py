"""The program that sends one message, by a webhook or a command: ``python -m`` of this module.

`hpc_elastic.slurm.end.notify` starts it, and ends it when its time is up, so that a name server or a proxy
that does not answer costs the job nothing. Its standard input is a `Sending` as JSON; it prints why it has
failed.
"""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess  # noqa: TID251 - runs the user's command
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import DamagedError, InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.job.notice import Webhook, read_webhook
from hpc_elastic.text import visible
from hpc_elastic.typed_json import decode, parse_object

TRY_S = 5.0  # for one answer of a webhook
_FIRST_PAUSE_S = 1.0
_LONGEST_WORDS = 300
_TOO_MANY = 429
_SERVERS_FAULT = 500
_NO_PROGRAM = (126, 127)
_ANSWER = 4096  # bytes of an answer that are read


class Sending(NamedTuple):
    """One message and its way."""

    body: str
    total_s: float  # for all tries
    webhook: str = ""  # the file with its URL
    command: str = ""


class Tried(NamedTuple):
    """The result of one try."""

    trouble: str = ""  # empty: the message was taken
    is_final: bool = False  # another try finds the same


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message goes where its user has sent it, and nowhere else."""

    def redirect_request(self, *_arguments: object, **_named: object) -> None:
        """Follow none."""


def send(sending: Sending, clock: Clock) -> str:
    """Send a message, several times if need be; return why it was not taken, empty if it was.

    Args:
        sending: the message.
        clock: for the pauses.
    """
    until = clock.monotonic() + sending.total_s
    if sending.command:
        return _again(lambda left_s: _run(sending.command, sending.body, left_s), until, clock)
    try:
        webhook = read_webhook(sending.webhook)
    except InputError as error:
        return error.message
    return _again(lambda left_s: _post(webhook, sending.body, min(left_s, TRY_S)), until, clock)


def _again(attempt: Callable[[float], Tried], until: float, clock: Clock) -> str:
    """Try until it works, it can never work, or the time is up.

    Args:
        attempt: tries once; its argument is the time that is left [s].
        until: monotonic time.
        clock: of that time.
    """
    pause_s, tries = _FIRST_PAUSE_S, 0
    while True:
        tried, tries = attempt(max(until - clock.monotonic(), 0.1)), tries + 1
        if not tried.trouble or tried.is_final or clock.monotonic() + pause_s >= until:
            several = f" ({tries} tries)" if tries > 1 else ""
            return f"{tried.trouble}{several}" if tried.trouble else ""
        clock.sleep(pause_s)
        pause_s *= 2


def _post(webhook: Webhook, body: str, timeout_s: float) -> Tried:
    headers = {"Content-Type": "application/json", "User-Agent": "hpc_elastic", **dict(webhook.headers)}
    request = urllib.request.Request(webhook.url, body.encode(), headers, method="POST")  # noqa: S310 - https
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    if webhook.is_loopback:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            answer.read(_ANSWER)
    except urllib.error.HTTPError as error:
        is_passing = error.code == _TOO_MANY or error.code >= _SERVERS_FAULT
        words = visible(str(error.reason))[:_LONGEST_WORDS]  # the server's
        return Tried(f"the webhook has answered {error.code} {words}", is_final=not is_passing)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _unanswered(error)
    return Tried()


def _unanswered(error: Exception) -> Tried:
    """Return why no answer came, without a part of the URL."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Tried(f"the certificate of the webhook is not valid: {reason.verify_message}", is_final=True)
    words = reason.strerror or str(reason) if isinstance(reason, OSError) else type(reason).__name__
    return Tried(f"the webhook does not answer: {words}")


def _run(command: str, body: str, timeout_s: float) -> Tried:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(body.encode() + b"\n")
        given.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=given, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return Tried(f"the command has not ended in {timeout_s:g} s", is_final=True)
        finally:
            _end_group(process.pid)
            process.wait()
        said.seek(max(0, said.seek(0, os.SEEK_END) - _ANSWER))
        lines = said.read().decode(errors="replace").strip().splitlines()
    last = f": {visible(lines[-1])[:_LONGEST_WORDS]}" if lines else ""
    return Tried(f"the command has ended with exit code {code}{last}" if code else "", code in _NO_PROGRAM)


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> int:
    """Send the message on standard input."""
    try:
        sending = decode(Sending, parse_object(sys.stdin.buffer.read()))
    except DamagedError as error:
        sys.stdout.write(f"{error}\n")
        return 2
    trouble = send(sending, SystemClock())
    sys.stdout.write(trouble)
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
