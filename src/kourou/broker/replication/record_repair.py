"""Repairs damaged records of the log from another replica, which has the same bytes there.

A read or a recovery that finds a damaged record asks the other brokers of the same name, which name
servers know, for the record at its log position (request 33, also of Java's brokers). A record is
taken only if its checksum, its seal and its position match, and if the records fill the damaged
bytes; it is written and synced in place. What no broker has is asked for again every few seconds.

In controller mode the mark of acks remembers a record that could not be repaired at once: such a
replica is not elected while others are in sync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from kourou.broker.replication.acknowledged import Acknowledged
from kourou.broker.replication.member_group import MemberGroup
from kourou.errors import (
    CorruptRecordError,
    MalformedMessageError,
    ProtocolError,
    RemoteError,
    TransportError,
)
from kourou.model.topic import TRANS_HALF_TOPIC
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.pulling import ViewMessageRequestHeader
from kourou.protocol.record.keys import is_visible
from kourou.protocol.record.read import read_checked
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Offload
from kourou.store.message_store import GetRequest, MessageStore

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 1.0
_PAUSE_S: Final = 5.0
"""Pause after a failed attempt; reads of the record fail at once meanwhile."""
_PENDING_MAX: Final = 10_000
_REFUSALS: Final = (TransportError, RemoteError, ProtocolError, MalformedMessageError)


class RecordRepair:
    """Repairs the log of one broker. Used in one event loop.

    Attributes:
        interval_ms: how often `run` is to be called.
        repaired_count: number of damaged places that were repaired.
    """

    interval_ms: Final = 1_000

    def __init__(
        self,
        store: MessageStore,
        broker_id: int,
        members: MemberGroup,
        pool: ConnectionPool,
        offload: Offload,
        acknowledged: Acknowledged | None,
    ) -> None:
        """Begin with the damage that the recovery of the store has found.

        Args:
            store: is open.
            broker_id: of the broker.
            members: finds the other brokers.
            pool: connections to brokers.
            offload: runs reads and writes that may block.
            acknowledged: the mark of acks in controller mode.
        """
        self._store = store
        self._me = broker_id
        self._members = members
        self._pool = pool
        self._offload = offload
        self._acknowledged = acknowledged
        self._pending: dict[int, int] = {}  # position: size
        self._not_before_s: dict[int, float] = {}
        self._lock = asyncio.Lock()
        self.repaired_count = 0
        self._add((span.position, span.size) for span in store.recovery.damaged)
        if acknowledged is not None:
            self._add(acknowledged.damaged.items())

    def _add(self, spans: Iterable[tuple[int, int]]) -> None:
        for position, size in spans:
            if len(self._pending) < _PENDING_MAX:
                self._pending.setdefault(position, size)

    async def run(self) -> None:
        """Try again to repair what is damaged; called at intervals.

        Raises:
            OSError: the log or the mark cannot be written.
        """
        for position, size in list(self._pending.items()):
            await self.repair(position, size)

    async def repair(self, position: int, size: int) -> bool:
        """Repair the damaged bytes, and return whether whole records are there now.

        Returns at once after a failed attempt, for some seconds.

        Raises:
            OSError: the log or the mark cannot be written.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s.get(position, 0.0):
            return False
        async with self._lock:
            if position not in self._pending:
                if await self._offload(self._store.reader.read_record, position) is not None:
                    return True  # another reader has repaired it
                self._add([(position, size)])
            if position >= self._store.reader.min_position:
                address, data = await self._fetch(position, size)
                if not data:
                    self._not_before_s[position] = loop.time() + _PAUSE_S
                    await self._note(position, size)
                    return False
                await self._offload(self._store.repair, position, data)
                await self._repair_entries(data)
                self.repaired_count += 1
                log.warning(
                    "record.repaired position=%d size=%d from=%s", position, len(data), address
                )
            self._pending.pop(position, None)
            self._not_before_s.pop(position, None)
            if self._acknowledged is not None:
                await self._offload(self._acknowledged.clear_damage, position)
            return True

    async def _repair_entries(self, data: bytes) -> None:
        """Let the queue entries of repaired records point at them again: recovery changes them."""
        at = 0
        while at < len(data):
            header = read_checked(data, at)
            at += header.total_size
            if is_visible(header.sys_flag):
                asked = GetRequest(header.queue_offset, 1, header.total_size, None)
                queue = header.topic, header.queue_id
                try:
                    found = await self._offload(self._store.reader.get, *queue, asked)
                except CorruptRecordError:  # a reader finds out more
                    continue
                self._store.writer.write_repaired(found.repaired)

    async def _note(self, position: int, size: int) -> None:
        if self._acknowledged is not None:
            await self._offload(self._acknowledged.note_damage, {position: size})

    async def _fetch(self, position: int, size: int) -> tuple[str, bytes]:
        """Return a broker's address, and records that fill the bytes; empty if none has them."""
        for address in await self._others():
            data, at = bytearray(), position
            try:
                while at < position + size:
                    record = await self._ask(address, at)
                    data += checked_record(record, at, position + size - at)
                    at = position + len(data)
            except _REFUSALS as error:
                log.warning("record.not_repaired position=%d from=%s reason=%s", at, address, error)
                continue
            return address, bytes(data)
        return "", b""

    async def _ask(self, address: str, position: int) -> bytes:
        """Return the record at a position of a broker's log; also a half message."""
        header = ViewMessageRequestHeader(position, TRANS_HALF_TOPIC)
        command = request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        answer = await self._pool.request(address, command, _TIMEOUT_S)
        raise_for_response(answer)
        return answer.body

    async def _others(self) -> list[str]:
        """Return the addresses of the other brokers of this name, the master first."""
        members = await self._members.ask() or {}
        return [address for number, address in sorted(members.items()) if number != self._me]


def checked_record(record: bytes, position: int, room: int) -> bytes:
    """Return a record that belongs at a log position.

    Raises:
        MalformedMessageError: its checksum, seal or position does not match, or it is too long.
    """
    header = read_checked(record, 0)
    if header.physical_offset != position or header.total_size != len(record):
        raise MalformedMessageError(
            f"the record is of log position {header.physical_offset}, with {header.total_size} of "
            f"{len(record)} bytes; asked for {position}"
        )
    if len(record) > room:
        raise MalformedMessageError(f"the record has {len(record)} bytes, and {room} are damaged")
    return record
