"""Idempotent: a listener that handles each message once, however often it is delivered.

Delivery is at least once: a producer that retries, a rebalance or a crash makes duplicates. This
turns them away by what identifies a message, as far as its seen-store remembers.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, cast, overload

from kourou.client.consuming.listening.listener_calls import is_coroutine_function
from kourou.client.consuming.listening.seen_store import SeenInMemory, SeenInSqlite
from kourou.client.user_functions import check_function
from kourou.errors import InvalidMessageError, UsageError
from kourou.model.message import MessageExt
from kourou.model.properties import ORIGIN_MESSAGE_ID, UNIQ_KEY

Identity = Callable[[MessageExt], str]
"""Returns a text that two deliveries share if and only if they are to be handled once."""

_PARTS: Final = "\x01"


def by_unique_id(message: MessageExt) -> str:
    """Return the id that the producer gave the message; retries and re-deliveries keep it.

    Two calls of `send` make two ids: what a program sends twice is caught by `by_key` only.
    """
    properties = message.properties
    return properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or message.offset_msg_id


def by_key(message: MessageExt) -> str:
    """Return topic and keys of the message: one order number is handled once per topic.

    Raises:
        InvalidMessageError: the message has no key.
    """
    if not message.keys:
        raise InvalidMessageError(
            f"message {message.msg_id} of {message.topic} has no key to know it by: "
            "send it with keys, or use by_unique_id"
        )
    return _PARTS.join((message.topic, *message.keys))


class Idempotent:
    """A listener for `PushConsumer.listen` that calls `handler` once a message.

    With `SeenInMemory` the handler takes the message, and may be a coroutine function. With
    `SeenInSqlite` it is a plain function of message and connection, and what it writes with the
    connection is committed together with the record that the message was handled.

    A handler that raises leaves the message unseen: it is retried as without this class. A
    duplicate that arrives while the first is being handled raises `DuplicateInProgressError`, and
    so is delivered again later: it must not be acknowledged before the first has succeeded.

    Args:
        handler: what is to happen once.
        seen: where handled messages are remembered.
        identity: what makes two messages one: `by_unique_id`, `by_key`, or a function of your own.

    Raises:
        UsageError: the handler is no function that takes what it would be given; or a coroutine
            function with `SeenInSqlite`, whose transaction must not stay open while other
            coroutines run.
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
        """Make the kind that fits `handler`: a consumer asks a listener whether to await it."""
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
            UsageError: the handler is no coroutine function, but wants to be awaited.
        """
        with self._seen.once(self._identity(message)) as turn:
            if isinstance(turn, sqlite3.Connection):
                _check_done(self._handler(message, turn))
            elif turn:
                _check_done(self._handler(message))


class _IdempotentCoroutine(Idempotent):
    """The same for a coroutine function."""

    async def __call__(self, message: MessageExt) -> None:
        with cast(SeenInMemory, self._seen).once(self._identity(message)) as is_first:
            if is_first:
                await self._handler(message)


def _check_done(outcome: object) -> None:
    """Refuse what was not done yet: the message would count as handled."""
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise UsageError(
            "the handler returned something to be awaited: make it a coroutine function (async "
            "def), which SeenInMemory takes, or a function that is done when it returns"
        )
