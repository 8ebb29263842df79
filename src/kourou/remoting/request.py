"""A request as handlers receive it, with the means to reply."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kourou.errors import ProtocolError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.remoting.network import Address

if TYPE_CHECKING:
    from kourou.remoting.connection import Connection

log = logging.getLogger(__name__)


class Request:
    """A request from a peer, and the connection to reply on."""

    __slots__ = ("_is_answered", "_size", "command", "connection")

    def __init__(self, command: RemotingCommand, connection: Connection, size: int) -> None:
        self.command = command
        self.connection = connection
        self._size = size  # bytes of its frame
        self._is_answered = False

    @property
    def is_oneway(self) -> bool:
        """Whether the peer expects no response."""
        return self.command.is_oneway

    @property
    def remote_address(self) -> Address:
        """The peer's address."""
        return self.connection.remote_address

    def reply(self, answer: RemotingCommand) -> None:
        """Send the response. Ignored for a oneway request or if the connection has closed.

        A second call is ignored and logged. A response that cannot be encoded is replaced by an
        error.
        """
        if self._is_answered:
            log.error("request.answered_twice code=%d", self.command.code)
            return
        self._is_answered = True
        self.connection.unanswered.remove(self._size)
        if self.is_oneway:
            return
        try:
            self.connection.send(answer)
        except ProtocolError as error:  # too large, or text that is not Unicode
            self.connection.send(response(self.command, ResponseCode.SYSTEM_ERROR, str(error)))
