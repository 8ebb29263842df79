"""What all who act on transactions share: what is known of each, and where it is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass

from kourou.broker.message_type import TRANSACTION
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.topics import Topics
from kourou.broker.transactions.halves import Halves
from kourou.broker.transactions.ledger import Ledger
from kourou.broker.transactions.op_log import OpLog
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import Done, PutResult
from kourou.clock import Clock
from kourou.protocol.message_layout import RecordDraft


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one broker's transactions.

    Attributes:
        halves: where the half messages are.
        ledger: which of them are open.
        op_log: gathers those that have ended.
        counts: how many, by topic.
        topics: those that committed messages are stored in.
        commit: stores messages and half messages.
        stats: counts what is stored.
        clock: the store time.
        age_clock: tells how old half messages are.
        caught_up: set once the ledger knows of all that came before the start.
    """

    halves: Halves
    ledger: Ledger
    op_log: OpLog
    counts: TransactionCounts
    topics: Topics
    commit: GroupCommit
    stats: BrokerStats
    clock: Clock
    age_clock: Clock
    caught_up: asyncio.Event

    def put(self, draft: RecordDraft, done: Done, owner: Hashable | None = None) -> None:
        """Store one record as `GroupCommit.put` does, and count it once it is stored."""
        began_ms = self.clock.now_ms()

        def counted(result: PutResult) -> None:
            for stored in result.appended:
                took_ms = self.clock.now_ms() - began_ms
                self.stats.on_put(
                    stored.topic, stored.queue_id, TRANSACTION, 1, stored.size, took_ms
                )
            done(result)

        self.commit.put([draft], began_ms, counted, owner=owner)

    async def settled(self, current: int) -> None:
        """Wait until what is under way for a BUSY transaction has ended.

        Args:
            current: the record that stands for it.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle() -> None:
            if not future.done():  # who waited may have gone
                future.set_result(None)

        self.ledger.when_settled(current, settle)
        await future
