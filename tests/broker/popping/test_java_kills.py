"""Store of a killed Java broker: its pops and revivals are found, and nothing beyond them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.consumer_offsets import FILE_NAME
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.java_checkpoints import unsaved_ms
from kourou.broker.popping.pop_config import PopConfig
from kourou.broker.popping.revive_log import ReviveLog
from kourou.model.group import SubscriptionGroup
from kourou.model.properties import FIRST_POP_TIME, ORIGIN_GROUP, UNIQ_KEY, encode_properties
from kourou.model.topic import TopicConfig
from kourou.protocol.popping.revive_records import (
    AckRecord,
    checkpoint_properties,
    encode_checkpoint,
)
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.store.tools.check import check_store
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig

Step = Callable[[SimulatedBroker], Awaitable[None]]
_OWN = re.compile(rb',?\s*"kourou(LogPositions|Seal)":(\[[0-9,]+\]|\{[^}]*\})')
"""The members of `consumerOffset.json` that Java does not write."""


class JavaPops:
    """Stores checkpoints and acks as Java does, without moving offsets."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._log = ReviveLog(broker.components.context, broker.timers)

    async def pop(
        self, start: int, *offsets: int, invisible_ms: int = 60_000, re_puts: int = 0
    ) -> PopCheckpoint:
        """Store the checkpoint of a pop that read queue 0 from `start`."""
        broker = self._broker
        now_ms = broker.clock.now_ms()
        key = CheckpointKey(TOPIC, GROUP, 0, start, now_ms, broker.config.broker_name)
        checkpoint = PopCheckpoint(key, offsets, invisible_ms, re_puts=re_puts)
        await broker.store_messages([self._log.checkpoint_draft(checkpoint, 0, now_ms)])
        return checkpoint

    async def deliver(self, checkpoint: PopCheckpoint) -> None:
        """Store the checkpoint in the revive topic, as the timer does when it is due."""
        record, broker = checkpoint.record(), self._broker
        now_ms = broker.clock.now_ms()
        draft = replace(
            self._log.checkpoint_draft(checkpoint, 0, now_ms),
            topic=self._log.topic.encode(),
            queue_id=0,
            body=encode_checkpoint(record),
            properties=encode_properties(checkpoint_properties(record)),
        )
        await broker.store_messages([draft])

    async def revive(self, body: bytes, unique_id: str, reconsume_times: int = 1) -> None:
        """Store a message of the topic in the retry topic."""
        broker = self._broker
        properties = {UNIQ_KEY: unique_id, ORIGIN_GROUP: GROUP, FIRST_POP_TIME: "1"}
        topic = retry_topic_v1(GROUP, TOPIC)
        broker.topics.ensure(TopicConfig(topic, 1, 1))
        draft = broker.draft(body, topic=topic, properties=properties)
        await broker.store_messages([replace(draft, reconsume_times=reconsume_times)])

    async def ack(self, checkpoint: PopCheckpoint, offset: int) -> None:
        """Store the ack of a message."""
        key = checkpoint.key
        record = AckRecord(
            key.topic, key.group, key.queue_id, key.start_offset, key.pop_time_ms,
            key.broker_name, offset,
        )  # fmt: skip
        now_ms = self._broker.clock.now_ms()
        draft = self._log.ack_draft(record, 0, checkpoint.revive_at_ms, now_ms)
        await self._broker.store_messages([draft])


def killed(
    before: Step, after: Step, *, config: BrokerConfig | None = None, has_positions: bool = False
) -> None:
    """Run `before` with a broker that is killed, and `after` with one on the same disk.

    `consumerOffset.json` is as `before` has saved it, and as Java writes it unless `has_positions`.
    """
    disk = SimDisk()

    async def start(later_ms: int) -> SimulatedBroker:
        broker = SimulatedBroker(disk, config=config, later_ms=later_ms)
        await broker.start_deliveries()
        broker.groups.put(SubscriptionGroup(GROUP))
        await broker.topics.persist()
        await broker.groups.persist()
        return broker

    async def first() -> int:
        broker = await start(0)
        await before(broker)
        ended_ms = broker.clock.now_ms() - EPOCH_MS
        broker.abandon()
        return ended_ms

    async def second(later_ms: int) -> None:
        broker = await start(later_ms)
        await after(broker)
        await broker.stop()

    ended_ms = run_virtual(first())
    if not has_positions:
        text = disk.read(FILE_NAME, 0, disk.size(FILE_NAME))
        by_java, count = _OWN.subn(b"", text)
        assert count == 2
        disk.truncate(FILE_NAME, 0)
        disk.write(FILE_NAME, 0, [by_java])
    run_virtual(second(ended_ms + 1_000))
    assert not check_store(disk).findings


def buffered_config(*, is_buffered: bool) -> BrokerConfig:
    return small_config(pop=PopConfig(enable_pop_buffer_merge=is_buffered))


async def popped_rest(broker: SimulatedBroker) -> list[bytes]:
    return (await PopRig(broker).pop()).bodies


@pytest.mark.parametrize("has_positions", [False, True])
def test_messages_that_java_popped_since_its_last_save_are_not_popped_again(
    *, has_positions: bool
) -> None:
    async def before(broker: SimulatedBroker) -> None:
        java = JavaPops(broker)
        await PopRig(broker).put(b"a", b"b", b"c", b"d", b"e")
        broker.offsets.commit(GROUP, TOPIC, 0, 1)
        await broker.tables.persist()
        checkpoint = await java.pop(1, 1, 2)
        await java.ack(checkpoint, 1)
        await java.pop(3, 3)

    async def after(broker: SimulatedBroker) -> None:
        assert broker.offsets.query(GROUP, TOPIC, 0) == 4
        assert await popped_rest(broker) == [b"e"]
        await asyncio.sleep(65)
        assert set(await popped_rest(broker)) == {b"c", b"d", b"e"}

    killed(before, after, has_positions=has_positions)


