"""Transactions of one broker: composition of their parts, start and stop, progress of the queues.

    half message       RMQ_SYS_TRANS_HALF_TOPIC         `half_messages.py`, `half_cache.py`
    end                END_TRANSACTION                  `end_transaction.py`, `op_writer.py`
    fast paths         of both                          `plain_halves.py`, `fast_end.py`
    check              CHECK_TRANSACTION_STATE          `check_rounds.py`
    resumption         RESUME_CHECK_HALF_MESSAGE        `resume_checks.py`
    recovery           open transactions at a start     `recovery.py`
    state              of each half message             `ledger.py`, `context.py`

The progress of the half queue and of the op queue is committed for the group CID_RMQ_SYS_TRANS in
`config/consumerOffset.json`. All half messages below the first have ended, and the op messages
below the second name only such half messages. The progress only saves reads: the log alone
determines the open transactions.

Source: TransactionalMessageServiceImpl.java, TransactionalMessageBridge.java, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from kourou.broker.config_saver import SavedFile
from kourou.broker.context import BrokerContext
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.tables import Tables
from kourou.broker.transactions.check_rounds import CheckRounds
from kourou.broker.transactions.context import TransactionContext
from kourou.broker.transactions.end_transaction import EndTransactionHandler
from kourou.broker.transactions.fast_end import FastEnd
from kourou.broker.transactions.half_cache import CachedHalf, HalfMessages
from kourou.broker.transactions.half_messages import GROUP, HALF_QUEUE
from kourou.broker.transactions.ledger import Ledger, OpProgress, State
from kourou.broker.transactions.op_writer import OpWriter
from kourou.broker.transactions.recovery import TransactionRecovery
from kourou.broker.transactions.resume_checks import ResumeChecksHandler
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.clock import Clock
from kourou.model.topic import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from kourou.protocol.codes import RequestCode
from kourou.protocol.record.encode import RecordDraft
from kourou.remoting.dispatch import Handler
from kourou.store.message_store import AppendedRecord

log = logging.getLogger(__name__)

_LOCAL: Final = "127.0.0.1"
RECOVERY_RETRY_MS: Final = 10_000
"""Delay before another attempt after the queues could not be read at the start."""


class Transactions:
    """The transactions of one broker.

    Attributes:
        counts: counts of open and ended transactions.
        fast_end: the fast path of commits.
    """

    def __init__(
        self,
        context: BrokerContext,
        tables: Tables,
        reads: VerifiedReads,
        age_clock: Clock,
        file: SavedFile,
    ) -> None:
        """Load the saved state; `start` begins to read the queues.

        Args:
            context: the broker's state and services.
            tables: topics, and the committed progress.
            reads: read the half and op queues.
            age_clock: clock for the ages of half messages.
            file: file of `counts`.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._tables = tables
        self._store = context.store
        self._reads = reads
        self._offload = context.offload
        self._recovered = asyncio.Event()
        self._op_offset = self._progress(TRANS_OP_HALF_TOPIC)
        self._ledger = Ledger(self._progress(TRANS_HALF_TOPIC))
        self._ops = OpProgress(self._op_offset)
        self.counts = TransactionCounts(file, context.offload, context.clock)
        host = context.store_host or (_LOCAL, context.config.port)
        self._op_writer = OpWriter(
            context.live_config, context.commit, context.clock, host, self._on_op_stored
        )
        self._halves = HalfMessages(context.store, context.offload)
        shared = TransactionContext(
            halves=self._halves,
            ledger=self._ledger,
            op_writer=self._op_writer,
            counts=self.counts,
            topics=context.topics,
            commit=context.commit,
            stats=context.stats,
            clock=context.clock,
            age_clock=age_clock,
            recovered=self._recovered,
        )
        self._end_transaction = EndTransactionHandler(shared, context.live_config, context.later)
        self.fast_end: Final = FastEnd(shared, context.store, self._end_transaction.commit)
        self._resume_checks = ResumeChecksHandler(shared, context.later)
        self._check_rounds = CheckRounds(shared, context, reads)
        self._stored_meanwhile: Counter[str] = Counter()  # half messages stored during recovery
        self._task: asyncio.Task[None] | None = None

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.END_TRANSACTION: self._end_transaction.on_end_transaction,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume_checks.on_resume_check_half_message,
        }

    def start(self) -> None:
        """Begin to recover the open transactions in the background.

        Those that a slave has had taken over by other brokers, while it acted, are not open.
        """
        self._ledger.skip_to(self._progress(TRANS_HALF_TOPIC))
        self._task = asyncio.get_running_loop().create_task(self._recover())

    def stop(self) -> None:
        """Store the buffered ends; to be called right before the group commit closes.

        The op messages of commits that are being stored follow the commits in the log, so each op
        message has its committed message before it.
        """
        self._end_task()
        self.fast_end.append_commits()
        for ended in self._end_transaction.in_flight.values():
            self._op_writer.add(ended)
        self._op_writer.add(sorted(self.fast_end.in_flight))
        self._op_writer.close()
        self._recovered.set()  # requests that wait continue, and find the group commit closed

    def abandon(self) -> None:
        """Stop without storing anything, like a killed process."""
        self._end_task()
        self._op_writer.abandon()

    def on_half_stored(self, draft: RecordDraft, appended: AppendedRecord, topic: str) -> None:
        """Register a stored half message for the topic."""
        self._halves.add_draft(draft, appended)
        self._count_new(topic, 1)

    def on_plain_halves(self, halves: Sequence[CachedHalf]) -> None:
        """Register stored half messages of the fast path."""
        for half in halves:
            self._halves.add(half)
        topics = [half.plain.target.topic for half in halves if half.plain is not None]
        for topic, count in Counter(topics).items():
            self._count_new(topic, count)

    def _count_new(self, topic: str, count: int) -> None:
        self.counts.add(topic, count)
        if not self._recovered.is_set():
            self._stored_meanwhile[topic] += count

    async def check(self) -> None:
        """Run a check round; see `CheckRounds.run`."""
        if self._recovered.is_set():
            try:
                await self._check_rounds.run()
            finally:
                self._note_progress()

    async def persist_counts(self) -> None:
        """Write `counts` if they changed.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        self.counts.keep(self._tables.topics.by_name)
        await self.counts.persist()

    async def _recover(self) -> None:
        """Recover the open transactions; retry until that succeeds."""
        is_failing = False
        while True:
            try:
                await self._recover_once()
            except Exception:
                if not is_failing:
                    is_failing = True
                    log.exception("transactions.not_caught_up again_in_ms=%d", RECOVERY_RETRY_MS)
                await asyncio.sleep(RECOVERY_RETRY_MS / 1000)
            else:
                return

    async def _recover_once(self) -> None:
        recovery = TransactionRecovery(
            self._store,
            self._tables.topics,
            self._reads,
            self._offload,
            self._ledger,
            self._ops,
        )
        self._stored_meanwhile.clear()
        found = await recovery.run(self._op_offset)
        for state, offsets in (
            (State.COMMITTED, found.committed), (State.GIVEN_UP, found.given_up),
        ):  # fmt: skip
            for current in offsets:
                ended = self._ledger.records_of(current)
                self._ledger.begin(current)
                self._ledger.settle(current, state)
                self._op_writer.add(ended)
        if found.replaced:
            self._op_writer.add(found.replaced)
        self.counts.set_all(found.open_by_topic + self._stored_meanwhile)
        self._recovered.set()
        open_count = sum(found.open_by_topic.values())
        if open_count or found.committed:
            log.info(
                "transactions.caught_up open=%d committed_before=%d",
                open_count, len(found.committed),
            )  # fmt: skip

    def _progress(self, topic: str) -> int:
        """Return the committed progress of a queue, clamped to the offsets that it holds."""
        first = self._store.reader.min_offset(topic, HALF_QUEUE)
        end = self._store.reader.max_offset(topic, HALF_QUEUE)
        noted = self._tables.offsets.query(GROUP, topic, HALF_QUEUE)
        return max(first, min(first if noted is None else noted, end))

    def _on_op_stored(self, op_offset: int, offsets: Sequence[int]) -> None:
        self._ops.add(op_offset, offsets)
        if self._recovered.is_set():
            self._note_progress()

    def _note_progress(self) -> None:
        """Commit the progress of both queues, for the next start."""
        head, offsets = self._ledger.head, self._tables.offsets
        for topic, offset in (
            (TRANS_HALF_TOPIC, head),
            (TRANS_OP_HALF_TOPIC, self._ops.needed_from(head)),
        ):
            # An unused queue gets no offset, so that statistics show no consumer, as in Java.
            if offset > 0 or offsets.query(GROUP, topic, HALF_QUEUE) is not None:
                offsets.commit(GROUP, topic, HALF_QUEUE, offset)

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
