"""END_TRANSACTION (37): a producer commits or rolls back its half message.

The checks run in Java's order, each with Java's response code:

    (0)  neither commit nor rollback: nothing is changed; a check will be sent to a producer
    1    there is no half message at the given log position
    604  its own immunity time is over, and the request does not answer a check
    1    the producer group or the queue offset does not match
    1    it has already ended, in the other way or in an unknown one
    17   commit: its topic was deleted, or is one that only the broker writes. The transaction stays
         open, so that it can be committed when the topic exists again; Java commits it
    0    it has already ended in the same way: nothing is stored; Java stores the message again
    10   the message is stored, now or before, but the sync did not end in time; Java answers 0

A commit stores the message in its destination queue and then the op message; a rollback stores only
the op message. A request waits while another end, or a check, of the transaction is being stored.

Clients send this request one-way and do not learn of a refusal, so refusals are logged.

Source: EndTransactionProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.broker.transactions.context import TransactionContext
from kourou.broker.transactions.half_messages import HalfMessage, committed_draft
from kourou.broker.transactions.ledger import State
from kourou.broker.transactions.verdicts import (
    EndRefusal,
    end_refusal,
    immunity_refusal,
    no_topic_refusal,
)
from kourou.broker.writing.put import CODES, Done, PutResult, PutStatus
from kourou.model.host import Host
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kourou.model.topic import TRANS_HALF_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.sending import EndTransactionRequestHeader
from kourou.remoting.connection import Connection, Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.log_rate import LogRate

log = logging.getLogger(__name__)

_HALF: Final = TRANS_HALF_TOPIC.encode()
_NOT_FOUND: Final = "Find prepared transaction message failed"
_ENDS: Final = {TRANSACTION_COMMIT: State.COMMITTED, TRANSACTION_ROLLBACK: State.ROLLED_BACK}

_STORED: Final = PutResult(PutStatus.OK)

Reply = Callable[[RemotingCommand], None]


class EndTransactionHandler:
    """Serves END_TRANSACTION on the general path."""

    def __init__(
        self, context: TransactionContext, config: LiveConfig, later: DeferredReplies
    ) -> None:
        """End the open transactions of `context`.

        Args:
            context: give the state of transactions; ends update it.
            config: the default immunity time.
            later: runs requests that wait for a read or for another end.
        """
        self._context = context
        self._config = config
        self._later = later
        self._refusals = LogRate()
        self.in_flight: dict[int, list[int]] = {}
        """Commits that are being stored: current record -> records for the op message."""

    def on_end_transaction(self, request: Request) -> RemotingCommand | None:
        """Serve 37."""
        header = request.command.header(EndTransactionRequestHeader)
        if header.commit_or_rollback not in _ENDS:
            return response(request.command)
        half = self._context.halves.pop_message(header.commit_log_offset)
        if (
            half is None
            or not self._context.recovered.is_set()
            or not self._begin(request, header, half, request.reply)
        ):
            self._later.answer(request, partial(self._end_later, request, header, half))
        return None

    async def _end_later(
        self, request: Request, header: EndTransactionRequestHeader, half: HalfMessage | None
    ) -> RemotingCommand:
        """Read the half message, wait for pending changes, and end the transaction."""
        await self._context.recovered.wait()
        if half is None:
            half = await self._context.halves.read(header.commit_log_offset)
        if half is None or half.draft.topic != _HALF:
            return self._refuse(request, header, ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        def reply(command: RemotingCommand) -> None:
            if not answer.done():
                answer.set_result(command)

        while not self._begin(request, header, half, reply):
            current, _ = self._context.ledger.current(half.queue_offset, half.first_offset)
            await self._context.wait_settled(current)
        return await answer

    def _begin(
        self,
        request: Request,
        header: EndTransactionRequestHeader,
        half: HalfMessage,
        reply: Reply,
    ) -> bool:
        """End the transaction and reply; False, with no effect, while another change is pending."""
        refusal = self._refusal(header, half)
        if refusal is not None:
            reply(self._refuse(request, header, *refusal))
            return True
        ledger, requested = self._context.ledger, _ENDS[header.commit_or_rollback]
        current, position = ledger.current(half.queue_offset, half.first_offset)
        state = ledger.state(current)
        if state is State.BUSY:
            return False
        if state is requested:
            # If the sync of the earlier end was late, the message may still be unsynced.
            self._answer_put(request, reply, self._context.commit.late_result() or _STORED)
        elif state not in (State.OPEN, State.GIVEN_UP):
            how = state.name if state is not None else "before"
            text = f"the transaction has ended already ({how}): half message {half.queue_offset}"
            reply(self._refuse(request, header, ResponseCode.SYSTEM_ERROR, text))
        elif requested is State.COMMITTED:
            prepared_offset = half.physical_offset if position is None else position
            queue_id = self._context.topics.delivery_queue(half.topic, half.queue_id)
            if queue_id is None:
                reply(self._refuse(request, header, *no_topic_refusal(half.topic)))
                return True
            draft = committed_draft(half, queue_id, prepared_offset)
            answer = partial(self._answer_put, request, reply)
            self._store_message(request.connection, half, draft, current, answer)
        else:
            self._roll_back(request, half, current, reply)
        return True

    def _refusal(self, header: EndTransactionRequestHeader, half: HalfMessage) -> EndRefusal | None:
        """Return the refusal of an end because of its header; None if it is valid."""
        refusal = None
        if not header.from_transaction_check:
            immunity_ms = half.immunity_ms(self._config.current.transactions.timeout_ms)
            age_ms = self._context.age_clock.now_ms() - half.draft.born_at_ms
            refusal = immunity_refusal(age_ms, immunity_ms)
        return refusal or end_refusal(
            (header.producer_group, header.tran_state_table_offset),
            (half.producer_group, half.queue_offset),
        )

    def commit(self, half: HalfMessage, owner: Connection, request: Request | None) -> None:
        """Commit an open transaction of one record, and answer the request unless it is None."""
        queue_id = self._context.topics.delivery_queue(half.topic, half.queue_id)
        if queue_id is None:
            positions = half.queue_offset, half.physical_offset
            refusal = no_topic_refusal(half.topic)
            self._log(owner.remote_address, half.producer_group, positions, refusal)
            if request is not None:
                request.reply(response(request.command, *refusal))
            return
        draft = committed_draft(half, queue_id, half.physical_offset)
        on_done = (
            _ignore_result if request is None else partial(self._answer_put, request, request.reply)
        )
        self._store_message(owner, half, draft, half.queue_offset, on_done)

    def _store_message(
        self, owner: Hashable, half: HalfMessage, draft: RecordDraft, current: int, on_done: Done
    ) -> None:
        """Store the message in its destination queue, update the state, and call `on_done`."""
        context, ledger = self._context, self._context.ledger
        before = ledger.state(current) or State.OPEN
        ledger.begin(current)
        self.in_flight[current] = ended = ledger.records_of(current)

        def done(result: PutResult) -> None:
            del self.in_flight[current]
            if not result.appended:
                ledger.settle(current, before)
                context.stats.on_put_failed()
                on_done(result)
                return
            ledger.settle(current, State.COMMITTED)
            context.op_writer.add(ended)
            context.counts.ended(half.topic, State.COMMITTED, open_before=before is State.OPEN)
            on_done(result)

        context.put(draft, done, owner)

    def _roll_back(self, request: Request, half: HalfMessage, current: int, reply: Reply) -> None:
        """Store an op message that ends the transaction without its message."""
        context, ledger = self._context, self._context.ledger
        before = ledger.state(current) or State.OPEN
        ledger.begin(current)

        def done(result: PutResult) -> None:
            if not result.appended:
                ledger.settle(current, before)
            else:
                ledger.settle(current, State.ROLLED_BACK)
                context.counts.ended(
                    half.topic, State.ROLLED_BACK, open_before=before is State.OPEN
                )
            self._answer_put(request, reply, result)

        context.op_writer.add_now(ledger.records_of(current), done)

    def _answer_put(self, request: Request, reply: Reply, result: PutResult) -> None:
        """Reply with the result of storing an end."""
        reply(response(request.command, CODES[result.status], result.reason or None))

    def _refuse(
        self, request: Request, header: EndTransactionRequestHeader, code: ResponseCode, text: str
    ) -> RemotingCommand:
        """Log a refusal and return its answer."""
        positions = header.tran_state_table_offset, header.commit_log_offset
        self._log(request.remote_address, header.producer_group, positions, (code, text))
        return response(request.command, code, text)

    def _log(
        self, peer: Host, group: str, positions: tuple[int, int], refusal: tuple[ResponseCode, str]
    ) -> None:
        suppressed = self._refusals.take(self._context.clock.now_ms() / 1000)
        if suppressed is not None:
            log.warning(
                "transaction.end_refused peer=%s group=%s half_offset=%d physical_offset=%d "
                "code=%d reason=%s suppressed=%d",
                peer, group, *positions, *refusal, suppressed,
            )  # fmt: skip


def _ignore_result(result: PutResult) -> None:
    """Ignore the result of a one-way request."""
