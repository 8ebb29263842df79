"""What a transaction is to its producer: its states, what is known of it, and hooks.

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
    """What becomes of a half message."""

    COMMIT = "COMMIT"
    """Consumers get it."""
    ROLLBACK = "ROLLBACK"
    """Nobody ever gets it."""
    UNKNOWN = "UNKNOWN"
    """It waits; the broker asks later, by `check`."""


END_CODES = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}
"""Each state as requests name it."""


@dataclass(slots=True, eq=False)
class Transaction:
    """A half message that a broker has stored and nobody sees yet.

    Attributes:
        message: as it was given.
        half: where the half message is stored.
        state: what it ends as when the `async with` block of `TransactionProducer.transaction` is
            left without an exception; set it to decide otherwise.
    """

    message: Message
    half: SendReceipt
    state: TransactionState = TransactionState.COMMIT

    @property
    def id(self) -> str:
        """The id of the transaction, which is the message's: `check` gets it as `msg_id`."""
        return self.half.msg_id


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """How a transaction ended.

    Attributes:
        transaction_id: also the `msg_id` of the message.
        half: where the half message is stored; not where consumers find the message.
        state: what the broker was told.
        is_confirmed: the broker has answered that it is so, and committed messages are as safe as
            `half.durability` says. If not, the end may have taken effect or not: the broker was not
            reached, has refused, or its sync was late. It asks `check` unless it knows the end, so
            `check` must answer `state`.
    """

    transaction_id: str
    half: SendReceipt
    state: TransactionState
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction, as hooks see it.

    Attributes:
        group: the producer's.
        topic: of the message.
        msg_id: its unique id, which is that of the transaction.
        broker_address: who is told.
        state: what.
        is_checked: the broker has asked.
        message: as it was given, or as the broker has it.
    """

    group: str
    topic: str
    msg_id: str
    broker_address: str
    state: TransactionState
    is_checked: bool
    message: Message | MessageExt


class EndTransactionHook(Protocol):
    """Sees each end of a transaction before it leaves.

    Called on the event loop, and must not block. What it raises is logged, and changes nothing.
    """

    def end_transaction(self, end: TransactionEnd) -> None: ...


LocalTransaction = Callable[[Transaction], TransactionState | Awaitable[TransactionState]]
"""Runs between half message and end: a plain function, on a thread, or a coroutine function."""
TransactionCheck = Callable[[MessageExt], TransactionState | Awaitable[TransactionState]]
"""Tells what became of a transaction; as `LocalTransaction`."""


class EndTransactionHooks:
    """The hooks of one producer."""

    def __init__(self, hooks: Sequence[EndTransactionHook]) -> None:
        self._hooks = list(hooks)

    def add(self, hooks: Sequence[EndTransactionHook]) -> None:
        """Have more hooks, called after those there are."""
        self._hooks += hooks

    def call(self, end: TransactionEnd) -> None:
        """Call all."""
        for hook in self._hooks:
            try:
                hook.end_transaction(end)
            except Exception:
                log.exception("end_transaction_hook.failed hook=%s", type(hook).__name__)


def checked_state(value: Any) -> TransactionState | None:  # noqa: ANN401 - of a user's function
    """Return the state that a user's function returned, None if it returned something else."""
    return value if isinstance(value, TransactionState) else None