def test_group_that_java_has_not_saved_at_all_gets_an_offset() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await PopRig(broker).put(b"a", b"b", b"c")
        await broker.tables.persist()
        await JavaPops(broker).pop(1, 1)

    async def after(broker: SimulatedBroker) -> None:
        assert await popped_rest(broker) == [b"c"]

    killed(before, after)


@pytest.mark.parametrize("is_buffered", [False, True])
def test_gap_before_a_checkpoint_holds_the_offset_only_if_java_may_have_buffered_others(
    *, is_buffered: bool
) -> None:
    async def before(broker: SimulatedBroker) -> None:
        java = JavaPops(broker)
        await PopRig(broker).put(b"a", b"b", b"c", b"d")
        broker.offsets.commit(GROUP, TOPIC, 0, 0)
        await broker.tables.persist()
        await java.pop(2, 2)
        await java.pop(0, 0)

    async def after(broker: SimulatedBroker) -> None:
        assert broker.offsets.query(GROUP, TOPIC, 0) == (1 if is_buffered else 3)

    killed(before, after, config=buffered_config(is_buffered=is_buffered))


def test_old_checkpoints_do_not_undo_a_reset_that_java_has_saved() -> None:
    async def before(broker: SimulatedBroker) -> None:
        java = JavaPops(broker)
        await PopRig(broker).put(b"a", b"b", b"c")
        await java.pop(0, 0, 1, 2, invisible_ms=600_000)
        broker.offsets.commit(GROUP, TOPIC, 0, 0)
        await broker.tables.persist()
        await asyncio.sleep(unsaved_ms(5_000) / 1_000 + 1)
        await java.pop(0, 0)

    async def after(broker: SimulatedBroker) -> None:
        assert broker.offsets.query(GROUP, TOPIC, 0) == 1

    killed(before, after)


def test_checkpoint_that_replaces_another_moves_no_offset() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await PopRig(broker).put(b"a", b"b", b"c")
        broker.offsets.commit(GROUP, TOPIC, 0, 0)
        await broker.tables.persist()
        await JavaPops(broker).pop(2, 2, re_puts=1)

    async def after(broker: SimulatedBroker) -> None:
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0

    killed(before, after)


def test_checkpoint_of_a_deleted_topic_of_the_same_name_moves_no_offset() -> None:
    async def before(broker: SimulatedBroker) -> None:
        java, rig = JavaPops(broker), PopRig(broker)
        await broker.tables.persist()
        await java.pop(0, 0, 1)
        await rig.put(b"new", b"newer")

    async def after(broker: SimulatedBroker) -> None:
        assert await popped_rest(broker) == [b"new", b"newer"]

    killed(before, after)


def later(broker: SimulatedBroker, *offsets: int, is_suspended: bool = False) -> PopCheckpoint:
    """Return a checkpoint whose messages the broker that is killed does not revive yet."""
    now_ms = broker.clock.now_ms()
    key = CheckpointKey(TOPIC, GROUP, 0, offsets[0], now_ms, broker.config.broker_name)
    return PopCheckpoint(key, offsets, 10_000, is_suspended=is_suspended)


async def put_with_ids(broker: SimulatedBroker, *bodies: bytes) -> None:
    for body in bodies:
        await PopRig(broker).put(body, properties={UNIQ_KEY: f"id-{body.decode()}"})


@pytest.mark.parametrize("has_positions", [False, True])
@pytest.mark.parametrize("is_suspended", [False, True])
def test_message_that_java_revived_since_its_last_save_is_not_revived_again(
    *, is_suspended: bool, has_positions: bool
) -> None:
    async def before(broker: SimulatedBroker) -> None:
        java = JavaPops(broker)
        await put_with_ids(broker, b"a", b"b", b"c")
        broker.offsets.commit(GROUP, TOPIC, 0, 3)
        broker.offsets.commit(GROUP, retry_topic_v1(GROUP, TOPIC), 0, 1)  # b is acknowledged
        await java.deliver(later(broker, 0, 1, is_suspended=is_suspended))
        await java.revive(b"b", "id-b", reconsume_times=int(not is_suspended))
        await java.deliver(later(broker, 2))
        await broker.topics.persist()
        await broker.tables.persist()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(20)
        assert sorted(await popped_rest(broker)) == [b"a", b"c"]

    killed(before, after, has_positions=has_positions)


def test_earlier_or_other_retry_of_a_message_does_not_count_as_its_revival() -> None:
    async def before(broker: SimulatedBroker) -> None:
        java = JavaPops(broker)
        await put_with_ids(broker, b"a", b"b", b"c")
        broker.offsets.commit(GROUP, TOPIC, 0, 3)
        await java.deliver(later(broker, 2))
        await java.revive(b"a", "id-a")
        await java.deliver(later(broker, 0, 1))
        await java.revive(b"b", "id-b", reconsume_times=2)
        broker.offsets.commit(GROUP, retry_topic_v1(GROUP, TOPIC), 0, 2)
        await broker.topics.persist()
        await broker.tables.persist()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(20)
        assert sorted(await popped_rest(broker)) == [b"a", b"b", b"c"]

    killed(before, after)
