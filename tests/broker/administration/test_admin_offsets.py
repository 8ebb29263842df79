"""Offsets are reset for groups with and without members, cloned, and exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kourou.broker.consuming.consumer_offsets import FILE_NAME, parse_consumer_offsets
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.offset_table import decode_consumer_offset_table, decode_delay_offset_table
from kourou.protocol.offsets import (
    CloneGroupOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_reset_offsets,
)
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def reset(broker: SimulatedBroker, **fields: Any) -> RemotingCommand:
    """Reset group g in topic T, by default to the end of all queues."""
    header_fields: dict[str, Any] = {
        "topic": "T",
        "group": "g",
        "timestamp": -1,
        "is_force": True,
    } | fields
    handler = broker.admin.offsets.on_invoke_broker_to_reset_offset
    return await broker.ask(handler, ResetOffsetRequestHeader(**header_fields))


async def five_messages(broker: SimulatedBroker) -> None:
    """Store five messages in queue 0 of topic T, which has two queues, and create group g."""
    broker.topics.put(TopicConfig("T", 2, 2))
    broker.groups.get_or_create("g")
    for _ in range(5):
        await broker.store_messages([broker.draft()])


async def commit(broker: SimulatedBroker, offset: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader("g", "T", 0, offset)
    return await broker.ask(broker.offset_handlers.on_update_consumer_offset, header)


def test_a_reset_is_durable_when_answered_and_returns_the_new_offsets() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        broker.offsets.commit("g", "T", 0, 2)

        answer = await reset(broker)

        assert answer.code == 0
        assert decode_reset_offsets(answer.body) == {queue(0): 5, queue(1): 0}
        text = broker.disk.read(FILE_NAME, 0, broker.disk.size(FILE_NAME))
        assert parse_consumer_offsets(text)[1]["g", "T"] == {0: 5, 1: 0}

    run_with_broker(test)


def test_a_reset_to_a_time_selects_the_first_message_not_older() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        at_ms = broker.store.reader.store_time("T", 0, 3)

        answer = await reset(broker, timestamp=at_ms, queue_id=0)

        at = decode_reset_offsets(answer.body)[queue(0)]
        assert broker.store.reader.store_time("T", 0, at) >= at_ms
        assert at == 0 or broker.store.reader.store_time("T", 0, at - 1) < at_ms
        assert decode_reset_offsets((await reset(broker, timestamp=0)).body)[queue(0)] == 0

    run_with_broker(test)


def test_one_queue_is_reset_to_an_offset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)

        answer = await reset(broker, queue_id=0, offset=3)

        assert decode_reset_offsets(answer.body) == {queue(0): 3}
        assert broker.offsets.query("g", "T", 0) == 3
        assert broker.offsets.query("g", "T", 1) is None

    run_with_broker(test)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"topic": "NoSuchTopic"}, 17, "Topic NoSuchTopic does not exist"),
        ({"group": "unknown"}, 26, "Group unknown does not exist"),
        ({"queue_id": 0, "offset": 9999}, 1, "Target offset 9999 not in consume queue range [0-5]"),
        ({"queue_id": 0, "offset": 6}, 1, "Target offset 6 not in consume queue range [0-5]"),
        ({"queue_id": 0, "offset": -7}, 1, "Target offset -7 not in consume queue range [0-5]"),
        ({"queue_id": 2}, 29, "topic T has no queue 2; it has 2 queues"),
    ],
)
def test_an_invalid_reset_is_refused(fields: dict[str, Any], code: int, text: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)

        answer = await reset(broker, **fields)

        assert (answer.code, answer.remark) == (code, text)
        assert broker.offsets.of_topic("g", "T") == {}

    run_with_broker(test)


def test_a_topic_deleted_during_a_reset_keeps_no_offsets() -> None:
    """Otherwise a group would skip the first messages of a new topic of the same name."""
    during_search: list[Callable[[], object]] = []

    async def search(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        for call in during_search:
            call()
        return function(*args, **kwargs)

    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)

        during_search.append(lambda: broker.topics.delete("T"))
        answer = await reset(broker, timestamp=broker.clock.now_ms())

        assert (answer.code, answer.remark) == (17, "Topic T does not exist any more")
        assert broker.offsets.of_topic("g", "T") == {}

    run_with_broker(test, offload=search)


def test_refusals_have_javas_texts(golden: Golden) -> None:
    _, java = golden("222_INVOKE_BROKER_TO_RESET_OFFSET_raw-reset-offset-unknown-topic_rc17")
    assert java is not None

    async def test(broker: SimulatedBroker) -> None:
        answer = await reset(broker, topic="NoSuchTopic")
        assert (answer.code, answer.remark) == (java.code, java.remark)

    run_with_broker(test)


def test_a_reset_that_cannot_be_saved_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        broker.disk.fail_after(0, OSError(28, "No space left on device"))
        answer = await reset(broker)
        assert answer.code == 1
        assert "No space" in (answer.remark or "")

    run_with_broker(test)


def test_commits_are_ignored_until_a_pull_has_reported_the_reset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        await reset(broker, queue_id=0, offset=1)

        answer = await commit(broker, 4)
        assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
        header = QueryConsumerOffsetRequestHeader("g", "T", 0)
        read = await broker.ask(broker.offset_handlers.on_query_consumer_offset, header)
        assert read.ext_fields["offset"] == "1"

        peer = FakePeer()
        flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
        pulled = broker.pull(peer, queue_offset=4, commit_offset=4, flags=flags)
        assert pulled is not None
        assert (pulled.code, pulled.remark) == (21, "OFFSET_RESET")
        assert pulled.ext_fields["nextBeginOffset"] == "1"
        assert (pulled.ext_fields["minOffset"], pulled.ext_fields["maxOffset"]) == ("0", "5")
        assert broker.offsets.query("g", "T", 0) == 1

        again = broker.pull(peer, queue_offset=1)
        assert again is not None
        assert again.code == 0
        assert (await commit(broker, 2)).remark is None
        assert broker.offsets.query("g", "T", 0) == 2

    run_with_broker(test)


def test_a_reset_answers_the_held_pulls_of_the_group_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND
        waiting, other, elsewhere = FakePeer(1), FakePeer(2), FakePeer(3)
        assert broker.pull(waiting, queue_offset=5, flags=flags) is None
        assert broker.pull(other, queue_offset=5, flags=flags, consumer_group="h") is None
        assert broker.pull(elsewhere, queue_id=1, flags=flags) is None

        await reset(broker, queue_id=0, offset=0)

        assert [answer.code for answer in waiting.sent] == [21]
        assert waiting.sent[0].ext_fields["nextBeginOffset"] == "0"
        assert (other.sent, elsewhere.sent) == ([], [])

    run_with_broker(test)


def test_deleting_a_group_removes_its_pending_reset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        await reset(broker)
        broker.offsets.remove_group("g")
        assert not broker.offsets.is_reset("g", "T", 0)

    run_with_broker(test)


# Pushed to the members -----------------------------------------------------------------------


def run_pushing(test: Callable[[SimulatedBroker], Any]) -> None:
    run_with_broker(test, config=small_config(use_server_side_reset_offset=False))


def test_without_server_side_reset_the_offsets_are_only_sent_to_the_members() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        for queue_id, offset in ((0, 2), (1, 0)):
            broker.offsets.commit("g", "T", queue_id, offset)
        java = broker.connect("java")
        cpp = broker.connect("c++", language=LanguageCode.CPP)

        answer = await reset(broker)

        assert answer.code == 0
        assert decode_reset_offsets(answer.body) == {queue(0): 5, queue(1): 0}
        for peer, opening in ((java, b'{"offsetTable":{{'), (cpp, b'{"offsetTable":[{')):
            sent = peer.sent[-1]
            assert sent.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            assert sent.is_oneway
            assert sent.ext_fields["timestamp"] == "-1"
            assert sent.body.startswith(opening)
            assert decode_reset_offsets(sent.body) == {queue(0): 5, queue(1): 0}
        assert broker.offsets.of_topic("g", "T") == {0: 2, 1: 0}

    run_pushing(test)


def test_without_force_no_offset_is_moved_forward() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        for queue_id, offset in ((0, 2), (1, 0)):
            broker.offsets.commit("g", "T", queue_id, offset)
        broker.connect("java")

        answer = await reset(broker, is_force=False)

        assert decode_reset_offsets(answer.body) == {queue(0): 2, queue(1): 0}

    run_pushing(test)


def test_a_reset_that_cannot_be_sent_to_the_group_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        never_committed = await reset(broker)
        assert never_committed.code == 1
        assert (never_committed.remark or "").startswith("THe consumer group <g> not exist")

        for queue_id in (0, 1):
            broker.offsets.commit("g", "T", queue_id, 0)
        offline = await reset(broker)
        assert (offline.code, offline.remark) == (
            206,
            "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: -1",
        )

        broker.connect("old", version=27)
        too_old = await reset(broker)
        assert too_old.code == 1
        assert "does not support this feature" in (too_old.remark or "")

    run_pushing(test)


# Cloning and handing over --------------------------------------------------------------------


async def clone(broker: SimulatedBroker, **fields: Any) -> RemotingCommand:
    header = CloneGroupOffsetRequestHeader("g", "h", **fields)
    return await broker.ask(broker.admin.offsets.on_clone_group_offset, header)


def test_offsets_are_cloned_in_one_topic_or_in_all() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for topic in ("T", "U"):
            broker.topics.put(TopicConfig(topic, 2, 2))
            broker.offsets.commit("g", topic, 1, 7)
        broker.offsets.commit("g", "Gone", 0, 7)
        broker.offsets.commit("h", "T", 0, 3)

        assert (await clone(broker, topic="T")).code == 0
        assert broker.offsets.of_topic("h", "T") == {1: 7}
        assert broker.offsets.of_topic("h", "U") == {}

        await clone(broker)
        assert broker.offsets.topics_of("h") == ["T", "U"]
        assert broker.offsets.of_topic("g", "T") == {1: 7}

    run_with_broker(test)


def test_clone_replaces_a_pending_reset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await five_messages(broker)
        broker.offsets.commit("g", "T", 0, 4)
        broker.offsets.reset("h", "T", 0, 1)

        await clone(broker, topic="T")

        assert broker.offsets.take_reset("h", "T", 0) is None
        assert broker.offsets.query("h", "T", 0) == 4

    run_with_broker(test)


def test_topics_without_subscription_are_cloned_only_with_offline() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for topic in ("T", "U"):
            broker.topics.put(TopicConfig(topic, 1, 1))
            broker.offsets.commit("g", topic, 0, 0)
        broker.connect("c", topics=["T"])

        await clone(broker)
        assert broker.offsets.topics_of("h") == ["T"]
        await clone(broker, offline=True)
        assert broker.offsets.topics_of("h") == ["T", "U"]

    run_with_broker(test)


def test_offsets_are_not_cloned_to_a_group_that_cannot_be_created() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 1, 1))
        broker.offsets.commit("g", "T", 0, 0)
        assert (await clone(broker)).code == 26
        assert broker.offsets.topics_of("h") == []

    run_with_broker(test, config=small_config(auto_create_subscription_group=False))


def test_all_committed_offsets_are_returned_with_their_version() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.offsets.commit("g", "T", 3, 9)
        broker.offsets.note_pulled("g", "T", 3, 12)
        await broker.tables.persist()

        answer = await broker.ask(broker.admin.offsets.on_get_all_consumer_offset)

        table = decode_consumer_offset_table(answer.body)
        assert table.offsets == {"T@g": {3: 9}}
        assert table.pulled == {}
        assert table.group_topics == {"g": ["T"]}
        assert table.data_version is not None
        assert table.data_version.counter == 1

    run_with_broker(test)


def test_the_progress_of_delay_levels_is_returned() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.delay.offsets[3] = 42
        answer = await broker.ask(broker.admin.offsets.on_get_all_delay_offset)
        table = decode_delay_offset_table(answer.body)
        assert table.offsets == {3: 42}
        assert table.data_version is not None

    run_with_broker(test)
