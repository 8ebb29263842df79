"""Calls of an ordered listener, and the outcome's effect on the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, ParamSpec, Self, TypeVar

from kourou.client.consuming.acknowledging.redelivery import Redelivery, redelivery_of
from kourou.client.consuming.listening.listener_calls import ListenerCall
from kourou.client.consuming.listening.listener_runs import ReturnedValues
from kourou.client.consuming.watching.consume_hooks import ConsumeWatch
from kourou.client.user_functions import is_coroutine_function
from kourou.errors import UsageError
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Offload

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

SUSPENSION_MIN_MS: Final = 10
SUSPENSION_MAX_MS: Final = 30_000
"""Bounds in ms of a queue's suspension after its listener failed; Java's values."""


class Decision:
    """The decision of a committing listener about a queue, during one call.

    Attributes:
        is_committed: all delivered messages are done.
        is_rolled_back: all uncommitted messages are delivered again.
        delay_ms: delay in ms of that redelivery; None: as configured.
    """

    def __init__(self) -> None:
        self.is_committed = False
        self.is_rolled_back = False
        self.delay_ms: int | None = None

    def finish(self, error: BaseException | None) -> OrderedOutcome:
        """Return the outcome of a call that raised `error` or returned, and reset for the next."""
        is_ok = error is None
        outcome = OrderedOutcome(
            error,
            is_committed=is_ok and self.is_committed,
            is_rolled_back=is_ok and self.is_rolled_back,
            delay_ms=self.delay_ms if is_ok else None,
        )
        self.is_committed = self.is_rolled_back = False
        self.delay_ms = None
        return outcome


class OrderlyContext:
    """Commits or rolls back the messages of a queue, on behalf of a committing listener.

    The decision takes effect when the listener returns. If it raises, its messages are delivered
    again and nothing is committed. Uncommitted messages stay in memory and count towards
    `pull_threshold_count`: commit before that many are uncommitted.

    Attributes:
        queue: the queue.
    """

    def __init__(self, queue: MessageQueue, decision: Decision) -> None:
        self.queue = queue
        self._decision = decision

    def commit(self) -> None:
        """Mark all messages of the queue delivered so far as done, this call's included.

        Raises:
            UsageError: this call has rolled back already.
        """
        if self._decision.is_rolled_back:
            raise UsageError("a call may commit or roll back, not both")
        self._decision.is_committed = True

    def rollback(self, delay_ms: int | None = None) -> None:
        """Have all uncommitted messages of the queue delivered again, this call's included.

        Args:
            delay_ms: delay in ms, from 10 to 30,000; None: `suspend_queue_ms`.

        Raises:
            UsageError: this call has committed already, or `delay_ms` is out of its range.
        """
        if self._decision.is_committed:
            raise UsageError("a call may commit or roll back, not both")
        if delay_ms is not None and not SUSPENSION_MIN_MS <= delay_ms <= SUSPENSION_MAX_MS:
            raise UsageError(
                f"delay_ms is {delay_ms}: allowed are {SUSPENSION_MIN_MS} to {SUSPENSION_MAX_MS}"
            )
        self._decision.is_rolled_back = True
        self._decision.delay_ms = delay_ms


ContextListener = Callable[[list[MessageExt], OrderlyContext], Awaitable[object] | object]
"""Consumes messages of one queue in order, and commits or rolls back through its context."""


@dataclass(frozen=True, slots=True)
class OrderedOutcome:
    """Outcome of a call of an ordered listener.

    Attributes:
        error: the listener's exception.
        is_committed: finished messages are done.
        is_rolled_back: finished messages and those of the call are delivered again.
        delay_ms: the queue's suspension in ms after a rollback; None: as configured.
    """

    error: BaseException | None = None
    is_committed: bool = True
    is_rolled_back: bool = False
    delay_ms: int | None = None

    def is_failed(self, message: MessageExt) -> bool:
        """Return whether the message failed, so that it is delivered again or a dead letter."""
        return self.error is not None and redelivery_of(self.error, message) is not None

    def dead_letters(
        self, messages: Sequence[MessageExt], max_reconsume_times: int | None
    ) -> Iterator[tuple[MessageExt, Redelivery]]:
        """Yield the failed messages that become dead letters, and their redelivery.

        These are the messages delivered `max_reconsume_times` before (None: no limit), and those
        that the listener declared dead letters.
        """
        if self.error is None:
            return
        for message in messages:
            redelivery = redelivery_of(self.error, message)
            if redelivery is None:
                continue
            is_spent = (
                max_reconsume_times is not None and message.reconsume_times >= max_reconsume_times
            )
            if redelivery.level < 0 or is_spent:
                yield message, replace(redelivery, level=-1, delay_ms=None)

    def suspension_s(self, messages: Sequence[MessageExt], suspend_queue_ms: int) -> float:
        """Return the queue's suspension in seconds before these messages are delivered again."""
        suspension_ms = self.delay_ms
        if self.error is not None:
            for message in messages:
                redelivery = redelivery_of(self.error, message)
                if redelivery is not None and redelivery.delay_ms is not None:
                    suspension_ms = redelivery.delay_ms
                elif redelivery is not None and redelivery.level > 0:
                    suspension_ms = DELAY_LEVELS_MS[min(redelivery.level, len(DELAY_LEVELS_MS)) - 1]
                if suspension_ms is not None:
                    break
        if suspension_ms is None:
            suspension_ms = suspend_queue_ms
        return min(max(suspension_ms, SUSPENSION_MIN_MS), SUSPENSION_MAX_MS) / 1000


