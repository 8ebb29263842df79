"""Sender: gets one message or batch to a broker, trying again until it has it or the time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from kourou.client.calls_consume import max_offset
from kourou.client.calls_send import (
    Outgoing,
    send_command,
    send_message,
    with_compressed_body,
)
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, try_until
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.latency_fault import LatencyFaults
from kourou.client.sending.queue_choice import QueueSelector, RoundRobin
from kourou.client.sending.send_hooks import SendAttempt, SendHooks, SendOutcome
from kourou.client.sending.send_stats import SendStats
from kourou.errors import ClosedError, KourouError, RemoteError, TransportError, UsageError
from kourou.model.queue import MessageQueue
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import compress
from kourou.remoting.network import format_address, parse_address

Where = MessageQueue | QueueSelector | None
"""A queue, what chooses one, or None for the next in turn."""

_OFFLOAD_COMPRESSION_BYTES: Final = 256 * 1024
"""Bodies above this, some milliseconds of zlib, are compressed off the event loop."""

_DETECTOR_PERIOD_MS: Final = 3_000

_VIP_PORT_DISTANCE: Final = 2


class Sender:
    """Sends for one producer. Made inside a running loop, when the instance is started.

    Attributes:
        stats: of all that was sent.
    """

    def __init__(
        self, instance: ClientInstance, group: str, config: ProducerConfig, hooks: SendHooks
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._hooks = hooks
        self._turns: dict[str, RoundRobin] = {}
        self._faults = LatencyFaults() if config.latency_fault_tolerance else None
        self._now_s = asyncio.get_running_loop().time
        self._is_watched = bool(hooks) or config.latency_fault_tolerance
        self.stats = SendStats(self._now_s())
        if self._faults is not None:
            faults = self._faults
            instance.tasks.start_periodic(
                lambda: self._detect(faults), _DETECTOR_PERIOD_MS, "detector of slow brokers"
            )

    async def send(
        self, outgoing: Outgoing, timeout_ms: int | None, where: Where
    ) -> list[SendReceipt]:
        """Return a receipt for each message.

        Raises:
            KourouError: as `Producer.send`; a selector's own exceptions pass.
        """
        count = len(outgoing.msg_ids)
        began_s = self._now_s()
        self.stats.on_begun(count)
        try:
            deadline = self._deadline(timeout_ms)
            if self._is_compressible(outgoing):
                outgoing = await self._compress(outgoing)
            receipts = await self._deliver(outgoing, deadline, where)
        except asyncio.CancelledError:
            self.stats.on_cancelled(count)
            raise
        except BaseException:
            self.stats.on_failed(count, self._now_s())
            raise
        now_s = self._now_s()
        self.stats.on_stored(count, now_s - began_s, now_s)
        return receipts

    async def send_oneway(self, outgoing: Outgoing, timeout_ms: int | None, where: Where) -> None:
        """Return when the message is queued on a connection; tried once, and not counted.

        Raises:
            KourouError: as `Producer.send_oneway`.
        """
        deadline = self._deadline(timeout_ms)
        if self._is_compressible(outgoing):
            outgoing = await self._compress(outgoing)
        target = await self.choose(outgoing, where, deadline)
        address = await self._instance.routes.address(
            target.topic, target.broker_name, deadline.remaining_s()
        )
        if self._config.vip_channel:
            address = vip_address(address)
        attempt = self._begin(outgoing, target, address, 1, is_oneway=True)
        began_s = self._now_s()
        error: BaseException | None = None
        try:
            command = self._command(outgoing, target, is_oneway=True)
            await self._instance.pool.oneway(address, command, deadline.remaining_s())
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._end(attempt, began_s, (), error)

    async def choose(
        self,
        outgoing: Outgoing,
        where: Where,
        deadline: Deadline,
        failed_broker: str | None = None,
    ) -> MessageQueue:
        """Return the queue for the next try.

        Raises:
            UsageError: a selector returned a queue of another topic.
            KourouError: there is no route, or it has no queue.
        """
        if isinstance(where, MessageQueue):
            return where
        topic = outgoing.topic
        route = await self._instance.routes.get(topic, deadline.remaining_s())
        turn = self._turn(topic)
        if where is not None:
            queue = where(turn.queues(route), outgoing.messages[0])
            check_queue(topic, queue)
            return queue
        if self._faults is None:
            return turn.choose(route, failed_broker)
        if failed_broker is not None:
            turn.restart(self._instance.runtime.random.getrandbits(16))
        now_ms = self._instance.runtime.clock.now_ms()
        return turn.choose(route, failed_broker, self._faults.preferences(now_ms))

    async def _deliver(
        self, outgoing: Outgoing, deadline: Deadline, where: Where
    ) -> list[SendReceipt]:
        """Try until the broker has it; each try takes the next queue, on another broker if any."""
        tries = _Tries(self, outgoing, deadline, where)
        try:
            return await try_until(
                deadline,
                self._instance.backoff,
                tries.attempt,
                tries.on_failure,
                refused_max=self._config.refused_attempts_max,
                retry_codes=self._config.retry_response_codes,
            )
        except ClosedError:
            if tries.last is not None:
                raise tries.last from None  # it was tried before the close, and may be stored
            raise

    async def attempt(self, tries: _Tries) -> list[SendReceipt]:
        """Try once."""
        tries.number += 1
        if tries.number > 1:
            self.stats.on_retried()
        outgoing, deadline = tries.outgoing, tries.deadline
        target = await self.choose(outgoing, tries.where, deadline, tries.failed_broker)
        tries.failed_broker = target.broker_name
        address = await self._instance.routes.address(
            target.topic, target.broker_name, deadline.remaining_s()
        )
        if self._config.vip_channel:
            address = vip_address(address)
        return await self._try(outgoing, target, address, tries.number, deadline)

    def on_failure(self, tries: _Tries, error: KourouError) -> None:
        """Prepare another try."""
        tries.last = error
        if self._instance.is_closed:
            raise error  # nothing can be sent any more: no use to wait
        if error.refresh_route:
            self._instance.routes.refresh_soon(tries.outgoing.topic)

    def _try(
        self,
        outgoing: Outgoing,
        target: MessageQueue,
        address: str,
        number: int,
        deadline: Deadline,
    ) -> Awaitable[list[SendReceipt]]:
        sending = send_message(
            self._instance.pool,
            address,
            self._command(outgoing, target),
            outgoing,
            target,
            timeout_s=deadline.within_s(self._config.attempt_timeout_ms),
        )
        if not self._is_watched:
            return sending
        return self._watch(sending, outgoing, target, address, number)

    async def _watch(
        self,
        sending: Awaitable[list[SendReceipt]],
        outgoing: Outgoing,
        target: MessageQueue,
        address: str,
        number: int,
    ) -> list[SendReceipt]:
        """Return what one try returns, and tell hooks and latency table of it."""
        attempt = self._begin(outgoing, target, address, number)
        began_s = self._now_s()
        receipts: list[SendReceipt] = []
        error: BaseException | None = None
        try:
            receipts = await sending
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._note_latency(target.broker_name, began_s, error)
            self._end(attempt, began_s, receipts, error)
        return receipts

    def _begin(
        self,
        outgoing: Outgoing,
        target: MessageQueue,
        address: str,
        number: int,
        *,
        is_oneway: bool = False,
    ) -> SendAttempt | None:
        """Call the hooks; return what they saw, None if there are none."""
        if not self._hooks:
            return None
        attempt = SendAttempt(
            self._group, outgoing.messages, outgoing.msg_ids, target, address, number, is_oneway
        )
        self._hooks.before(attempt)
        return attempt

    def _end(
        self,
        attempt: SendAttempt | None,
        began_s: float,
        receipts: Sequence[SendReceipt],
        error: BaseException | None,
    ) -> None:
        if attempt is not None:
            elapsed_ms = (self._now_s() - began_s) * 1000
            self._hooks.after(attempt, SendOutcome(elapsed_ms, receipts, error))

    def _note_latency(self, broker_name: str, began_s: float, error: BaseException | None) -> None:
        if self._faults is None:
            return
        now_ms = self._instance.runtime.clock.now_ms()
        if isinstance(error, RemoteError):
            self._faults.on_failed(broker_name, now_ms, is_reachable=False)
        elif isinstance(error, TransportError):
            is_reachable = not self._config.latency_detector
            self._faults.on_failed(broker_name, now_ms, is_reachable=is_reachable)
        else:
            elapsed_ms = (self._now_s() - began_s) * 1000
            self._faults.on_answered(broker_name, elapsed_ms, now_ms)

    async def _detect(self, faults: LatencyFaults) -> None:
        """Forget brokers that are gone, and probe those that did not answer."""
        masters = self._instance.routes.masters()
        faults.retain(masters.keys())
        if not self._config.latency_detector:
            return
        now_ms = self._instance.runtime.clock.now_ms()
        timeout_s = self._config.detect_timeout_ms / 1000
        for name in faults.take_probes(now_ms, self._config.detect_interval_ms):
            topic, address = masters[name]
            try:
                await max_offset(
                    self._instance.pool, address, MessageQueue(topic, name, 0), timeout_s=timeout_s
                )
            except (RemoteError, TransportError):
                continue
            faults.on_probed(name)

    def _is_compressible(self, outgoing: Outgoing) -> bool:
        threshold = self._config.compress_body_over_bytes
        return threshold is not None and len(outgoing.body) >= threshold and not outgoing.is_batch

    async def _compress(self, outgoing: Outgoing) -> Outgoing:
        kind, level = self._config.compress_type, self._config.compress_level
        if len(outgoing.body) <= _OFFLOAD_COMPRESSION_BYTES:
            compressed = compress(outgoing.body, level, kind)
        else:
            offload = self._instance.runtime.offload
            compressed = await offload(compress, outgoing.body, level, kind)
        return with_compressed_body(outgoing, compressed, kind)

    def _turn(self, topic: str) -> RoundRobin:
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= self._config.routes_max:
                self._turns.clear()
            turn = RoundRobin(topic, self._instance.runtime.random.getrandbits(16))
            self._turns[topic] = turn
        return turn

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


class _Tries:
    """The tries of one message or batch: an object, as closures would be a dozen for each."""

    __slots__ = ("deadline", "failed_broker", "last", "number", "outgoing", "sender", "where")

    def __init__(
        self, sender: Sender, outgoing: Outgoing, deadline: Deadline, where: Where
    ) -> None:
        self.sender = sender
        self.outgoing = outgoing
        self.deadline = deadline
        self.where = where
        self.failed_broker: str | None = None
        self.last: KourouError | None = None
        self.number = 0

    def attempt(self) -> Awaitable[list[SendReceipt]]:
        return self.sender.attempt(self)

    def on_failure(self, error: KourouError) -> None:
        self.sender.on_failure(self, error)


def check_queue(topic: str, queue: MessageQueue) -> None:
    """Refuse a queue of another topic.

    Raises:
        UsageError: it is one.
    """
    if queue.topic != topic:
        raise UsageError(f"a message to {topic} cannot go to a queue of {queue.topic}")


def vip_address(address: str) -> str:
    """Return the address of a broker's second port, which serves all but pulls.

    Source: MixAll.brokerVIPChannel.
    """
    host, port = parse_address(address)
    return format_address((host, port - _VIP_PORT_DISTANCE))
