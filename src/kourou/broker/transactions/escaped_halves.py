"""Open transactions of a slave that acts for its master, which other brokers take over.

The log has no room for the ends of transactions while its master is away. So each open half message
is sent to the master of another broker name as a new one, and that broker checks its producer. The
progress of the half queue then passes it, which the master takes back when it returns: it does not
check these transactions again. An end that a producer sends meanwhile is refused.

Source: TransactionalMessageServiceImpl.check, TransactionalMessageBridge.escapeMessage,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.transactions.half_messages import (
    GROUP,
    HALF_QUEUE,
    HalfMessage,
    read_half,
)
from kourou.broker.transactions.ledger import Ledger, OpProgress
from kourou.broker.transactions.recovery import TransactionRecovery
from kourou.broker.writing.put import PutResult, Puts
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED
from kourou.model.topic import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from kourou.protocol.record.encode import RecordDraft

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
_OWN: Final = (names.TRANSACTION_CHECK_TIMES, names.TRAN_PREPARED_QUEUE_OFFSET)
"""Properties that count checks, or name records, of the previous broker."""


class EscapedHalves:
    """Sends the open half messages of one slave elsewhere."""

    def __init__(
        self, context: BrokerContext, offsets: ConsumerOffsets, reads: VerifiedReads, puts: Puts
    ) -> None:
        """Send nothing yet.

        Args:
            context: the broker's state and services.
            offsets: hold the progress of both queues.
            reads: read both queues.
            puts: sends half messages.
        """
        self._context = context
        self._reader = context.store.reader
        self._offsets = offsets
        self._reads = reads
        self._puts = puts
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send, in a task."""
        self._task = asyncio.create_task(self._run(), name="escape half messages")

    async def stop(self) -> None:
        """Stop; what has been sent without an answer may be sent again, by the master's checks."""
        self.abandon()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Stop like a killed process."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        reason = ""
        while True:
            try:
                failure = await self._send_all()
            except Exception as error:  # the next attempt may succeed
                failure = repr(error)
                if failure != reason:
                    log.exception("half_messages.not_escaped")
            if not failure:
                return
            if failure != reason:
                log.warning("half_messages.delayed reason=%s", failure)
            reason = failure
            await asyncio.sleep(RETRY_S)

    async def _send_all(self) -> str:
        """Send all open half messages, in order; return why one could not be sent, or nothing."""
        ledger = Ledger(self._progress(TRANS_HALF_TOPIC))
        op_offset, end = self._progress(TRANS_OP_HALF_TOPIC), self._end
        recovery = TransactionRecovery(
            self._context.store,
            self._context.topics,
            self._reads,
            self._context.offload,
            ledger,
            OpProgress(op_offset),
        )
        found = await recovery.run(op_offset)
        ended = {*found.committed, *found.given_up, *found.replaced}
        at = ledger.next_open(0, end)
        while at < end:
            if at not in ended:
                half = await self._context.offload(self._read, at)
                result = await self._put(escaped_draft(half))
                if not result.is_settled:
                    return result.reason
            at = ledger.next_open(at + 1, end)
            self._offsets.commit(GROUP, TRANS_HALF_TOPIC, HALF_QUEUE, at)
        return ""

    @property
    def _end(self) -> int:
        return self._reader.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE)

    def _progress(self, topic: str) -> int:
        noted = self._offsets.query(GROUP, topic, HALF_QUEUE) or 0
        return max(noted, self._reader.min_offset(topic, HALF_QUEUE))

    def _read(self, offset: int) -> HalfMessage:
        entry = self._reader.entry(TRANS_HALF_TOPIC, HALF_QUEUE, offset)
        record = None if entry is None else self._reader.read_record(entry.physical_offset)
        return read_half(record or b"")  # what is damaged here may be whole at the master

    async def _put(self, draft: RecordDraft) -> PutResult:
        future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()

        def done(result: PutResult) -> None:
            if not future.done():  # the task may have been cancelled
                future.set_result(result)

        self._puts.put([draft], self._context.clock.now_ms(), done)
        return await future


def escaped_draft(half: HalfMessage) -> RecordDraft:
    """Return a half message as its producer has sent it."""
    properties = {name: text for name, text in half.properties.items() if name not in _OWN}
    properties[names.TRAN_MSG] = "true"
    return replace(
        half.draft,
        topic=half.topic.encode(),
        queue_id=half.queue_id,
        sys_flag=half.draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED,
        properties=encode_properties(properties),
    )
