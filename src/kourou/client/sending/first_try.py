"""Fast path of sends: the first try of a plain message, by callbacks instead of a task.

Nearly all messages are stored by their first try, with a cached route and an open connection. Such
a try is one object, without a coroutine, a task or a timer: it is both the entry in the
connection's table of pending requests and the future that the caller awaits.

The general path (`sender`) handles all other cases: messages to be compressed or batched, hooks, a
missing route or connection, and retries, which continue there with the error of the first try.
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
from kourou.client.sending.in_flight import InFlightCounter
from kourou.client.sending.queue_choice import QueueChoice
from kourou.client.sending.send_plans import BrokerTarget, SendPlans, property_json
from kourou.client.sending.send_stats import SendStats
from kourou.errors import KourouError, RequestTimeoutError, TransportError
from kourou.model.message import Message
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.remoting.connection import Connection
from kourou.remoting.pending import PendingRequest

_PROPERTIES_PLAIN_MAX: Final = SENT_PROPERTIES_SIZE_MAX // 4
"""Number of characters of properties that always fit, since a character has at most 4 bytes."""

ContinueSend = Callable[["FirstTry", BaseException | None], Coroutine[Any, Any, SendReceipt]]
"""Continues a send after the first try. The argument is the error of that try, or None if the
request was not sent or the server answered GO_AWAY, which asks for another connection."""

_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)


class FirstTry(PendingRequest[SendReceipt]):
    """Future of the receipt of one message in flight.

    Cancelling it stops the send; the message may be stored nevertheless.

    Attributes:
        tries: the producer's object for first tries.
        counter: counts the message as in flight until the send has ended.
        message: the message, sent with the unique id `msg_id` to `queue`.
        timeout_ms: for all tries, beginning at `began_s` (seconds of the loop's clock).
        choice: the queue or selector given by the caller.
    """

    __slots__ = (
        "_context",
        "_task",
        "address",
        "began_s",
        "choice",
        "connection",
        "counter",
        "message",
        "msg_id",
        "queue",
        "timeout_ms",
        "tries",
    )

    address: str

    def __init__(
        self,
        tries: FirstTries,
        message: Message,
        msg_id: str,
        timeout_ms: int,
        choice: QueueChoice,
        counter: InFlightCounter,
    ) -> None:
        super().__init__(loop=tries.loop)
        self.tries = tries
        self.counter = counter
        self._task: asyncio.Task[SendReceipt] | None = None
        # Later tries call a selector in the context (contextvars) of the caller of `send`.
        self._context = None if choice is None or not callable(choice) else copy_context()
        self.code = _CODE
        self.message = message
        self.msg_id = msg_id
        self.timeout_ms = timeout_ms
        self.choice = choice
        self.began_s = tries.now_s()
        self.queue: MessageQueue | None = None
        self.connection: Connection | None = None

    def cancel(self, msg: object = None) -> bool:
        if not super().cancel(msg):
            return False
        if self._task is not None:
            self._task.cancel(msg)
        elif self.connection is not None:
            self.abandon()
            self.tries.stats.on_cancelled(1)
            self.counter.release(len(self.message.body))
        return True

    def on_answer(self, answer: RemotingCommand) -> None:
        """Handle an answer that the fast path `stored_answers` has left."""
        assert self.queue is not None
        try:
            [receipt] = receipts(answer, (self.msg_id,), self.queue)
        except KourouError as error:
            self._on_refused(answer, error)
            return
        now_s = self.tries.now_s()
        self.tries.stats.on_stored(1, now_s - self.began_s, now_s)
        self.set_result(receipt)
        self.counter.release(len(self.message.body))

    def _on_refused(self, answer: RemotingCommand, error: KourouError) -> None:
        if answer.code != ResponseCode.GO_AWAY:
            self.fall_back(error)
            return
        # The request was not served. It is sent once more on another connection, like all requests;
        # the general path sees by `connection` that this has happened once.
        if self.connection is not None:
            self.tries.pool.retire(self.address, self.connection)
        self.fall_back(None)

    def on_failure(self, error: TransportError) -> None:
        if self.done():
            return  # cancelled by the failure callback of another try on the connection
        if isinstance(error, RequestTimeoutError) and self.connection is not None:
            self.connection.abort_if_silent(self.began_s)
        self.fall_back(error)

    def fall_back(self, error: BaseException | None) -> None:
        """Continue in the general path."""
        task = asyncio.create_task(self.tries.continue_send(self, error), context=self._context)
        self._task = task
        self.tries.fallbacks.add(task)
        task.add_done_callback(self._on_fallback_done)

    def _on_fallback_done(self, task: asyncio.Task[SendReceipt]) -> None:
        # Counted here, because a task that is cancelled at once never runs.
        stats, now_s = self.tries.stats, self.tries.now_s()
        self.tries.fallbacks.discard(task)
        if task.cancelled():
            stats.on_cancelled(1)
            super().cancel()
        elif (error := task.exception()) is not None:
            stats.on_failed(1, now_s)
            if not self.done():  # done: cancelled, although the task did not end by that
                self.set_exception(error)
        else:
            stats.on_stored(1, now_s - self.began_s, now_s)
            if not self.done():
                self.set_result(task.result())
        self.counter.release(len(self.message.body))


class FirstTries:
    """Starts the first tries of one producer.

    Args:
        instance: provides routes, connections and the clock.
        plans: cached data of each topic: queues, addresses and frame templates.
        ids: source of unique message ids.
        continue_send: continues a send in the general path.
        stats: counts sends.
        config: has the timeouts.
        bytes_end: bodies of at least this size take the general path; see `plain_bytes_end`.

    Attributes:
        fallbacks: the tasks of sends that continue in the general path.
        now_s: the loop's clock.
    """

    def __init__(
        self,
        instance: ClientInstance,
        plans: SendPlans,
        ids: UniqueIdGenerator,
        continue_send: ContinueSend,
        stats: SendStats,
        config: ProducerConfig,
        bytes_end: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self.pool = instance.pool
        self.continue_send = continue_send
        self.stats = stats
        self.fallbacks: set[asyncio.Task[SendReceipt]] = set()
        self._plans = plans
        self._ids = ids
        self._now_ms = instance.runtime.clock.now_ms
        self._timeout_ms = config.send_timeout_ms
        self._attempt_timeout_ms = config.attempt_timeout_ms
        self._bytes_end = bytes_end

    def begin(
        self,
        message: Message,
        timeout_ms: int | None,
        choice: QueueChoice,
        counter: InFlightCounter,
    ) -> FirstTry | None:
        """Start to send a message; return None, without any effect, if it needs the general path.

        Args:
            message: not checked yet; an invalid message is left to the general path.
            timeout_ms: as in `Producer.send`.
            choice: as in `Producer.send`.
            counter: counts the message already; `release` is called when the send has ended.
        """
        if timeout_ms is None:
            timeout_ms = self._timeout_ms
        if not (0 < len(message.body) < self._bytes_end and 0 < timeout_ms <= TIMEOUT_MS_MAX):
            return None
        plan = self._plans.get(message)
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
        attempt = FirstTry(self, message, msg_id, timeout_ms, choice, counter)
        self.stats.in_flight += 1
        try:
            queue = attempt.queue = plan.round_robin.choose_first(plan.route, choice, message)
            target = plan.targets.get(queue.broker_name) or self._plans.target(
                plan, message.topic, queue.broker_name
            )
        except Exception as error:  # noqa: BLE001 - also one of a selector: the caller gets it
            attempt.fall_back(error)
            return attempt
        if target is None or not self._send(attempt, target, now_ms, properties):
            attempt.fall_back(None)
        return attempt

    def _send(
        self, attempt: FirstTry, target: BrokerTarget, now_ms: int, properties: bytes
    ) -> bool:
        """Send the frame; return False, without any effect, if that is not possible now."""
        connection = self.pool.existing(target.address)
        if connection is None:
            return False
        limit_ms = attempt.timeout_ms
        if self._attempt_timeout_ms is not None and self._attempt_timeout_ms < limit_ms:
            limit_ms = self._attempt_timeout_ms
        attempt.timeout_s = limit_ms / 1000
        if not connection.register_pending(attempt, attempt.began_s + attempt.timeout_s):
            return False
        message = attempt.message
        try:
            frame = target.frames.frame(
                attempt.queue.queue_id,  # type: ignore[union-attr]
                now_ms,
                message.flag,
                properties,
                attempt.opaque,
                message.body,
            )
        except TypeError:  # the id of the caller's queue is not a number
            frame = None
        if frame is None:
            attempt.abandon()
            return False
        attempt.address, attempt.connection = target.address, connection
        connection.send_frames(frame)
        return True


def plain_bytes_end(config: ProducerConfig, *, is_binary: bool, has_hooks: bool) -> int:
    """Return the body size from which on messages take the general path; 0 if all do.

    Args:
        config: the producer's config.
        is_binary: request headers use the binary encoding.
        has_hooks: there are hooks for sends or requests.
    """
    if is_binary or has_hooks or config.linger_ms or config.latency_fault_tolerance:
        return 0
    end = config.max_message_size_bytes + 1
    compressed_from = config.compress_body_over_bytes
    return end if compressed_from is None else min(end, compressed_from)
