"""A fake connection of a client: records the commands sent to it, and creates its requests."""

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
    """Replaces the `Connection` of a client in tests of handlers.

    Attributes:
        sent: all commands sent to the client, oldest first.
        closed_because: the reason passed to `close`; None while open.
        is_paused, on_resumed: see `Connection`; only a test sets `is_paused`.
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
        """True if `close` was not called."""
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
        """Return a request of this client for an existing command."""
        size = len(command.body)
        self.unanswered.add(size)
        return Request(command, cast(Connection, self), size)

    def ask(self, handler: Handler, asked: Request) -> RemotingCommand | None:
        """Call the handler with the request; return its answer.

        None if the handler answers later: then that answer is the last of `sent`.
        """
        before = len(self.sent)
        try:
            answer = handler(asked)
        except Exception as error:  # noqa: BLE001 - like a server
            reply_error(asked, error)
        else:
            if answer is not None:
                asked.reply(answer)
        return self.sent[-1] if len(self.sent) > before else None
