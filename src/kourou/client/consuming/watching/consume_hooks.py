"""What programs hang around the consumption of messages: tracing, measuring, auditing.

Source: ConsumeMessageHook.java, ConsumeMessageContext.java, ConsumeReturnType.java.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kourou.client.user_functions import PROGRAM_ENDS
from kourou.model.message import MessageExt

log = logging.getLogger(__name__)


class ConsumeOutcome(Enum):
    """How a listener ended; the values are RocketMQ's `ConsumeContextType`."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    """It returned, but took as long as `consume_timeout_ms` or longer."""
    EXCEPTION = "EXCEPTION"


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener, one body of an `async for`, or what one `poll` gave.

    Attributes:
        group: the consumer group.
        messages: what is consumed, of one topic.
        outcome: None before the call; then how it ended. A poll always succeeds.
        error: what the listener raised; `asyncio.CancelledError` if it was cut short, as when the
            consumer closed before it had ended; None of a loop, which does not tell why it was
            left: EXCEPTION then.
        elapsed_ms: how long it took.
        values: for the hook's own use between `before` and `after`.
    """

    group: str
    messages: Sequence[MessageExt]
    outcome: ConsumeOutcome | None = None
    error: BaseException | None = None
    elapsed_ms: float = 0.0
    values: dict[str, object] = field(default_factory=dict)


class ConsumeHook(Protocol):
    """Called on the event loop around each consumption; must not block.

    What it raises is logged and changes nothing. `after` is called once for each `before`; `poll`
    calls both before it returns.
    """

    def before(self, context: ConsumeContext) -> None:
        """Note that a listener is about to be called."""

    def after(self, context: ConsumeContext) -> None:
        """Note how it ended."""


class ConsumeHooks:
    """The hooks of one consumer.

    Attributes:
        added: in the order in which they were; to be asked whether there are any, not changed.
    """

    def __init__(self) -> None:
        self.added: list[ConsumeHook] = []

    def add(self, hook: ConsumeHook) -> None:
        """Call `hook` from now on."""
        self.added.append(hook)

    def before(self, context: ConsumeContext) -> None:
        """Call all hooks."""
        for hook in self.added:
            try:
                hook.before(context)
            except PROGRAM_ENDS:
                raise
            except BaseException:
                log.exception("hook.failed event=before group=%s", context.group)

    def after(self, context: ConsumeContext) -> None:
        """Call all hooks."""
        for hook in self.added:
            try:
                hook.after(context)
            except PROGRAM_ENDS:
                raise
            except BaseException:
                log.exception("hook.failed event=after group=%s", context.group)
