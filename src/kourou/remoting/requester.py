"""The requester's half of `Connection`: sends requests and awaits their responses.

Both sides of a connection use it: servers send requests to clients too.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any

from kourou.errors import ConnectionLostError, RequestTimeoutError
from kourou.protocol.command import RemotingCommand
from kourou.remoting.network import Address, format_address
from kourou.remoting.output import Output
from kourou.remoting.pending import PendingRequest, PendingRequests


class Requester:
    """Sends requests and returns the peer's responses.

    Attributes:
        remote_address: the peer's address.
        pending: our requests without a response yet.
    """

    remote_address: Address
    pending: PendingRequests
    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.Transport | None
    _close_reason: str | None
    _output: Output

    @property
    def is_open(self) -> bool:
        """Whether the connection is made and neither closing nor closed."""
        return self._close_reason is None and self._transport is not None

    @abstractmethod
    def send(self, command: RemotingCommand) -> None:
        """Queue a frame."""

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the response, whatever its code.

        Sets the opaque of `command`. Waits before sending while output is paused. Cancelling leaves
        the request unsent or sent, never half; a late response is dropped.

        Raises:
            RequestTimeoutError: no response within `timeout_s`; the request may have been served.
            ConnectionLostError: closed before the response arrived; it may have been served.
            TooManyRequestsError: `requests_waiting_max` requests are pending already; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        ends_at_s = self._loop.time() + timeout_s
        await self._wait_writable(timeout_s)
        answer = self.pending.add(command.code, timeout_s, ends_at_s)
        opaque = command.opaque = answer.opaque
        try:
            self.send(command)
            return await answer
        finally:
            self.pending.discard(opaque)
            del answer  # breaks a cycle: the traceback of its error refers to this frame

    def register_pending(self, pending: PendingRequest[Any], ends_at_s: float) -> bool:
        """Register `pending` for a request that the caller sends next, with `pending.opaque`.

        Return False, and change nothing, if the request cannot be sent now: the connection is not
        open, output is paused, or too many requests are pending.
        """
        if self._close_reason is not None or self._transport is None or self._output.is_paused:
            return False
        return self.pending.put(pending, ends_at_s)

    async def oneway(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a oneway request; return when it is queued, not when it has arrived.

        Raises:
            RequestTimeoutError: the peer did not read earlier output within `timeout_s`; not sent.
            ConnectionLostError: closed; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        await self._wait_writable(timeout_s)
        command.opaque = self.pending.next_opaque()
        self.send(command)

    async def _wait_writable(self, timeout_s: float) -> None:
        """Wait until output is not paused, and check that the connection is open."""
        try:
            await self._output.wait_resumed(timeout_s)
        except TimeoutError:
            peer = format_address(self.remote_address)
            text = f"{peer} did not read for {timeout_s:g} s; the request was not sent"
            raise RequestTimeoutError(text) from None
        if not self.is_open:
            reason = self._close_reason or "not connected"
            raise ConnectionLostError(f"{format_address(self.remote_address)}: {reason}")
