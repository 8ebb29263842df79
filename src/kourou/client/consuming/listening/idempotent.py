"""Idempotent listener: handles each message once, however often it is delivered.

Delivery is at least once: retries of producers, rebalances and crashes cause duplicates. They are
detected by the identity of the message, for as long as the seen-store remembers it.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, cast, overload

from kourou.client.consuming.listening.seen_store import SeenInMemory, SeenInSqlite
from kourou.client.user_functions import check_function, is_coroutine_function
from kourou.errors import InvalidMessageError, UsageError
from kourou.model.message import MessageExt
from kourou.model.properties import ORIGIN_MESSAGE_ID, UNIQ_KEY

Identity = Callable[[MessageExt], str]
"""Returns a text that is equal for two deliveries if and only if only one of them is handled."""

_PARTS: Final = "\x01"


def by_unique_id(message: MessageExt) -> str:
    """Return the id that the producer assigned; retries and redeliveries keep it.

    Each call of `send` assigns a new id: to detect messages that a program sends twice, use
    `by_key`.
    """
    properties = message.properties
    return properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or message.offset_msg_id


def by_key(message: MessageExt) -> str:
    """Return topic and keys of the message: each key, such as an order number, once per topic.

    Raises:
        InvalidMessageError: the message has no key.
    """
    if not message.keys:
        raise InvalidMessageError(
            f"message {message.msg_id} of {message.topic} has no key to identify it: "
            "send it with keys, or use by_unique_id"
        )
    return _PARTS.join((message.topic, *message.keys))


class Idempotent:
    """A listener for `PushConsumer.listen` that calls `handler` once for each message.

    With `SeenInMemory` the handler takes the message, and may be a coroutine function. With
    `SeenInSqlite` it is a plain function of message and connection; its writes through the
    connection are committed in one transaction with the record that the message was handled.

    If the handler raises, the message stays unseen and is redelivered as without this class. A
    duplicate that arrives while the first delivery is being handled raises
    `DuplicateInProgressError` and is redelivered: it must not be acknowledged before the first
    delivery has succeeded.

    Args:
        handler: called once for each message.
        seen: records handled messages.
        identity: identifies a message: `by_unique_id`, `by_key`, or your own function.

    Raises:
        UsageError: the handler does not take these arguments; or it is a coroutine function with
            `SeenInSqlite`, whose transaction must not stay open while other coroutines run.
    """

    @overload
    def __init__(
        self,
        handler: Callable[[MessageExt], Awaitable[object] | object],
        *,
        seen: SeenInMemory,
        identity: Identity = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        handler: Callable[[MessageExt, sqlite3.Connection], object],
        *,
        seen: SeenInSqlite,
        identity: Identity = ...,
    ) -> None: ...

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        seen: SeenInMemory | SeenInSqlite,
        identity: Identity = by_unique_id,
    ) -> None:
        self._handler = handler
        self._seen = seen
        self._identity = identity

    def __new__(
        cls,
        handler: Callable[..., Any],
        *,
        seen: SeenInMemory | SeenInSqlite,
        identity: Identity = by_unique_id,  # noqa: ARG004  # the signature of __init__
    ) -> Self:
        """Create the subclass for coroutine functions if `handler` is one.

        A consumer checks whether its listener is a coroutine function.
        """
        connection = ("a connection",) if isinstance(seen, SeenInSqlite) else ()
        check_function(handler, "the handler", "a message", *connection)
        if not is_coroutine_function(handler):
            return super().__new__(cls)
        if isinstance(seen, SeenInSqlite):
            raise UsageError(
                "SeenInSqlite takes a plain function, not a coroutine function: its transaction "
                "must not stay open while other coroutines run"
            )
        return cast(Self, super().__new__(_IdempotentCoroutine))

    def __call__(self, message: MessageExt) -> Any:  # noqa: ANN401  # a coroutine in the subclass
        """Handle `message` unless it was handled before.

        Raises:
            DuplicateInProgressError: it is being handled right now.
            UsageError: the handler returned an awaitable but is not a coroutine function.
        """
        with self._seen.once(self._identity(message)) as turn:
            if isinstance(turn, sqlite3.Connection):
                _check_done(self._handler(message, turn))
            elif turn:
                _check_done(self._handler(message))


class _IdempotentCoroutine(Idempotent):
    """`Idempotent` for a coroutine function."""

    async def __call__(self, message: MessageExt) -> None:
        with cast(SeenInMemory, self._seen).once(self._identity(message)) as is_first:
            if is_first:
                await self._handler(message)


def _check_done(outcome: object) -> None:
    """Refuse an awaitable result: the work is not done, but the message would count as handled."""
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise UsageError(
            "the handler returned an awaitable: make it a coroutine function (async def), which "
            "SeenInMemory accepts, or a function that does its work before it returns"
        )
