"""The path of plain commits: one-way ends of half messages that came just now.

They are most of what END_TRANSACTION brings. Whatever is unusual about a frame, its half message or
its transaction is left to `ending.py`, which alone is complete and knows nothing of this path. All
commits of one read are stored together: a task of the group commit less for each, and as many
objects. Where they cannot be stored together, each is by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from kourou.broker.group_commit import GroupCommit, PutResult, PutStatus
from kourou.broker.message_type import TRANSACTION
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.transactions.halves import Halves, KeptHalf
from kourou.broker.transactions.ledger import Ledger, State
from kourou.broker.transactions.op_log import OpLog
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.clock import Clock
from kourou.model.sysflag import TRANSACTION_COMMIT
from kourou.protocol.message_layout import RecordDraft
from kourou.remoting.connection import Connection

TOGETHER_BYTES_MAX: Final = 256 * 1024
"""Bytes of half messages that are committed by one put."""
_PREFIX_BYTES: Final = 8


class _Fields(msgspec.Struct, gc=False):
    """The fields of `EndTransactionRequestHeader` that plain ones are known by."""

    producerGroup: str  # noqa: N815 - wire names
    tranStateTableOffset: str  # noqa: N815
    commitLogOffset: str  # noqa: N815
    commitOrRollback: Literal["8"]  # noqa: N815
    fromTransactionCheck: Literal["false", "true"] = "false"  # noqa: N815


class _Header(msgspec.Struct, gc=False):
    code: Literal[37]
    extFields: _Fields  # noqa: N815
    flag: Literal[2]


_decode: Final = msgspec.json.Decoder(_Header).decode


class FastEnd:
    """Stores plain commits; a `kourou.remoting.connection.FastPath`."""

    def __init__(
        self,
        *,
        halves: Halves,
        ledger: Ledger,
        op_log: OpLog,
        counts: TransactionCounts,
        commit: GroupCommit,
        stats: BrokerStats,
        clock: Clock,
        caught_up: asyncio.Event,
    ) -> None:
        """Serve what `kourou.broker.transactions.ending.Endings` would serve in the same way."""
        self._halves = halves
        self._ledger = ledger
        self._op_log = op_log
        self._counts = counts
        self._commit = commit
        self._stats = stats
        self._clock = clock
        self._caught_up = caught_up
        self.in_flight: set[int] = set()
        """The half records whose commits are being stored."""

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Take the plain commits that come first; return where the first other frame begins."""
        at = start
        kept: list[KeptHalf] = []
        size = 0
        if not self._caught_up.is_set():
            return start
        while end - at >= _PREFIX_BYTES:
            frame_bytes = int.from_bytes(buffer[at : at + 4], "big")
            header_bytes = int.from_bytes(buffer[at + 4 : at + _PREFIX_BYTES], "big")
            frame_end = at + 4 + frame_bytes
            if header_bytes != frame_bytes - 4 or frame_end > end:
                break  # it has a body, another serialization, or is not whole
            half = self._plain(buffer, at + _PREFIX_BYTES, frame_end)
            if half is None:
                break
            kept.append(half)
            at = frame_end
            size += half.appended.size
            if size >= TOGETHER_BYTES_MAX:
                self._store(connection, kept)
                kept, size = [], 0
        if kept:
            self._store(connection, kept)
        return at

    def _plain(self, buffer: bytearray, start: int, end: int) -> KeptHalf | None:
        """Return the half message that a plain commit ends, which is being ended from now on."""
        try:
            fields = _decode(memoryview(buffer)[start:end]).extFields
            place = int(fields.commitLogOffset)
            offset = int(fields.tranStateTableOffset)
        except ValueError:  # msgspec's too
            return None
        half = self._halves.peek(place)
        if half is None or half.committed_properties is None:
            return None
        ledger = self._ledger
        is_plain = (
            half.appended.queue_offset == offset
            and half.group == fields.producerGroup
            and ledger.is_untouched(offset)
        )
        if not is_plain:
            return None
        self._halves.take_kept(place)
        ledger.begin(offset)
        self.in_flight.add(offset)
        return half

    def _store(self, connection: Connection, kept: Sequence[KeptHalf]) -> None:
        """Store the messages for their consumers, then note that they are."""
        now_ms = self._clock.now_ms()
        drafts = [_committed(half) for half in kept]

        def done(result: PutResult) -> None:
            if result.appended:
                self._stored(kept, result, self._clock.now_ms() - now_ms)
            elif result.status is PutStatus.MESSAGE_ILLEGAL and len(kept) > 1:
                for half in kept:
                    self._store(connection, [half])
            else:
                self._refused(kept)

        self._commit.put(drafts, now_ms, done, owner=connection)

    def _stored(self, kept: Sequence[KeptHalf], result: PutResult, took_ms: int) -> None:
        settle, on_put = self._ledger.settle, self._stats.on_put
        ended = []
        for half, stored in zip(kept, result.appended, strict=True):
            offset = half.appended.queue_offset
            settle(offset, State.COMMITTED)
            ended.append(offset)
            on_put(stored.topic, stored.queue_id, TRANSACTION, 1, stored.size, took_ms)
            self._counts.ended(half.topic, State.COMMITTED, was_open=True)
        self.in_flight.difference_update(ended)
        self._op_log.add(ended)

    def _refused(self, kept: Sequence[KeptHalf]) -> None:
        """Leave the transactions open; their producers will be asked."""
        for half in kept:
            offset = half.appended.queue_offset
            self._ledger.settle(offset, State.OPEN)
            self.in_flight.discard(offset)
            self._halves.keep_again(half)
            self._stats.on_put_failed()


def _committed(half: KeptHalf) -> RecordDraft:
    """Return the message as `half_messages.committed_draft` makes it."""
    draft = half.draft
    assert half.committed_properties is not None, "it is plain"
    return RecordDraft(
        topic=half.topic_bytes,
        queue_id=half.queue_id,
        flag=draft.flag,
        sys_flag=draft.sys_flag | TRANSACTION_COMMIT,
        born_at_ms=draft.born_at_ms,
        born_host=draft.born_host,
        store_host=draft.store_host,
        reconsume_times=draft.reconsume_times,
        prepared_transaction_offset=half.appended.physical_offset,
        body=draft.body,
        properties=half.committed_properties,
    )
