"""A connection without a network: keeps what it is sent, and makes requests that come from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from kourou.protocol.command import RemotingCommand, request
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import Handler, reply_error
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address
from kourou.remoting.unanswered import Unanswered, UnansweredBytes


class FakePeer:
    """Stands for the `Connection` of a client in tests of handlers.

    Attributes:
        sent: all commands sent to the client, oldest first.
        closed_because: the reason given to `close`; None while open.
        is_paused, on_resumed: as of a `Connection`; it is paused only if a test says so.
    """

    def __init__(self, port: int = 50_000, *, address: str = "10.0.0.9") -> None:
        self.remote_address: Address = (address, port)
        self.local_address: Address = ("10.0.0.1", 10911)
        self.sent: list[RemotingCommand] = []
        self.closed_because: str | None = None
        self.unanswered = Unanswered(ConnectionLimits(), UnansweredBytes())
        self.is_paused = False
        self.on_resumed: Callable[[Connection], None] | None = None
        self._opaque = 0

    @property
    def is_open(self) -> bool:
        """Whether nobody closed it."""
        return self.closed_because is None

    def send(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    def close(self, reason: str) -> None:
        self.closed_because = reason

    def request(
        self, code: int, header: object | None = None, body: bytes = b"", *, oneway: bool = False
    ) -> Request:
        """Return a request of this client."""
        command = request(code, header, body, oneway=oneway)
        self._opaque += 1
        command.opaque = self._opaque
        return self.request_of(command)

    def request_of(self, command: RemotingCommand) -> Request:
        """Return a request of this client with a command that was made elsewhere."""
        size = len(command.body)
        self.unanswered.add(size)
        return Request(command, cast(Connection, self), size)

    def ask(self, handler: Handler, asked: Request) -> RemotingCommand | None:
        """Let the handler serve the request and return the answer that was sent by then.

        None means that the handler will answer later; the answer is then the last of `sent`.
        """
        before = len(self.sent)
        try:
            answer = handler(asked)
        except Exception as error:  # noqa: BLE001 - as a server does
            reply_error(asked, error)
        else:
            if answer is not None:
                asked.reply(answer)
        return self.sent[-1] if len(self.sent) > before else None
