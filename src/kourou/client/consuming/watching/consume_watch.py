"""Tells hooks and statistics of each consumption: of a listener's call, or of a loop's body."""

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
    """Watches the consumptions of one push consumer.

    Args:
        group: for hooks.
        consume_timeout_ms: after which a consumption counts as timed out.
        hooks: called around each.
        stats: count it.

    Attributes:
        told: the hooks. While there are none, `count` in place of `begin` and `end` is enough.
        count: `ConsumerStats.count_consumed`.
    """

    def __init__(
        self, group: str, consume_timeout_ms: int, hooks: ConsumeHooks, stats: ConsumerStats
    ) -> None:
        self._group = group
        self._consume_timeout_ms = consume_timeout_ms
        self._hooks = hooks
        # Both are used once a message, so they are no methods.
        self.told = hooks.added
        self.count = stats.count_consumed
        self._stats = stats

    def begin(self, messages: Sequence[MessageExt]) -> tuple[ConsumeContext, float]:
        """Note that messages of one queue are about to be consumed; return what `end` wants."""
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
        """Note how it ended; what is not done failed, even if the error is not known."""
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
