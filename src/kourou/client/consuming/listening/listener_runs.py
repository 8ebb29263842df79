"""Runs: calls of a listener one after the other, and once for many of them what follows.

To hand one message to a thread and its outcome back costs several times what most listeners do. So
a thread takes the messages itself, one after the other for as long as there are some, and the loop
acknowledges together what ended meanwhile. No message belongs to a thread before its call begins:
one that takes long holds up no other. Coroutine functions are called in the same way, by as many
tasks: what ends in one turn of the loop is acknowledged together in the next.

Which message comes next is the business of who makes the runs: any that waits, or in order the next
of one queue (`ordered_runs`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from kourou.client.consuming.listening.returned_values import ReturnedValues
from kourou.client.consuming.pulling.delivery import Delivery
from kourou.client.consuming.watching.consume_watch import ConsumeWatch
from kourou.client.user_functions import PROGRAM_ENDS, ends_caller
from kourou.clock import Clock
from kourou.model.message import MessageExt
from kourou.remoting.runtime import Offload

THREAD_PATIENCE_S: Final = 0.001
"""How long the first thread that was woken has the others sleep, in seconds. A listener that blocks
for longer is not held up noticeably by that, and one that does not needs no second thread."""


TURN_MESSAGES: Final = 32
"""Messages after which a task lets others have the loop, if its listener never waits."""


class Unfinished(NamedTuple):
    """What ended a run: a call that the event loop has to deal with.

    Attributes:
        delivery: what the listener got.
        elapsed_s: how long that took, in seconds.
        error: what it raised; None if it returned something to wait for.
        outcome: what is to be awaited, if it raised nothing.
    """

    delivery: Delivery
    elapsed_s: float
    error: BaseException | None = None
    outcome: Awaitable[object] | None = None


class ListenerRuns:
    """The runs of one listener, on any number of threads or tasks. Made within the event loop.

    Args:
        listener: called with one message.
        run_blocking: runs it off the event loop; None of a coroutine function.
        take: returns the next message, wanted or not, and raises IndexError to end the run. For
            any thread.
        on_done: told on the loop of messages that are done, in the order in which they ended.
        clock: says since when the listener has a message.
        watch: told how many calls ended well.
        returned: looks at what the listener returns.

    Attributes:
        time_s: measures calls, in seconds. Of threads not the loop's time, which may stand still
            while the loop waits.
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
        self._is_loop_told = False
        self._interrupted: list[bool] = []  # replaced when it is filled: each run looks at its own

    def interrupt(self) -> None:
        """End all runs under way after the call that each is in; more can follow. On the loop."""
        interrupted, self._interrupted = self._interrupted, []
        interrupted.append(True)

    async def run(self) -> Unfinished | None:
        """Call the listener until no message waits, a call fails, or a hook wants to be told.

        What comes after a failure is left to other runs. What is done is told of when this returns.
        Cancelling leaves a call to its thread; what it ends with is told of later.

        Raises:
            KeyboardInterrupt, SystemExit: the listener raised it to end the program.
        """
        try:
            if self._run_blocking is None:
                return await self._run_on_loop()
            return await self._run_blocking(self._run_on_thread)
        finally:
            self._tell_done()

    def _run_on_thread(self) -> Unfinished | None:
        # Looked up once: the loop below is all that a message costs here.
        take, listener, now_ms = self._take, self._listener, self._clock.now_ms
        time_s, done, hooks = self.time_s, self._done, self._watch.told
        interrupted = self._interrupted
        known, is_done = self._returned.known, self._returned.is_done
        while not hooks and not interrupted:
            try:
                delivery = take()
            except IndexError:  # asking first would not help: another thread may be faster
                return None
            message = delivery.message
            if not delivery.process_queue.start(message, now_ms()):
                continue
            began_s = time_s()
            try:
                outcome = listener(message)
                is_ended = outcome is None or type(outcome) in known or is_done(outcome)
            except PROGRAM_ENDS:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is
                return Unfinished(delivery, time_s() - began_s, error)
            if not is_ended:
                return Unfinished(delivery, time_s() - began_s, outcome=outcome)
            done.append((delivery, time_s() - began_s))
            # Whoever clears it looks at `done` after that: none is forgotten.
            if not self._is_loop_told:
                self._is_loop_told = True
                try:
                    self._loop.call_soon_threadsafe(self._tell_done)
                except RuntimeError:  # the loop has ended, and nobody is left to hear of it
                    return None
        return None

    async def _run_on_loop(self) -> Unfinished | None:
        """Let others have the loop after some messages, if the listener never waits."""
        # No coroutine but the listener's own for each message: they would cost as much as it.
        take, listener, now_ms = self._take, self._listener, self._clock.now_ms
        time_s, done, hooks = self.time_s, self._done, self._watch.told
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
            if not self._is_loop_told:
                self._is_loop_told = True
                self._loop.call_soon(self._tell_done)
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)
        return None

    def _tell_done(self) -> None:
        """Tell of what was done since the last time. On the loop only."""
        self._is_loop_told = False
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
