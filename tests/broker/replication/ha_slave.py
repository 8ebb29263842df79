"""A slave of the classic protocol without a store, as Java's: it reports all that it receives."""

from __future__ import annotations

from kourou.broker.server import Broker
from kourou.protocol.replication import Transfer, TransferDecoder, encode_report
from kourou.remoting.network import Address, Network
from kourou.testing.raw_client import RawClient


class HaSlave:
    """One connection to a master's port for slaves.

    Attributes:
        client: the connection.
        data: the log's bytes as received.
    """

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.data = bytearray()
        self._decoder = TransferDecoder()
        self._decoded = 0
        self._all: list[Transfer] = []

    @classmethod
    async def connect(cls, network: Network, address: Address, position: int | None) -> HaSlave:
        """Connect, and report a position, or nothing yet."""
        slave = cls(await RawClient.connect(network, address))
        if position is not None:
            slave.report(position)
        return slave

    def report(self, position: int) -> None:
        self.client.write(encode_report(position))

    def transfers(self) -> list[Transfer]:
        """Return all transfers and heartbeats so far."""
        new = bytes(self.client.received[self._decoded :])
        self._decoded += len(new)
        for transfer in self._decoder.feed(new):
            self._all.append(transfer)
            self.data += transfer.data
        return self._all

    @property
    def end(self) -> int:
        """The log position after the last received byte; 0 before the first."""
        transfers = self.transfers()
        return transfers[-1].position + len(transfers[-1].data) if transfers else 0

    async def until_end(self, position: int) -> None:
        """Return when the log was received up to `position`."""
        await self.client.until(lambda: self.end >= position)


def log_bytes(broker: Broker, start: int, end: int) -> bytes:
    """Return bytes of a broker's log."""
    reader, data = broker.store.reader, b""
    while start < end:
        stop = min(end, reader.segment_end(start))
        data += reader.written_bytes(start, stop - start)
        start = stop
    return data
