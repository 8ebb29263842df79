"""Transactions at the producer: states, receipts, hooks, and requests of half messages and ends.

Source: LocalTransactionState.java, TransactionListener.java, TransactionSendResult.java,
EndTransactionHook.java; DefaultMQProducerImpl.sendMessageInTransaction, endTransaction and
checkTransactionState.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Protocol

from kourou.client.calls_send import Outgoing, check_properties
from kourou.client.send_receipt import SendReceipt
from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.message import Message, MessageExt
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.sending import CheckTransactionStateRequestHeader, EndTransactionRequestHeader

log = logging.getLogger(__name__)

_DELAYS: Final = (
    names.DELAY,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
)


class TransactionState(Enum):
    """Outcome of a transaction."""

    COMMIT = "COMMIT"
    """The message is delivered to consumers."""
    ROLLBACK = "ROLLBACK"
    """The message is never delivered."""
    UNKNOWN = "UNKNOWN"
    """Not decided yet; the broker calls `check` later."""


END_CODES = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}
"""The codes of the states in requests."""


@dataclass(slots=True, eq=False)
class Transaction:
    """An open transaction: its half message is stored, but not visible to consumers.

    Attributes:
        message: the user's message.
        half: the receipt of the half message.
        state: the outcome if the block of `TransactionProducer.transaction` ends without an
            exception. The block may change it.
    """

    message: Message
    half: SendReceipt
    state: TransactionState = TransactionState.COMMIT

    @property
    def id(self) -> str:
        """The id of the transaction, equal to the `msg_id` of the message passed to `check`."""
        return self.half.msg_id


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """Result of ending a transaction.

    Attributes:
        transaction_id: also the `msg_id` of the message.
        half: the receipt of the half message; a committed message has another offset.
        state: the outcome sent to the broker.
        is_confirmed: the broker has confirmed the end, and a committed message is as durable as
            `half.durability`. If False, the end may or may not have taken effect: the broker was
            not reached, has refused, or its sync timed out. It then calls `check` unless it has
            stored the end, so `check` must return `state`.
    """

    transaction_id: str
    half: SendReceipt
    state: TransactionState
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction, as passed to hooks.

    Attributes:
        group: the producer group.
        topic: the topic of the message.
        msg_id: the unique id of the message, which is the id of the transaction.
        broker_address: `host:port` of the broker.
        state: the outcome.
        is_checked: the end is the answer to a check by the broker.
        message: the user's message; for a check, the message sent by the broker.
    """

    group: str
    topic: str
    msg_id: str
    broker_address: str
    state: TransactionState
    is_checked: bool
    message: Message | MessageExt


class EndTransactionHook(Protocol):
    """Hook called before each end of a transaction is sent, on the event loop; it must not block.

    It may also have a method `transaction_ended(end)`, called after the broker has confirmed a
    commit or rollback. Exceptions of both are logged and have no other effect.
    """

    def end_transaction(self, end: TransactionEnd) -> None: ...


LocalTransaction = Callable[[Transaction], TransactionState | Awaitable[TransactionState]]
"""Does the work of a transaction after the half message is stored, and returns the outcome: a plain
function, which runs on a thread, or a coroutine function."""
TransactionCheck = Callable[[MessageExt], TransactionState | Awaitable[TransactionState]]
"""Returns the outcome of an earlier transaction; a function as `LocalTransaction`."""


class EndTransactionHooks:
    """The hooks of one producer."""

    def __init__(self, hooks: Sequence[EndTransactionHook]) -> None:
        self._hooks = list(hooks)

    def add(self, hooks: Sequence[EndTransactionHook]) -> None:
        """Add hooks, which are called after the existing ones."""
        self._hooks += hooks

    def call(self, end: TransactionEnd) -> None:
        """Call all hooks before the end is sent."""
        for hook in self._hooks:
            self._call(hook.end_transaction, end)

    def confirm(self, end: TransactionEnd) -> None:
        """Call the hooks that have `transaction_ended`."""
        for hook in self._hooks:
            if (ended := getattr(hook, "transaction_ended", None)) is not None:
                self._call(ended, end)

    def _call(self, method: Callable[[TransactionEnd], None], end: TransactionEnd) -> None:
        try:
            method(end)
        except Exception:
            log.exception("end_transaction_hook.failed hook=%s", method)


def as_state(value: Any) -> TransactionState | None:  # noqa: ANN401 - of a user's function
    """Return the result of a user's function if it is a TransactionState, else None."""
    return value if isinstance(value, TransactionState) else None


def check_half(message: Message) -> None:
    """Raise if a message cannot be sent in a transaction.

    Raises:
        InvalidMessageError: the message is delayed.
    """
    properties = message.to_properties()
    delays = [name for name in _DELAYS if name in properties]
    if delays:
        raise InvalidMessageError(
            f"transactional messages do not support delayed delivery: {delays[0]} is "
            f"{properties[delays[0]]}"
        )


def as_half(outgoing: Outgoing, group: str) -> Outgoing:
    """Return a message as a half message of the producer group.

    Raises:
        InvalidMessageError: the properties take more than 30,000 bytes.
    """
    text = f"{names.TRAN_MSG}\x01true\x02{names.PGROUP}\x01{group}\x02{outgoing.properties}"
    check_properties(outgoing.topic, text)
    return replace(outgoing, properties=text, sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED)


def end_command(
    transaction: Transaction, group: str, state: TransactionState, *, oneway: bool, remark: str = ""
) -> RemotingCommand:
    """Return the request END_TRANSACTION (37) for a half message of this producer."""
    half = transaction.half
    header = EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=decode_offset_msg_id(half.offset_msg_id)[1],
        commit_or_rollback=END_CODES[state],
        topic=transaction.message.topic,
        from_transaction_check=False,
        msg_id=half.msg_id,
        transaction_id=half.msg_id,
        broker_name=half.queue.broker_name,
    )
    command = request(RequestCode.END_TRANSACTION, header, oneway=oneway)
    command.remark = remark or None
    return command


def check_answer_command(
    check: CheckTransactionStateRequestHeader,
    message: MessageExt,
    group: str,
    state: TransactionState,
    remark: str = "",
) -> RemotingCommand:
    """Return the request END_TRANSACTION (37) that answers a CHECK_TRANSACTION_STATE (39)."""
    unique_key = message.properties.get(names.UNIQ_KEY) or check.msg_id or ""
    header = EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=check.tran_state_table_offset,
        commit_log_offset=check.commit_log_offset,
        commit_or_rollback=END_CODES[state],
        topic=check.topic,
        from_transaction_check=True,
        msg_id=unique_key,
        transaction_id=check.transaction_id,
        broker_name=check.broker_name,
    )
    command = request(RequestCode.END_TRANSACTION, header, oneway=True)
    command.remark = remark or None
    return command
