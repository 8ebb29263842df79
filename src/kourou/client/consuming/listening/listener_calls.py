"""Calls of a listener and their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from kourou.client.consuming.acknowledging.redelivery import is_instruction
from kourou.client.consuming.listening.listener_runs import ListenerRuns, ReturnedValues, Unfinished
from kourou.client.consuming.pulling.delivery import Delivery
from kourou.client.consuming.watching.consume_hooks import ConsumeContext, ConsumeWatch
from kourou.client.user_functions import PROGRAM_ENDS, ends_caller, is_coroutine_function
from kourou.clock import Clock
from kourou.model.message import MessageExt
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

Listener = Callable[[MessageExt], Awaitable[object] | object]
"""Consumes one message: returning acknowledges it, raising has it redelivered."""

BatchListener = Callable[[list[MessageExt]], Awaitable[object] | object]
"""Consumes messages of one queue: returning acknowledges all, raising has all redelivered."""

_CANCELLED: Final[BaseException | None] = asyncio.CancelledError()
"""Outcome of a call that was cancelled before the listener returned or raised."""


class ListenerCall:
    """Calls a listener, and reports each call.

    Args:
        listener: takes one message or, with `is_batch`, a list of messages.
        is_batch: the listener takes lists.
        run_blocking: runs a plain function off the event loop; a coroutine function runs on it.
        watch: reports each call to hooks and statistics.
        returned: checks the listener's return values; None: a new one.
    """

    def __init__(
        self,
        listener: Listener | BatchListener,
        *,
        is_batch: bool,
        run_blocking: Offload,
        watch: ConsumeWatch,
        returned: ReturnedValues | None = None,
    ) -> None:
        self.is_batch = is_batch
        self.is_coroutine = is_coroutine_function(listener)
        self.listener: Callable[[Any], Any] = listener
        self.run_blocking = run_blocking
        self.watch = watch
        self.returned = returned or ReturnedValues()

    async def __call__(self, messages: Sequence[MessageExt]) -> ConsumeContext:
        """Call the listener with messages of one queue, and return the outcome."""
        began = self.watch.begin(messages)
        try:
            error = await self._call(list(messages) if self.is_batch else messages[0])
        except asyncio.CancelledError as cut_short:
            self.watch.end(began, cut_short)
            raise
        self.watch.end(began, error)
        return began[0]

    def in_runs(
        self,
        take: Callable[[], Delivery],
        on_done: Callable[[list[Delivery]], None],
        clock: Clock,
    ) -> ListenerRuns:
        """Return runs of the listener, which must not take batches; see `ListenerRuns`."""
        return ListenerRuns(
            self.listener,
            run_blocking=None if self.is_coroutine else self.run_blocking,
            take=take,
            on_done=on_done,
            clock=clock,
            watch=self.watch,
            returned=self.returned,
        )

    async def finish(self, unfinished: Unfinished) -> BaseException | None:
        """Finish the call that ended a run: await its result or log its error; return the error."""
        message = unfinished.delivery.message
        time_s = asyncio.get_running_loop().time
        began_s, error = time_s() - unfinished.elapsed_s, _CANCELLED
        try:
            error = await self._outcome(message, unfinished)
        finally:
            elapsed_ms = (time_s() - began_s) * 1000
            self.watch.count(message.topic, 1, elapsed_ms, is_ok=error is None)
        return error

    async def _outcome(self, message: MessageExt, unfinished: Unfinished) -> BaseException | None:
        if unfinished.error is not None:
            return self._failed(message, unfinished.error)
        me = asyncio.current_task()
        try:
            if unfinished.outcome is not None:
                self.returned.is_done(await unfinished.outcome)
        except BaseException as error:
            if ends_caller(error, me):
                raise
            return self._failed(message, error)
        return None

    async def _call(self, argument: MessageExt | list[MessageExt]) -> BaseException | None:
        """Call the listener; return the exception that it raised, or None."""
        me = asyncio.current_task()
        try:
            if self.is_coroutine:
                self.returned.is_done(await self.listener(argument))
                return None
            outcome, error = await self.run_blocking(self._call_plain, argument)
            if error is None and not self.returned.is_done(outcome):
                self.returned.is_done(await cast(Awaitable[object], outcome))
        except BaseException as raised:
            if ends_caller(raised, me):
                raise
            return self._failed(_first(argument), raised)
        return None if error is None else self._failed(_first(argument), error)

    def _call_plain(
        self, argument: MessageExt | list[MessageExt]
    ) -> tuple[object, BaseException | None]:
        """Call the listener; return its result and its exception. Runs on any thread.

        The exception is returned because a future cannot hold StopIteration: its waiter would wait
        forever.
        """
        try:
            return self.listener(argument), None
        except PROGRAM_ENDS:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is
            return None, error

    def _failed(self, message: MessageExt, error: BaseException) -> BaseException:
        """Log the listener's error, and return it.

        Raises:
            CancelledError: the calling task is being cancelled, so it is not the listener's error.
        """
        if isinstance(error, asyncio.CancelledError):
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise error
            # Raised by something that the listener awaited: a failure like any other.
            log.warning("listener.cancelled msg_id=%s", message.msg_id, exc_info=error)
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


def _first(argument: MessageExt | list[MessageExt]) -> MessageExt:
    return argument[0] if isinstance(argument, list) else argument
