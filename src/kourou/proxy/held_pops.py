"""Pops that brokers hold for one client, and their end when its calls are over.

RocketMQ's protocol has no request that ends a held pop, but brokers drop the pops of a closed
connection. Pops therefore have connections of their own, one for each broker. When the calls of all
pops on one of them are over, that connection is ended: the broker drops what it holds, and the
answers that it has written by then still arrive. While other calls wait on the connection, a pop
whose call is over stays at the broker until the end of its poll.
"""

from __future__ import annotations

from typing import Final

from kourou.remoting.pool import ConnectionPool

_REASON: Final = "no call waits for its pops"


class HeldPops:
    """The pops of one client in progress.

    Attributes:
        pool: the connections for them, and for nothing else.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._waiting: dict[str, int] = {}

    def begin(self, address: str) -> None:
        """Count a pop at a broker, before it is sent."""
        self._waiting[address] = self._waiting.get(address, 0) + 1

    def end(self, address: str) -> None:
        """Stop to count a pop that the broker has answered."""
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
