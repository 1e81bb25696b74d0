"""A real Chromium without a screen, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
_END = b"\0"  # of a message


class Browser:
    """One page of a browser, and all that it has asked for or complained about.

    Args:
        writing: the pipe to the browser.
        reading: the pipe from it.
    """

    def __init__(self, writing: int, reading: int) -> None:
        self._writing, self._reading = writing, reading
        self._number = 0
        self._rest = b""
        self._session = ""
        self.requests: list[str] = []
        self.errors: list[Any] = []
        self._is_loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + _END)
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path, width: int, height: int, scheme: str) -> None:
        """Show a page, in a window of this size, for a user who wants a light or a dark one."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests.clear()
        self._is_loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._is_loaded:
            self._next()

    def value(self, code: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _next(self) -> dict[str, Any]:
        """Return the next message, and take note of those that nobody has asked for."""
        while _END not in self._rest:
            data = os.read(self._reading, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(_END)
        message: dict[str, Any] = json.loads(line)
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled":
                self.errors.append(params)
            case "Page.loadEventFired":
                self._is_loaded = True
        return message


@contextmanager
def chromium(home: Path) -> Iterator[Browser]:
    """Run a browser for a while; its files are below `home`."""
    (to_read, writing), (reading, to_write) = os.pipe(), os.pipe()
    flags = " ".join((*_FLAGS, f"--user-data-dir={home}/profile", "about:blank"))
    command = f"exec chromium {flags} 3<&{to_read} 4>&{to_write}"
    environ = {**os.environ, "HOME": str(home)}
    process = subprocess.Popen(
        ["/bin/bash", "-c", command],
        pass_fds=(to_read, to_write),
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        browser = Browser(writing, reading)
        yield browser
        os.write(writing, json.dumps({"id": 0, "method": "Browser.close"}).encode() + _END)
        process.wait(120)
    finally:
        process.kill()
        process.wait()
        os.close(writing)
        os.close(reading)
