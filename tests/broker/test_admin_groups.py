"""Groups are administered as with Java, and a change that is answered is durable."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.broker.clients import Member
from kourou.broker.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.groups import FILE_NAME as GROUPS_FILE
from kourou.filter.tags import parse_tags
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.bodies import (
    ConsumeOffset,
    ConsumerData,
    decode_consume_stats,
    decode_subscription_group,
    decode_subscription_group_table,
    encode_subscription_group,
)
from kourou.protocol.codes import LanguageCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.fastjson import loads
from kourou.protocol.headers_admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from kourou.protocol.headers_consume import GetConsumerListByGroupRequestHeader
from kourou.remoting.dispatch import Handler
from kourou.testing.broker_parts import BrokerParts, run_with_parts, small_config
from kourou.testing.clock import EPOCH_MS
from kourou.testing.peers import FakePeer

VERSION = f'{{"counter":3,"stateVersion":0,"timestamp":{EPOCH_MS}}}'
OLD_VERSION = VERSION.replace("3", "2", 1)

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def run(test: Callable[[BrokerParts], Coroutine[Any, Any, None]], **options: object) -> None:
    """Run `test` with the parts of a broker, as `run_with_parts` does."""
    run_with_parts(test, config=small_config(**options))


async def ask(
    parts: BrokerParts, handler: Handler, header: object | None = None, body: bytes = b""
) -> RemotingCommand:
    """Return the answer, which may have to wait for the disk."""
    peer = FakePeer()
    peer.ask(handler, peer.request(0, header, body))
    await parts.later.close()
    return peer.sent[0]


async def update(parts: BrokerParts, group: SubscriptionGroup) -> RemotingCommand:
    handler = parts.admin.groups.on_update_and_create_subscription_group
    return await ask(parts, handler, body=encode_subscription_group(group))


def test_a_made_group_survives_a_crash_as_soon_as_it_is_answered() -> None:
    made = SubscriptionGroup("g", retry_max_times=3, consume_message_orderly=True)

    async def test(parts: BrokerParts) -> None:
        answer = await update(parts, made)

        assert (answer.code, answer.remark) == (0, None)
        text = parts.disk.read(GROUPS_FILE, 0, parts.disk.size(GROUPS_FILE))
        assert decode_subscription_group_table(text).groups["g"] == made

    run(test)


def test_a_change_that_cannot_be_saved_is_told() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.fail_after(0, OSError(28, "No space left on device"))
        answer = await update(parts, SubscriptionGroup("g"))
        assert answer.code == 1
        assert "No space" in (answer.remark or "")

    run(test)


@pytest.mark.parametrize(
    ("group", "code"),
    [
        (SubscriptionGroup("bad group!"), 29),
        (SubscriptionGroup("g" * 121), 29),
        (SubscriptionGroup("g", retry_queue_nums=-1), 29),
        (SubscriptionGroup("g", retry_queue_nums=1_000_000), 29),
        (SubscriptionGroup("g", attributes={"+priority.factor": "1"}), 1),
    ],
)
def test_a_group_that_cannot_be_is_refused(group: SubscriptionGroup, code: int) -> None:
    async def test(parts: BrokerParts) -> None:
        answer = await update(parts, group)
        assert answer.code == code
        assert answer.remark
        assert len(parts.groups) == 1

    run(test)


def test_a_body_that_is_no_group_is_refused(golden: Golden) -> None:
    recorded, expected = golden(
        "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_raw-create-group-invalid_rc29"
    )
    assert expected is not None

    async def test(parts: BrokerParts) -> None:
        handler = parts.admin.groups.on_update_and_create_subscription_group
        assert (await ask(parts, handler, body=recorded.body)).code == expected.code
        assert (await ask(parts, handler, body=b"{}")).code == 1
        assert (await ask(parts, handler)).code == 1

    run(test)


def test_a_deleted_group_takes_its_offsets_along_if_asked() -> None:
    async def test(parts: BrokerParts) -> None:
        for name in ("g", "h"):
            await update(parts, SubscriptionGroup(name))
            parts.offsets.commit(name, "T", 0, 1)
        delete = parts.admin.groups.on_delete_subscription_group

        for header in (
            DeleteSubscriptionGroupRequestHeader("g", clean_offset=True),
            DeleteSubscriptionGroupRequestHeader("h"),
            DeleteSubscriptionGroupRequestHeader("unknown"),
        ):
            assert (await ask(parts, delete, header)).code == 0

        assert parts.groups.get("g") is parts.groups.get("h") is None
        assert parts.offsets.topics_of("g") == []
        assert parts.offsets.topics_of("h") == ["T"]
        assert b"T@g" not in parts.disk.read(OFFSETS_FILE, 0, parts.disk.size(OFFSETS_FILE))

    run(test)


def test_one_group_is_read_and_made_where_groups_are_made(golden: Golden) -> None:
    _, expected = golden("352_GET_SUBSCRIPTIONGROUP_CONFIG_raw-group-config")
    assert expected is not None

    async def test(parts: BrokerParts) -> None:
        await update(parts, SubscriptionGroup("golden_group", retry_max_times=5))
        read = parts.admin.groups.on_get_subscription_group_config

        answer = await ask(parts, read, GetSubscriptionGroupConfigRequestHeader("golden_group"))
        assert answer.body == expected.body
        answer = await ask(parts, read, GetSubscriptionGroupConfigRequestHeader("new"))
        assert decode_subscription_group(answer.body) == SubscriptionGroup("new")
        assert parts.groups.get("new") is not None
        answer = await ask(parts, read, GetSubscriptionGroupConfigRequestHeader("bad group!"))
        assert answer.code == 26

    run(test)


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (GetAllSubscriptionGroupRequestHeader(), ["TOOLS_CONSUMER", "a", "b", "c"]),
        (GetAllSubscriptionGroupRequestHeader(0, None, 2), ["TOOLS_CONSUMER", "a"]),
        (GetAllSubscriptionGroupRequestHeader(2, VERSION, 2), ["b", "c"]),
        (GetAllSubscriptionGroupRequestHeader(3, VERSION), ["c"]),
        (GetAllSubscriptionGroupRequestHeader(9, VERSION, 2), []),
        (GetAllSubscriptionGroupRequestHeader(2, "", 2), ["TOOLS_CONSUMER", "a"]),
        (GetAllSubscriptionGroupRequestHeader(2, OLD_VERSION, 2), ["TOOLS_CONSUMER", "a"]),
        (GetAllSubscriptionGroupRequestHeader(-1, None, -1), []),
    ],
)
def test_groups_are_read_all_or_by_the_page(
    header: GetAllSubscriptionGroupRequestHeader, names: list[str]
) -> None:
    async def test(parts: BrokerParts) -> None:
        for name in ("c", "a", "b"):
            parts.groups.put(SubscriptionGroup(name))

        answer = await ask(parts, parts.admin.groups.on_get_all_subscription_group_config, header)

        assert answer.ext_fields == {"totalGroupNum": "4"}
        table = decode_subscription_group_table(answer.body)
        assert sorted(table.groups) == names
        assert table.data_version.counter == 3

    run(test)


def test_connected_members_are_listed_with_what_they_want() -> None:
    async def test(parts: BrokerParts) -> None:
        read = parts.admin.clients.on_get_consumer_connection_list
        header = GetConsumerListByGroupRequestHeader("g")
        assert (await ask(parts, read, header)).code == 206
        parts.groups.get_or_create("g")
        parts.clients.register_consumer(
            Member("raw@1", FakePeer(57840), LanguageCode.JAVA, 513, 0),
            ConsumerData("g", subscriptions=[parse_tags("T", "*", 1)]),
        )

        answer = await ask(parts, read, header)

        assert loads(answer.body) == {
            "connectionSet": [
                {
                    "clientAddr": "10.0.0.9:57840",
                    "clientId": "raw@1",
                    "language": "JAVA",
                    "version": 513,
                }
            ],
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "subscriptionTable": {
                "T": {
                    "classFilterMode": False,
                    "codeSet": [],
                    "expressionType": "TAG",
                    "subString": "*",
                    "subVersion": 1,
                    "tagsSet": [],
                    "topic": "T",
                }
            },
        }

    run(test)


async def stats(parts: BrokerParts, **fields: Any) -> dict[MessageQueue, ConsumeOffset]:
    header = GetConsumeStatsRequestHeader("g", **fields)
    answer = await ask(parts, parts.admin.progress.on_get_consume_stats, header)
    assert answer.code == 0
    return dict(decode_consume_stats(answer.body).offsets)


def test_where_a_group_stands_is_told_by_queue() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 2, 2))
        for _ in range(3):
            await parts.store_messages([parts.draft()])
        stored_at_ms = parts.store.store_time("T", 0, 1)
        parts.offsets.commit("g", "T", 0, 2)
        parts.offsets.note_pulled("g", "T", 0, 3)
        parts.offsets.commit("g", "Gone", 0, 1)

        assert await stats(parts) == {
            MessageQueue("T", "broker-a", 0): ConsumeOffset(3, 2, 3, stored_at_ms),
            MessageQueue("T", "broker-a", 1): ConsumeOffset(0, 0, 0, 0),
        }
        assert await stats(parts, topic="Gone") == {}

    run(test)


def test_topics_not_subscribed_any_more_are_left_out_unless_listed() -> None:
    async def test(parts: BrokerParts) -> None:
        for name in ("T", "U"):
            parts.topics.put(TopicConfig(name, 1, 1))
            parts.offsets.commit("g", name, 0, 0)
        parts.clients.register_consumer(
            Member("c", FakePeer(), LanguageCode.JAVA, 513, 0),
            ConsumerData("g", subscriptions=[parse_tags("T", "*")]),
        )

        assert [queue.topic for queue in await stats(parts)] == ["T"]
        assert [queue.topic for queue in await stats(parts, topic="U")] == []
        assert [queue.topic for queue in await stats(parts, topic_list="U;T;")] == ["T", "U"]

    run(test)
