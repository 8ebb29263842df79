"""After any crash no message is lost, and none that was acknowledged comes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kourou.broker.popping.pop_config import PopConfig
from kourou.protocol.command import RemotingCommand
from kourou.protocol.popping.receipt_handles import decode_receipt_handle
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.store.tools.check import check_store
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, Got, PopRig, changed_handle
from tests.broker.timer.timer_rig import send_at

Step = tuple[str, int]
DAY_MS = 24 * 3_600_000
SLACK_MS = 20
"""Acks this close to the end of the invisible time may come too late."""


class PowerLostError(Exception):
    """Raised by the disk at the power cut."""


@dataclass
class Delivery:
    """The last delivery of a message: its receipt handle, and until when it is invisible."""

    handle: str
    offset: int
    topic: str
    until_ms: int


@dataclass
class History:
    """Messages as producer and consumer know them.

    Attributes:
        sent: bodies whose send was acknowledged.
        acked: bodies whose ack was answered with success in time.
        last: body -> its last delivery.
        uncertain: bodies with a change of unknown outcome.
        doubled: those that were delivered since. Such a change may have stored a checkpoint beside
            the former one, and the message then comes back by both.
        maybe_acked: those with an ack of unknown outcome, or one that came late.
    """

    sent: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    last: dict[bytes, Delivery] = field(default_factory=dict)
    uncertain: set[bytes] = field(default_factory=set)
    doubled: set[bytes] = field(default_factory=set)
    maybe_acked: set[bytes] = field(default_factory=set)
    count: int = 0

    def delivered(self, got: Got, now_ms: int) -> None:
        """Check and note the messages of an answer."""
        for number, (message, (offset, handle)) in enumerate(
            zip(got.messages, got.handles, strict=True)
        ):
            body = got.bodies[number]
            before = self.last.get(body)
            if body in self.uncertain:
                self.uncertain.discard(body)
                self.doubled.add(body)
            elif body not in self.doubled:
                assert body not in self.acked, f"{body!r} was acknowledged"
                is_visible = before is None or now_ms >= before.until_ms
                assert is_visible, f"{body!r} was invisible until then"
            self.maybe_acked.discard(body)
            is_retry = "POP_CK" in message.properties
            decoded = decode_receipt_handle(handle)
            self.last[body] = Delivery(
                handle,
                offset,
                retry_topic_v1(GROUP, TOPIC) if is_retry else TOPIC,
                decoded.revive_at_ms,
            )


class Consumer:
    """A producer and consumer of one broker, until it is killed."""

    def __init__(self, broker: SimulatedBroker, history: History) -> None:
        self.rig = PopRig(broker)
        self.broker = broker
        self.history = history

    async def step(self, kind: str, number: int) -> None:
        """Run one step of a scenario."""
        history = self.history
        if kind == "send":
            bodies = []
            for _ in range(1 + number % 5):
                bodies.append(b"%d" % history.count)
                history.count += 1
            await self.rig.put(*bodies, queue_id=number % 3)
            history.sent.update(bodies)
        elif kind == "pop":
            await self.pop((1, 800, 3_000, 30_000)[number % 4], 1 + number)
        elif history.last and kind in ("ack", "change"):
            body = sorted(history.last)[number % len(history.last)]
            await (self.ack(body) if kind == "ack" else self.change(body, 2_000))
        elif kind == "wait":
            await asyncio.sleep(number / 4)

    async def act(self, steps: list[Step]) -> None:
        """Run the steps of a scenario."""
        for kind, number in steps:
            await self.step(kind, number)
            if number % 7 == 0:
                await self.broker.tables.persist()

    async def pop(self, invisible_ms: int, count: int = 32) -> Got:
        """Pop messages."""
        got = await self.rig.pop(invisible_time=invisible_ms, max_msg_nums=count)
        self.history.delivered(got, self.broker.clock.now_ms())
        return got

    def _is_in_time(self, delivery: Delivery) -> bool:
        return self.broker.clock.now_ms() < delivery.until_ms - SLACK_MS

    async def ack(self, body: bytes) -> None:
        """Acknowledge the last delivery of a message."""
        delivery = self.history.last[body]
        # After a change of unknown outcome, another handle may be the valid one.
        is_in_time = self._is_in_time(delivery) and body not in self.history.uncertain
        self.history.maybe_acked.add(body)
        answer = await self.rig.ack(delivery.handle, delivery.offset, topic=delivery.topic)
        assert answer.code == 0, answer
        if is_in_time:
            self.history.acked.add(body)

    async def change(self, body: bytes, invisible_ms: int) -> None:
        """Change the invisible time of the last delivery of a message."""
        history, delivery = self.history, self.history.last[body]
        if body in history.acked or not self._is_in_time(delivery):
            return
        history.uncertain.add(body)
        answer: RemotingCommand = await self.rig.change(
            delivery.handle, delivery.offset, invisible_ms, topic=delivery.topic
        )
        assert answer.code == 0, answer
        handle = changed_handle(delivery.handle, delivery.offset, answer)
        until_ms = decode_receipt_handle(handle).revive_at_ms
        history.last[body] = Delivery(handle, delivery.offset, delivery.topic, until_ms)
        history.uncertain.discard(body)

    async def drain(self) -> None:
        """Consume everything that is left."""
        idle = 0
        while idle < 8:
            got = await self.pop(5_000)
            for body in got.bodies:
                await self.ack(body)
            idle = 0 if got.bodies else idle + 1
            await asyncio.sleep(5)


async def start(disk: SimDisk, later_ms: int) -> SimulatedBroker:
    broker = SimulatedBroker(disk, later_ms=later_ms)
    await broker.start_deliveries()
    await broker.topics.persist()
    return broker


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "pop", "pop", "ack", "ack", "change", "wait"]),
        st.integers(0, 20),
    ),
    min_size=3,
    max_size=20,
)
LIVES = st.lists(
    st.tuples(STEPS, st.integers(1, 400), st.booleans(), st.integers(0, 20_000)),
    min_size=1,
    max_size=4,
)


def live(
    disk: SimDisk, history: History, steps: list[Step], operations: int, *, is_kill: bool,
    later_ms: int,
) -> int:  # fmt: skip
    """Run a broker until a given disk operation; return the time at its end."""

    async def main() -> int:
        broker = await start(disk, later_ms)
        consumer = Consumer(broker, history)
        left = operations
        dead = asyncio.Event()

        def on_operation(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                dead.set()
                if not is_kill:
                    raise PowerLostError

        disk.on_operation = on_operation
        acting = asyncio.create_task(consumer.act(steps))
        dying = asyncio.create_task(dead.wait())
        await asyncio.wait([acting, dying], return_when=asyncio.FIRST_COMPLETED)
        is_dead = dead.is_set()
        for task in (acting, dying):
            task.cancel()
        disk.on_operation = None
        ended_ms = broker.clock.now_ms() - EPOCH_MS
        broker.abandon()
        results = await asyncio.gather(acting, dying, return_exceptions=True)
        if isinstance(results[0], AssertionError) and not is_dead:
            raise results[0]
        return ended_ms

    ended_ms = run_virtual(main())
    if not is_kill:
        disk.crash()
    return ended_ms


@settings(max_examples=40, deadline=None)
@given(LIVES)
@example([
    ([("pop", 0), ("send", 0), ("send", 0)], 1, True, 0),
    ([("send", 0), ("send", 0), ("send", 0)], 1, True, 0),
    ([("pop", 1), ("send", 1), ("change", 0)], 8, False, 0),  # it ends with two checkpoints
])  # fmt: skip
def test_no_message_is_lost_or_comes_back_whenever_brokers_are_killed(
    lives: list[tuple[list[Step], int, bool, int]],
) -> None:
    history = History()
    disk = SimDisk(len(lives))
    later_ms = 0
    for steps, operations, is_kill, gap_ms in lives:
        later_ms = gap_ms + live(
            disk, history, steps, operations, is_kill=is_kill, later_ms=later_ms
        )

    async def last() -> None:
        broker = await start(disk, later_ms)
        await Consumer(broker, history).drain()
        await broker.stop()

    run_virtual(last())
    lost = history.sent - history.acked - history.maybe_acked
    assert not lost
    assert not check_store(disk).findings


def kill_and_restart(
    before: object, after: object, *, gap_ms: int = 1_000, is_power_cut: bool = False
) -> None:
    """Run `before` with a broker that is killed, and `after` with one on the same disk."""
    disk = SimDisk()

    async def first() -> int:
        broker = await start(disk, 0)
        await before(broker)  # type: ignore[operator]
        ended_ms = broker.clock.now_ms() - EPOCH_MS
        broker.abandon()
        return ended_ms

    async def second(later_ms: int) -> None:
        broker = await start(disk, later_ms)
        await after(broker)  # type: ignore[operator]
        await broker.stop()

    ended_ms = run_virtual(first())
    if is_power_cut:
        disk.crash()
    run_virtual(second(ended_ms + gap_ms))


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_group_offset_that_was_not_saved_is_found_in_the_log(*, is_power_cut: bool) -> None:
    async def before(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await broker.tables.persist()
        await rig.put(b"a", b"b", b"c")
        got = await rig.pop(max_msg_nums=2, invisible_time=60_000)
        await rig.ack(got.handles[0][1], got.handles[0][0])

    async def after(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        assert (await rig.pop()).bodies == [b"c"]
        await asyncio.sleep(60)
        again = await rig.pop()
        assert b"b" in again.bodies
        assert b"a" not in again.bodies

    kill_and_restart(before, after, is_power_cut=is_power_cut)


def test_handles_from_before_a_kill_acknowledge_and_change() -> None:
    handles: list[tuple[int, str]] = []

    async def before(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c", b"d")
        handles.extend((await rig.pop(invisible_time=20_000)).handles)
        await rig.ack(handles[3][1], handles[3][0])

    async def after(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.ack(handles[0][1], handles[0][0])
        await rig.change(handles[1][1], handles[1][0], 60_000)
        await rig.change(handles[3][1], handles[3][0], 1_000)  # acknowledged: no effect
        await asyncio.sleep(25)
        assert (await rig.pop(invisible_time=600_000)).bodies == [b"c"]
        await asyncio.sleep(45)
        assert (await rig.pop()).bodies == [b"b"]

    kill_and_restart(before, after)


def test_message_is_revived_once_if_the_broker_is_killed_after_its_clock_was_ahead() -> None:
    retry = retry_topic_v1(GROUP, TOPIC)

    async def before(broker: SimulatedBroker) -> None:
        rig, clock = PopRig(broker), cast(LoopClock, broker.clock)
        await asyncio.sleep(0.3)
        clock.step(DAY_MS)
        await send_at(broker, b"ahead", clock.now_ms() + 1_000)
        await asyncio.sleep(3)  # a slot of the timer passes in which nothing is stored
        clock.step(-DAY_MS)
        await rig.pop(invisible_time=2_000)
        await asyncio.sleep(4)
        assert broker.store.reader.max_offset(retry, 0) == 1
        await broker.tables.persist()
        await broker.timers.storage.flush()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert broker.store.reader.max_offset(retry, 0) == 1

    kill_and_restart(before, after)


@pytest.mark.parametrize("gap_ms", [5_000, 100_000])
def test_messages_that_became_visible_while_the_broker_was_down_are_revived_without_the_acked(
    gap_ms: int,
) -> None:
    async def before(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(*(b"%d" % number for number in range(10)))
        got = await rig.pop(invisible_time=4_000)
        for offset, handle in got.handles[::2]:
            await rig.ack(handle, offset)

    async def after(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await asyncio.sleep(2)
        assert (await rig.pop()).bodies == [b"%d" % number for number in range(1, 10, 2)]

    kill_and_restart(before, after, gap_ms=gap_ms)


def test_acknowledged_message_survives_a_power_cut() -> None:
    async def before(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        got = await rig.pop(invisible_time=2_000)
        await rig.ack_all(got)

    async def after(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await asyncio.sleep(10)
        assert (await rig.pop()).bodies == []

    kill_and_restart(before, after, is_power_cut=True)


def test_message_that_was_revived_before_a_clean_stop_is_not_revived_again() -> None:
    config = small_config(pop=PopConfig(revive_queue_num=1))
    retry_topic = retry_topic_v1(GROUP, TOPIC)

    async def revive(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        await rig.pop(invisible_time=5_000)
        await asyncio.sleep(4.2)  # its checkpoint is in the revive queue, and not due
        await broker.tables.persist()
        await rig.put(b"b")
        await rig.pop(invisible_time=1)
        await asyncio.sleep(0.5)
        assert broker.store.reader.max_offset(retry_topic, 0) == 1

    async def wait(broker: SimulatedBroker) -> None:
        await asyncio.sleep(5)
        assert broker.store.reader.max_offset(retry_topic, 0) == 2

    disk = run_with_broker(revive, config=config, is_delivering=True)
    run_with_broker(wait, disk, config=config, is_delivering=True, later_ms=4_800)
