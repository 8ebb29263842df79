"""Answers brokers that ask what became of a transaction (39).

The function that knows is the user's. It runs on one of a few threads, or on the loop if it is a
coroutine function; what it raises, and what it returns that is no state, means UNKNOWN, and the
broker asks again.

Source: ClientRemotingProcessor.checkTransactionState, DefaultMQProducerImpl.checkTransactionState.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kourou.client.background import BackgroundTasks
from kourou.client.namespacing import take_out
from kourou.client.sending.transaction import (
    EndTransactionHooks,
    TransactionCheck,
    TransactionEnd,
    TransactionState,
    checked_state,
)
from kourou.client.sending.transaction_calls import checked_command
from kourou.client.sending.user_calls import UserCalls
from kourou.client.user_functions import ends_caller
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.protocol.headers_transaction import CheckTransactionStateRequestHeader
from kourou.protocol.message_decoding import decode_message
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 3.0
"""How long an answer waits for the broker to read."""


class TransactionChecks:
    """The checks of one producer.

    Args:
        group: the producer group.
        check: the user's function.
        hooks: told of each answer.
        waiting_max: checks at once; more are left to the broker's next try.

    Attributes:
        tasks: what ends with the producer; set before any request can come.
        calls: runs the user's functions; set with it.
        pool: the producer's, whose hooks see each answer, and whose namespace names are in.
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

    def on_check_transaction_state(self, asked: Request) -> None:
        """Serve 39, which is never answered itself."""
        header = asked.command.header(CheckTransactionStateRequestHeader)
        message = decode_message(asked.command.body)
        take_out(self.pool.namespace, (message,))
        if self._waiting >= self._waiting_max:
            log.warning(
                "transaction_check.refused group=%s waiting=%d id=%s",
                self._group, self._waiting, message.msg_id,
            )  # fmt: skip
            return
        self._waiting += 1

        async def answer() -> None:
            try:
                await self._answer(asked, header, message)
            finally:
                self._waiting -= 1

        self.tasks.start(answer, f"check of transaction {message.msg_id}")

    async def _answer(
        self, asked: Request, header: CheckTransactionStateRequestHeader, message: MessageExt
    ) -> None:
        state, remark = await self._ask(message)
        self._hooks.call(
            TransactionEnd(
                self._group,
                message.topic,
                message.msg_id,
                format_address(asked.remote_address),
                state,
                is_checked=True,
                message=message,
            )
        )
        command = checked_command(header, message, self._group, state, remark)
        try:
            self.pool.hooks.before(format_address(asked.remote_address), command)
            await asked.connection.oneway(command, ANSWER_TIMEOUT_S)
        except KourouError as error:
            log.warning(
                "transaction_check.not_answered group=%s id=%s reason=%s",
                self._group, message.msg_id, error,
            )  # fmt: skip

    async def _ask(self, message: MessageExt) -> tuple[TransactionState, str]:
        """Return what the user's function says, and why it says nothing."""
        me = asyncio.current_task()
        try:
            value = await self.calls.call(self._check, message)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if ends_caller(error, me):
                raise
            log.exception("transaction_check.failed group=%s id=%s", self._group, message.msg_id)
            return TransactionState.UNKNOWN, f"checkLocalTransactionState exception: {error!r}"
        state = checked_state(value)
        if state is None:
            log.error(
                "transaction_check.no_state group=%s id=%s returned=%s",
                self._group,
                message.msg_id,
                f"{value!r:.100}",
            )
            return TransactionState.UNKNOWN, "the check returned no state"
        return state, ""
