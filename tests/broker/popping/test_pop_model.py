"""A broker that is popped, killed, and whose clock is set, against a small model of its messages.

No message is lost; none comes back that was acknowledged in time, or before its invisible time is
over; and each is visible at most a second after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kourou.model.topic import TopicConfig
from kourou.protocol.popping.receipt_handles import decode_receipt_handle
from kourou.protocol.popping.topic_names import NOT_RETRY, retry_topic_v1
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import VirtualTimeLoop
from kourou.testing.simulated_broker import SimulatedBroker
from tests.broker.popping.pop_rig import GROUP, TOPIC, Got, PopRig, batch_of, changed_handle

T = TypeVar("T")

QUEUES = 2
POP_MAX = 32
ACK_MARGIN_MS = 20
"""An ack this close to the end of the invisible time may come too late."""
LATE_MS = 1_000
START_MS = 2_000
"""Time after a start within which messages may be visible later."""
INVISIBLE_MS = st.sampled_from((1, 700, 1_500, 4_000, 20_000))


@dataclass(slots=True)
class Message:
    """A message, as producer and consumer know it.

    Attributes:
        handle, offset, topic: of its last delivery; the handle is empty before the first.
        visible_ms: when it is visible again, by the broker's clock; 0 before the first delivery.
        is_acked: it was acknowledged in time.
        is_maybe_acked: an ack came late, or its outcome is unknown.
        is_unclear: the outcome of a change is unknown: another handle may be the valid one.
        hidden_until_ms: latest end of an invisible time that the consumer may not know.
    """

    handle: str = ""
    offset: int = 0
    topic: str = TOPIC
    visible_ms: int = 0
    is_acked: bool = False
    is_maybe_acked: bool = False
    is_unclear: bool = False
    hidden_until_ms: int = 0


class PopMachine(RuleBasedStateMachine):
    """One broker after the other on the same disk."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.messages: dict[bytes, Message] = {}
        self.latest: Got | None = None
        self.highest_ms = 0
        self.runner: asyncio.Runner | None = None
        self.start(0)

    # Lives of the broker

    def start(self, later_ms: int) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.run_now(self.open(later_ms))
        self.started_ms = self.now_ms()

    async def open(self, later_ms: int) -> None:
        self.broker = broker = SimulatedBroker(self.disk, later_ms=later_ms)
        broker.topics.ensure(TopicConfig(TOPIC, QUEUES, QUEUES))
        await broker.start_deliveries()
        await broker.topics.persist()
        self.rig = PopRig(broker)

    def run_now(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the present broker."""
        assert self.runner is not None
        result = self.runner.run(main)
        loop = cast(VirtualTimeLoop, self.runner.get_loop())
        assert not loop.unhandled, loop.unhandled
        return result

    def now_ms(self) -> int:
        async def now() -> int:
            return self.broker.clock.now_ms()

        now_ms = self.run_now(now())
        self.highest_ms = max(self.highest_ms, now_ms)
        return now_ms

    def end(self, *, is_killed: bool) -> int:
        """Stop or kill the broker; return the time in ms since `EPOCH_MS`."""
        ended_ms = self.now_ms() - EPOCH_MS
        if is_killed:
            self.run_now(self.abandon())
        else:
            self.run_now(self.broker.stop())
        assert self.runner is not None
        self.runner.close()
        self.runner = None
        return ended_ms

    async def abandon(self) -> None:
        self.broker.abandon()

    @rule(
        is_killed=st.booleans(),
        is_power_cut=st.booleans(),
        gap_ms=st.sampled_from((-500, 0, 3_000)),
    )
    def restart(self, *, is_killed: bool, is_power_cut: bool, gap_ms: int) -> None:
        ended_ms = self.end(is_killed=is_killed)
        if is_killed and is_power_cut:
            self.disk.crash()
        self.start(ended_ms + gap_ms)

    @rule(ms=st.sampled_from((1, 300, 1_000, 2_500, 6_000)))
    def wait(self, ms: int) -> None:
        self.run_now(asyncio.sleep(ms / 1000))

    @rule(ms=st.sampled_from((-4_000, 4_000)))
    def set_clock(self, ms: int) -> None:
        self.now_ms()
        cast(LoopClock, self.broker.clock).step(ms)
        self.started_ms = self.now_ms()

    @rule()
    def flush_timers(self) -> None:
        self.run_now(self.broker.timers.storage.flush())

    @rule()
    def save_tables(self) -> None:
        self.run_now(self.broker.tables.persist())

    # Producer and consumer

    @rule(count=st.integers(1, 3), queue_id=st.integers(0, QUEUES - 1))
    def send(self, count: int, queue_id: int) -> None:
        bodies = [b"%d" % (len(self.messages) + number) for number in range(count)]
        self.run_now(self.rig.put(*bodies, queue_id=queue_id))
        self.messages.update((body, Message()) for body in bodies)

    @rule(invisible_ms=INVISIBLE_MS, count=st.sampled_from((1, 2, POP_MAX)))
    def pop(self, invisible_ms: int, count: int) -> None:
        self.take(self.run_now(self.rig.pop(invisible_time=invisible_ms, max_msg_nums=count)))

    def take(self, got: Got) -> None:
        """Check and note the messages of an answer."""
        now_ms = self.now_ms()
        for body, (offset, handle) in zip(got.bodies, got.handles, strict=True):
            message = self.messages[body]
            assert not message.is_acked, f"{body!r} was acknowledged"
            assert message.is_unclear or message.visible_ms <= self.highest_ms, f"{body!r} is early"
            decoded = decode_receipt_handle(handle)
            topic = TOPIC if decoded.kind == NOT_RETRY else retry_topic_v1(GROUP, TOPIC)
            self.messages[body] = Message(handle, offset, topic, decoded.revive_at_ms)
        if got.bodies:
            self.latest = got
        elif self.started_ms + START_MS < now_ms:
            late = [body for body in self.messages if self.is_late(body, now_ms)]
            assert not late, f"{late} should be visible"

    def is_late(self, body: bytes, now_ms: int) -> bool:
        """Return whether a pop that returned nothing should have returned this message."""
        message = self.messages[body]
        if message.is_acked or message.is_maybe_acked:
            return False
        hidden_ms = max(message.visible_ms, message.hidden_until_ms)
        return hidden_ms == 0 or hidden_ms + LATE_MS < now_ms

    def is_in_time(self, message: Message) -> bool:
        self.now_ms()
        return self.highest_ms < message.visible_ms - ACK_MARGIN_MS and not message.is_unclear

    def drawn(self, data: Any) -> Message:
        bodies = [body for body, message in self.messages.items() if message.handle]
        return self.messages[data.draw(st.sampled_from(bodies[-6:]))]

    @precondition(lambda self: self.latest is not None)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        message = self.drawn(data)
        is_in_time = self.is_in_time(message)
        ack = self.rig.ack(message.handle, message.offset, topic=message.topic)
        assert self.run_now(ack).code == 0
        message.is_acked |= is_in_time
        message.is_maybe_acked = True

    @precondition(lambda self: self.latest is not None)
    @rule(bits=st.integers(1, 7))
    def ack_batch(self, bits: int) -> None:
        """Acknowledge messages of one queue of the last pop."""
        assert self.latest is not None
        first = decode_receipt_handle(self.latest.handles[0][1])
        acked = []
        for body, (offset, handle) in zip(self.latest.bodies, self.latest.handles, strict=True):
            decoded, message = decode_receipt_handle(handle), self.messages[body]
            is_of_queue = (decoded.kind, decoded.queue_id) == (first.kind, first.queue_id)
            if is_of_queue and bits >> offset - first.start_offset & 1:
                acked.append((message, self.is_in_time(message) and message.handle == handle))
        batch = batch_of(self.latest, bits, queue_id=first.queue_id)
        assert self.run_now(self.rig.batch_ack(batch)).code == 0
        for message, is_in_time in acked:
            message.is_acked |= is_in_time
            message.is_maybe_acked = True

    @precondition(lambda self: self.latest is not None)
    @rule(data=st.data(), invisible_ms=INVISIBLE_MS)
    def change(self, data: Any, invisible_ms: int) -> None:
        message = self.drawn(data)
        if message.is_acked or message.is_maybe_acked or not self.is_in_time(message):
            return
        answer = self.run_now(self.change_of(message, invisible_ms))
        assert answer.code == 0
        message.handle = changed_handle(message.handle, message.offset, answer)
        message.visible_ms = decode_receipt_handle(message.handle).revive_at_ms

    def change_of(self, message: Message, invisible_ms: int) -> Coroutine[Any, Any, Any]:
        return self.rig.change(message.handle, message.offset, invisible_ms, topic=message.topic)

    # Kills during a request

    @precondition(lambda self: self.messages)
    @rule(
        data=st.data(),
        kind=st.sampled_from(("pop", "ack", "change", "wait")),
        operations=st.integers(0, 12),
        invisible_ms=INVISIBLE_MS,
    )
    def kill(self, data: Any, kind: str, operations: int, invisible_ms: int) -> None:
        """Kill the broker after some disk operations of a request whose outcome stays unknown."""
        now_ms = self.now_ms()
        request: Coroutine[Any, Any, Any] = asyncio.sleep(invisible_ms / 1000)
        if kind == "pop":
            request.close()
            request = self.rig.pop(invisible_time=invisible_ms)
            for message in self.messages.values():
                message.hidden_until_ms = max(
                    message.hidden_until_ms, now_ms + invisible_ms + LATE_MS
                )
        elif kind != "wait" and self.latest is not None:
            request.close()
            message = self.drawn(data)
            if kind == "ack":
                request = self.rig.ack(message.handle, message.offset, topic=message.topic)
                message.is_maybe_acked = True
            else:
                request = self.change_of(message, invisible_ms)
                message.is_unclear = True
                message.hidden_until_ms = now_ms + invisible_ms + LATE_MS
        self.run_now(self.until_killed(request, operations))
        self.start(self.end(is_killed=True))

    async def until_killed(self, request: Coroutine[Any, Any, Any], operations: int) -> None:
        """Run a request until it is done, or the disk has done some operations."""
        left, dead = operations, asyncio.Event()

        def on_operation(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                dead.set()

        self.disk.on_operation = on_operation
        tasks = [asyncio.ensure_future(one) for one in (request, dead.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.disk.on_operation = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def teardown(self) -> None:
        """Consume everything that is left: nothing is lost, or in flight for ever."""
        if self.runner is None:
            return
        cast(LoopClock, self.broker.clock).step(self.highest_ms - self.now_ms())
        for _ in range(3):
            self.wait(30_000)
            while (got := self.run_now(self.rig.pop())).bodies:
                self.take(got)
                for body in got.bodies:
                    message = self.messages[body]
                    ack = self.rig.ack(message.handle, message.offset, topic=message.topic)
                    assert self.run_now(ack).code == 0
                    message.is_acked = True
        lost = [
            body for body, one in self.messages.items() if not one.is_acked | one.is_maybe_acked
        ]
        assert not lost
        popping = self.broker.components.popping
        assert popping.in_flight.message_count == 0
        self.wait(30_000)
        assert sum(loop.lag for loop in popping.revives.loops) == 0
        self.end(is_killed=False)


TestPops = PopMachine.TestCase
TestPops.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
