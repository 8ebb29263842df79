"""Writes received messages to clients no faster than they read.

A message is written when nothing of its call waits for the client. Those behind it wait as the
broker returned them, within a number of bytes for each connection and for all; beyond it, they are
not written. A message that still waits in its stream when the call ends counts as not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.client.pop_result import PoppedMessage
from kourou.http2.calls import Call
from kourou.proxy.held_pops import ReceiveCall

_MIB: Final = 1024 * 1024
_MESSAGE_BYTES: Final = 1024
"""Memory of a message beside its body, estimated."""


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Limits of the messages that wait for slow clients.

    Attributes:
        connection_bytes_max: bytes that wait for one connection.
        bytes_max: bytes that wait for all.
    """

    connection_bytes_max: int = 16 * _MIB
    bytes_max: int = 128 * _MIB


class ReceivedWrites:
    """Writes the messages of all receives.

    Attributes:
        waiting_bytes: bytes of the messages that wait, without those in streams.
    """

    def __init__(self, limits: WriteLimits) -> None:
        self._limits = limits
        self.waiting_bytes = 0
        self._by_connection: dict[int, int] = {}

    async def write(
        self,
        stream: ReceiveCall,
        messages: Sequence[PoppedMessage],
        encode: Callable[[PoppedMessage], bytes],
        release: Callable[[Sequence[PoppedMessage]], None],
        timeout_s: float,
    ) -> Sequence[PoppedMessage]:
        """Write messages, and return those that the client has read or is about to.

        Args:
            stream: of the client.
            messages: to write in their order.
            encode: returns the answer with one message.
            release: called with messages that are not written, as soon as they are known.
            timeout_s: longest wait for the client; messages are visible to others after it.
        """
        call, loop = stream.call, asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_s
        written, reserved = 0, 0
        try:
            for message in messages:
                if not call.writable and not reserved:
                    size = sum(map(_size_of, messages[written:]))
                    if not self._reserve(call, size):
                        release(messages[written:])
                        messages = messages[:written]
                        break
                    reserved = size
                if not await stream.wait_read(ends_at_s - loop.time()):
                    break
                call.send(encode(message))
                written += 1
            if not await stream.wait_read(ends_at_s - loop.time()):
                written = max(written - 1, 0)  # the last one waits in its stream
        finally:
            self._release(call, reserved)
        release(messages[written:])
        return messages[:written]

    def _reserve(self, call: Call, size: int) -> bool:
        """Count messages that wait; return False if there is no room for them."""
        number, limits = call.connection.id, self._limits
        waiting = self._by_connection.get(number, 0) + size
        if waiting > limits.connection_bytes_max or self.waiting_bytes + size > limits.bytes_max:
            return False
        self._by_connection[number] = waiting
        self.waiting_bytes += size
        return True

    def _release(self, call: Call, size: int) -> None:
        if not size:
            return
        number = call.connection.id
        self.waiting_bytes -= size
        self._by_connection[number] -= size
        if not self._by_connection[number]:
            del self._by_connection[number]


def _size_of(message: PoppedMessage) -> int:
    return len(message.body) + _MESSAGE_BYTES
