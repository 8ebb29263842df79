"""Consume queues can be inspected, and only unused files are removed."""

from __future__ import annotations

from typing import Any

from kourou.broker.administration.admin_store import ENTRIES_MAX
from kourou.model.topic import TopicConfig
from kourou.protocol.brokers import QueryConsumeQueueRequestHeader, decode_consume_queue
from kourou.protocol.command import RemotingCommand
from kourou.protocol.hashing import java_string_hash
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker


async def look(broker: SimulatedBroker, **fields: Any) -> RemotingCommand:
    header_fields: dict[str, Any] = {"topic": "T", "queue_id": 0, "index": 0, "count": 3} | fields
    header = QueryConsumeQueueRequestHeader(**header_fields)
    return await broker.ask(broker.admin.store.on_query_consume_queue, header)


def test_queue_entries_are_returned_from_an_offset_on() -> None:
    async def test(broker: SimulatedBroker) -> None:
        stored = [
            (await broker.store_messages([broker.draft(tags=tags)])).appended[0]
            for tags in ("TagA", "", "TagB")
        ]

        found = decode_consume_queue((await look(broker, index=1, count=ENTRIES_MAX * 2)).body)

        assert (found.min_queue_index, found.max_queue_index) == (0, 3)
        assert [
            (one.physic_offset, one.physic_size, one.tags_code) for one in found.queue_data
        ] == [
            (stored[1].physical_offset, stored[1].size, 0),
            (stored[2].physical_offset, stored[2].size, java_string_hash("TagB")),
        ]
        assert (found.subscription, found.filter_data) == (None, None)
        assert not decode_consume_queue((await look(broker, count=-5)).body).queue_data

    run_with_broker(test)


def test_the_subscription_of_a_group_is_returned_with_the_entries() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        offline = decode_consume_queue((await look(broker, consumer_group="g")).body)
        assert (offline.subscription, offline.filter_data) == (None, "g@T is not online!")

        broker.connect("c")
        live = decode_consume_queue((await look(broker, consumer_group="g")).body)
        assert live.subscription is not None
        assert (live.subscription.sub_string, live.filter_data) == ("*", "null")

    run_with_broker(test)


def test_an_unknown_queue_or_offset_is_answered_as_by_java() -> None:
    async def test(broker: SimulatedBroker) -> None:
        unknown = await look(broker, topic="NoSuchTopic")
        assert (unknown.code, unknown.remark) == (1, "0@NoSuchTopic is not exist!")
        broker.topics.put(TopicConfig("T", 2, 2))
        assert (await look(broker, queue_id=2)).code == 1
        beyond = await look(broker, index=7)
        assert (beyond.code, beyond.remark) == (0, "Index 7 of 0@T is not exist!")

    run_with_broker(test)


def test_only_queues_of_deleted_topics_are_removed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for topic in ("T", "U"):
            await broker.store_messages([broker.draft(topic=topic)])
        await broker.store_messages([broker.draft(delay_level=3)])
        broker.topics.delete("U")

        answer = await broker.ask(broker.admin.store.on_clean_unused_topic)

        assert answer.code == 0
        assert sorted(broker.store.reader.queues()) == ["SCHEDULE_TOPIC_XXXX", "T"]

    run_with_broker(test)


def test_a_removal_that_fails_on_the_disk_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.topics.delete("T")
        broker.disk.fail_after(0, OSError(5, "Input/output error"))
        answer = await broker.ask(broker.admin.store.on_clean_unused_topic)
        assert answer.code == 1
        assert "topic T cannot be removed" in (answer.remark or "")

    run_with_broker(test)


def test_expired_messages_and_their_queue_files_are_removed_on_request() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        assert (await broker.ask(broker.admin.store.on_delete_expired_commitlog)).code == 0
        assert (await broker.ask(broker.admin.store.on_clean_expired_consume_queue)).code == 0
        assert broker.store.reader.queues() == {"T": [0]}

    run_with_broker(test)


def test_queue_files_of_a_read_only_store_are_not_removed() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk())
        broker.store.writer.set_read_only("a sync failed")
        refused = await broker.ask(broker.admin.store.on_clean_expired_consume_queue)
        assert (refused.code, refused.remark) == (1, "sim:0 is read-only: a sync failed")
        await broker.stop()

    run_virtual(main())


def test_export_of_pops_succeeds_unless_the_store_holds_some_that_are_not_read() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rollback = broker.admin.store.on_pop_rollback
        assert (await broker.ask(rollback)).code == 0
        broker.disk.make_directory("kvStore")
        broker.disk.write("kvStore/CURRENT", 0, [b"MANIFEST-000004"])
        answer = await broker.ask(rollback)
        assert answer.code == 1
        assert "Start the Java broker once more" in (answer.remark or "")

    run_with_broker(test)
