"""Transaction checks: answers requests of brokers for the outcome of a transaction (39).

The user's check function determines the outcome. It runs on a thread, or on the event loop if it is
a coroutine function. If it raises or does not return a state, the answer is UNKNOWN, and the broker
repeats the check later.

Source: ClientRemotingProcessor.checkTransactionState, DefaultMQProducerImpl.checkTransactionState.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kourou.client.background import BackgroundTasks
from kourou.client.namespacing import remove_namespace
from kourou.client.sending.transaction import (
    EndTransactionHooks,
    TransactionCheck,
    TransactionEnd,
    TransactionState,
    as_state,
    check_answer_command,
)
from kourou.client.user_functions import UserCalls, ends_caller
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.protocol.record.decode import decode_message
from kourou.protocol.sending import CheckTransactionStateRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 3.0
"""Timeout of writing an answer to the broker's connection."""


class TransactionChecks:
    """Runs the transaction checks of one producer.

    Args:
        group: the producer group.
        check: the user's function.
        hooks: called with each answer.
        waiting_max: maximum number of checks that run or wait; further ones are ignored, and the
            broker repeats them.

    Attributes:
        tasks: the background tasks of the producer.
        calls: runs the user's functions.
        pool: the producer's connections, with its request hooks and namespace. The producer sets
            these three attributes before a request can arrive.
    """

    def __init__(
        self,
        group: str,
        check: TransactionCheck,
        hooks: EndTransactionHooks,
        waiting_max: int,
    ) -> None:
        self._group = group
        self._check = check
        self._hooks = hooks
        self._waiting_max = waiting_max
        self._waiting = 0
        self.tasks: BackgroundTasks
        self.pool: ConnectionPool
        self.calls: UserCalls

    def on_check_transaction_state(self, request: Request) -> None:
        """Serve 39, which has no response of its own: the answer is a request END_TRANSACTION."""
        header = request.command.header(CheckTransactionStateRequestHeader)
        message = decode_message(request.command.body)
        remove_namespace(self.pool.namespace, (message,))
        if self._waiting >= self._waiting_max:
            log.warning(
                "transaction_check.refused group=%s waiting=%d id=%s",
                self._group, self._waiting, message.msg_id,
            )  # fmt: skip
            return
        self._waiting += 1

        async def answer() -> None:
            try:
                await self._answer(request, header, message)
            finally:
                self._waiting -= 1

        self.tasks.start(answer, f"check of transaction {message.msg_id}")

    async def _answer(
        self, request: Request, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        state, remark = await self._determine_state(message)
        self._hooks.call(
            TransactionEnd(
                self._group,
                message.topic,
                message.msg_id,
                format_address(request.remote_address),
                state,
                is_checked=True,
                message=message,
            )
        )
        command = check_answer_command(header, message, self._group, state, remark)
        try:
            self.pool.hooks.before(format_address(request.remote_address), command)
            await request.connection.oneway(command, ANSWER_TIMEOUT_S)
        except KourouError as error:
            log.warning(
                "transaction_check.not_answered group=%s id=%s reason=%s",
                self._group, message.msg_id, error,
            )  # fmt: skip

    async def _determine_state(self, message: MessageExt) -> tuple[TransactionState, str]:
        """Return the outcome by the user's function, and a remark if that failed."""
        caller = asyncio.current_task()
        try:
            value = await self.calls.call(self._check, message)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if ends_caller(error, caller):
                raise
            log.exception("transaction_check.failed group=%s id=%s", self._group, message.msg_id)
            return TransactionState.UNKNOWN, f"checkLocalTransactionState exception: {error!r}"
        state = as_state(value)
        if state is None:
            log.error(
                "transaction_check.no_state group=%s id=%s returned=%s",
                self._group,
                message.msg_id,
                f"{value!r:.100}",
            )
            return TransactionState.UNKNOWN, "the check returned no state"
        return state, ""
