"""Reports each consumption, a listener call or a loop body, to hooks and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kourou.client.consuming.watching.consume_hooks import (
    ConsumeContext,
    ConsumeHooks,
    ConsumeOutcome,
)
from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.model.message import MessageExt


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
