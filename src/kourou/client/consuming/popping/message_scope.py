"""Scope of the work on one message: settles the message when the program leaves it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Protocol

from kourou.client.consuming.acknowledging.redelivery import (
    invisible_ms_of,
    is_instruction,
    redelivery_of,
)
from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError

log = logging.getLogger(__name__)


class ScopeOwner(Protocol):
    """The consumer, as far as scopes need it."""

    async def ack(self, message: PoppedMessage) -> None: ...

    async def change_invisible(self, message: PoppedMessage, invisible_ms: int) -> None: ...

    async def give_back(self, message: PoppedMessage) -> None: ...

    async def dead_letter(self, message: PoppedMessage, reason: str = "") -> None: ...

    def give_back_soon(self, message: PoppedMessage) -> None: ...

    def renew(self, message: PoppedMessage, *, limit_ms: int) -> None: ...


class MessageScope:
    """Context manager that acknowledges its message, or gives it back after an exception.

    Args:
        owner: the consumer.
        message: the message.
        renew_ms: time in ms for which the message is renewed; None: it is not renewed.
    """

    def __init__(self, owner: ScopeOwner, message: PoppedMessage, renew_ms: int | None) -> None:
        self._owner = owner
        self._message = message
        self._renew_ms = renew_ms

    async def __aenter__(self) -> PoppedMessage:
        if self._renew_ms is not None:
            self._owner.renew(self._message, limit_ms=self._renew_ms)
        return self._message

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        owner, message = self._owner, self._message
        if error is None:
            await owner.ack(message)
            return False
        if not isinstance(error, Exception):
            owner.give_back_soon(message)  # the program is ending: do not delay it
            return False
        if is_instruction(error):
            await self._obey(error)
            return True
        try:
            await owner.give_back(message)
        except KourouError as refused:  # the message becomes visible by itself
            log.warning("message.not_given_back msg_id=%s reason=%s", message.msg_id, refused)
        return False

    async def _obey(self, error: Exception) -> None:
        """Do what a RetryLater or DeadLetter demands; it may name other messages only."""
        owner, message = self._owner, self._message
        redelivery = redelivery_of(error, message)
        if redelivery is None:
            await owner.ack(message)
        elif redelivery.level < 0:
            await owner.dead_letter(message, redelivery.reason or "")
        else:
            invisible_ms = invisible_ms_of(redelivery, message.reconsume_times)
            await owner.change_invisible(message, invisible_ms)
