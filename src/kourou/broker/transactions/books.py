"""What all who act on transactions share: what is known of each, and where it is noted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.transactions.halves import Halves
from kourou.broker.transactions.ledger import Ledger
from kourou.broker.transactions.op_log import OpLog
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.broker.writing.group_commit import GroupCommit
from kourou.clock import Clock


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one broker's transactions.

    Attributes:
        halves: where the half messages are.
        ledger: which of them are open.
        op_log: gathers those that have ended.
        counts: how many, by topic.
        commit: stores messages and half messages.
        stats: counts what is stored.
        clock: the store time.
        caught_up: set once the ledger knows of all that came before the start.
    """

    halves: Halves
    ledger: Ledger
    op_log: OpLog
    counts: TransactionCounts
    commit: GroupCommit
    stats: BrokerStats
    clock: Clock
    caught_up: asyncio.Event
