"""The requests that a worker answers, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["Handler", "Request", "Response", "answer", "handler_names", "register_handler"]

_OF_TORCH = (
    *("dump_nccl_trace_json", "dump_nccl_trace_pickle", "fr_trace_json", "pyspy_dump"),
    *("torch_profile", "wait_counter_values"),
)
NOT_FOUND, FAILED = 404, 500


class Request(Protocol):
    """A request; torch's handlers get the same."""

    def body(self) -> bytes:
        """Return the body of the request."""
        ...

    def get_param(self, name: str, /) -> str:
        """Return a parameter from behind the ``?``; empty if there is none."""
        ...


class Response(Protocol):
    """An answer; 200 and empty if a handler sets neither."""

    def set_content(self, content: str | bytes, content_type: str, /) -> None:
        """Answer with this content, for example of the type ``text/plain``."""
        ...

    def set_status(self, status: int, /) -> None:
        """Answer with this HTTP status."""
        ...


Handler = Callable[[Any, Any], None]  # of a Request and a Response; torch's are of other classes


class HandlerCall(Request):
    """A request that has come.

    Args:
        body: the body of the request.
        params: the parameters.
    """

    def __init__(self, body: bytes = b"", params: Mapping[str, str] | None = None) -> None:
        self._body = body
        self._params = dict(params or {})

    def body(self) -> bytes:
        """Return the body of the request."""
        return self._body

    def get_param(self, name: str, /) -> str:
        """Return a parameter; empty if there is none."""
        return self._params.get(name, "")

    def params(self) -> dict[str, str]:
        """Return all parameters."""
        return dict(self._params)


class HandlerAnswer(Response):
    """An answer that is being made."""

    def __init__(self) -> None:
        self.status = 200
        self.content = b""
        self.content_type = "text/plain"

    def set_content(self, content: str | bytes, content_type: str, /) -> None:
        """Answer with this content."""
        self.content = content.encode() if isinstance(content, str) else bytes(content)
        self.content_type = content_type

    def set_status(self, status: int, /) -> None:
        """Answer with this HTTP status."""
        self.status = status


class _Handlers:
    """The handlers of this process by name."""

    def __init__(self, built_in: Mapping[str, Handler]) -> None:
        self._by_name = dict(built_in)

    def register(self, name: str, handler: Handler) -> None:
        if not name or "/" in name or not callable(handler):
            raise ValueError(
                f"register_handler needs a name without '/' and a function of request and response, "
                f"not {name!r} and {handler!r}"
            )
        if self._by_name.setdefault(name, handler) != handler:  # methods are equal, never the same
            raise ValueError(f"Handler {name} is already registered")

    def names(self) -> list[str]:
        return sorted({*self._by_name, *_torchs_names()})

    def find(self, name: str) -> Handler | None:
        return self._by_name.get(name) or _torchs_handler(name)


def _ping(_request: Request, response: Response) -> None:
    response.set_content("pong", "text/plain")


def _dump_traceback(_request: Request, response: Response) -> None:
    import faulthandler  # noqa: PLC0415 - only if it is asked for
    import tempfile  # noqa: PLC0415 - as above

    with tempfile.TemporaryFile() as file:  # faulthandler writes to descriptors
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        response.set_content(file.read(), "text/plain")


_handlers = _Handlers({"ping": _ping, "dump_traceback": _dump_traceback})


def register_handler(name: str, handler: Handler) -> None:
    """Have this process answer ``POST /handler/<name>``.

    Args:
        name: the name of the handler.
        handler: called with a `Request` and a `Response`, in a thread of its own; if it raises, the
            answer is the error with status 500.

    Raises:
        ValueError: the name is none, or is taken.
    """
    _handlers.register(name, handler)


def handler_names() -> list[str]:
    """Return the names of the handlers of this process."""
    return _handlers.names()


def answer(name: str, request: HandlerCall) -> HandlerAnswer:
    """Return the answer of a handler; an error of it is an answer, too."""
    response = HandlerAnswer()
    handler = _handlers.find(name)
    if handler is None:
        response.set_status(NOT_FOUND)
        response.set_content(f"Handler {name} not found: {_why_not(name)}", "text/plain")
        return response
    try:
        handler(request, response)
    except Exception as error:  # noqa: BLE001 - the client gets it as its answer
        response.set_status(FAILED)
        response.set_content(f"Handler {name} failed: {type(error).__name__}: {error}", "text/plain")
    return response


def _why_not(name: str) -> str:
    if name in _OF_TORCH and _torch() is None:
        return "it is one of torch's, and this process has not imported torch.distributed"
    if name in _OF_TORCH:
        return "torch has none on this machine"
    return f"Failed to find handler {name}; there are: {', '.join(handler_names())}"


def _torch() -> Any:
    """Return torch's own module of handlers if this process has loaded it; never loads it."""
    module = sys.modules.get("torch._C._distributed_c10d")
    return module if hasattr(module, "_get_handler_names") else None


def _torchs_names() -> list[str]:
    torch = _torch()
    return [] if torch is None else list(torch._get_handler_names())  # noqa: SLF001 - there is no public way


def _torchs_handler(name: str) -> Handler | None:
    torch = _torch()
    if torch is None or name not in _torchs_names():
        return None
    handler = torch._get_handler(name)  # noqa: SLF001 - as above

    class OfTorch(torch._Request):  # type: ignore[misc,name-defined] # noqa: SLF001 - as above
        """The request as torch takes it."""

        def __init__(self, request: HandlerCall) -> None:
            super().__init__()
            self.body, self.params, self.get_param = request.body, request.params, request.get_param

    class ForTorch(torch._Response):  # type: ignore[misc,name-defined] # noqa: SLF001 - as above
        """The answer as torch gives it."""

        def __init__(self, response: HandlerAnswer) -> None:
            super().__init__()
            self.set_content, self.set_status = response.set_content, response.set_status

    def ask(request: HandlerCall, response: HandlerAnswer) -> None:
        handler(OfTorch(request), ForTorch(response))

    return ask