class OrderedCall(ListenerCall):
    """Calls an ordered listener with the messages of one queue.

    Args:
        listener: takes one message; with `is_batch` a list of messages; with `is_committing` a list
            and an `OrderlyContext`.
        is_batch: the listener takes lists.
        is_committing: messages are done only when the listener commits.
        run_blocking: runs a plain function off the event loop; a coroutine function runs on it.
        watch: reports each call to hooks and statistics.
        queue: the queue of the messages; None for the template that `for_queue` is called on.
        returned: checks the listener's return values; None: a new one.
    """

    def __init__(
        self,
        listener: Callable[..., Any],
        *,
        is_batch: bool,
        is_committing: bool = False,
        run_blocking: Offload,
        watch: ConsumeWatch,
        queue: MessageQueue | None = None,
        returned: ReturnedValues | None = None,
    ) -> None:
        self._user_listener = listener
        self._decision = Decision() if is_committing else None
        if self._decision is not None and queue is not None:
            listener = _with_context(listener, OrderlyContext(queue, self._decision))
        self._threads = _OneThread(run_blocking)
        super().__init__(
            listener,
            is_batch=is_batch,
            run_blocking=self._threads,
            watch=watch,
            returned=returned,
        )

    @property
    def is_running(self) -> bool:
        """Whether a thread is executing the listener, even if its call was abandoned."""
        return self._threads.is_busy

    @property
    def is_committing(self) -> bool:
        """Whether messages are done only when the listener commits."""
        return self._decision is not None

    def for_queue(self, queue: MessageQueue) -> Self:
        """Return a new call of the same listener for one queue."""
        return type(self)(
            self._user_listener,
            is_batch=self.is_batch,
            is_committing=self.is_committing,
            run_blocking=self._threads.run_blocking,
            watch=self.watch,
            queue=queue,
            returned=self.returned,
        )

    async def deliver(self, messages: Sequence[MessageExt]) -> OrderedOutcome:
        """Call the listener and return the outcome."""
        error = (await self(messages)).error
        return OrderedOutcome(error) if self._decision is None else self._decision.finish(error)

    def _failed(self, message: MessageExt, error: BaseException) -> BaseException:
        """Log the listener's error; at DEBUG unless its redeliveries are 0 or a power of two.

        An ordered message may fail every second without limit.
        """
        times = message.reconsume_times
        if times & (times - 1) and not isinstance(error, asyncio.CancelledError):
            log.debug("listener.failed_again msg_id=%s error=%r", message.msg_id, error)
            return error
        return super()._failed(message, error)


class _OneThread:
    """Runs blocking functions off the event loop, and records whether one is running.

    The caller runs one at a time.

    Attributes:
        run_blocking: the underlying offload.
        is_busy: a function is running.
    """

    def __init__(self, run_blocking: Offload) -> None:
        self.run_blocking = run_blocking
        self.is_busy = False

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        def noted() -> T:
            self.is_busy = True
            try:
                return function(*args, **kwargs)
            finally:
                self.is_busy = False

        return self.run_blocking(noted)


def _with_context(listener: ContextListener, context: OrderlyContext) -> Callable[[Any], Any]:
    if is_coroutine_function(listener):

        async def wait(messages: list[MessageExt]) -> object:
            outcome: Any = listener(messages, context)
            return await outcome

        return wait

    def call(messages: list[MessageExt]) -> object:
        return listener(messages, context)

    return call
