"""Pops that brokers hold for one client, and their end when its calls are over.

RocketMQ's protocol has no request that ends a held pop, but brokers drop the pops of a closed
connection. Pops therefore have connections of their own, one for each broker. When the calls of all
pops on one of them are over, that connection is ended: the broker drops what it holds, and the
answers that it has written by then still arrive. While other calls wait on the connection, a pop
whose call is over stays at the broker until the end of its poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from kourou.client.pop_result import PopResult
from kourou.http2.calls import Call
from kourou.remoting.pool import ConnectionPool

_REASON: Final = "no call waits for its pops"


class ReceiveCall:
    """Events of one receive: its end, and the end of a wait for its client.

    Attributes:
        call: of the client.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self._woken = asyncio.Event()
        self._on_over: Callable[[], None] | None = None
        if call.is_active:  # else nothing would end the references to each other
            call.on_cancel = self._over
            call.on_writable = self._woken.set

    def on_over(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the call ends before `dismiss`."""
        self._on_over = callback

    def dismiss(self) -> bool:
        """Forget the callback; return False if it was called."""
        was_set, self._on_over = self._on_over is not None, None
        return was_set

    def _over(self) -> None:
        self._woken.set()
        callback, self._on_over = self._on_over, None
        if callback is not None:
            callback()

    async def wait_read(self, timeout_s: float) -> bool:
        """Wait until the client has read what waits; False if the call ended, or after the time."""
        call, woken = self.call, self._woken
        try:
            if not call.writable:
                async with asyncio.timeout(timeout_s):
                    while call.is_active and not call.writable:
                        woken.clear()
                        await woken.wait()
        except TimeoutError:
            return False
        return call.is_active


class HeldPops:
    """The pops of one client in progress.

    Attributes:
        pool: the connections for them, and for nothing else.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._waiting: dict[str, int] = {}

    async def run(self, call: ReceiveCall, address: str, pop: Awaitable[PopResult]) -> PopResult:
        """Await a pop of the broker at `address`, by the connections of `pool`.

        Raises:
            KourouError: as the pop; ConnectionLostError also when its call is over.
        """
        self.begin(address)
        call.on_over(partial(self.abandon, address))
        try:
            return await pop
        finally:
            if call.dismiss():
                self.end(address)

    def begin(self, address: str) -> None:
        """Count a pop of the broker at `address`; `end` or `abandon` follows once."""
        self._waiting[address] = self._waiting.get(address, 0) + 1

    def end(self, address: str) -> None:
        """Stop to count a pop that has an answer, or has failed."""
        self._waiting[address] -= 1
        if not self._waiting[address]:
            del self._waiting[address]

    def abandon(self, address: str) -> None:
        """Stop to count a pop whose call is over."""
        self.end(address)
        connection = self.pool.existing(address)
        if address not in self._waiting and connection is not None:
            self.pool.retire(address, connection)
            connection.end_requests(_REASON)

    def abandon_all(self) -> None:
        """End all pops; their requests fail unless the broker has answered."""
        for connection in self.pool.connections():
            connection.end_requests(_REASON)
