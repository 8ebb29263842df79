"""Calls of an ordered listener, and what follows from how one ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, ParamSpec, Self, TypeVar

from kourou.client.consuming.acknowledging.redelivery import Redelivery, redelivery_of
from kourou.client.consuming.listening.listener_calls import ListenerCall, is_coroutine_function
from kourou.client.consuming.listening.returned_values import ReturnedValues
from kourou.client.consuming.watching.consume_watch import ConsumeWatch
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
"""Bounds of how long a queue rests after its listener failed; Java's."""


class Decision:
    """What a listener that commits by itself decided about a queue.

    Attributes:
        is_committed: all that was given is done.
        is_rolled_back: all that was not committed is given again.
        delay_ms: so many ms later; None: as configured.
    """

    def __init__(self) -> None:
        self.is_committed = False
        self.is_rolled_back = False
        self.delay_ms: int | None = None

    def take(self, error: BaseException | None) -> OrderedOutcome:
        """Return what was decided, given how the call ended, and forget it for the next."""
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
    """What a listener that commits by itself says about the queue of its messages.

    It counts when the listener has returned. One that raises has its messages given again, and
    commits nothing. Until something is committed, what was given is held in memory and counts
    towards `pull_threshold_count`: commit before as many are out.

    Attributes:
        queue: the queue.
    """

    def __init__(self, queue: MessageQueue, decision: Decision) -> None:
        self.queue = queue
        self._decision = decision

    def commit(self) -> None:
        """Have all done that was given of the queue up to now, these messages included.

        Raises:
            UsageError: this call has rolled back already.
        """
        if self._decision.is_rolled_back:
            raise UsageError("a call commits or rolls back, not both")
        self._decision.is_committed = True

    def rollback(self, delay_ms: int | None = None) -> None:
        """Have all given again that was not committed, these messages included.

        Args:
            delay_ms: after so many ms, from 10 to 30,000; None: after `suspend_queue_ms`.

        Raises:
            UsageError: this call has committed already, or `delay_ms` is out of its range.
        """
        if self._decision.is_committed:
            raise UsageError("a call commits or rolls back, not both")
        if delay_ms is not None and not SUSPENSION_MIN_MS <= delay_ms <= SUSPENSION_MAX_MS:
            raise UsageError(
                f"delay_ms is {delay_ms}: allowed are {SUSPENSION_MIN_MS} to {SUSPENSION_MAX_MS}"
            )
        self._decision.is_rolled_back = True
        self._decision.delay_ms = delay_ms


ContextListener = Callable[[list[MessageExt], OrderlyContext], Awaitable[object] | object]
"""Consumes messages of one queue in order, and commits or rolls back by its context."""


@dataclass(frozen=True, slots=True)
class OrderedOutcome:
    """How a call ended.

    Attributes:
        error: what the listener raised.
        is_committed: what is finished is done.
        is_rolled_back: what is finished, and the messages of the call, are given again.
        delay_ms: how long the queue is to rest for that; None: as configured.
    """

    error: BaseException | None = None
    is_committed: bool = True
    is_rolled_back: bool = False
    delay_ms: int | None = None

    def is_failed(self, message: MessageExt) -> bool:
        """Return whether the message must be given again, unless it is dead."""
        return self.error is not None and redelivery_of(self.error, message) is not None

    def dead(
        self, messages: Sequence[MessageExt], max_reconsume_times: int | None
    ) -> Iterator[tuple[MessageExt, Redelivery]]:
        """Yield the messages that are dead letters now, and how they are given back.

        They were given again as often as may be, without a limit for None, or the listener says so.
        """
        if self.error is None:
            return
        for message in messages:
            how = redelivery_of(self.error, message)
            if how is None:
                continue
            is_spent = (
                max_reconsume_times is not None and message.reconsume_times >= max_reconsume_times
            )
            if how.level < 0 or is_spent:
                yield message, replace(how, level=-1, delay_ms=None)

    def rest_s(self, messages: Sequence[MessageExt], suspend_queue_ms: int) -> float:
        """Return how long the queue rests before these messages are given again, in seconds."""
        rest_ms = self.delay_ms
        if self.error is not None:
            for message in messages:
                how = redelivery_of(self.error, message)
                if how is not None and how.delay_ms is not None:
                    rest_ms = how.delay_ms
                elif how is not None and how.level > 0:
                    rest_ms = DELAY_LEVELS_MS[min(how.level, len(DELAY_LEVELS_MS)) - 1]
                if rest_ms is not None:
                    break
        if rest_ms is None:
            rest_ms = suspend_queue_ms
        return min(max(rest_ms, SUSPENSION_MIN_MS), SUSPENSION_MAX_MS) / 1000


class OrderedCall(ListenerCall):
    """Calls an ordered listener with the messages of one queue.

    Args:
        listener: takes one message, with `is_batch` a list of them, with `is_committing` a list and
            an `OrderlyContext`.
        is_batch: what `listener` takes.
        is_committing: nothing is done before the listener says so.
        run_blocking: runs a plain function off the event loop; a coroutine function runs on it.
        watch: told of each call.
        queue: whose messages they are; None of what is only there to make others of.
        returned: looks at what the listener returns; None if no other call of it has one.
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
        """Whether a thread is in the listener, also one that nobody waits for any more."""
        return self._threads.is_busy

    @property
    def is_committing(self) -> bool:
        """Whether nothing is done before the listener says so."""
        return self._decision is not None

    def for_queue(self, queue: MessageQueue) -> Self:
        """Return what calls the listener for one queue."""
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
        """Call the listener and return what follows."""
        error = (await self(messages)).error
        return OrderedOutcome(error) if self._decision is None else self._decision.take(error)

    def _failed(self, message: MessageExt, error: BaseException) -> BaseException:
        """Log why the listener failed; of a message that comes each second, now and then."""
        times = message.reconsume_times
        if times & (times - 1) and not isinstance(error, asyncio.CancelledError):
            log.debug("listener.failed_again msg_id=%s error=%r", message.msg_id, error)
            return error
        return super()._failed(message, error)


class _OneThread:
    """Runs blocking functions off the event loop, one at a time.

    Attributes:
        run_blocking: does it.
        is_busy: a function runs.
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
