"""Runs: consecutive calls of a listener on one thread or task, acknowledged in groups.

Passing one message to a thread and its outcome back costs several times as much as most listeners.
So a thread takes messages itself, one after the other while there are any, and the event loop
acknowledges in one step all calls that ended meanwhile. A message is assigned to a thread only when
its call starts, so that a slow call delays no other message. Coroutine functions are called in the
same way by tasks: calls that end in one loop iteration are acknowledged together in the next.

The creator of the runs decides which message is next: any message that is ready, or the next of one
queue (`OrderedRuns`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from kourou.client.consuming.pulling.delivery import Delivery
from kourou.client.consuming.watching.consume_hooks import ConsumeWatch
from kourou.client.user_functions import PROGRAM_ENDS, ends_caller
from kourou.clock import Clock
from kourou.errors import UsageError
from kourou.model.message import MessageExt
from kourou.remoting.runtime import Offload

THREAD_WAKE_DELAY_S: Final = 0.001
"""Seconds between waking the first thread and waking the others. For a listener that blocks longer,
this delay is negligible; one that does not block as long needs no second thread."""


TURN_MESSAGES: Final = 32
"""Messages after which a task yields to the event loop, if its listener never waits."""


log = logging.getLogger(__name__)

_REMEDY: Final = "a listener does its work before it returns, or is an `async def` without yield"


class ReturnedValues:
    """Checks the return values of one listener.

    A message is acknowledged whatever the listener returns; only an exception has it redelivered. A
    status, as Java's listeners return, is reported once in the log. An awaitable must be awaited
    first. A generator is an error: it has done no work yet, so its message would be lost.

    Attributes:
        accepted_types: types that `is_done` has accepted, for a look-up before calling it. Never
            contains types of awaitables.
    """

    def __init__(self) -> None:
        self.accepted_types: set[type] = {type(None)}

    def is_done(self, value: object) -> bool:
        """Return whether the listener has done its work; if not, `value` must be awaited.

        Logs a warning for the first value of a type other than None, except True. May be called
        from any thread.

        Raises:
            UsageError: `value` is a generator.
        """
        kind = type(value)
        if kind in self.accepted_types:
            return True
        if inspect.isawaitable(value):
            return False
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise UsageError(f"the listener returned a generator, which has not run: {_REMEDY}")
        self.accepted_types.add(kind)
        if value is not True:
            log.warning(
                "listener.returned type=%s remedy=%s",
                kind.__name__,
                "the message is acknowledged whatever is returned: raise to have it redelivered",
            )
        return True


class Unfinished(NamedTuple):
    """The call that ended a run and must be finished on the event loop.

    Attributes:
        delivery: the delivery that was passed to the listener.
        elapsed_s: duration of the call in seconds.
        error: the listener's exception; None if it returned an awaitable.
        outcome: the awaitable that it returned.
    """

    delivery: Delivery
    elapsed_s: float
    error: BaseException | None = None
    outcome: Awaitable[object] | None = None


class ListenerRuns:
    """The runs of one listener on any number of threads or tasks. Created on the event loop.

    Args:
        listener: called with one message.
        run_blocking: runs it off the event loop; None for a coroutine function.
        take: returns the next delivery, still held or not; raises IndexError to end the run. Called
            from any thread.
        on_done: called on the event loop with deliveries that are done, in the order in which they
            ended.
        clock: the wall clock, for start times of deliveries.
        watch: counts successful calls.
        returned: checks the listener's return values.

    Attributes:
        time_s: clock for durations, in seconds. Threads do not use the loop's time, because in
            virtual time it may not advance while the loop waits.
    """

    def __init__(
        self,
        listener: Callable[[MessageExt], Any],
        *,
        run_blocking: Offload | None,
        take: Callable[[], Delivery],
        on_done: Callable[[list[Delivery]], None],
        clock: Clock,
        watch: ConsumeWatch,
        returned: ReturnedValues,
    ) -> None:
        self._listener = listener
        self._run_blocking = run_blocking
        self._take = take
        self._on_done = on_done
        self._clock = clock
        self._watch = watch
        self._returned = returned
        self._loop = asyncio.get_running_loop()
        self.time_s = self._loop.time if run_blocking is None else time.perf_counter
        self._done: deque[tuple[Delivery, float]] = deque()
        self._is_report_scheduled = False
        self._interrupted: list[bool] = []  # replaced when set: each run checks its own list

    def interrupt(self) -> None:
        """End all current runs after their running call; new ones may start. Event loop only."""
        interrupted, self._interrupted = self._interrupted, []
        interrupted.append(True)

    async def run(self) -> Unfinished | None:
        """Call the listener until no message is ready, a call fails, or a hook is added.

        Messages after a failure are left to other runs. All successful calls have been reported to
        `on_done` when this returns. Cancelling leaves a running call to its thread, which reports
        its end later.

        Raises:
            KeyboardInterrupt, SystemExit: the listener raised it to end the program.
        """
        try:
            if self._run_blocking is None:
                return await self._run_on_loop()
            return await self._run_blocking(self._run_on_thread)
        finally:
            self._report_done()

    def _run_on_thread(self) -> Unfinished | None:
        # Looked up once, because the loop below is the cost of each message.
        take, listener, now_ms = self._take, self._listener, self._clock.now_ms
        time_s, done, hooks = self.time_s, self._done, self._watch.hooks
        interrupted = self._interrupted
        accepted_types, is_done = self._returned.accepted_types, self._returned.is_done
        while not hooks and not interrupted:
            try:
                delivery = take()
            except IndexError:  # not checked first: another thread may be faster
                return None
            message = delivery.message
            if not delivery.process_queue.start(message, now_ms()):
                continue
            began_s = time_s()
            try:
                outcome = listener(message)
                is_ended = outcome is None or type(outcome) in accepted_types or is_done(outcome)
            except PROGRAM_ENDS:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is
                return Unfinished(delivery, time_s() - began_s, error)
            if not is_ended:
                return Unfinished(delivery, time_s() - began_s, outcome=outcome)
            done.append((delivery, time_s() - began_s))
            # `_report_done` resets the flag before it reads `done`, so no delivery is missed.
            if not self._is_report_scheduled:
                self._is_report_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._report_done)
                except RuntimeError:  # the loop is closed: nothing can be reported
                    return None
        return None

    async def _run_on_loop(self) -> Unfinished | None:
        """Yield to the event loop after `TURN_MESSAGES`, in case the listener never waits."""
        # No coroutine for each message besides the listener's own: it would cost as much.
        take, listener, now_ms = self._take, self._listener, self._clock.now_ms
        time_s, done, hooks = self.time_s, self._done, self._watch.hooks
        interrupted = self._interrupted
        is_done, me = self._returned.is_done, asyncio.current_task()
        count = 0
        while not hooks and not interrupted:
            try:
                delivery = take()
            except IndexError:
                return None
            message = delivery.message
            if not delivery.process_queue.start(message, now_ms()):
                continue
            began_s = time_s()
            try:
                outcome = await listener(message)
                if outcome is not None:
                    is_done(outcome)
            except BaseException as error:
                if ends_caller(error, me):
                    raise
                return Unfinished(delivery, time_s() - began_s, error)
            done.append((delivery, time_s() - began_s))
            if not self._is_report_scheduled:
                self._is_report_scheduled = True
                self._loop.call_soon(self._report_done)
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)
        return None

    def _report_done(self) -> None:
        """Report deliveries done since the last call. Event loop only."""
        self._is_report_scheduled = False
        if not self._done:
            return
        ended: list[Delivery] = []
        calls: defaultdict[str, list[float]] = defaultdict(list)
        while self._done:
            delivery, elapsed_s = self._done.popleft()
            ended.append(delivery)
            calls[delivery.message.topic].append(elapsed_s)
        self._on_done(ended)
        for topic, elapsed in calls.items():
            count = len(elapsed)
            self._watch.count(topic, count, sum(elapsed) * 1000, is_ok=True, calls=count)
