"""From a request to its handler, and from a handler's error to the answer.

What the peer is told:

    what happened               answer
    the server is leaving       1500, `please go away`, where the peer knows it and waits for one
    no handler for the code     3, ` request type N not supported`; the log names it
    the body is too large       29, with its size and the limit of `protocol/registry.py`
    RemoteError                 its code and remark
    ProtocolError, UsageError   1 and its text: the peer's fault
    anything else               1 and its text; the traceback is logged: ours
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from kourou.errors import ProtocolError, RemoteError, UsageError
from kourou.protocol.codes import ResponseCode, request_name
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.registry import REQUESTS
from kourou.remoting.connection import Request
from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import format_address
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

Handler = Callable[[Request], RemotingCommand | None]
"""Serves a request: returns the answer, or None when it will call `Request.reply` later.

It runs on the event loop and must not block.
"""


_VERSION_GO_AWAY: Final = 475
"""V5_3_1: what is newer takes the answer GO_AWAY for what it means."""


class Dispatcher:
    """Calls the handler of each request.

    Attributes:
        is_leaving: whether peers are to take their requests elsewhere.
    """

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = handlers
        self._not_supported = LogRate()
        self.is_leaving = False

    def __call__(self, request: Request) -> None:
        command = request.command
        if self.is_leaving and command.version > _VERSION_GO_AWAY and not command.is_oneway:
            request.reply(response(command, ResponseCode.GO_AWAY, "please go away"))
            return
        handler = self._handlers.get(command.code)
        if handler is None:
            self._refuse(request)
            return
        spec = REQUESTS.get(command.code)
        if spec is not None and len(command.body) > spec.body_bytes_max:
            text = (
                f"{request_name(command.code)} with a body of {len(command.body)} bytes: at most "
                f"{spec.body_bytes_max} are taken; split it into several requests"
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
        """Answer, and log, a request that nothing here serves: its program lacks a feature."""
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


def reply_error(request: Request, error: Exception) -> None:
    """Answer `request` with what `error` means to the peer; log it if it is a fault of ours.

    For handlers that reply later; what others raise comes here by itself.
    """
    code: int = ResponseCode.SYSTEM_ERROR
    text = str(error)
    if isinstance(error, RemoteError):
        code, text = error.code, error.remark
    elif not isinstance(error, ProtocolError | UsageError):
        text = f"{type(error).__name__}: {error}"
        log.error("request.failed code=%d", request.command.code, exc_info=error)
    request.reply(response(request.command, code, text))
