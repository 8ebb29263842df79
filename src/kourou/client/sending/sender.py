"""Sender: sends a message or batch to a broker, with retries until a deadline (general path)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from typing import Final

from kourou.client.calls_send import (
    Outgoing,
    encode_message,
    send_command,
    send_message,
    traced_region,
    with_compressed_body,
)
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, try_until
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.first_try import FirstTries, FirstTry, plain_bytes_end
from kourou.client.sending.latency_fault import BrokerLatencies
from kourou.client.sending.queue_choice import QueueChoice, RoundRobins, check_queue
from kourou.client.sending.send_hooks import SendAttempt, SendHooks, SendOutcome
from kourou.client.sending.send_plans import SendPlans, vip_address
from kourou.client.sending.send_stats import SendStats
from kourou.errors import ClosedError, ConnectionLostError, KourouError, RequestTimeoutError
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import compress
from kourou.remoting.runtime import Offload

_OFFLOAD_BYTES: Final = 256 * 1024
"""Larger bodies, which take zlib some milliseconds, are compressed off the event loop."""


class _Tries:
    """State shared by the tries of one message or batch.

    It is an object with slots, because closures over a dozen variables would cost more.
    """

    __slots__ = (
        "choice",
        "deadline",
        "failed_broker",
        "is_retry",
        "last",
        "number",
        "outgoing",
        "sender",
        "target",
    )

    def __init__(
        self, sender: Sender, outgoing: Outgoing, deadline: Deadline, choice: QueueChoice
    ) -> None:
        self.sender = sender
        self.outgoing = outgoing
        self.deadline = deadline
        self.choice = choice
        self.failed_broker: str | None = None
        self.target: MessageQueue | None = None  # of the next try, if already chosen
        self.is_retry = False  # the server has answered an earlier try with GO_AWAY
        self.last: KourouError | None = None
        self.number = 0

    def attempt(self) -> Awaitable[list[SendReceipt]]:
        return self.sender.attempt(self)

    def on_failure(self, error: KourouError) -> None:
        self.sender.on_failure(self, error)


class Sender:
    """Sends the messages of one producer. Created in a running event loop, at the producer's start.

    Attributes:
        stats: counts all sends except one-way sends.
        begin: the fast path, see `FirstTries.begin`. Its future has the same result or exception as
            `send`.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ProducerConfig,
        hooks: SendHooks,
        ids: UniqueIdGenerator,
        *,
        resends: bool = True,
    ) -> None:
        """Create the sender; `resends`: also after a try that may have stored the message."""
        self._instance = instance
        self._resends = resends
        self._group = group
        self._config = config
        self._hooks = hooks
        self._round_robins = RoundRobins(instance.runtime.random, config.routes_max)
        has_latencies = config.latency_fault_tolerance
        self._latencies = BrokerLatencies(instance, config) if has_latencies else None
        self._now_s = asyncio.get_running_loop().time
        self._has_observers = bool(hooks) or has_latencies
        self.stats = SendStats(self._now_s())
        plans = SendPlans(instance, group, config, self._round_robins)
        bytes_end = plain_bytes_end(
            config,
            is_binary=instance.pool.is_binary,
            has_hooks=bool(hooks) or bool(instance.pool.hooks),
        )
        self._first_tries = FirstTries(
            instance, plans, ids, self._continue_send, self.stats, config, bytes_end
        )
        self.begin = self._first_tries.begin
        if self._latencies is not None:
            self._latencies.start()

    async def send(
        self, outgoing: Outgoing, timeout_ms: int | None, choice: QueueChoice
    ) -> list[SendReceipt]:
        """Send a message or batch, and return a receipt for each message.

        Raises:
            KourouError: as `Producer.send`. Exceptions of a selector are not caught.
        """
        began_s = self._now_s()
        self.stats.on_begun(len(outgoing.msg_ids))
        return await self._count_outcome(
            self._send(outgoing, timeout_ms, choice), outgoing, began_s
        )

    @property
    def fallbacks(self) -> Collection[asyncio.Task[SendReceipt]]:
        """The tasks of sends that `begin` has started and that continue in the general path."""
        return self._first_tries.fallbacks

    async def _send(
        self, outgoing: Outgoing, timeout_ms: int | None, choice: QueueChoice
    ) -> list[SendReceipt]:
        deadline = self._deadline(timeout_ms)
        outgoing = await _compressed(outgoing, self._config, self._instance.runtime.offload)
        return await self._deliver(_Tries(self, outgoing, deadline, choice))

    async def _continue_send(self, first: FirstTry, failed: BaseException | None) -> SendReceipt:
        """Complete a send of the fast path: retry after the error `failed`, else try first."""
        outgoing = encode_message(first.message, first.msg_id)
        deadline = Deadline(first.timeout_ms, first.began_s)
        tries = _Tries(self, outgoing, deadline, first.choice)
        if failed is None:
            tries.target = first.queue
            tries.is_retry = first.connection is not None
        else:
            tries.number = 1
            tries.failed_broker = None if first.queue is None else first.queue.broker_name
        return (await self._deliver(tries, failed))[0]

    async def _count_outcome(
        self, sending: Awaitable[list[SendReceipt]], outgoing: Outgoing, began_s: float
    ) -> list[SendReceipt]:
        """Return the result of `sending`, and count the outcome."""
        count = len(outgoing.msg_ids)
        try:
            receipts = await sending
        except asyncio.CancelledError:
            self.stats.on_cancelled(count)
            raise
        except BaseException:
            self.stats.on_failed(count, self._now_s())
            raise
        now_s = self._now_s()
        self.stats.on_stored(count, now_s - began_s, now_s)
        return receipts

    async def send_oneway(
        self, outgoing: Outgoing, timeout_ms: int | None, choice: QueueChoice
    ) -> None:
        """Queue the message on a connection, in a single try; it is not counted.

        Raises:
            KourouError: as `Producer.send_oneway`.
        """
        deadline = self._deadline(timeout_ms)
        outgoing = await _compressed(outgoing, self._config, self._instance.runtime.offload)
        target = await self.choose(outgoing, choice, deadline)
        address = await self._instance.routes.address(
            target.topic, target.broker_name, deadline.remaining_s()
        )
        if self._config.vip_channel:
            address = vip_address(address)
        attempt = self._call_hooks_before(outgoing, target, address, 1, is_oneway=True)
        began_s = self._now_s()
        error: BaseException | None = None
        try:
            command = self._command(outgoing, target, is_oneway=True)
            await self._instance.pool.oneway(address, command, deadline.remaining_s())
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._call_hooks_after(attempt, began_s, (), error)

    async def choose(
        self,
        outgoing: Outgoing,
        choice: QueueChoice,
        deadline: Deadline,
        failed_broker: str | None = None,
    ) -> MessageQueue:
        """Return the queue for the next try.

        Raises:
            UsageError: a selector returned a queue of another topic.
            KourouError: there is no route, or it has no writable queue.
        """
        if isinstance(choice, MessageQueue):
            return choice
        topic = outgoing.topic
        route = await self._instance.routes.get(topic, deadline.remaining_s())
        round_robin = self._round_robins.get(topic)
        if choice is not None:
            queue = choice(round_robin.queues(route), outgoing.messages[0])
            check_queue(topic, queue)
            return queue
        if self._latencies is None:
            return round_robin.choose(route, failed_broker)
        if failed_broker is not None:
            round_robin.restart(self._instance.runtime.random.getrandbits(16))
        return round_robin.choose(route, failed_broker, self._latencies.preferences())

    async def _deliver(
        self, tries: _Tries, failed: BaseException | None = None
    ) -> list[SendReceipt]:
        """Try until a broker has stored the message; each try chooses the next queue.

        After a failure a queue of another broker is chosen, if there is one. `failed` is the error
        of the first try, if that was made by the fast path.
        """
        retry_codes = self._config.retry_response_codes
        if tries.outgoing.is_reply:
            retry_codes -= {ResponseCode.SYSTEM_ERROR}  # the requester is not connected
        try:
            return await try_until(
                tries.deadline,
                self._instance.backoff,
                tries.attempt,
                tries.on_failure,
                refused_max=self._config.refused_attempts_max,
                retry_codes=retry_codes,
                failed=failed,
            )
        except ClosedError:
            if tries.last is not None:
                raise tries.last from None  # a try was made before the close: it may be stored
            raise
        except KourouError as error:
            # For the next send: the last try may have waited for a master that was replaced.
            if not self._instance.is_closed:
                self._instance.routes.on_failure(tries.outgoing.topic, error)
            raise

    async def attempt(self, tries: _Tries) -> list[SendReceipt]:
        """Make one try."""
        tries.number += 1
        if tries.number > 1:
            self.stats.on_retried()
        outgoing, deadline = tries.outgoing, tries.deadline
        target, tries.target = tries.target, None
        if target is None:
            target = await self.choose(outgoing, tries.choice, deadline, tries.failed_broker)
        tries.failed_broker = target.broker_name
        address = await self._instance.routes.address(
            target.topic, target.broker_name, deadline.remaining_s()
        )
        if self._config.vip_channel:
            address = vip_address(address)
        is_retry, tries.is_retry = tries.is_retry, False
        return await self._try(outgoing, target, address, tries.number, deadline, is_retry=is_retry)

    def on_failure(self, tries: _Tries, error: KourouError) -> None:
        """Prepare the next try."""
        tries.last = error
        if self._instance.is_closed:
            raise error  # no try can succeed any more
        if not self._resends and isinstance(error, (ConnectionLostError, RequestTimeoutError)):
            raise error
        self._instance.routes.on_failure(tries.outgoing.topic, error)

    def _try(
        self,
        outgoing: Outgoing,
        target: MessageQueue,
        address: str,
        number: int,
        deadline: Deadline,
        *,
        is_retry: bool,
    ) -> Awaitable[list[SendReceipt]]:
        attempt = self._call_hooks_before(outgoing, target, address, number)
        answers: list[RemotingCommand] | None = None if attempt is None else []
        sending = send_message(
            self._instance.pool,
            address,
            self._command(outgoing, target),
            outgoing,
            target,
            timeout_s=deadline.within_s(self._config.attempt_timeout_ms),
            is_retry=is_retry,
            answers=answers,
        )
        if not self._has_observers:
            return sending
        return self._observe(sending, target, attempt, answers)

    async def _observe(
        self,
        sending: Awaitable[list[SendReceipt]],
        target: MessageQueue,
        attempt: SendAttempt | None,
        answers: Sequence[RemotingCommand] | None,
    ) -> list[SendReceipt]:
        """Return the result of one try; report it to the hooks and the latency table."""
        began_s = self._now_s()
        receipts: list[SendReceipt] = []
        error: BaseException | None = None
        try:
            receipts = await sending
        except BaseException as failure:
            error = failure
            raise
        finally:
            if self._latencies is not None:
                elapsed_ms = (self._now_s() - began_s) * 1000
                self._latencies.record(target.broker_name, elapsed_ms, error)
            self._call_hooks_after(attempt, began_s, receipts, error, answers)
        return receipts

    def _call_hooks_before(
        self,
        outgoing: Outgoing,
        target: MessageQueue,
        address: str,
        number: int,
        *,
        is_oneway: bool = False,
    ) -> SendAttempt | None:
        """Call the hooks before a try; return their argument, None if there are no hooks."""
        if not self._hooks:
            return None
        attempt = SendAttempt(
            self._group,
            outgoing.messages,
            outgoing.msg_ids,
            target,
            address,
            number,
            is_oneway,
            outgoing.properties,
            len(outgoing.body),
        )
        self._hooks.check(attempt)
        self._hooks.before(attempt)
        return attempt

    def _call_hooks_after(
        self,
        attempt: SendAttempt | None,
        began_s: float,
        receipts: Sequence[SendReceipt],
        error: BaseException | None,
        answers: Sequence[RemotingCommand] | None = None,
    ) -> None:
        if attempt is not None:
            elapsed_ms = (self._now_s() - began_s) * 1000
            region = traced_region(answers[-1]) if answers else None
            self._hooks.after(attempt, SendOutcome(elapsed_ms, receipts, error, region))

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline(self._config.send_timeout_ms if timeout_ms is None else timeout_ms)

    def _command(
        self, outgoing: Outgoing, queue: MessageQueue, *, is_oneway: bool = False
    ) -> RemotingCommand:
        return send_command(
            outgoing,
            queue,
            self._group,
            now_ms=self._instance.runtime.clock.now_ms(),
            default_queue_nums=self._config.default_topic_queue_nums,
            oneway=is_oneway,
        )


async def _compressed(outgoing: Outgoing, config: ProducerConfig, offload: Offload) -> Outgoing:
    """Return the message compressed if the config asks for it and the result is smaller."""
    threshold = config.compress_body_over_bytes
    if threshold is None or len(outgoing.body) < threshold or outgoing.is_batch:
        return outgoing
    kind, level = config.compress_type, config.compress_level
    if len(outgoing.body) <= _OFFLOAD_BYTES:
        body = compress(outgoing.body, level, kind)
    else:
        body = await offload(compress, outgoing.body, level, kind)
    return with_compressed_body(outgoing, body, kind)
