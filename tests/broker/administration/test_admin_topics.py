"""Administrators create, change, list and delete topics as at a Java broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.administration.admin_topics import TopicAdminHandlers
from kourou.broker.administration.topic_deletion import TopicDeletion
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.data_version import encode_data_version
from kourou.protocol.offsets import parse_topic_begin
from kourou.protocol.stats import GetTopicStatsInfoRequestHeader, TopicOffset, decode_topic_stats
from kourou.protocol.topic_table import GetAllTopicConfigRequestHeader, decode_topic_config_table
from kourou.protocol.topics import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    decode_topic_config,
    decode_topic_list,
    encode_topic_config_list,
)
from kourou.remoting.runtime import Offload
from kourou.testing.clock import EPOCH_MS
from kourou.testing.runtime import call_directly
from kourou.testing.send_rig import SendRig, run_sends

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]

CREATE = CreateTopicRequestHeader("New", "TBW102", 4, 8, 6, "SINGLE_TAG", 0)


class AdminBench:
    """An administrator of a broker that serves sends."""

    def __init__(self, sends: SendRig, offload: Offload = call_directly) -> None:
        self.sends = sends
        self.broker = broker = sends.broker
        context = replace(broker.components.context, offload=offload)
        deletion = TopicDeletion(
            context,
            broker.offsets,
            broker.tables.order_infos,
            broker.queue_deletion,
            broker.held_pulls.on_topic_deleted,
        )
        self.handlers = TopicAdminHandlers(context, broker.offsets, deletion)

    async def ask(self, code: int, header: object) -> RemotingCommand:
        """Return the answer to a request."""
        return await self.ask_with(self.sends.peer.request(code, header).command)

    async def ask_with(self, command: RemotingCommand) -> RemotingCommand:
        """Return the answer to a prepared request."""
        peer = self.sends.peer
        handler: Any = {
            17: self.handlers.on_update_and_create_topic,
            18: self.handlers.on_update_and_create_topic_list,
            305: self.handlers.on_get_system_topic_list,
            21: self.handlers.on_get_all_topic_config,
            202: self.handlers.on_get_topic_stats_info,
            215: self.handlers.on_delete_topic,
            351: self.handlers.on_get_topic_config,
        }[command.code]
        before = len(peer.sent)
        peer.ask(handler, peer.request_of(command))
        await asyncio.sleep(0.01)
        (answer,) = peer.sent[before:]
        return answer

    def saved_topics(self) -> str:
        """Return the content of the file on the disk."""
        return self.broker.disk.read("config/topics.json", 0, 1 << 20).decode()


def test_a_created_topic_is_durable_when_it_is_answered() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        answer = await admin.ask(17, replace(CREATE, attributes="+message.type=FIFO", order=True))
        assert answer.code == 0
        topic = TopicConfig("New", 4, 8, 6, order=True, attributes={"message.type": "FIFO"})
        assert admin.broker.topics.get("New") == topic
        assert '"New"' in admin.saved_topics()

    run_sends(test)


def test_a_change_keeps_the_attributes_that_it_does_not_name() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        await admin.ask(17, replace(CREATE, attributes="+message.type=FIFO"))
        await admin.ask(17, replace(CREATE, perm=4, attributes=""))
        topic = admin.broker.topics.get("New")
        assert topic is not None
        assert (topic.perm, topic.attributes) == (4, {"message.type": "FIFO"})

    run_sends(test)


def test_an_equal_topic_changes_no_version() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        await admin.ask(17, CREATE)
        version = admin.broker.topics.data_version
        assert (await admin.ask(17, CREATE)).code == 0
        assert admin.broker.topics.data_version == version

    run_sends(test)


@pytest.mark.parametrize(
    "name",
    [
        "17_UPDATE_AND_CREATE_TOPIC_raw-create-topic-invalid_rc29",
        "17_UPDATE_AND_CREATE_TOPIC_raw-create-topic-system_rc29",
        "17_UPDATE_AND_CREATE_TOPIC_admin-updateTopic-bad-attribute_rc1",
        "215_DELETE_TOPIC_IN_BROKER_raw-delete-topic-system_rc29",
        "215_DELETE_TOPIC_IN_BROKER_raw-delete-topic-unknown",
        "18_UPDATE_AND_CREATE_TOPIC_LIST_raw-create-topic-list",
        "305_GET_SYSTEM_TOPIC_LIST_FROM_BROKER_raw-system-topics-broker",
        "202_GET_TOPIC_STATS_INFO_raw-topic-stats-unknown_rc17",
        "351_GET_TOPIC_CONFIG_raw-topic-config-unknown_rc17",
    ],
)
def test_response_codes_are_those_of_java(golden: Golden, name: str) -> None:
    request, expected = golden(name)
    assert expected is not None

    async def test(bench: SendRig) -> None:
        answer = await AdminBench(bench).ask_with(request)
        assert answer.code == expected.code
        assert bool(answer.remark) == bool(expected.code)

    run_sends(test)


@pytest.mark.parametrize(
    "change",
    [
        {"read_queue_nums": 0},
        {"write_queue_nums": -1},
        {"write_queue_nums": 100_000},
        {"perm": 8},
        {"perm": -1},
        {"topic_filter_type": "SOME_TAG"},
        {"attributes": "+message.type=MIXED"},
        {"attributes": "+cleanup.policy=COMPACTION"},
    ],
)
def test_a_topic_with_invalid_settings_is_not_created(change: dict[str, Any]) -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        answer = await admin.ask(17, replace(CREATE, **change))
        assert answer.code == 29
        assert answer.remark
        assert admin.broker.topics.get("New") is None

    run_sends(test)


def test_mixed_message_types_are_allowed_only_by_the_option() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        mixed = replace(CREATE, attributes="+message.type=MIXED")
        admin.broker.live_config.update({"enableMixedMessageType": "true"}, EPOCH_MS)
        assert (await admin.ask(17, mixed)).code == 0
        admin.broker.live_config.update({"enableMixedMessageType": "false"}, EPOCH_MS)
        assert (await admin.ask(17, replace(CREATE, perm=4))).code == 0, "it stays what it is"
        assert (await admin.ask(17, mixed)).code == 29
        topic = admin.broker.topics.get("New")
        assert topic is not None
        assert (topic.perm, topic.attributes) == (4, {"message.type": "MIXED"})

    run_sends(test)


def test_a_topic_that_cannot_be_saved_is_not_confirmed() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        admin.broker.disk.fail_after(0, OSError(28, "No space left"), ["write"])
        answer = await admin.ask(17, CREATE)
        assert answer.code == 14
        assert "No space left" in (answer.remark or "")

    run_sends(test)


def test_deleting_a_topic_removes_its_queues_and_offsets() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        await bench.send()
        admin.broker.offsets.commit("g", "T", 0, 1)
        assert (await admin.ask(215, DeleteTopicRequestHeader("T"))).code == 0
        assert admin.broker.topics.get("T") is None
        assert admin.broker.store.reader.max_offset("T", 0) == 0
        assert admin.broker.offsets.query("g", "T", 0) is None
        assert '"T"' not in admin.saved_topics()

        again = await bench.send(topic="T")
        assert (again.code, again.ext_fields["queueOffset"]) == (0, "0")

    run_sends(test)


def test_a_topic_is_not_deleted_from_a_read_only_store() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        await bench.send()
        admin.broker.store.writer.set_read_only("for this test")
        answer = await admin.ask(215, DeleteTopicRequestHeader("T"))
        assert answer.code == 14
        assert "for this test" in (answer.remark or "")
        assert admin.broker.topics.get("T") is not None

    run_sends(test)


def test_one_topic_is_returned(golden: Golden) -> None:
    _, expected = golden("351_GET_TOPIC_CONFIG_raw-topic-config")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        admin.broker.topics.put(decode_topic_config(expected.body))
        answer = await admin.ask(351, GetTopicConfigRequestHeader("GoldenDelay"))
        assert answer.body == expected.body

    run_sends(test)


def test_topics_are_listed_in_one_answer_or_in_pages() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        topics = admin.broker.topics
        everything = await admin.ask(RequestCode.GET_ALL_TOPIC_CONFIG, None)
        assert everything.ext_fields == {"totalTopicNum": str(len(topics))}
        assert decode_topic_config_table(everything.body) == topics.table()

        version = encode_data_version(topics.data_version).decode()
        names: list[str] = []
        while len(names) < len(topics):
            header = GetAllTopicConfigRequestHeader(len(names), version, 3)
            page = await admin.ask(21, header)
            names += decode_topic_config_table(page.body).topics
        assert sorted(names) == sorted(topics.table().topics)

    run_sends(test)


def test_a_page_of_an_older_version_starts_at_zero() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        version = encode_data_version(admin.broker.topics.data_version).decode()
        admin.broker.topics.put(TopicConfig("Newer"))
        first = await admin.ask(21, GetAllTopicConfigRequestHeader(0, None, 3))
        for stale in (version, None):
            page = await admin.ask(21, GetAllTopicConfigRequestHeader(6, stale, 3))
            assert page.body == first.body

    run_sends(test)


def test_topic_stats_contain_the_offsets_of_each_queue() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        for queue_id in (0, 0, 3):
            await bench.send(queue_id=queue_id)
        answer = await admin.ask(202, GetTopicStatsInfoRequestHeader("T"))
        assert decode_topic_stats(answer.body).offsets == {
            MessageQueue("T", "broker-a", 0): TopicOffset(0, 2, EPOCH_MS + 1000),
            MessageQueue("T", "broker-a", 1): TopicOffset(0, 0, 0),
            MessageQueue("T", "broker-a", 2): TopicOffset(0, 0, 0),
            MessageQueue("T", "broker-a", 3): TopicOffset(0, 1, EPOCH_MS + 2000),
        }
        assert parse_topic_begin(answer.ext_fields) == 0

    run_sends(test)


def test_the_times_of_messages_are_read_off_the_loop() -> None:
    async def test(bench: SendRig) -> None:
        is_off_the_loop = False

        async def offload(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_off_the_loop
            is_off_the_loop = True
            try:
                return function(*args, **kwargs)
            finally:
                is_off_the_loop = False

        def watch(operation: str, name: str) -> None:
            assert is_off_the_loop, (operation, name)
            seen.append(operation)

        seen: list[str] = []
        admin = AdminBench(bench, offload)
        await bench.send(topic="T", queue_id=0)
        bench.broker.commit.flush(EPOCH_MS)
        bench.broker.disk.on_operation = watch
        assert (await admin.ask(202, GetTopicStatsInfoRequestHeader("T"))).code == 0
        bench.broker.disk.on_operation = None
        assert "read" in seen

    run_sends(test)


async def ask_list(admin: AdminBench, *topics: TopicConfig) -> RemotingCommand:
    body = encode_topic_config_list(topics)
    return await admin.ask_with(admin.sends.peer.request(18, None, body).command)


def test_a_list_of_topics_is_durable_when_it_is_answered() -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        await admin.ask(17, replace(CREATE, attributes="+message.type=NORMAL"))
        answer = await ask_list(
            admin,
            TopicConfig("New", 1, 1, attributes={"-message.type": ""}),
            TopicConfig("Other", 2, 2, attributes={"+message.type": "FIFO"}),
        )
        assert (answer.code, answer.remark) == (0, None)
        assert admin.broker.topics.get("New") == TopicConfig("New", 1, 1)
        other = TopicConfig("Other", 2, 2, attributes={"message.type": "FIFO"})
        assert admin.broker.topics.get("Other") == other
        assert '"Other"' in admin.saved_topics()

    run_sends(test)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (TopicConfig("not a name"), 29),
        (TopicConfig("TBW102"), 29),
        (TopicConfig("DefaultCluster"), 29),
        (TopicConfig("Bad", 0, 1), 29),
        (TopicConfig("Bad", attributes={"message.type": "FIFO"}), 1),
    ],
)
def test_a_list_with_one_invalid_topic_is_refused(bad: TopicConfig, code: int) -> None:
    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        version = admin.broker.topics.data_version
        answer = await ask_list(admin, TopicConfig("Good"), bad)
        assert answer.code == code
        assert admin.broker.topics.get("Good") is None
        assert admin.broker.topics.data_version == version

    run_sends(test)


def test_system_topics_are_those_of_a_java_broker(golden: Golden) -> None:
    request, java = golden("305_GET_SYSTEM_TOPIC_LIST_FROM_BROKER_raw-system-topics-broker")
    assert java is not None
    expected = set(decode_topic_list(java.body))

    async def test(bench: SendRig) -> None:
        admin = AdminBench(bench)
        answer = await admin.ask_with(request)
        assert set(decode_topic_list(answer.body)) == expected
        for name in expected:
            assert (await admin.ask(17, replace(CREATE, topic=name))).code == 29, name
            assert (await admin.ask(215, DeleteTopicRequestHeader(name))).code == 29, name

    run_sends(test)
