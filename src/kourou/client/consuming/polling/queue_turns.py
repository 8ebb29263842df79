"""Calls a user function repeatedly for one assigned queue, until the queue is revoked.

Source: MQPullConsumerScheduleService.java, PullTaskContext.java.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, cast

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.client.user_functions import UserThreads, ends_caller
from kourou.errors import UsageError
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

QueueCallback = Callable[[MessageQueue], Awaitable[int | None] | int | None]
"""Uses a queue; returns the delay before its next turn in ms, or None for the default."""

DELAY_MAX_MS: Final = 86_400_000
"""Longest delay between two turns, in ms: a day."""

LEAVE_S: Final = 0.5
"""Seconds that a running turn has to end when its queue is revoked."""

HANDOVER_S: Final = 2.0
"""Seconds before a queue is started that another member may have held, so that it can finish."""


class QueueTurns:
    """The turns of one queue, one after the other.

    Args:
        polled: the queue; it has no turns while it is paused.
        callback: called in each turn.
        run_blocking: runs a plain function off the event loop; a coroutine function runs on it.
        delay_ms: delay after a turn that returns None or fails.
    """

    def __init__(
        self,
        polled: PolledQueue,
        callback: QueueCallback,
        run_blocking: Offload,
        delay_ms: int,
    ) -> None:
        self._polled = polled
        self._callback = callback
        self._run_blocking = run_blocking
        self._delay_ms = delay_ms
        self._is_stopping = False
        self._is_failing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Run turns until cancelled or `stop` is called."""
        while not self._is_stopping:
            delay_ms = self._delay_ms
            if not self._polled.is_paused:
                self._idle.clear()
                try:
                    delay_ms = await self._turn()
                finally:
                    self._idle.set()
            await asyncio.sleep(delay_ms / 1000)

    async def stop(self) -> None:
        """Start no more turns, and wait at most `LEAVE_S` for the running one."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._idle.wait()
        except TimeoutError:
            log.warning("queue_turn.abandoned queue=%s", self._polled.queue)

    async def _turn(self) -> int:
        """Call the callback once; return the delay before the next turn in ms."""
        queue, me = self._polled.queue, asyncio.current_task()
        try:
            delay_ms = await self._call(queue)
        except asyncio.CancelledError as error:
            if me is not None and me.cancelling():
                raise
            self._log_failure(error)  # raised by something that it awaited
        except BaseException as error:
            if ends_caller(error, me):
                raise
            self._log_failure(error)
        else:
            self._is_failing = False
            return delay_ms
        return self._delay_ms

    async def _call(self, queue: MessageQueue) -> int:
        if inspect.iscoroutinefunction(self._callback):
            result = await self._callback(queue)
        else:
            result = await self._run_blocking(self._callback, queue)
            if inspect.isawaitable(result):
                result = await cast(Awaitable[object], result)
        if result is None:
            return self._delay_ms
        if type(result) is not int or not 0 <= result <= DELAY_MAX_MS:
            raise UsageError(
                f"the callback returned {result!r}: allowed are None, and 0 to {DELAY_MAX_MS} ms "
                "until the next turn"
            )
        return result

    def _log_failure(self, error: BaseException) -> None:
        level = logging.DEBUG if self._is_failing else logging.ERROR
        self._is_failing = True
        log.log(level, "queue_turn.failed queue=%s", self._polled.queue, exc_info=error)


class QueueCallbacks:
    """The callbacks of a pull consumer by topic, and the threads on which plain functions run.

    Args:
        group: the consumer group.
        config: the number of threads, and the delay between turns.
    """

    def __init__(self, group: str, config: PullConsumerConfig) -> None:
        self._group = group
        self._config = config
        self._by_topic: dict[str, QueueCallback] = {}
        self._threads: UserThreads | None = None

    def replace(self, topic: str, callback: QueueCallback | None) -> None:
        """Set the callback of a topic; None: its queues are polled."""
        if callback is None:
            self._by_topic.pop(topic, None)
        else:
            self._by_topic[topic] = callback

    def turns_of(self, polled: PolledQueue) -> QueueTurns | None:
        """Return the turns of a queue whose topic has a callback, else None."""
        callback = self._by_topic.get(polled.queue.topic)
        if callback is None:
            return None
        if self._threads is None:
            self._threads = UserThreads(self._config.schedule_threads, f"kourou-{self._group}")
        return QueueTurns(polled, callback, self._threads, self._config.schedule_delay_ms)

    def close(self) -> None:
        """Close the threads."""
        if self._threads is not None:
            self._threads.close()
