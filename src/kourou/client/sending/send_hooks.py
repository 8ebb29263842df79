"""Hooks before and after each try of a send, for tracing, auditing and metrics.

Source: SendMessageHook.java.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from kourou.client.instance import ClientInstance
from kourou.client.send_receipt import SendReceipt
from kourou.model.message import Message
from kourou.model.queue import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One try to send a message or a batch.

    Attributes:
        group: the producer group.
        messages: the user's messages; several for a batch.
        msg_ids: their unique ids, the same in every try.
        queue: the destination.
        broker_address: `host:port` of the broker.
        number: 1 for the first try.
        is_oneway: the broker sends no answer.
        properties: the encoded properties as sent; for a batch, those of the batch itself.
        body_bytes: size of the body in bytes as sent, after compression.
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
    """Result of a try.

    Attributes:
        elapsed_ms: time from `before_send` to the end of the try.
        receipts: one for each message, if the broker has stored them; empty for a one-way message.
        error: the exception of the try, `asyncio.CancelledError` if the caller cancelled it; None
            if there was none. Another try may follow.
        region: the region of the broker, if its answer allows traces; else None.
    """

    elapsed_ms: float
    receipts: Sequence[SendReceipt] = ()
    error: BaseException | None = None
    region: str | None = None


class SendHook(Protocol):
    """Hook called for each try of each send, on the event loop; it must not block.

    Its exceptions are logged and do not affect the message.
    """

    def before_send(self, attempt: SendAttempt) -> None:
        """Handle a try that is about to begin."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Handle the end of a try; called once after each `before_send`, also after errors."""


class SendCheck(Protocol):
    """Hook that can forbid a try of a send; called on the event loop, before all other hooks.

    Source: CheckForbiddenHook.java.
    """

    def check_send(self, attempt: SendAttempt) -> None:
        """Raise to forbid the try; it is not sent, and the caller of `send` gets the exception."""


class AttachedHook(Protocol):
    """Hook that needs its producer's client, and that may see recalls."""

    def attach(self, client: ClientInstance, group: str) -> None:
        """Bind the hook to a producer; called once, by the producer's constructor."""

    def recalled(self, topic: str, msg_id: str, *, error: BaseException | None) -> None:
        """Handle the end of a recall; `error` is None if the broker has confirmed it."""


class SendHooks:
    """The hooks of one producer: `before_send` runs in their order, `after_send` in reverse."""

    def __init__(self, hooks: Sequence[SendHook | SendCheck]) -> None:
        self._attached = tuple(cast(AttachedHook, one) for one in hooks if hasattr(one, "attach"))
        self._hooks = tuple(cast(SendHook, one) for one in hooks if hasattr(one, "before_send"))
        self._checks = tuple(cast(SendCheck, one) for one in hooks if hasattr(one, "check_send"))

    def __bool__(self) -> bool:
        """Return whether there are any hooks; otherwise no `SendAttempt` is needed."""
        return bool(self._hooks or self._checks)

    def attach(self, client: ClientInstance, group: str) -> None:
        """Call all `attach`; their exceptions pass to the caller."""
        for one in self._attached:
            one.attach(client, group)

    def recalled(self, topic: str, msg_id: str, error: BaseException | None) -> None:
        """Call all `recalled`."""
        for one in self._attached:
            try:
                one.recalled(topic, msg_id, error=error)
            except Exception:
                log.exception("send_hook.failed hook=%s method=recalled", type(one).__name__)

    def check(self, attempt: SendAttempt) -> None:
        """Call all `check_send`; their exceptions pass to the caller."""
        for one in self._checks:
            one.check_send(attempt)

    def before(self, attempt: SendAttempt) -> None:
        """Call all `before_send`."""
        for hook in self._hooks:
            try:
                hook.before_send(attempt)
            except Exception:
                log.exception("send_hook.failed hook=%s method=before_send", type(hook).__name__)

    def after(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Call all `after_send`."""
        for hook in reversed(self._hooks):
            try:
                hook.after_send(attempt, outcome)
            except Exception:
                log.exception("send_hook.failed hook=%s method=after_send", type(hook).__name__)
