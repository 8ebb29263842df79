"""The first try of a plain message, driven by callbacks: no task, no coroutine, no timer.

Nearly all messages are stored by their first try, on a route that is known and a connection that
is open. Such a try is one object: an entry in the connection's table of pending requests, and the
future that the caller awaits. Everything else is the ordinary way's (`sender`): a message that
must be compressed or waits for others, hooks, a route or connection that is not there yet, and
what follows after a failure, which goes on there with the error of the first try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final

from kourou.client.calls_send import receipts
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import TIMEOUT_MS_MAX
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.in_flight import Places
from kourou.client.sending.queue_choice import Where
from kourou.client.sending.send_frames import property_json
from kourou.client.sending.send_plans import SendPlans, Way
from kourou.client.sending.send_stats import SendStats
from kourou.errors import KourouError, RequestTimeoutError, TransportError
from kourou.model.message import Message
from kourou.model.msgid import UniqueIds
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.remoting.connection import Connection
from kourou.remoting.pending import Waiter
from kourou.remoting.pool import abort_if_silent

_PROPERTIES_PLAIN_MAX: Final = SENT_PROPERTIES_SIZE_MAX // 4
"""Characters of properties that are not counted as bytes: none has more than four."""

GoOn = Callable[["FirstTry", BaseException | None], Coroutine[Any, Any, SendReceipt]]
"""Goes on after a first try: with its error; or without, where the server asked to be asked again
on another connection."""

_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)


class FirstTry(Waiter[SendReceipt]):
    """One message under way; a future of its receipt.

    Cancelling it gives the message up, which may be stored all the same.

    Attributes:
        tries: the producer's.
        places: where the message has its place until it has ended.
        message: what is sent, with the id `msg_id`, to `queue`.
        timeout_ms: for all tries, from `began_s` on, a time of the loop's clock.
        where: what the caller said of the queue.
    """

    __slots__ = (
        "_context",
        "_task",
        "address",
        "began_s",
        "connection",
        "message",
        "msg_id",
        "places",
        "queue",
        "timeout_ms",
        "tries",
        "where",
    )

    address: str

    def __init__(
        self,
        tries: FirstTries,
        message: Message,
        msg_id: str,
        timeout_ms: int,
        where: Where,
        places: Places,
    ) -> None:
        super().__init__(loop=tries.loop)
        self.tries = tries
        self.places = places
        self._task: asyncio.Task[SendReceipt] | None = None
        # A selector sees in later tries what it would see if its caller called it.
        self._context = None if where is None or not callable(where) else copy_context()
        self.code = _CODE
        self.message = message
        self.msg_id = msg_id
        self.timeout_ms = timeout_ms
        self.where = where
        self.began_s = tries.now_s()
        self.queue: MessageQueue | None = None
        self.connection: Connection | None = None

    def cancel(self, msg: object = None) -> bool:
        if not super().cancel(msg):
            return False
        if self._task is not None:
            self._task.cancel(msg)
        elif self.connection is not None:
            self.leave()
            self.tries.stats.on_cancelled(1)
            self.places.release(len(self.message.body))
        return True

    def on_answer(self, answer: RemotingCommand) -> None:
        """Called with an answer that `stored_answers` did not take."""
        assert self.queue is not None
        try:
            [receipt] = receipts(answer, (self.msg_id,), self.queue)
        except KourouError as error:
            self._on_refused(answer, error)
            return
        now_s = self.tries.now_s()
        self.tries.stats.on_stored(1, now_s - self.began_s, now_s)
        self.set_result(receipt)
        self.places.release(len(self.message.body))

    def _on_refused(self, answer: RemotingCommand, error: KourouError) -> None:
        if answer.code != ResponseCode.GO_AWAY:
            self.hand_over(error)
            return
        # It was not served, and is asked once more on another connection, as any request is:
        # `connection` tells who goes on that this was the first time.
        if self.connection is not None:
            self.tries.pool.leave(self.address, self.connection)
        self.hand_over(None)

    def on_failure(self, error: TransportError) -> None:
        if self.done():
            return  # cancelled by what another of the same connection was told before
        if isinstance(error, RequestTimeoutError) and self.connection is not None:
            abort_if_silent(self.connection, self.began_s)
        self.hand_over(error)

    def hand_over(self, error: BaseException | None) -> None:
        """Go on in the ordinary way."""
        task = asyncio.create_task(self.tries.go_on(self, error), context=self._context)
        self._task = task
        self.tries.handed_over.add(task)
        task.add_done_callback(self._on_gone_on)

    def _on_gone_on(self, task: asyncio.Task[SendReceipt]) -> None:
        # Counted here and not by the task, which never began if it was cancelled at once.
        stats, now_s = self.tries.stats, self.tries.now_s()
        self.tries.handed_over.discard(task)
        if task.cancelled():
            stats.on_cancelled(1)
            super().cancel()
        elif (error := task.exception()) is not None:
            stats.on_failed(1, now_s)
            if not self.done():  # cancelled, while the task did not heed it
                self.set_exception(error)
        else:
            stats.on_stored(1, now_s - self.began_s, now_s)
            if not self.done():
                self.set_result(task.result())
        self.places.release(len(self.message.body))


class FirstTries:
    """Begins first tries for one producer.

    Args:
        instance: whose routes, connections and clock to use.
        plans: says where a message goes, and how its frame is made.
        ids: makes their unique ids.
        go_on: what follows after a failure.
        stats: counts them.
        config: timeouts.
        bytes_end: the size from which on bodies take the ordinary way; see `plain_bytes_end`.

    Attributes:
        handed_over: what goes on in the ordinary way now.
        now_s: the loop's clock.
    """

    def __init__(
        self,
        instance: ClientInstance,
        plans: SendPlans,
        ids: UniqueIds,
        go_on: GoOn,
        stats: SendStats,
        config: ProducerConfig,
        bytes_end: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self.pool = instance.pool
        self.go_on = go_on
        self.stats = stats
        self.handed_over: set[asyncio.Task[SendReceipt]] = set()
        self._plans = plans
        self._ids = ids
        self._now_ms = instance.runtime.clock.now_ms
        self._timeout_ms = config.send_timeout_ms
        self._attempt_timeout_ms = config.attempt_timeout_ms
        self._bytes_end = bytes_end

    def begin(
        self, message: Message, timeout_ms: int | None, where: Where, places: Places
    ) -> FirstTry | None:
        """Send a message; None, and nothing is done, if it is one for the ordinary way.

        Args:
            message: not checked yet: one that is refused is for the ordinary way.
            timeout_ms: as `Producer.send` takes it.
            where: likewise.
            places: has a place for the message, which is given back when it has ended.
        """
        if timeout_ms is None:
            timeout_ms = self._timeout_ms
        if not (0 < len(message.body) < self._bytes_end and 0 < timeout_ms <= TIMEOUT_MS_MAX):
            return None
        plan = self._plans.of(message)
        if plan is None:
            return None
        now_ms = self._now_ms()
        msg_id = self._ids.next(now_ms)
        text = message.property_text(msg_id)
        if len(text) > _PROPERTIES_PLAIN_MAX:
            return None
        try:
            properties = property_json(text)
        except UnicodeEncodeError:
            return None
        attempt = FirstTry(self, message, msg_id, timeout_ms, where, places)
        self.stats.in_flight += 1
        try:
            queue = attempt.queue = plan.turn.place(plan.route, where, message)
            way = plan.ways.get(queue.broker_name) or self._plans.way(
                plan, message.topic, queue.broker_name
            )
        except Exception as error:  # noqa: BLE001 - a selector's own too: the caller gets it
            attempt.hand_over(error)
            return attempt
        if way is None or not self._send(attempt, way, now_ms, properties):
            attempt.hand_over(None)
        return attempt

    def _send(self, attempt: FirstTry, way: Way, now_ms: int, properties: bytes) -> bool:
        """Let the frame leave; False, and nothing is done, if it cannot now."""
        connection = self.pool.at_hand(way.address)
        if connection is None:
            return False
        limit_ms = attempt.timeout_ms
        if self._attempt_timeout_ms is not None and self._attempt_timeout_ms < limit_ms:
            limit_ms = self._attempt_timeout_ms
        attempt.timeout_s = limit_ms / 1000
        if not connection.expect(attempt, attempt.began_s + attempt.timeout_s):
            return False
        message = attempt.message
        try:
            frame = way.frames.frame(
                attempt.queue.queue_id,  # type: ignore[union-attr]
                now_ms,
                message.flag,
                properties,
                attempt.opaque,
                message.body,
            )
        except TypeError:  # the caller's queue has a number that is none
            frame = None
        if frame is None:
            attempt.leave()
            return False
        attempt.address, attempt.connection = way.address, connection
        connection.send_frames(frame)
        return True


def plain_bytes_end(config: ProducerConfig, *, is_binary: bool, is_watched: bool) -> int:
    """Return the size from which on bodies take the ordinary way; 0 for all of them.

    Args:
        config: the producer's.
        is_binary: requests are written in the binary form.
        is_watched: there are hooks to tell of each try.
    """
    if is_binary or is_watched or config.linger_ms or config.latency_fault_tolerance:
        return 0
    end = config.max_message_size_bytes + 1
    compressed_from = config.compress_body_over_bytes
    return end if compressed_from is None else min(end, compressed_from)
