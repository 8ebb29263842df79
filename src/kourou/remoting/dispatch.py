"""Dispatch of requests to their handlers, and of handlers' errors to responses.

condition                   response
server is shutting down     1500, `please go away`, if the peer knows the code and awaits a
                            response
no handler for the code     3, ` request type N not supported`; logged
body too large              29, with its size and the limit from `protocol/request_spec.py`
RemoteError                 its code and remark
ProtocolError, UsageError   1 and the error's text: the peer's fault
any other exception         1 and the error's text: our fault; the traceback is logged
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from kourou.errors import ProtocolError, RemoteError, UsageError
from kourou.protocol.codes import ResponseCode, request_name
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.registry import REQUESTS
from kourou.protocol.request_spec import BODY_BYTES_MAX
from kourou.remoting.connection import Request
from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import format_address
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

Handler = Callable[[Request], RemotingCommand | None]
"""Serves a request: returns the response, or None if it will call `Request.reply` later.

It runs on the event loop and must not block.
"""


_VERSION_GO_AWAY: Final = 475
"""V5_3_1: newer peers understand the response GO_AWAY."""


class Dispatcher:
    """Calls the handler of each request.

    Attributes:
        is_shutting_down: the server is shutting down; requests are answered GO_AWAY where the peer
            understands it.
    """

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = handlers
        self._not_supported = LogRate()
        self.is_shutting_down = False

    def release(self) -> None:
        """Forget the handlers, which often refer to the owner of the closed connections."""
        self._handlers = {}

    def __call__(self, request: Request) -> None:
        command = request.command
        if self.is_shutting_down and command.version > _VERSION_GO_AWAY and not command.is_oneway:
            request.reply(response(command, ResponseCode.GO_AWAY, "please go away"))
            return
        handler = self._handlers.get(command.code)
        if handler is None:
            self._refuse(request)
            return
        spec = REQUESTS.get(command.code)
        limit = BODY_BYTES_MAX if spec is None else spec.body_bytes_max
        if len(command.body) > limit:
            text = (
                f"{request_name(command.code)} with a body of {len(command.body)} bytes: the limit "
                f"is {limit}; split it into several requests"
            )
            request.reply(response(command, ResponseCode.INVALID_PARAMETER, text))
            return
        try:
            answer = handler(request)
        except Exception as error:  # noqa: BLE001 - one request's failure must not touch others
            reply_error(request, error)
            return
        if answer is not None:
            request.reply(answer)

    def _refuse(self, request: Request) -> None:
        """Answer and log a request that has no handler: the peer uses a feature we lack."""
        command = request.command
        suppressed = self._not_supported.take(steady_ms() / 1000)
        if suppressed is not None:
            log.warning(
                "request.not_supported code=%s peer=%s language=%s version=%d suppressed=%d",
                request_name(command.code), format_address(request.remote_address),
                command.language.name, command.version, suppressed,
            )  # fmt: skip
        text = f" request type {command.code} not supported"
        request.reply(response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text))


def reply_with(request: Request, serve: Callable[[], RemotingCommand | None]) -> None:
    """Answer a request that was held with the result of `serve`, or its error; never raises."""
    try:
        answer = serve()
    except Exception as error:  # noqa: BLE001 - it becomes the answer, and is logged there
        reply_error(request, error)
        return
    if answer is not None:
        request.reply(answer)


def reply_error(request: Request, error: Exception) -> None:
    """Answer `request` with the response for `error`; log the error if it is our fault.

    Called by handlers that reply later. The dispatcher calls it for errors that handlers raise.
    """
    code: int = ResponseCode.SYSTEM_ERROR
    text = str(error)
    if isinstance(error, RemoteError):
        code, text = error.code, error.remark
    elif not isinstance(error, ProtocolError | UsageError):
        text = f"{type(error).__name__}: {error}"
        log.error("request.failed code=%d", request.command.code, exc_info=error)
    request.reply(response(request.command, code, text))
