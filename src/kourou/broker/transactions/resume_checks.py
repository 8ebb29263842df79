"""RESUME_CHECK_HALF_MESSAGE (323): restart the checks of a half message from a count of 0.

It applies to half messages that were given up, in TRANS_CHECK_MAX_TIME_TOPIC, and to open ones.
Java stores any record it is pointed to as a half message. Here a record that is not a half message
is refused, and so is a transaction that is known to have ended.

Source: AdminBrokerProcessor.resumeCheckHalfMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from kourou.broker.transactions.context import TransactionContext
from kourou.broker.transactions.half_messages import HalfMessage, renewed_draft, resumed_draft
from kourou.broker.transactions.ledger import State
from kourou.broker.writing.put import CODES, PutResult, PutStatus
from kourou.errors import InvalidMessageError, InvalidParameterError, RemoteSystemError
from kourou.model import properties as names
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.topic import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.sending import ResumeCheckHalfMessageRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.deferred_replies import DeferredReplies

_HALF: Final = TRANS_HALF_TOPIC.encode()
_MAPPED: Final = {PutStatus.OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.BUSY}
"""Results with a response code of their own; all others are SYSTEM_ERROR, as in Java."""


class ResumeChecksHandler:
    """Serves RESUME_CHECK_HALF_MESSAGE."""

    def __init__(self, context: TransactionContext, later: DeferredReplies) -> None:
        """Resume transactions of `context`; `later` runs the requests."""
        self._context = context
        self._later = later

    def on_resume_check_half_message(self, request: Request) -> None:
        """Serve 323.

        Raises:
            InvalidParameterError: the message id is invalid.
        """
        header = request.command.header(ResumeCheckHalfMessageRequestHeader)
        try:
            _, position = decode_offset_msg_id(header.msg_id or "")
        except InvalidMessageError as error:
            raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        self._later.answer(request, partial(self._resume, request, position))

    async def _resume(self, request: Request, position: int) -> RemotingCommand:
        context = self._context
        await context.recovered.wait()
        half = await context.halves.read(position)
        if half is None:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"there is no half message at byte {position} of the log: pass the offset message "
                f"id of one in {TRANS_CHECK_MAX_TIME_TOPIC}",
            )
        current = self._current(half)
        while current is not None and context.ledger.state(current) is State.BUSY:
            await context.wait_settled(current)
            current = self._current(half)
        result = await self._store(half, current)
        is_mapped = result.status in _MAPPED
        code = CODES[result.status] if is_mapped else ResponseCode.SYSTEM_ERROR
        return response(request.command, code, result.reason or None)

    def _current(self, half: HalfMessage) -> int | None:
        """Return the transaction's current record; None if its records are not known."""
        if half.draft.topic == _HALF:
            return self._context.ledger.current(half.queue_offset, half.first_offset)[0]
        if names.TRAN_PREPARED_QUEUE_OFFSET not in half.properties:
            return None  # given up by Java's broker, which does not write the property
        return self._context.ledger.current(half.first_offset, half.first_offset)[0]

    def _store(self, half: HalfMessage, current: int | None) -> asyncio.Future[PutResult]:
        """Store a half record with a check count of 0.

        Raises:
            RemoteSystemError: the transaction has ended.
        """
        context, ledger = self._context, self._context.ledger
        state = None if current is None else ledger.state(current)
        if state is State.ENDED and half.draft.topic != _HALF:
            current = state = None  # as for any copy in Java: it is unknown how it ended
        is_gone = state is None and half.draft.topic == _HALF
        if is_gone or state not in (None, State.OPEN, State.GIVEN_UP):
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"transaction {half.unique_key} has ended: there is nothing left to check",
            )
        future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()

        def done(result: PutResult) -> None:
            if result.appended:
                stored = result.appended[0]
                if current is not None:
                    position = (stored.queue_offset, stored.physical_offset)
                    ledger.moved(current, half.first_offset, position)
                if current is not None and state is State.OPEN:
                    context.op_writer.add([current])
                else:
                    context.counts.add(half.topic, 1)
            elif current is not None and state is not None:
                ledger.settle(current, state)
            if not future.done():
                future.set_result(result)

        if current is not None and state is not None:
            ledger.begin(current)
        draft = resumed_draft(half) if current is None else renewed_draft(half, 0)
        context.put(draft, done)
        return future
