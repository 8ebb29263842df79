"""State and services shared by all modules that change transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass

from kourou.broker.message_type import TRANSACTION
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.topics import Topics
from kourou.broker.transactions.half_cache import HalfMessages
from kourou.broker.transactions.ledger import Ledger
from kourou.broker.transactions.op_writer import OpWriter
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import Done, PutResult
from kourou.clock import Clock
from kourou.protocol.record.encode import RecordDraft


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """State of one broker's transactions, and the services that change it.

    Attributes:
        halves: reads half messages.
        ledger: state of each half message.
        op_writer: writes the op messages of ended transactions.
        counts: open and ended transactions by topic.
        topics: topics of the committed messages.
        commit: stores messages and half messages.
        stats: counts the stored messages.
        clock: gives the store time.
        age_clock: clock for the ages of half messages.
        recovered: set when the ledger holds the state of all half messages from before the start.
    """

    halves: HalfMessages
    ledger: Ledger
    op_writer: OpWriter
    counts: TransactionCounts
    topics: Topics
    commit: GroupCommit
    stats: BrokerStats
    clock: Clock
    age_clock: Clock
    recovered: asyncio.Event

    def put(self, draft: RecordDraft, done: Done, owner: Hashable | None = None) -> None:
        """Store one record as `GroupCommit.put` does, and count it when it is stored."""
        began_ms = self.clock.now_ms()

        def counted(result: PutResult) -> None:
            for stored in result.appended:
                took_ms = self.clock.now_ms() - began_ms
                self.stats.on_put(
                    stored.topic, stored.queue_id, TRANSACTION, 1, stored.size, took_ms
                )
            done(result)

        is_client = owner is not None
        self.commit.put([draft], began_ms, counted, owner=owner, wait_for_copies=is_client)

    async def wait_settled(self, current: int) -> None:
        """Wait until the pending change of a BUSY transaction has been stored or refused.

        Args:
            current: queue offset of the transaction's current record.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle() -> None:
            if not future.done():  # the waiting task may have been cancelled
                future.set_result(None)

        self.ledger.when_settled(current, settle)
        await future
