"""What a connection asks the peer: requests of our own, which wait for their answers.

A part of `Connection`, whichever side made it: servers ask clients as clients ask servers.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any

from kourou.errors import ConnectionLostError, RequestTimeoutError
from kourou.protocol.command import RemotingCommand
from kourou.remoting.network import Address, format_address
from kourou.remoting.output import Output
from kourou.remoting.pending import PendingRequests, Waiter


class Asking:
    """Sends requests, and returns what the peer answers.

    Attributes:
        remote_address: the peer's.
        pending: requests that are not answered yet.
    """

    remote_address: Address
    pending: PendingRequests
    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.Transport | None
    _close_reason: str | None
    _output: Output

    @property
    def is_open(self) -> bool:
        """Whether sending still has a meaning."""
        return self._close_reason is None and self._transport is not None

    @abstractmethod
    def send(self, command: RemotingCommand) -> None:
        """Queue a frame."""

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the peer's answer, whatever its code.

        Gives `command` an opaque of this connection. While the peer is slow to read, waits before
        sending. Cancelling leaves the request unsent or sent, never half; a late answer is dropped.

        Raises:
            RequestTimeoutError: no answer within `timeout_s`; the request may have been served.
            ConnectionLostError: closed before the answer came; it may have been served.
            TooManyRequestsError: `requests_waiting_max` requests wait already; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        ends_at_s = self._loop.time() + timeout_s
        await self._until_writable(timeout_s)
        answer = self.pending.add(command.code, timeout_s, ends_at_s)
        opaque = command.opaque = answer.opaque
        try:
            self.send(command)
            return await answer
        finally:
            self.pending.discard(opaque)
            del answer  # an error refers to this frame

    def expect(self, waiter: Waiter[Any], ends_at_s: float) -> bool:
        """Await what is sent next, by its `opaque`; False, and nothing is done, if it must wait."""
        if self._close_reason is not None or self._transport is None or self._output.is_paused:
            return False
        return self.pending.put(waiter, ends_at_s)

    async def oneway(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a request that is never answered; returns when it is queued, not when it arrived.

        Raises:
            RequestTimeoutError: the peer did not read what came before within `timeout_s`.
            ConnectionLostError: closed; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        await self._until_writable(timeout_s)
        command.opaque = self.pending.next_opaque()
        self.send(command)

    async def _until_writable(self, timeout_s: float) -> None:
        """Return once the peer has read enough, with the connection open."""
        try:
            await self._output.until_resumed(timeout_s)
        except TimeoutError:
            peer = format_address(self.remote_address)
            text = f"{peer} did not read for {timeout_s:g} s; the request was not sent"
            raise RequestTimeoutError(text) from None
        if not self.is_open:
            reason = self._close_reason or "not connected"
            raise ConnectionLostError(f"{format_address(self.remote_address)}: {reason}")
