"""Runs: calls of a listener one after the other, and once for many of them what follows.

To hand one message to a thread and its outcome back costs several times what most listeners do. So
a thread takes the messages itself, one after the other for as long as there are some, and the loop
acknowledges together what ended meanwhile. No message belongs to a thread before its call begins:
one that takes long holds up no other. Coroutine functions are called in the same way, by as many
tasks: what ends in one turn of the loop is acknowledged together in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from kourou.client.consuming.acknowledgements import Acknowledgements
from kourou.client.consuming.consume_watch import ConsumeWatch
from kourou.client.consuming.delivery import Delivery, ReadyMessages
from kourou.client.consuming.returned_values import ReturnedValues
from kourou.clock import Clock
from kourou.model.message import MessageExt

THREAD_PATIENCE_S: Final = 0.001
"""How long the first thread that was woken has the others sleep, in seconds. A listener that blocks
for longer is not held up noticeably by that, and one that does not needs no second thread."""


TURN_MESSAGES: Final = 32
"""Messages after which a task lets others have the loop, if its listener never waits."""

ENDING: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Raised to end the program or a coroutine. All else that a listener raises is its failure."""


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
        clock: says since when it has a message.
        ready: where the messages come from.
        watch: told how many calls ended well.
        acknowledgements: told of each message that is done.
        returned: looks at what it returns.
        time_s: measures calls. Not the loop's time, which may stand still while the loop waits.
    """

    def __init__(
        self,
        listener: Callable[[MessageExt], Any],
        *,
        clock: Clock,
        ready: ReadyMessages,
        watch: ConsumeWatch,
        acknowledgements: Acknowledgements,
        returned: ReturnedValues | None = None,
        time_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._ready = ready
        self._watch = watch
        self._acknowledgements = acknowledgements
        self._returned = ReturnedValues() if returned is None else returned
        self._time_s = time_s
        self._loop = asyncio.get_running_loop()
        self._done: deque[tuple[Delivery, float]] = deque()
        self._is_loop_told = False
        self._interrupted: list[bool] = []  # replaced when it is filled: each run looks at its own

    def interrupt(self) -> None:
        """End all runs under way after the call that each is in; more can follow. On the loop."""
        interrupted, self._interrupted = self._interrupted, []
        interrupted.append(True)

    def run(self) -> Unfinished | None:
        """Call the listener until no message waits, a call fails, or a hook wants to be told.

        For any thread. What comes after a failure is left to other runs.

        Raises:
            KeyboardInterrupt, SystemExit: the listener raised it to end the program.
        """
        # Looked up once: the loop below is all that a message costs here.
        take, listener, now_ms = self._ready.pop, self._listener, self._clock.now_ms
        time_s, done, hooks = self._time_s, self._done, self._watch.told
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
            except ENDING:
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
                    self._loop.call_soon_threadsafe(self.acknowledge)
                except RuntimeError:  # the loop has ended, and nobody is left to hear of it
                    return None
        return None

    async def run_on_loop(self) -> Unfinished | None:
        """Do as `run` does with a listener that is a coroutine function.

        Lets others have the loop after some messages, if the listener never waits.
        """
        # No coroutine but the listener's own for each message: they would cost as much as it.
        take, listener, now_ms = self._ready.pop, self._listener, self._clock.now_ms
        time_s, done, hooks = self._time_s, self._done, self._watch.told
        interrupted = self._interrupted
        is_done = self._returned.is_done
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
            except ENDING:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is
                return Unfinished(delivery, time_s() - began_s, error)
            done.append((delivery, time_s() - began_s))
            if not self._is_loop_told:
                self._is_loop_told = True
                self._loop.call_soon(self.acknowledge)
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)
        return None

    def acknowledge(self) -> None:
        """Acknowledge what was done since the last time. On the loop only."""
        self._is_loop_told = False
        if not self._done:
            return
        ended: list[Delivery] = []
        calls: defaultdict[str, list[float]] = defaultdict(list)
        while self._done:
            delivery, elapsed_s = self._done.popleft()
            ended.append(delivery)
            calls[delivery.message.topic].append(elapsed_s)
        self._acknowledgements.acknowledge_all(ended)
        for topic, elapsed in calls.items():
            count = len(elapsed)
            self._watch.count(topic, count, sum(elapsed) * 1000, is_ok=True, calls=count)
