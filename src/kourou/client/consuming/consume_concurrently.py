"""Delivers messages to a listener, many at a time and in any order.

    the listener    then
    returns         the message is done
    raises          it is given back to its broker, which delivers it again later, or when and
                    if at all `redelivery` says;
                    and after `max_reconsume_times` puts it into the dead-letter topic;
                    if the broker does not take it, a copy goes to the retry topic on another;
                    if none takes it, it is delivered again from memory

Source: ConsumeMessageConcurrentlyService.java.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from kourou.client.consuming.acknowledgements import Acknowledgements
from kourou.client.consuming.consume_hooks import ConsumeContext
from kourou.client.consuming.consume_watch import ConsumeWatch
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.delivery import Delivery, ReadyMessages
from kourou.client.consuming.giving_back import GivingBack
from kourou.client.consuming.listener_runs import (
    ENDING,
    THREAD_PATIENCE_S,
    TURN_MESSAGES,
    ListenerRuns,
    Unfinished,
)
from kourou.client.consuming.redelivery import is_instruction, redelivery_of
from kourou.client.consuming.returned_values import ReturnedValues, check_listener
from kourou.client.consuming.workers import Workers
from kourou.clock import Clock
from kourou.model.message import MessageExt
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

Listener = Callable[[MessageExt], Awaitable[object] | object]
"""Consumes one message: returning acknowledges it, raising has it delivered again."""

BatchListener = Callable[[list[MessageExt]], Awaitable[object] | object]
"""Consumes messages of one queue: returning acknowledges all, raising has all delivered again."""

_CANCELLATION_S: Final = 1.0
"""What a listener may take to clean up after it was cancelled."""

_CUT_SHORT: Final[BaseException | None] = asyncio.CancelledError()
"""What a call ended with that neither returned nor raised something of its listener's."""


class ListenerCall:
    """Calls a listener, and notes how it went.

    Args:
        listener: takes one message, or with `is_batch` a list of them.
        is_batch: what `listener` takes.
        run_blocking: runs a plain function off the event loop; a coroutine function runs on it.
        watch: told of each call.

    Raises:
        UsageError: the listener is a generator function, which would do nothing.
    """

    def __init__(
        self,
        listener: Listener | BatchListener,
        *,
        is_batch: bool,
        run_blocking: Offload,
        watch: ConsumeWatch,
    ) -> None:
        check_listener(listener)
        self.is_batch = is_batch
        self.is_coroutine = is_coroutine_function(listener)
        self.listener: Callable[[Any], Any] = listener
        self.run_blocking = run_blocking
        self.watch = watch
        self.returned = ReturnedValues()

    async def __call__(self, messages: Sequence[MessageExt]) -> ConsumeContext:
        """Call the listener with messages of one queue, and return how it ended."""
        began = self.watch.begin(messages)
        try:
            error = await self._call(list(messages) if self.is_batch else messages[0])
        except asyncio.CancelledError as cut_short:
            self.watch.end(began, cut_short)
            raise
        self.watch.end(began, error)
        return began[0]

    async def finish(self, unfinished: Unfinished) -> BaseException | None:
        """Deal with what ended a run: await it, or say why it failed; return the error."""
        message = unfinished.delivery.message
        time_s = asyncio.get_running_loop().time
        began_s, error = time_s() - unfinished.elapsed_s, _CUT_SHORT
        try:
            error = await self._outcome(message, unfinished)
        finally:
            elapsed_ms = (time_s() - began_s) * 1000
            self.watch.count(message.topic, 1, elapsed_ms, is_ok=error is None)
        return error

    async def _outcome(self, message: MessageExt, unfinished: Unfinished) -> BaseException | None:
        if unfinished.error is not None:
            return self._failed(message, unfinished.error)
        try:
            if unfinished.outcome is not None:
                self.returned.is_done(await unfinished.outcome)
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is
            return self._failed(message, error)
        return None

    async def _call(self, argument: MessageExt | list[MessageExt]) -> BaseException | None:
        """Return what the listener raised; None if it returned."""
        try:
            if self.is_coroutine:
                self.returned.is_done(await self.listener(argument))
                return None
            outcome, error = await self.run_blocking(self._call_plain, argument)
            if error is None and not self.returned.is_done(outcome):
                self.returned.is_done(await cast(Awaitable[object], outcome))
        except ENDING:
            raise
        except BaseException as raised:  # noqa: BLE001  # whatever it is
            return self._failed(_first(argument), raised)
        return None if error is None else self._failed(_first(argument), error)

    def _call_plain(
        self, argument: MessageExt | list[MessageExt]
    ) -> tuple[object, BaseException | None]:
        """Return what the listener returned and what it raised; for any thread.

        Returned, as no future takes a StopIteration: who waits for it would wait for ever.
        """
        try:
            return self.listener(argument), None
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is
            return None, error

    def _failed(self, message: MessageExt, error: BaseException) -> BaseException:
        """Log why the listener failed, and return it.

        Raises:
            CancelledError: it did not: its caller is cancelled.
        """
        if isinstance(error, asyncio.CancelledError):
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise error
            # The listener's own, of something that it awaited: a failure like any other.
            log.warning("listener.cancelled msg_id=%s", message.msg_id)
            return error
        if is_instruction(error):
            log.debug("listener.gave_back msg_id=%s how=%r", message.msg_id, error)
            return error
        log.error(
            "listener.failed topic=%s msg_id=%s reconsume_times=%d",
            message.topic,
            message.msg_id,
            message.reconsume_times,
            exc_info=error,
        )
        return error


