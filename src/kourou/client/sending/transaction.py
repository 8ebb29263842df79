"""Types of transactions at the producer: states, receipts and hooks.

Source: LocalTransactionState.java, TransactionListener.java, TransactionSendResult.java,
EndTransactionHook.java.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from kourou.client.send_receipt import SendReceipt
from kourou.model.message import Message, MessageExt
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

log = logging.getLogger(__name__)


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

    Its exceptions are logged and have no other effect.
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
        """Call all hooks."""
        for hook in self._hooks:
            try:
                hook.end_transaction(end)
            except Exception:
                log.exception("end_transaction_hook.failed hook=%s", type(hook).__name__)


def as_state(value: Any) -> TransactionState | None:  # noqa: ANN401 - of a user's function
    """Return the result of a user's function if it is a TransactionState, else None."""
    return value if isinstance(value, TransactionState) else None
