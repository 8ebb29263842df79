"""Hooks around each consumption, a listener call or a loop body, and the watch that calls them.

Source: ConsumeMessageHook.java, ConsumeMessageContext.java, ConsumeReturnType.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.client.user_functions import PROGRAM_ENDS
from kourou.model.message import MessageExt

log = logging.getLogger(__name__)


class ConsumeOutcome(Enum):
    """Outcome of a listener call; the values are RocketMQ's `ConsumeContextType`."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    """It returned, but took as long as `consume_timeout_ms` or longer."""
    EXCEPTION = "EXCEPTION"


@dataclass(slots=True)
class ConsumeContext:
    """One consumption: a listener call, one body of an `async for`, or the result of one `poll`.

    Attributes:
        group: the consumer group.
        messages: the consumed messages, of one topic.
        outcome: None before the call, then its outcome. A poll always succeeds.
        error: the listener's exception; `asyncio.CancelledError` if the call was cut short, for
            example because the consumer closed. None for a loop: if its body was left by an error,
            the outcome is EXCEPTION without the error.
        elapsed_ms: duration of the call.
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

    Exceptions that it raises are logged and otherwise ignored. `after` is called once for each
    `before`; `poll` calls both before it returns.
    """

    def before(self, context: ConsumeContext) -> None:
        """Called before the consumption."""

    def after(self, context: ConsumeContext) -> None:
        """Called after the consumption, with the outcome in `context`."""


class ConsumeHooks:
    """The hooks of one consumer.

    Attributes:
        added: the hooks in the order of `add`. Read-only for callers, to test whether there are
            any.
    """

    def __init__(self) -> None:
        self.added: list[ConsumeHook] = []

    def add(self, hook: ConsumeHook) -> None:
        """Call `hook` from now on."""
        self.added.append(hook)

    def before(self, context: ConsumeContext) -> None:
        """Call `before` of all hooks."""
        for hook in self.added:
            try:
                hook.before(context)
            except PROGRAM_ENDS:
                raise
            except BaseException:
                log.exception("hook.failed event=before group=%s", context.group)

    def after(self, context: ConsumeContext) -> None:
        """Call `after` of all hooks."""
        for hook in self.added:
            try:
                hook.after(context)
            except PROGRAM_ENDS:
                raise
            except BaseException:
                log.exception("hook.failed event=after group=%s", context.group)


class ConsumeWatch:
    """Reports the consumptions of one push consumer.

    Args:
        group: the consumer group, for hooks.
        consume_timeout_ms: duration in ms from which on a consumption counts as timed out.
        hooks: called around each consumption.
        stats: counts each consumption.

    Attributes:
        hooks: the hooks. If there are none, callers may use `count` instead of `begin` and `end`.
        count: `ConsumerStats.count_consumed`.
    """

    def __init__(
        self, group: str, consume_timeout_ms: int, hooks: ConsumeHooks, stats: ConsumerStats
    ) -> None:
        self._group = group
        self._consume_timeout_ms = consume_timeout_ms
        self._hooks = hooks
        # Used once for each message, so they are attributes, not methods.
        self.hooks = hooks.added
        self.count = stats.count_consumed
        self._stats = stats

    def begin(self, messages: Sequence[MessageExt]) -> tuple[ConsumeContext, float]:
        """Report the start of a consumption of one queue; return the argument for `end`."""
        context = ConsumeContext(self._group, messages)
        self._hooks.before(context)
        return context, asyncio.get_running_loop().time()

    def end(
        self,
        began: tuple[ConsumeContext, float],
        error: BaseException | None = None,
        *,
        is_done: bool = True,
    ) -> None:
        """Report the outcome; with `is_done` False it is a failure, even without an error."""
        context, began_s = began
        context.error = error
        context.elapsed_ms = (asyncio.get_running_loop().time() - began_s) * 1000
        if error is not None or not is_done:
            context.outcome = ConsumeOutcome.EXCEPTION
        elif context.elapsed_ms >= self._consume_timeout_ms:
            context.outcome = ConsumeOutcome.TIME_OUT
        else:
            context.outcome = ConsumeOutcome.SUCCESS
        self._hooks.after(context)
        self._stats.count_consumed(
            context.messages[0].topic,
            len(context.messages),
            context.elapsed_ms,
            is_ok=context.outcome is not ConsumeOutcome.EXCEPTION,
        )
