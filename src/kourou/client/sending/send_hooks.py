"""Hooks around each try of a send, for tracing, auditing and metrics of the user's own.

Source: SendMessageHook.java.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from kourou.client.send_receipt import SendReceipt
from kourou.model.message import Message
from kourou.model.queue import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One try to send a message or a batch.

    Attributes:
        group: the producer's.
        messages: what is sent, as the user gave it; more than one in a batch.
        msg_ids: their unique ids, the same in every try.
        queue: where to.
        broker_address: `host:port` of its broker.
        number: 1 for the first try.
        is_oneway: no answer is asked for.
        properties: the property text as it is sent; of a batch, that of the whole.
        body_bytes: bytes of the body as it is sent, compressed or not.
    """

    group: str
    messages: Sequence[Message]
    msg_ids: Sequence[str]
    queue: MessageQueue
    broker_address: str
    number: int
    is_oneway: bool = False
    properties: str = ""
    body_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """How a try ended.

    Attributes:
        elapsed_ms: from the hooks' `before_send` to the end.
        receipts: one a message, if the broker stored them; none of a one-way message.
        error: what the try raised, `asyncio.CancelledError` if the caller gave up; None: nothing.
            Another try may follow.
        region: the broker's, if it said that this is to be traced; else None.
    """

    elapsed_ms: float
    receipts: Sequence[SendReceipt] = ()
    error: BaseException | None = None
    region: str | None = None


class SendHook(Protocol):
    """Sees each try of each send. Both methods are called on the event loop and must not block.

    What they raise is logged, and changes nothing for the message.
    """

    def before_send(self, attempt: SendAttempt) -> None:
        """Called before the request leaves."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Called once for each `before_send`, however the try ended."""


class SendCheck(Protocol):
    """May forbid each try of each send; called on the event loop, before all hooks.

    Source: CheckForbiddenHook.java.
    """

    def check_send(self, attempt: SendAttempt) -> None:
        """Raise to forbid it: nothing leaves, and the caller of `send` gets the exception."""


class SendHooks:
    """The hooks of one producer: `before_send` in their order, `after_send` in reverse."""

    def __init__(self, hooks: Sequence[SendHook | SendCheck]) -> None:
        self._hooks = tuple(cast(SendHook, one) for one in hooks if hasattr(one, "before_send"))
        self._checks = tuple(cast(SendCheck, one) for one in hooks if hasattr(one, "check_send"))

    def __bool__(self) -> bool:
        """Return whether there are any: without, nothing needs to be made for them."""
        return bool(self._hooks or self._checks)

    def check(self, attempt: SendAttempt) -> None:
        """Ask all who may forbid; what they raise is the caller's."""
        for one in self._checks:
            one.check_send(attempt)

    def before(self, attempt: SendAttempt) -> None:
        """Call all."""
        for hook in self._hooks:
            try:
                hook.before_send(attempt)
            except Exception:
                log.exception("send_hook.failed hook=%s method=before_send", type(hook).__name__)

    def after(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Call all."""
        for hook in reversed(self._hooks):
            try:
                hook.after_send(attempt, outcome)
            except Exception:
                log.exception("send_hook.failed hook=%s method=after_send", type(hook).__name__)