class ConcurrentConsumption:
    """The workers that call a listener.

    Args:
        call: calls the listener, with one message or batch at a time by each worker.
        config: number of workers, size of batches, timeouts.
        clock: says since when a listener has a message.
        ready: where the messages come from.
        acknowledgements: told what is done.
        giving_back: told what is not.
    """

    def __init__(
        self,
        call: ListenerCall,
        config: PushConsumerConfig,
        *,
        clock: Clock,
        ready: ReadyMessages,
        acknowledgements: Acknowledgements,
        giving_back: GivingBack,
    ) -> None:
        self._call = call
        self._config = config
        self._batch_max = config.consume_batch_size if call.is_batch else 1
        self._clock = clock
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._giving_back = giving_back
        self._runs: ListenerRuns | None = None
        work = self._work if call.is_batch else self._work_in_runs
        self._workers = Workers(work, "listener")

    def start(self) -> None:
        """Begin to call the listener."""
        call = self._call
        if not call.is_batch:
            if not call.is_coroutine:
                self._ready.patience_s = THREAD_PATIENCE_S
            loop_time_s = asyncio.get_running_loop().time
            self._runs = ListenerRuns(
                call.listener,
                clock=self._clock,
                ready=self._ready,
                watch=call.watch,
                acknowledgements=self._acknowledgements,
                returned=call.returned,
                time_s=loop_time_s if call.is_coroutine else time.perf_counter,
            )
        self._workers.resize(self._config.consume_threads)

    def resize(self, count: int) -> None:
        """Call the listener so many times at once from now on; no call is cut short."""
        if self._workers.resize(count) and self._runs is not None:
            self._runs.interrupt()

    async def close(self) -> None:
        """Let the calls under way end, at most for `shutdown_timeout_ms`; `ready` is closed.

        What has not ended by then is cancelled, or left to its thread, and not acknowledged. A
        listener may close its own consumer: its own call is not waited for. One that catches its
        cancellation and goes on is left behind after a second.
        """
        workers = self._workers.others()
        if not workers:
            return
        try:
            _, late = await asyncio.wait(workers, timeout=self._config.shutdown_timeout_ms / 1000)
            if late:
                log.warning("listener.abandoned count=%d", len(late))
        finally:
            self.cancel()
        await asyncio.wait(workers, timeout=_CANCELLATION_S)

    def cancel(self) -> None:
        """End all calls now, but the one that asks for it; return without waiting for their end."""
        for worker in self._workers.others():
            worker.cancel()

    async def _wait(self) -> bool:
        """Wait for messages; return False if there will be none, or not for this worker."""
        if not self._workers.is_wanted():
            return False
        self._workers.begin_waiting()
        try:
            return await self._ready.wait()
        finally:
            self._workers.end_waiting()

    async def _work(self) -> None:
        count = 0
        while await self._wait():
            delivery = self._ready.take_now()
            if delivery is not None:
                await self._deliver(delivery)
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)

    async def _work_in_runs(self) -> None:
        """Work as `_work` does, with a listener that is called in runs unless there are hooks."""
        call, runs = self._call, self._runs
        assert runs is not None, "it was started"
        count = 0
        while await self._wait():
            if call.watch.told:
                delivery = self._ready.take_now()
                if delivery is not None:
                    await self._deliver(delivery)
                count += 1
                if count % TURN_MESSAGES == 0:
                    await asyncio.sleep(0)
                continue
            try:
                if call.is_coroutine:
                    unfinished = await runs.run_on_loop()
                else:
                    unfinished = await call.run_blocking(runs.run)
            finally:
                runs.acknowledge()
            if unfinished is not None:
                await self._finish(unfinished)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._deliver_with_others(delivery)
        except Exception:
            # A worker must outlive its worst message; that one holds back the commit.
            log.exception("delivery.broken msg_id=%s", delivery.message.msg_id)

    async def _finish(self, unfinished: Unfinished) -> None:
        try:
            await self._end(unfinished.delivery, await self._call.finish(unfinished))
        except Exception:
            log.exception("delivery.broken msg_id=%s", unfinished.delivery.message.msg_id)

    async def _deliver_with_others(self, first: Delivery) -> None:
        deliveries = [first, *self._ready.take_more(first.process_queue, self._batch_max - 1)]
        now_ms = self._clock.now_ms()
        for delivery in deliveries:
            delivery.process_queue.start(delivery.message, now_ms)
        outcome = await self._call([delivery.message for delivery in deliveries])
        for delivery in deliveries:
            await self._end(delivery, outcome.error)

    async def _end(self, delivery: Delivery, error: BaseException | None) -> None:
        """Acknowledge what the listener returned from, and give back what it failed with."""
        how = None if error is None else redelivery_of(error, delivery.message)
        if how is None:
            self._acknowledgements.acknowledge(delivery)
        else:
            await self._giving_back.give_back(delivery, how)


def _first(argument: MessageExt | list[MessageExt]) -> MessageExt:
    return argument[0] if isinstance(argument, list) else argument


def is_coroutine_function(listener: Callable[..., Any]) -> bool:
    """Return whether calling the listener makes a coroutine: also for objects with `__call__`."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004  # not whether: which one
    )
